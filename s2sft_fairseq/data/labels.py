"""Labels of texts: a text file beside binarized text, with one class or number per line, and the file of classes."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from s2sft_fairseq.data.text_files import check_text, line_problems, read_lines
from s2sft_fairseq.errors import UserError

CLASSES = "labels.txt"


def read_classes(path: Path) -> tuple[str, ...]:
    """Read the names of the classes, one per line, in the order of the outputs of the model.

    Raises:
        UserError: if the file is missing or malformed, or `checked_classes` rejects the names.
    """
    check_text(path)
    return checked_classes(read_lines(path), str(path))


def checked_classes(names: Iterable[str], where: str) -> tuple[str, ...]:
    """Check and return the names of classes; `where` names their origin in the message.

    Raises:
        UserError: if there are fewer than two names, or one is empty or occurs twice.
    """
    classes = tuple(name.strip() for name in names)
    if len(classes) < 2 or len(set(classes)) < len(classes) or not all(classes):
        raise UserError(f"{where} must name at least two different classes, but has {', '.join(map(repr, classes))}")
    return classes


def read_class_labels(path: Path, classes: Sequence[str], count: int) -> np.ndarray:
    """Read the classes of `count` texts and return their indices, int64 (N,). N: texts.

    Raises:
        UserError: if the file is missing or malformed, has another number of lines, or has an unknown class.
    """
    numbers = {name: number for number, name in enumerate(classes)}
    labels = [numbers.get(text, -1) for text in _labels(path, count)]
    _check(path, [label >= 0 for label in labels], f"are none of the classes {', '.join(classes)}")
    return np.array(labels, dtype=np.int64)


def read_number_labels(path: Path, count: int) -> np.ndarray:
    """Read the numbers of `count` texts, rounded to float32, as float64 (N,). N: texts.

    They are float64 because fairseq's ``--fp16`` and ``--bf16`` convert float32 to 16 bits.

    Raises:
        UserError: if the file is missing or malformed, has another number of lines, or a line is not a number or
            outside of float32.
    """
    labels = [_number(text) for text in _labels(path, count)]
    _check(path, [math.isfinite(label) for label in labels], "are no numbers")
    largest = float(np.finfo(np.float32).max)
    _check(path, [abs(label) <= largest for label in labels], f"are outside of -{largest:g} to {largest:g}")
    return np.array(labels, dtype=np.float32).astype(np.float64)


def _labels(path: Path, count: int) -> list[str]:
    lines = check_text(path).lines
    if lines != count:
        raise UserError(f"{path} must have a label for each of the {count:,} texts, but has {lines:,} lines")
    return [line.strip() for line in read_lines(path)]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _check(path: Path, is_right: Sequence[bool], mistake: str) -> None:
    if wrong := [number for number, right in enumerate(is_right, 1) if not right]:
        raise UserError.of(line_problems(path, {mistake: wrong}))
