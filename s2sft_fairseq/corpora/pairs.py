"""The user's own pairs: JSON lines, a table with tabs or commas, or two line-aligned files; any may be compressed.

A source may have several fields: the given keys of a JSON object, or the parts of a text that are separated by
``[SEP]``. For generation and scoring, pairs with the same source are merged into one example with several references.
"""

import hashlib
import logging
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
)
from s2sft_fairseq.corpora.tables import NAMING, is_table, read_table
from s2sft_fairseq.corpora.writing import write_corpus
from s2sft_fairseq.data.bounded_files import parse_json
from s2sft_fairseq.data.text_files import is_json_lines
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.progress import bar

logger = logging.getLogger(__name__)

HELD_OUT_SHARE, HELD_OUT_LEAST, HELD_OUT_MOST = 50, 50, 1000
"""One of 50 pairs is held out for validation, but at least 50 and at most 1,000 pairs."""
HELD_OUT_OF_FEW = 5
"""At most one of 5 pairs is held out; this takes precedence over the minimum of 50."""


class Fields(NamedTuple):
    """Keys of a JSON object, or columns of a table; the value of a JSON target may be a list of references."""

    source: tuple[str, ...] = ("src",)
    target: str = "tgt"

    @classmethod
    def of(cls, source: str | Iterable[str], target: str) -> "Fields":
        """Return the fields of a program, which names a single one by a text.

        Raises:
            UserError: they are no names, or a name occurs twice.
        """
        several = source if isinstance(source, Iterable) else ()
        names = (source,) if isinstance(source, str) else tuple(several)
        problems = []
        if not names or not all(isinstance(name, str) and name for name in names):
            problems.append(f"source must be a name or a list of names, but is {source!r:.60}")
        if not isinstance(target, str) or not target:
            problems.append(f"target must be a name, but is {target!r:.60}")
        elif len({*names, target}) <= len(names):
            problems.append(f"source and target must be different names, but are {', '.join([*names, target])}")
        if problems:
            raise UserError.of(problems)
        return cls(names, target)


USUAL = Fields()


def file_problems(option: str, paths: Sequence[Path]) -> Iterator[str]:
    """Yield errors in the file names of an option."""
    yield from (f"{option} {path}: no such file" for path in paths if not path.exists())
    if len(paths) == 1 and not (is_json_lines(paths[0]) or is_table(paths[0])):
        yield f"{option} must be a .jsonl, .json, .tsv or .csv file, or two line-aligned files, but is {paths[0]} alone"
    if len(paths) > 2:
        yield f"{option} must be one file or two, but names {len(paths)}"


def read_pairs(paths: Sequence[Path], fields: Fields, malformed: Malformed) -> Iterator[Example]:
    """Yield the examples of a file of JSON lines or of a table, or of two line-aligned files.

    Args:
        paths: one file whose name ends in ``.jsonl``, ``.tsv`` or ``.csv``, or the files of sources and targets;
            ``.gz`` may follow.
        fields: keys of JSON objects, or columns of a table that has a header.
        malformed: collects malformed lines, which are left out.

    Raises:
        UserError: if a file cannot be read, two have different numbers of lines, or a table lacks the columns.
    """
    for example in _read(paths, fields, malformed):
        with malformed.record(example.path, example.where):
            if any("\0" in text for text in (*example.source, *example.references)):
                raise MalformedRecordError("holds a NUL character (is the file UTF-16?)")
            yield example


def _read(paths: Sequence[Path], fields: Fields, malformed: Malformed) -> Iterator[Example]:
    if len(paths) > 1:
        for number, (text, target) in aligned_lines(paths, malformed):
            yield Example(paths[0], number, _fields(text), (target,), tuple(paths))
        return
    (path,) = paths
    if is_table(path):
        for number, cells, target in read_table(path, *fields, malformed, is_usual=fields == USUAL):
            yield Example(path, number, _fields(*cells), (target,))
        return
    for number, line in numbered_lines(path, malformed):
        with malformed.record(path, number):
            if line is not None:
                source, references = _from_json(line, fields)
                yield Example(path, number, source, references)


