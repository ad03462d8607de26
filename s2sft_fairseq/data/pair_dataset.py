"""The data set of source-target pairs: truncated, laid out and packed by an objective."""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from s2sft_fairseq.data.length_batches import share_of_padding
from s2sft_fairseq.data.packed_dataset import PackedDataset
from s2sft_fairseq.objectives.corruption import Corruption
from s2sft_fairseq.objectives.finetuning import context_block
from s2sft_fairseq.objectives.methods import Method
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
        method: Method,
        corruption: Corruption,
        *,
        seed: int = 1,
        shuffle: bool = False,
        name: str = "data",
    ) -> None:
        """Wrap two indexed data sets.

        Args:
            source: ids of the sources, each with a final eos; indexable, with ``sizes``.
            target: likewise the targets, or None where there is only something to generate.
            form: the layout.
            method: how targets are predicted.
            corruption: how sources and targets are corrupted.
            seed: first part of the seed of every random choice.
            shuffle: whether examples of similar length come in random order.
            name: what messages call the data.
        """
        self.source, self.target = source, target
        self.method, self.corruption = method, corruption
        source_tokens = np.asarray(source.sizes) - 1
        target_tokens = np.asarray(target.sizes) - 1 if target is not None else np.full_like(source_tokens, -1)
        self.source_sizes = form.source_length(source_tokens)
        self.target_sizes = form.target_length(target_tokens)
        sizes = self.source_sizes + method.positions_per_target * self.target_sizes
        super().__init__(form, method.flows, sizes, seed=seed, shuffle=shuffle, name=name)
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
        """Return the laid-out source and the whole target of an example, without any randomness."""
        example = {"id": index, "source": self.form.source(self.source[index].numpy()[:-1])}
        if self.target is not None:
            example["target"] = np.asarray(self.target[index], dtype=np.int64)
        return example

    def collater(self, samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Make a batch.

        Returns:
            What `PackedDataset.make_batch` makes; in ``net_input`` the clean sources ``src_tokens`` (B, S) and their
            ``src_lengths`` (B,) too, for the generator; and ``target``: the clean targets (B, L), or None; whole where
            those of training are cut, because hypotheses are scored against them. B: examples.

        Raises:
            UserError: if the data was binarized with a larger dictionary.
        """
        if not samples:
            return {}
        form = self.form
        ids = np.array([sample["id"] for sample in samples])
        source = Ragged.of([sample["source"] for sample in samples])
        self.check_ids(source)
        if self.target is None:
            whole_target = None
            packed = (context_block(source, form),)
        else:
            targets = [sample["target"] for sample in samples]
            whole_target = Ragged.of(targets)
            self.check_ids(whole_target)
            target = Ragged.of([form.target(each[:-1]) for each in targets])
            packed = self.method.pack(source, target, form, self.corruption, self.draws(ids))
        batch = self.make_batch(ids, packed)
        batch["net_input"]["src_tokens"] = torch.from_numpy(source.padded(form.pad))
        batch["net_input"]["src_lengths"] = torch.from_numpy(source.lengths)
        batch["target"] = None if whole_target is None else torch.from_numpy(whole_target.padded(form.pad))
        return batch

    def size(self, index: int) -> tuple[int, int]:
        """Return the lengths of the laid-out source and target."""
        return int(self.source_sizes[index]), int(self.target_sizes[index])

    def share_of_padding(self, indices: np.ndarray, starts: np.ndarray) -> float:
        """Tell how much of these batches would be padding if sources and targets were padded to their longest."""
        return share_of_padding([self.source_sizes[indices], self.sizes[indices] - self.source_sizes[indices]], starts)
