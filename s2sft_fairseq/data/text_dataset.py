"""The data set of plain text: blocks of tokens, packed by a pre-training objective."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from s2sft_fairseq.data.packed_dataset import PackedDataset
from s2sft_fairseq.data.token_blocks import TokenBlocks
from s2sft_fairseq.objectives.objective import Flow
from s2sft_fairseq.objectives.packing import PackedExamples
from s2sft_fairseq.objectives.ragged import Draws, Ragged
from s2sft_fairseq.objectives.sequence_form import SequenceForm

TextObjective = Callable[[Ragged, Draws], PackedExamples]
"""From the ids of texts, a row for each, to what a model is trained on."""


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
            form: special symbols.
            flows: what the objective predicts.
            pack: the objective.
            sizes: positions of each packed block (blocks,).
            seed: first part of the seed of every random choice.
            shuffle: whether blocks of similar length come in random order.
            name: what messages call the data.
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

    def size(self, index: int) -> int:
        """Return the positions of a packed block."""
        return self.num_tokens(index)
