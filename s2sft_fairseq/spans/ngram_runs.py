"""Counts of n-grams in sorted files, and their sums: external sorting, a range of keys at a time.

Each run is a ``.npy`` file with an int64 array (2, K): the keys of the n-grams of a part of the text, ascending and
each one once, and how often each occurs there.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

_END = np.iinfo(np.int64).max  # above any key


def write_run(path: Path, keys: np.ndarray) -> Path | None:
    """Count the n-grams of a part of the text.

    Args:
        path: of the run, which ends in ``.npy``.
        keys: of all n-grams; negative ones do not count.

    Returns:
        The path, or None where nothing was to be written.
    """
    found, counts = np.unique(keys[keys >= 0], return_counts=True)
    if not len(found):
        return None
    np.save(path, np.stack([found, counts]))
    return path


def key_ranges(runs: Sequence[Path], size: int) -> list[tuple[int, int]]:
    """Cut the keys of all runs into ranges, from the first key of each up to, but without, its end.

    A range takes at most `size` keys of all the runs together, or three of each run where that is more.
    """
    if not runs:
        return []
    # A range has at most `step` keys more of each run than its samples stand for. It has fewer than two samples a run:
    # one on the average, and those that equal its first one, of which each run has one at most.
    step = max(1, size // (3 * len(runs)))
    # Copies: a file that is not mapped any more leaves the memory.
    samples = np.sort(np.concatenate([np.load(run, mmap_mode="r")[0, ::step].copy() for run in runs]))
    return list(pairwise([0, *samples[len(runs) :: len(runs)].tolist(), int(_END)]))


def merge_runs(runs: Sequence[Path], start: int, end: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the keys from `start` up to `end` of all runs, ascending and each one once, and the sums of their counts.

    Shape:
        two int64 arrays (K,)
    """
    parts = []
    for run in runs:
        counted = np.load(run, mmap_mode="r")
        parts.append(counted[:, slice(*np.searchsorted(counted[0], [start, end]))].copy())
    keys, counts = np.concatenate(parts, axis=1)
    order = np.argsort(keys, kind="stable")  # fast where parts are sorted already
    keys, counts = keys[order], counts[order]
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    return keys[first], np.add.reduceat(counts, first) if len(first) else counts
