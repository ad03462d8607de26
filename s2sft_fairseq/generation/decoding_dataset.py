"""A data set whose batches are to be decoded."""

import numpy as np
from fairseq.data import BaseWrapperDataset

from s2sft_fairseq.data.pair_dataset import PackedPairDataset
from s2sft_fairseq.generation.batching import BatchMemory, plan_batches


class DecodingDataset(BaseWrapperDataset):
    """Pairs in the batches of `plan_batches`, which regards the memory of decoding; those of fairseq count tokens."""

    dataset: PackedPairDataset

    def __init__(self, dataset: PackedPairDataset, memory: BatchMemory, useful_sentences: int | None) -> None:
        """Wrap a data set; a batch has at most ``useful_sentences`` unless the user says how many."""
        super().__init__(dataset)
        self.memory, self.useful_sentences = memory, useful_sentences

    def batch_by_size(
        self,
        indices: np.ndarray,
        max_tokens: int | None = None,
        max_sentences: int | None = None,
        required_batch_size_multiple: int = 1,
    ) -> list[np.ndarray]:
        """Return the indices of each batch; ``max_tokens`` counts packed positions, as it does in training.

        The batches are no multiples: that serves the ranks of a training.
        """
        batches = plan_batches(
            self.dataset.source_sizes[indices],
            max_tokens=max_tokens,
            max_sentences=max_sentences or self.useful_sentences,
            memory=self.memory,
            positions=self.dataset.sizes[indices],
        )
        return [indices[batch] for batch in batches]
