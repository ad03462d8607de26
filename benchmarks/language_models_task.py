"""The cells of `language_models.py`, and their data: pairs to train on, and sources with references to score."""

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from s2sft_fairseq.data.text_files import read_lines

SETS = ("e2e", "gigaword", "squad_qg")
PROGRAMS = ("ours", "transformers", "peft", "llama.cpp")
VALIDATION = 50
"""Pairs of the validation set: no program chooses by them, but `s2sft finetune` wants some."""


@dataclass(frozen=True)
class Cell:
    """One system that learns from some pairs for some minutes, with one seed."""

    system: str
    """The program: one of `PROGRAMS`."""
    start: str
    """The name of the pretrained model."""
    path: str
    """Its folder, or its file."""
    set: str
    pairs: int
    """Number of pairs to train on; 0: all."""
    minutes: float
    seed: int
    """Of the choice of the pairs, and of the training."""
    data: str
    """The folder of the data sets."""
    output: str
    """The folder of the run."""
    sources: int
    """Most sources of the test set that texts are generated for."""
    alone: int
    """Number of sources whose texts are also generated one by one."""
    batch: int
    """Pairs of an update, and sources of a batch."""
    threads: int
    options: tuple[str, ...] = ()
    """Further options of ``s2sft train`` for "ours"."""

    @property
    def name(self) -> str:
        """The name of its files."""
        pairs = self.pairs or "all"
        options = "".join(f"-{re.sub(r'[^a-zA-Z0-9.]+', '', word)}" for word in self.options)
        return f"{self.set}-{pairs}-{self.minutes:g}min-{self.start}-{self.system}{options}-seed{self.seed}"


KEY = ("system", "start", "set", "pairs", "minutes", "seed", "sources", "alone", "batch", "threads")


def key_of(record: dict[str, Any]) -> tuple[Any, ...]:
    """Return the key of a record: records with equal keys measure the same thing."""
    return (*(record[name] for name in KEY), *record["options"])


class Pairs(NamedTuple):
    """Line-aligned texts."""

    source: list[str]
    target: list[str]


class Task(NamedTuple):
    """The data of a cell."""

    train: Pairs
    valid: Pairs
    sources: list[str]
    """Sources to generate for (N,)."""
    references: list[list[str]]
    """The references of each (N,)."""


def files_of(data: Path, name: str) -> dict[str, Path]:
    """Return the files of a data set by their names without ``.gz``; those that do not exist are left out."""
    names = [f"{split}.{side}" for split in ("train", "valid", "test") for side in ("src", "tgt")]
    found: dict[str, Path] = {}
    for plain in (*names, "test.multi.jsonl"):
        for path in (data / name / plain, data / name / f"{plain}.gz"):
            if path.is_file():
                found.setdefault(plain, path)
    return found


def missing(data: Path, name: str) -> Iterator[str]:
    """Yield the files that a data set needs and lacks."""
    found = files_of(data, name)
    needed = ["train.src", "train.tgt", "valid.src", "valid.tgt"]
    needed += [] if "test.multi.jsonl" in found else ["test.src", "test.tgt"]
    yield from (str(data / name / plain) for plain in needed if plain not in found)


def load(cell: Cell) -> Task:
    """Read the data of a cell. The pairs of a smaller training set are among those of a larger one of the same seed."""
    files = files_of(Path(cell.data), cell.set)
    train = _pairs(files, "train")
    order = list(range(len(train.source)))
    random.Random(cell.seed).shuffle(order)
    chosen = order[: cell.pairs or len(order)]
    sources, references = _test(files)
    return Task(
        Pairs([train.source[number] for number in chosen], [train.target[number] for number in chosen]),
        Pairs(*(evenly(side, VALIDATION) for side in _pairs(files, "valid"))),
        evenly(sources, cell.sources),
        evenly(references, cell.sources),
    )


def evenly(items: Sequence[Any], most: int) -> list[Any]:
    """Return at most this many items, evenly spaced."""
    count = min(most, len(items))
    return [items[number * len(items) // count] for number in range(count)]


def _pairs(files: dict[str, Path], split: str) -> Pairs:
    return Pairs(*(list(read_lines(files[f"{split}.{side}"])) for side in ("src", "tgt")))


def _test(files: dict[str, Path]) -> tuple[list[str], list[list[str]]]:
    if "test.multi.jsonl" in files:
        rows = [json.loads(line) for line in read_lines(files["test.multi.jsonl"])]
        return [row["src"] for row in rows], [row["refs"] for row in rows]
    sources, targets = _pairs(files, "test")
    return sources, [[target] for target in targets]
