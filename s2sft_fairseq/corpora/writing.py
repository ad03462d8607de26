"""Write examples to the text files that a recipe trains on and scores.

================================  ======================================================================================
``train.src``, ``train.tgt``      one pair per line: a source is repeated for each of its references
``valid.src``, ``valid.tgt``      the same, for the validation loss
``dev.src``, ``dev.refs.jsonl``   the validation set for generation and scoring: one source per line, and in the same
                                  line ``{"refs": [...]}`` with all its references
``test.src``, ``test.refs.jsonl`` the same for the test set, and for each further set under its own name
``stats.json``                    the number of lines of each set, the settings, and the number of malformed records
================================  ======================================================================================

For classification, where the reference of an example is a label:

================================  ======================================================================================
``train.txt``, ...                for each split, one text per line; its fields are separated by ``[SEP]``
``train.label``, ...              the labels, classes or numbers, of splits that have labels
``labels.txt``                    the classes, one per line
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
from s2sft_fairseq.progress import bar


def write_corpus(
    splits: Mapping[str, Iterable[Example]],
    folder: Path,
    malformed: Malformed,
    *,
    skip_malformed: bool = False,
    limit: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write the files to a new folder, which appears when all of them are complete.

    Args:
        splits: ``train``, ``valid`` and any others, each read once, in this order.
        folder: the folder to write.
        malformed: collects malformed records.
        skip_malformed: leave malformed records out; otherwise they are an error.
        limit: keep only the first well-formed examples of each split, and read no further.
        settings: the settings for ``stats.json``.

    Returns:
        The contents of ``stats.json``.

    Raises:
        UserError: if the folder exists, a split is empty, or a record is malformed without `skip_malformed`.
    """
    with new_folder(folder, "--output") as partial:
        lines: dict[str, int] = {}
        for split, examples in splits.items():
            well_formed = _well_formed(bar(examples, split, " examples"), malformed, Example.reference_lines)
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
    """Check a corpus, then write and return its statistics.

    Args:
        folder: the folder of the corpus.
        lines: the number of lines of each set.
        malformed: the malformed records, which were left out.
        skip_malformed: whether malformed records are allowed.
        settings: the settings for the statistics.

    Raises:
        UserError: if a set is empty, or a record is malformed without `skip_malformed`.
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
    """Yield the source line and the targets of each well-formed example."""
    for example in examples:
        with malformed.record(example.path, example.where):
            yield example.source_line(), targets(example)


def _write_split(folder: Path, split: str, examples: Iterable[tuple[str, Sequence[str]]]) -> dict[str, int]:
    """Write one split and return the number of lines of each set."""
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
    """Write the files for classification to a new folder, which appears when all of them are complete.

    Args:
        splits: the splits, each read once, in this order.
        folder: the folder to write.
        malformed: collects malformed records.
        classes: names of the classes; () if labels are numbers.
        skip_malformed: leave malformed records out; otherwise they are an error.
        limit: keep only the first well-formed examples of each split, and read no further.
        settings: the settings for ``stats.json``.

    Returns:
        The contents of ``stats.json``.

    Raises:
        UserError: if the folder exists, a split is empty, or a record is malformed without `skip_malformed`. Malformed
            records in a test set are always an error, as predictions are numbered by the rows of the test set.
    """
    with new_folder(folder, "--output") as partial:
        lines = {}
        for split, examples in splits.items():
            texts: list[str] = []
            labels: list[str] = []
            before, shown = malformed.records.total(), len(malformed.shown)
            well_formed = _well_formed(bar(examples, split, " examples"), malformed, attrgetter("references"))
            for text, label in islice(well_formed, limit):
                texts.append(text)
                labels += label
            if skip_malformed and split.startswith("test") and malformed.records.total() > before:
                heading = f"--skip-malformed cannot skip rows of the {split} set, as predictions are numbered by row:"
                raise UserError.of(malformed.shown[shown:] or malformed.lines(), heading)
            lines[split] = write_lines(partial / f"{split}.txt", texts)
            if labels:
                write_lines(partial / f"{split}.label", labels)
        if classes:
            write_lines(partial / CLASSES, classes)
        return finish(partial, lines, malformed, skip_malformed=skip_malformed, settings=settings)
