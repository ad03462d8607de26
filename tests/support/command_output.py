"""Reading what the command lines print."""

import re


def generated(text: str, kind: str = "D") -> dict[int, list[str]]:
    """Return what ``fairseq-generate`` and ``fairseq-interactive`` print for each example, in the order of printing.

    Args:
        text: the output.
        kind: ``D`` and ``H``: texts of the hypotheses, the best first; ``P``: scores of their tokens; ``S`` and ``T``:
            the source and the reference.
    """
    found: dict[int, list[str]] = {}
    for number, rest in re.findall(rf"^{kind}-(\d+)\t(.*)$", text, re.M):
        found.setdefault(int(number), []).append(rest.rpartition("\t")[2])
    return found


def scores(text: str) -> dict[int, list[float]]:
    """Return the scores of all hypotheses of each example, the best first."""
    found: dict[int, list[float]] = {}
    for number, score in re.findall(r"^H-(\d+)\t(\S+)\t", text, re.M):
        found.setdefault(int(number), []).append(float(score))
    return found


def last_value(text: str, name: str, line: str = "") -> float:
    """Return the last value of a statistic, ``name=1.5`` or ``name 1.5``, in the lines that contain ``line``."""
    values = [
        value
        for entry in text.splitlines()
        if line in entry
        for value in re.findall(rf"\b{name}[ =](-?[\d.]+(?:e-?\d+)?)", entry)
    ]
    return float(values[-1])
