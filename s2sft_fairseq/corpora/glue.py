"""GLUE: nine tasks that classify sentences and pairs of sentences (Wang et al., 2019; https://gluebenchmark.com).

Raw files: a folder for each task with ``train.tsv``, ``dev.tsv`` and ``test.tsv`` as the benchmark publishes them. For
MNLI, the last two are ``_matched`` and ``_mismatched``; its third test set is ``diagnostic/diagnostic.tsv``, which the
benchmark's server expects from a model for MNLI. Cells are separated by tabs and never quoted. Test sets have no labels
and may be missing: they are read up to the first missing one. MRPC may also be ``msr_paraphrase_train.txt``,
``msr_paraphrase_test.txt`` and ``dev_ids.tsv``, the pairs of the development set. Columns are found by their names,
except in CoLA's training and development files, which have no header.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from s2sft_fairseq.corpora.reading import Example, Malformed, MalformedRecordError, find, numbered_lines, require
from s2sft_fairseq.errors import UserError

_FILES = {"train": "train.tsv", "valid": "dev.tsv", "test": "test.tsv"}
# fairseq-preprocess numbers further validation and test sets in this way.
_MNLI_FILES = {
    "train": "train.tsv",
    "valid": "dev_matched.tsv",
    "valid1": "dev_mismatched.tsv",
    "test": "test_matched.tsv",
    "test1": "test_mismatched.tsv",
    "test2": "../diagnostic/diagnostic.tsv",
}
_MRPC_IDS = "dev_ids.tsv"
_BINARY = ("0", "1")
_ENTAILMENT = ("not_entailment", "entailment")


@dataclass(frozen=True)
class GlueTask:
    """The files and columns of a task."""

    folder: str
    """Folder of the task, which is also its name at the benchmark's server."""
    texts: tuple[str, ...]
    """Names of the columns of the texts."""
    label: str
    """Name of the column of the label."""
    classes: tuple[str, ...] = ()
    """Labels; the second of two is the positive one. (): labels are numbers."""
    header: tuple[str, ...] = ()
    """Names of the columns in labelled files without a header."""
    files: Mapping[str, str] = field(default_factory=lambda: _FILES)


TASKS = {
    "cola": GlueTask("CoLA", ("sentence",), "label", _BINARY, ("source", "label", "mark", "sentence")),
    "sst-2": GlueTask("SST-2", ("sentence",), "label", _BINARY),
    "mrpc": GlueTask("MRPC", ("#1 String", "#2 String"), "Quality", _BINARY),
    "sts-b": GlueTask("STS-B", ("sentence1", "sentence2"), "score"),
    "qqp": GlueTask("QQP", ("question1", "question2"), "is_duplicate", _BINARY),
    "mnli": GlueTask(
        *("MNLI", ("sentence1", "sentence2"), "gold_label", ("contradiction", "entailment", "neutral")),
        files=_MNLI_FILES,
    ),
    "qnli": GlueTask("QNLI", ("question", "sentence"), "label", _ENTAILMENT),
    "rte": GlueTask("RTE", ("sentence1", "sentence2"), "label", _ENTAILMENT),
    "wnli": GlueTask("WNLI", ("sentence1", "sentence2"), "label", _BINARY),
}
RANGE = (0.0, 5.0)
"""Smallest and largest label of STS-B."""


def read_glue(folder: Path, name: str, malformed: Malformed) -> dict[str, Iterator[Example]]:
    """Return the splits of a task; the label of an example is its reference, and unlabelled examples have no reference.

    Args:
        folder: the folder of the benchmark, or of the task.
        name: the name of the task.
        malformed: collects malformed records.

    Raises:
        UserError: if files are missing or lack columns.
    """
    task = TASKS[name]
    folder = folder / task.folder if (folder / task.folder).is_dir() else folder
    if name == "mrpc" and find(folder, "msr_paraphrase_train.txt"):
        return _read_msr(folder, task, malformed)
    tests = [split for split in task.files if split.startswith("test")]
    required = [split for split in task.files if split not in tests]
    paths = dict(zip(required, require(folder, *(task.files[split] for split in required)), strict=True))
    for split in tests:
        if (path := find(folder, task.files[split])) is None:
            break
        paths[split] = path
    return {
        split: read_rows(
            path, task, malformed, header=() if split in tests else task.header, labelled=split in required
        )
        for split, path in paths.items()
    }


def _read_msr(folder: Path, task: GlueTask, malformed: Malformed) -> dict[str, Iterator[Example]]:
    """Return the splits of MRPC from the files of its authors."""
    train, test, ids = require(folder, "msr_paraphrase_train.txt", "msr_paraphrase_test.txt", _MRPC_IDS)
    held_out = {line for _, line in numbered_lines(ids, malformed) if line}
    return {
        "train": read_rows(train, task, malformed, without=held_out),
        "valid": read_rows(train, task, malformed, only=held_out),
        "test": read_rows(test, task, malformed),
    }


def read_rows(
    path: Path,
    task: GlueTask,
    malformed: Malformed,
    *,
    header: tuple[str, ...] = (),
    labelled: bool = True,
    only: set[str] | None = None,
    without: set[str] | None = None,
) -> Iterator[Example]:
    """Yield an example for each row.

    Args:
        path: the file.
        task: the task.
        malformed: collects malformed records.
        header: the names of the columns; (): they are in the first line.
        labelled: whether labels are required; if not, they are read if their column exists.
        only: MRPC: pairs of ids, ``id1<TAB>id2``, of the rows to read; None: all rows.
        without: MRPC: pairs of ids of the rows to leave out.

    Raises:
        UserError: if the file lacks a column.
    """
    lines = numbered_lines(path, malformed)
    names = list(header) or (next(lines, (1, ""))[1] or "").removeprefix("\ufeff").split("\t")
    needed = [*task.texts, *([task.label] if labelled else [])]
    if missing := [name for name in needed if name not in names]:
        raise UserError(
            f"{path} must have the columns {', '.join(needed)}, but lacks {', '.join(missing)}; it has: "
            f"{', '.join(names)}"
        )
    for number, line in lines:
        if line is None:
            continue
        with malformed.record(path, number):
            cells = line.split("\t")
            if len(cells) != len(names):
                raise MalformedRecordError(f"must have {len(names)} cells, but has {len(cells)}")
            row = dict(zip(names, cells, strict=True))
            if only is not None or without is not None:
                pair = f"{row.get('#1 ID')}\t{row.get('#2 ID')}"
                if (only is not None and pair not in only) or (without is not None and pair in without):
                    continue
            label = (_label(row[task.label], task),) if task.label in row else ()
            yield Example(path, number, tuple(row[name] for name in task.texts), label)


def _label(text: str, task: GlueTask) -> str:
    """Check and return a label.

    Raises:
        MalformedRecordError: if it is not a class of the task, or not a number in the range.
    """
    if task.classes:
        if text not in task.classes:
            raise MalformedRecordError(f"the label must be one of {', '.join(task.classes)}, but is {text!r}")
        return text
    try:
        is_right = RANGE[0] <= float(text) <= RANGE[1]
    except ValueError:
        is_right = False
    if not is_right:
        raise MalformedRecordError(f"the label must be a number from {RANGE[0]:g} to {RANGE[1]:g}, but is {text!r}")
    return text
