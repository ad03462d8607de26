"""How far a long run has come: a bar on a terminal, elsewhere a line of the log now and then."""

import io
import logging
import sys
from typing import Any

from tqdm import tqdm

logger = logging.getLogger(__name__)

_SECONDS_BETWEEN_LINES = 60


class _LoggedProgress(tqdm):
    """Logs the line that would be drawn."""

    def display(self, *_: Any, **__: Any) -> None:
        if self.initial < self.n < self.total:
            logger.info(str(self))


def sentence_progress(total: int, done: int, *, bar: bool = True) -> tqdm:
    """Return the progress of `total` sentences, of which `done` were there already, with their rate and time left.

    Args:
        total: sentences in all.
        done: how many there were at the start; they do not count in the rate.
        bar: draw a bar where the error stream is a terminal.
    """
    counts = {"total": total, "initial": done, "unit": " sentences", "smoothing": 0}
    if bar and sys.stderr.isatty():
        rate = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_noinv_fmt}]"
        return tqdm(**counts, mininterval=0.5, dynamic_ncols=True, bar_format=rate)
    line = "{n_fmt} of {total_fmt} sentences, {rate_noinv_fmt}, {remaining} left"
    seconds = _SECONDS_BETWEEN_LINES
    return _LoggedProgress(**counts, mininterval=seconds, miniters=1, file=io.StringIO(), bar_format=line)
