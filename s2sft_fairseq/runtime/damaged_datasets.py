"""Binarized data that turns out to be damaged while it is opened.

fairseq's half-made object fails once more when it is deleted, and Python prints a traceback below the message about the
file.
"""

import functools
from collections.abc import Callable

from fairseq.data.indexed_dataset import MMapIndexedDataset


def _close_if_opened(close: Callable) -> Callable:
    @functools.wraps(close)
    def __del__(self: object) -> None:
        if hasattr(self, "_bin_buffer_mmap"):
            close(self)

    return __del__


def apply() -> None:
    """Close the file of a data set, and that of its index, only where it was opened."""
    for kind in (MMapIndexedDataset, MMapIndexedDataset.Index):
        kind.__del__ = _close_if_opened(kind.__del__)
