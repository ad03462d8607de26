"""Packed data sets of texts: plain text for a pre-training objective, and texts with labels.

Plain text is cut into blocks of tokens that do not cross documents. In a text with a label all tokens are given, and
only the label is predicted.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from s2sft_fairseq.data.packed_dataset import PackedDataset, model_input
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.objectives.finetuning import context_section
from s2sft_fairseq.objectives.objective import Flow
from s2sft_fairseq.objectives.packing import PackedExamples, collate
from s2sft_fairseq.objectives.ragged import Draws, Ragged
from s2sft_fairseq.objectives.sequence_form import SequenceForm

logger = logging.getLogger(__name__)

TextObjective = Callable[[Ragged, Draws], PackedExamples]
"""Function from the ids of texts, one row each, and random draws to packed examples."""


class TokenBlocks:
    """Blocks of documents: a line of the data is a paragraph, an empty line ends a document.

    A document is cut into the smallest possible number of blocks, of nearly equal length. The limits of the blocks are
    computed from the lengths of the lines; tokens are read when a block is accessed.
    """

    def __init__(self, lines: Any, most: int, *, least: int = 1, divider: int | None = None) -> None:
        """Cut documents into blocks.

        Args:
            lines: ids of the lines, each with a final eos, which is left out; indexable, with ``sizes``.
            most: maximum number of tokens of a block.
            least: minimum number of tokens of a document; shorter ones are left out.
            divider: id that is inserted between the two halves of a block: before the line whose beginning is nearest
                to the middle, or in the middle if no line begins within the block. None: no divider.

        Raises:
            UserError: if no document is long enough.
        """
        self.lines, self.divider = lines, divider
        sizes = np.asarray(lines.sizes, dtype=np.int64) - 1
        # Offsets, in tokens of the whole data, at which the lines begin and the last line ends.
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
        """Number of tokens of each block, without the divider (blocks,)."""

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> np.ndarray:
        """Return the ids of a block, without special symbols except the divider."""
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


class PackedTextDataset(PackedDataset):
    """Blocks of plain text."""

    def __init__(
        self,
        blocks: TokenBlocks,
        form: SequenceForm,
        flows: Sequence[Flow],
        pack: TextObjective,
        sizes: np.ndarray,
        *,
        seed: int = 1,
        shuffle: bool = False,
        name: str = "data",
    ) -> None:
        """Wrap blocks.

        Args:
            blocks: the texts.
            form: the layout, which has the special symbols.
            flows: the flows of the objective.
            pack: the objective.
            sizes: number of positions of each packed block (blocks,).
            seed: first part of the seed of all random choices.
            shuffle: whether blocks of similar length are in random order.
            name: name of the data in messages.
        """
        super().__init__(form, flows, sizes, seed=seed, shuffle=shuffle, name=name)
        self.blocks, self.pack = blocks, pack

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return the ids of a block, without any randomness."""
        return {"id": index, "text": self.blocks[index]}

    def collater(self, samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Make a batch; see `PackedDataset.make_batch`.

        Raises:
            UserError: if the data was binarized with a larger dictionary.
        """
        if not samples:
            return {}
        text = Ragged.of([sample["text"] for sample in samples])
        self.check_ids(text)
        ids = np.array([sample["id"] for sample in samples])
        return self.make_batch(ids, self.pack(text, self.draws(ids)))


class LabelledDataset(PackedDataset):
    """Texts of one or more fields, laid out as sources are: ``[CLS] a [SEP] b [SEP]``."""

    def __init__(
        self,
        texts: Any,
        labels: np.ndarray | None,
        form: SequenceForm,
        *,
        seed: int = 1,
        shuffle: bool = False,
        name: str = "data",
    ) -> None:
        """Wrap an indexed data set.

        Args:
            texts: ids of the texts, each with a final eos; indexable, with ``sizes``.
            labels: label of each text (N, ...), or None for prediction.
            form: the layout.
            seed: first part of the seed of all random choices.
            shuffle: whether texts of similar length are in random order.
            name: name of the data in messages.
        """
        tokens = np.asarray(texts.sizes) - 1
        super().__init__(form, (), form.source_length(tokens), seed=seed, shuffle=shuffle, name=name)
        self.texts, self.labels = texts, labels
        if cut := int((tokens + form.source_specials > form.max_source).sum()):
            logger.warning(
                f"{name}: {cut:,} of {len(self):,} texts are cut to {form.max_source} positions "
                "(--max-source-positions)"
            )

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return a laid-out text, without any randomness."""
        return {"id": index, "text": self.form.source(self.texts[index].numpy()[:-1])}

    def collater(self, samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Make a batch.

        Returns:
            ``net_input``: columns (T,) and the lengths of the texts. ``labels`` (B, ...), or None. ``ntokens``: T.
            T: tokens of all texts, B: texts.

        Raises:
            UserError: if the data was binarized with a larger dictionary.
        """
        if not samples:
            return {}
        text = Ragged.of([sample["text"] for sample in samples])
        self.check_ids(text)
        ids = np.array([sample["id"] for sample in samples])
        return {
            "id": torch.from_numpy(ids),
            "nsentences": len(ids),
            "ntokens": len(text.values),
            "net_input": model_input(collate([(context_section(text, self.form),)])),
            "labels": None if self.labels is None else torch.from_numpy(self.labels[ids]),
        }
