"""The user's own pairs: JSON lines, a table of two columns, or two line-aligned files; any may be compressed.

A source may have several fields: the given keys of a JSON object, or the parts of a text that are separated by
``[SEP]``. For generation and scoring, pairs with the same source are merged into one example with several references.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from s2sft_fairseq.corpora.reading import (
    FIELD_SEPARATOR,
    Example,
    Malformed,
    MalformedRecordError,
    aligned_lines,
    numbered_lines,
    one_line,
    take,
)
from s2sft_fairseq.corpora.writing import write_corpus
from s2sft_fairseq.data.bounded_files import parse_json
from s2sft_fairseq.data.text_files import is_json_lines, plain_name
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.progress import bar

HELD_OUT_SHARE, HELD_OUT_LEAST, HELD_OUT_MOST = 50, 50, 1000
"""One of 50 pairs is held out for validation, but at least 50 and at most 1,000 pairs."""
HELD_OUT_OF_FEW = 5
"""At most one of 5 pairs is held out; this takes precedence over the minimum of 50."""


class Fields(NamedTuple):
    """Keys of a JSON object; the value of the target may be a list of references."""

    source: tuple[str, ...] = ("src",)
    target: str = "tgt"


USUAL = Fields()


def file_problems(option: str, paths: Sequence[Path]) -> Iterator[str]:
    """Yield errors in the file names of an option."""
    yield from (f"{option} {path}: no such file" for path in paths if not path.exists())
    if len(paths) == 1 and not (is_json_lines(paths[0]) or plain_name(paths[0]).endswith(".tsv")):
        yield f"{option} must be a .jsonl file, a .tsv file or two line-aligned files, but is {paths[0]} alone"
    if len(paths) > 2:
        yield f"{option} must be one file or two, but names {len(paths)}"


def read_pairs(paths: Sequence[Path], fields: Fields, malformed: Malformed) -> Iterator[Example]:
    """Yield the examples of a file of JSON lines or of a table, or of two line-aligned files.

    Args:
        paths: one file whose name ends in ``.jsonl`` or ``.tsv``, or the files of sources and targets; ``.gz`` may
            follow.
        fields: keys of JSON objects.
        malformed: collects malformed lines, which are left out.

    Raises:
        UserError: if a file cannot be read, or two have different numbers of lines.
    """
    if len(paths) > 1:
        for number, (text, target) in aligned_lines(paths, malformed):
            yield Example(paths[0], number, _fields(text), (target,), tuple(paths))
        return
    (path,) = paths
    read = _from_json if is_json_lines(path) else _from_table
    for number, line in numbered_lines(path, malformed):
        with malformed.record(path, number):
            if line is not None:
                source, references = read(line, fields)
                yield Example(path, number, source, references)


def _from_json(line: str, fields: Fields) -> tuple[tuple[str, ...], tuple[str, ...]]:
    try:
        record = parse_json(line)
    except ValueError:
        raise MalformedRecordError("is not valid JSON") from None
    source = tuple(take(record, key, str) for key in fields.source)
    key = "refs" if fields == USUAL and "tgt" not in record and "refs" in record else fields.target
    if isinstance(record.get(key), list):
        references = record[key]
        if not all(isinstance(text, str) for text in references):
            raise MalformedRecordError(f"{key!r} must be a text or a list of texts, but is {references!r:.60}")
        return _fields(*source), tuple(references)
    return _fields(*source), (take(record, key, str),)


def _from_table(line: str, _: Fields) -> tuple[tuple[str, ...], tuple[str, ...]]:
    cells = line.split("\t")
    if len(cells) != 2:
        raise MalformedRecordError(f"must have two columns, source and target, but has {len(cells)}")
    return _fields(cells[0]), (cells[1],)


def _fields(*texts: str) -> tuple[str, ...]:
    return tuple(part for text in texts for part in text.split(FIELD_SEPARATOR))


def write_pairs(
    files: Mapping[str, Sequence[Path]],
    folder: Path,
    fields: Fields = USUAL,
    *,
    skip_malformed: bool = False,
    limit: int | None = None,
) -> dict[str, Any]:
    """Write the user's pairs to the files that `s2sft_fairseq.corpora.writing` describes.

    Without a validation set, a part of the training set is held out: one of 50 pairs, but at least 50 (or a fifth of a
    small set) and at most 1,000. The choice depends only on a hash of the sources, not on their order, and all pairs
    with the same source are in the same set.

    Args:
        files: the files of ``train``, and optionally of ``valid`` and ``test``; see `read_pairs`.
        folder: the new folder to write.
        fields: keys of JSON objects.
        skip_malformed: leave malformed lines out; otherwise they are an error.
        limit: read only the first pairs of each file.

    Returns:
        The contents of ``stats.json``: the numbers of lines, and whether the validation set is ``held out``.

    Raises:
        UserError: naming the malformed lines of all files, or other errors in them.
    """
    malformed = Malformed()

    def examples(split: str) -> Iterator[Example]:
        for number, example in enumerate(read_pairs(files[split], fields, malformed)):
            if limit is not None and number >= limit:
                return
            yield example

    splits: dict[str, Iterable[Example]] = {"train": examples("train")}
    if files.get("valid"):
        splits["valid"] = _by_source(examples("valid"), malformed)
    else:
        is_held_out = hold_out(bar(examples("train"), "hold out", " pairs"))
        splits["train"] = (example for example in examples("train") if not is_held_out(example))
        splits["valid"] = _by_source(filter(is_held_out, examples("train")), malformed)
    if files.get("test"):
        splits["test"] = _by_source(examples("test"), malformed)
    settings = {"held out": not files.get("valid")}
    return write_corpus(splits, folder, malformed, skip_malformed=skip_malformed, settings=settings)


def hold_out(examples: Iterable[Example]) -> Callable[[Example], bool]:
    """Return a predicate that is true of the examples to hold out.

    Raises:
        UserError: if there are too few examples.
    """
    hashes = sorted(map(_hash, examples))
    count = len(hashes)
    held_out = min(max(count // HELD_OUT_SHARE, HELD_OUT_LEAST), HELD_OUT_MOST, count // HELD_OUT_OF_FEW)
    if not held_out:
        raise UserError(
            f"--valid is needed: a part of --train is held out where it has {HELD_OUT_OF_FEW} pairs, but it has {count}"
        )
    last = hashes[held_out - 1]
    return lambda example: _hash(example) <= last


def _hash(example: Example) -> bytes:
    text = f" {FIELD_SEPARATOR} ".join(map(one_line, example.source))
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def _by_source(examples: Iterable[Example], malformed: Malformed) -> list[Example]:
    """Return one example per source, with all its references; malformed ones are left out."""
    found: dict[str, Example] = {}
    for example in examples:
        with malformed.record(example.path, example.where):
            source, references = example.source_line(), tuple(example.reference_lines())
            before = found.setdefault(source, replace(example, references=()))
            found[source] = replace(before, references=before.references + references)
    return list(found.values())
