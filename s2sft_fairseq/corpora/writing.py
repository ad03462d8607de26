"""From examples to the text files that a recipe trains on and scores.

================================  ======================================================================================
``train.src``, ``train.tgt``      a pair a line: a source stands as often as it has references
``valid.src``, ``valid.tgt``      the same, for the held-out loss
``dev.src``, ``dev.refs.jsonl``   the validation set to generate from and to score: a source a line, and beside it
                                  ``{"refs": [...]}``, all its references
``test.src``, ``test.refs.jsonl`` the same of the test set, and of every further set under its own name
``stats.json``                    how many lines there are of each, and what was left out
================================  ======================================================================================

Of examples whose reference is a label, for classification:

================================  ======================================================================================
``train.txt``, ...                a text a line, of every split; fields have ``[SEP]`` between them
``train.label``, ...              its label, a class or a number; of splits that have labels
``labels.txt``                    the classes, a line each
``stats.json``                    as above
================================  ======================================================================================
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import IO, Any

from s2sft_fairseq.corpora.reading import Example, Malformed
from s2sft_fairseq.data.labels import CLASSES
from s2sft_fairseq.data.text_files import write_lines
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.files import new_folder


def write_corpus(
    splits: Mapping[str, Iterable[Example]],
    folder: Path,
    malformed: Malformed,
    *,
    skip_malformed: bool = False,
    limit: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write the files into a new folder, which appears when all are complete.

    Args:
        splits: ``train``, ``valid`` and any others, each read once, in this order.
        limit: keep the first well-formed examples of each split only, and read no further.
        settings: for ``stats.json``.

    Returns:
        What ``stats.json`` holds.

    Raises:
        UserError: if the folder exists, a split is empty, or without `skip_malformed` a record is malformed.
    """
    with new_folder(folder, "--output") as partial:
        lines: dict[str, int] = {}
        for split, examples in splits.items():
            well_formed = _well_formed(examples, malformed, Example.reference_lines)
            lines |= _write_split(partial, split, islice(well_formed, limit))
        return finish(partial, lines, malformed, skip_malformed=skip_malformed, settings=settings)


def finish(
    folder: Path,
    lines: Mapping[str, int],
    malformed: Malformed,
    *,
    skip_malformed: bool,
    settings: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Write and return the statistics of a corpus, if nothing was wrong with it.

    Args:
        folder: where the corpus is.
        lines: how many lines there are of each set.
        malformed: the records that were left out.
        skip_malformed: whether there may be such.
        settings: for the statistics.

    Raises:
        UserError: if a set is empty, or records are malformed that may not be.
    """
    if not skip_malformed:
        malformed.raise_any()
    if empty := [name for name, count in lines.items() if not count]:
        raise UserError.of([f"no example for {name}" for name in empty])
    stats = {"lines": dict(lines), "settings": dict(settings or {}), "malformed": malformed.records.total()}
    (folder / "stats.json").write_text(json.dumps(stats, indent=2, default=str) + "\n", encoding="utf-8")
    return stats


def _well_formed(
    examples: Iterable[Example], malformed: Malformed, targets: Callable[[Example], Sequence[str]]
) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield the source, a line, and the targets of each example that has both as they must be."""
    for example in examples:
        with malformed.record(example.path, example.where):
            yield example.source_line(), targets(example)


def _write_split(folder: Path, split: str, examples: Iterable[tuple[str, Sequence[str]]]) -> dict[str, int]:
    """Write one split and return the numbers of lines by name."""
    pairs = split if split in ("train", "valid") else None
    scored = {"train": None, "valid": "dev"}.get(split, split)
    lines = {name: 0 for name in (pairs, scored) if name is not None}
    with ExitStack() as stack:

        def create(name: str) -> IO[str]:
            return stack.enter_context((folder / name).open("w", encoding="utf-8", newline="\n"))

        files = {name: create(name) for name in (f"{pairs}.src", f"{pairs}.tgt") if pairs}
        files |= {name: create(name) for name in (f"{scored}.src", f"{scored}.refs.jsonl") if scored}
        for source, references in examples:
            if pairs:
                files[f"{pairs}.src"].write(f"{source}\n" * len(references))
                files[f"{pairs}.tgt"].writelines(f"{reference}\n" for reference in references)
                lines[pairs] += len(references)
            if scored:
                files[f"{scored}.src"].write(f"{source}\n")
                files[f"{scored}.refs.jsonl"].write(json.dumps({"refs": references}, ensure_ascii=False) + "\n")
                lines[scored] += 1
    return lines


def write_labelled(
    splits: Mapping[str, Iterable[Example]],
    folder: Path,
    malformed: Malformed,
    *,
    classes: Sequence[str],
    skip_malformed: bool = False,
    limit: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write the files into a new folder, which appears when all are complete; see `write_corpus`.

    Args:
        classes: names; () of numbers.

    Raises:
        UserError: if the folder exists, a split is empty, or without `skip_malformed` a record is malformed; in a test
            set also with it, for the predictions of one are numbered by its rows.
    """
    with new_folder(folder, "--output") as partial:
        lines = {}
        for split, examples in splits.items():
            texts: list[str] = []
            labels: list[str] = []
            before, shown = malformed.records.total(), len(malformed.shown)
            for text, label in islice(_well_formed(examples, malformed, attrgetter("references")), limit):
                texts.append(text)
                labels += label
            if skip_malformed and split.startswith("test") and malformed.records.total() > before:
                heading = f"--skip-malformed cannot leave rows of the {split} set out, whose predictions are numbered:"
                raise UserError.of(malformed.shown[shown:] or malformed.lines(), heading)
            lines[split] = write_lines(partial / f"{split}.txt", texts)
            if labels:
                write_lines(partial / f"{split}.label", labels)
        if classes:
            write_lines(partial / CLASSES, classes)
        return finish(partial, lines, malformed, skip_malformed=skip_malformed, settings=settings)
