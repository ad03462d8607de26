"""The data set of source-target pairs: truncated, laid out and packed by an objective."""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from s2sft_fairseq.data.length_batches import share_of_padding
from s2sft_fairseq.data.packed_dataset import PackedDataset
from s2sft_fairseq.objectives.finetuning import Corruption, context_block
from s2sft_fairseq.objectives.objective import Objective
from s2sft_fairseq.objectives.ragged import Ragged
from s2sft_fairseq.objectives.sequence_form import SequenceForm

logger = logging.getLogger(__name__)


class PackedPairDataset(PackedDataset):
    """Pairs of token ids."""

    def __init__(
        self,
        source: Any,
        target: Any | None,
        form: SequenceForm,
        objective: Objective,
        corruption: Corruption,
        *,
        seed: int = 1,
        shuffle: bool = False,
        for_decoding: bool = False,
        name: str = "data",
    ) -> None:
        """Wrap two indexed data sets.

        Args:
            source: ids of the sources, each with a final eos; indexable, with ``sizes``.
            target: likewise the targets, or None where there is only something to generate.
            form: the layout.
            objective: how targets are predicted.
            corruption: how sources and targets are corrupted.
            seed: first part of the seed of every random choice.
            shuffle: whether examples of similar length come in random order.
            for_decoding: batches hold what a generator reads, and nothing is packed.
            name: what messages call the data.
        """
        self.source, self.target, self.for_decoding = source, target, for_decoding
        self.objective, self.corruption = objective, corruption
        source_tokens = np.asarray(source.sizes) - 1
        target_tokens = np.asarray(target.sizes) - 1 if target is not None else np.full_like(source_tokens, -1)
        self.source_sizes = form.source_length(source_tokens)
        self.target_sizes = form.target_length(target_tokens)
        sizes = self.source_sizes + objective.positions_per_target * self.target_sizes
        super().__init__(form, objective.flows, sizes, seed=seed, shuffle=shuffle, name=name)
        cut_sources = int((source_tokens + form.source_specials > form.max_source).sum())
        cut_targets = int((target_tokens + 1 > form.max_target).sum())
        if cut_sources or cut_targets:
            limited = any(form.fields.limits)
            logger.warning(
                f"{name}: {cut_sources:,} of {len(self):,} sources are cut to {'at most ' * limited}{form.max_source} "
                f"positions (--max-source-positions), {cut_targets:,} targets to {form.max_target} "
                f"(--max-target-positions){'; what --source-field-positions alone cuts is not counted' * limited}"
            )

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return an example: the laid-out source, the laid-out target, and the whole target as ``reference``."""
        example = {"id": index, "source": self.form.source(self.source[index].numpy()[:-1])}
        if self.target is not None:
            reference = np.asarray(self.target[index], dtype=np.int64)
            example |= {"target": self.form.target(reference[:-1]), "reference": reference}
        return example

    def collater(self, samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Make a batch.

        Returns:
            What `PackedDataset.make_batch` makes. For decoding there is instead, in ``net_input``, the sources
            ``src_tokens`` (B, S) and their ``src_lengths`` (B,); and ``target``: the whole targets (B, L), against
            which hypotheses are scored, or None. B: examples, S and L: the longest source and target.

        Raises:
            UserError: if the data was binarized with a larger dictionary.
        """
        if not samples:
            return {}
        form = self.form
        ids = np.array([sample["id"] for sample in samples])
        source = Ragged.of([sample["source"] for sample in samples])
        self.check_ids(source)
        reference = None
        if self.target is not None:
            reference = Ragged.of([sample["reference"] for sample in samples])
            self.check_ids(reference)
        if self.for_decoding:
            return {
                "id": torch.from_numpy(ids),
                "nsentences": len(ids),
                "ntokens": len(source.values),
                "net_input": {
                    "src_tokens": torch.from_numpy(source.padded(form.pad)),
                    "src_lengths": torch.from_numpy(source.lengths),
                },
                "target": None if reference is None else torch.from_numpy(reference.padded(form.pad)),
            }
        if reference is None:
            return self.make_batch(ids, (context_block(source, form),))
        target = Ragged.of([sample["target"] for sample in samples])
        return self.make_batch(ids, self.objective.pack(source, target, form, self.corruption, self.draws(ids)))

    def size(self, index: int) -> tuple[int, int]:
        """Return the lengths of the laid-out source and target."""
        return int(self.source_sizes[index]), int(self.target_sizes[index])

    def share_of_padding(self, indices: np.ndarray, starts: np.ndarray) -> float:
        """Tell how much of these batches would be padding if sources and targets were padded to their longest."""
        return share_of_padding([self.source_sizes[indices], self.sizes[indices] - self.source_sizes[indices]], starts)
