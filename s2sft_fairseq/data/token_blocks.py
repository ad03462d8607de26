"""Plain binarized text, cut into blocks of tokens that do not cross documents."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from s2sft_fairseq.errors import UserError


class TokenBlocks:
    """Blocks of documents: a line of the data is a paragraph, an empty line ends a document.

    A document is cut into as few blocks as hold it, of nearly equal length. Which tokens a block has is worked out from
    the lengths of the lines; the tokens are read when they are asked for.
    """

    def __init__(self, lines: Any, most: int, *, least: int = 1, divider: int | None = None) -> None:
        """Cut.

        Args:
            lines: ids of the lines, each with a final eos, which is left out; indexable, with ``sizes``.
            most: tokens of a block.
            least: tokens of a block; shorter documents are left out.
            divider: what is put between the two halves of a block, where the line begins that is nearest to its middle,
                or in the middle where no line begins in it.

        Raises:
            UserError: if no document is long enough.
        """
        self.lines, self.divider = lines, divider
        sizes = np.asarray(lines.sizes, dtype=np.int64) - 1
        # Where each line begins and the last one ends, in tokens of the whole data.
        self._line_starts = np.concatenate([[0], np.cumsum(sizes)])
        ends = np.append(np.flatnonzero(sizes == 0), len(sizes))
        document_ends = self._line_starts[ends]
        lengths = np.diff(document_ends, prepend=0)
        kept = lengths >= least
        self.num_documents, self.num_short = int(kept.sum()), int(((lengths > 0) & ~kept).sum())
        lengths, starts = lengths[kept], (document_ends - lengths)[kept]
        if not len(lengths):
            raise UserError(f"no document has {least} tokens or more, of {len(sizes):,} lines; an empty line ends one")
        counts = -(-lengths // most)
        document = np.repeat(np.arange(len(counts)), counts)
        place = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
        self._starts = starts[document] + lengths[document] * place // counts[document]
        self._ends = starts[document] + lengths[document] * (place + 1) // counts[document]
        self.sizes = self._ends - self._starts
        """Tokens of each block, dividers not counted (blocks,)."""

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> np.ndarray:
        """Return the ids of a block, without any special symbol but the divider."""
        start, end = int(self._starts[index]), int(self._ends[index])
        first = int(np.searchsorted(self._line_starts, start, side="right")) - 1
        last = int(np.searchsorted(self._line_starts, end, side="left"))
        lines: Sequence[np.ndarray] = [np.asarray(self.lines[line])[:-1] for line in range(first, last)]
        offset = start - int(self._line_starts[first])
        tokens = np.concatenate(lines).astype(np.int64)[offset : offset + end - start]
        if self.divider is None:
            return tokens
        middle = start + (end - start) // 2
        beginnings = self._line_starts[first + 1 : last]
        if len(beginnings):
            middle = int(beginnings[np.abs(beginnings - middle).argmin()])
        return np.insert(tokens, middle - start, self.divider)