def _from_json(line: str, fields: Fields) -> tuple[tuple[str, ...], tuple[str, ...]]:
    try:
        record = parse_json(line)
    except ValueError:
        is_array = line.strip() == "["
        raise MalformedRecordError(ARRAY if is_array else NO_JSON) from None
    if isinstance(record, list) and record and all(isinstance(each, dict) for each in record):
        raise MalformedRecordError(ARRAY)
    if problem := record_problem(record, fields):
        raise MalformedRecordError(problem)
    found = record[target_key(record, fields)]
    return _fields(*(record[key] for key in fields.source)), tuple(found) if isinstance(found, list) else (found,)


NO_JSON = "is not valid JSON"
ARRAY = "begins a JSON array: one object a line is needed"


def target_key(record: Mapping[str, Any], fields: Fields) -> str:
    """Return the key of the target of a record: that of `fields`, or ``refs`` if they are the usual ones."""
    return "refs" if fields == USUAL and "tgt" not in record and "refs" in record else fields.target


def record_problem(record: Any, fields: Fields) -> str | None:
    """Return what is wrong with a record, such as a JSON object or a dict of a program; None if nothing is."""
    if not isinstance(record, Mapping):
        return f"must be an object, but is {record!r:.60}"
    key = target_key(record, fields)
    keys = (*fields.source, key)
    for name in keys:
        if name not in record:
            return f"lacks {name!r}{_other_keys(record, keys)}"
    for name in fields.source:
        if not isinstance(record[name], str):
            return f"{name!r} must be a text, but is {record[name]!r:.60}"
    target = record[key]
    if isinstance(target, list) and not all(isinstance(text, str) for text in target):
        return f"{key!r} must be a text or a list of texts, but is {target!r:.60}"
    return None if isinstance(target, str | list) else f"{key!r} must be a text, but is {target!r:.60}"


def _other_keys(record: Mapping[str, Any], keys: Sequence[str]) -> str:
    """Return the keys that a record has in place of those that it lacks."""
    others = [f"{key!s:.30}" for key in record if key not in keys]
    if not others:
        return ""
    more = ", ..." if len(others) > 8 else ""
    return f": it has {', '.join(others[:8])}{more} ({NAMING})"


def _fields(*texts: str) -> tuple[str, ...]:
    """Return the fields of a source: those of its only text, or one for each of several texts."""
    return tuple(texts[0].split(FIELD_SEPARATOR)) if len(texts) == 1 else texts


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
        is_held_out = hold_out(bar(examples("train"), "hold out", " pairs"), malformed, skip_malformed=skip_malformed)
        splits["train"] = (example for example in examples("train") if not is_held_out(example))
        splits["valid"] = _by_source(filter(is_held_out, examples("train")), malformed)
    if files.get("test"):
        splits["test"] = _by_source(examples("test"), malformed)
    settings = {"held out": not files.get("valid")}
    stats = write_corpus(splits, folder, malformed, skip_malformed=skip_malformed, settings=settings)
    for note in malformed.notes:
        logger.warning(note)
    return stats


def hold_out(
    examples: Iterable[Example], malformed: Malformed | None = None, *, skip_malformed: bool = False
) -> Callable[[Example], bool]:
    """Return a predicate that is true of the examples to hold out.

    Args:
        examples: all well-formed examples.
        malformed: the malformed ones, which `examples` collects.
        skip_malformed: whether malformed examples are allowed.

    Raises:
        UserError: if there are too few examples; if others are malformed, naming these first.
    """
    hashes = sorted(map(_hash, examples))
    count = len(hashes)
    held_out = min(max(count // HELD_OUT_SHARE, HELD_OUT_LEAST), HELD_OUT_MOST, count // HELD_OUT_OF_FEW)
    if not held_out:
        if malformed and not skip_malformed:
            malformed.raise_any()
        of_others = malformed.lines() if malformed else []
        if not count:
            raise UserError.of(["--train has no pairs", *of_others])
        raise UserError.of(
            [
                "--valid is needed: a part of --train is held out where it has "
                f"{HELD_OUT_OF_FEW} pairs, but it has {count}",
                *of_others,
            ]
        )
    last = hashes[held_out - 1]
    if last == hashes[-1]:
        raise UserError(
            f"--valid is needed: all {count} pairs of --train have the same source, and none would be left to train on"
        )
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
