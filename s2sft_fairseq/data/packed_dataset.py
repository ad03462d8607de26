"""The data set of source-target pairs: truncated, laid out and packed by an objective."""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from fairseq.data import FairseqDataset

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.objectives.corruption import Corruption
from s2sft_fairseq.objectives.finetuning import Method, context_block
from s2sft_fairseq.objectives.packing import collate
from s2sft_fairseq.objectives.sequence_form import SequenceForm

logger = logging.getLogger(__name__)


class PackedPairDataset(FairseqDataset):
    """Pairs of token ids, packed anew in each epoch.

    Every random choice is drawn from (seed, epoch, example index): it depends neither on the number of workers or GPUs
    nor on where a run was resumed.
    """

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
            shuffle: whether examples of one length come in random order.
            name: what messages call the data.
        """
        self.source, self.target, self.form = source, target, form
        self.method, self.corruption = method, corruption
        self.seed, self.shuffle, self.name = seed, shuffle, name
        # In shared memory, because data loading workers that outlive an epoch hold a copy of this object.
        self.epoch = torch.ones(1, dtype=torch.int64).share_memory_()
        source_tokens = np.asarray(source.sizes) - 1
        target_tokens = np.asarray(target.sizes) - 1 if target is not None else np.full_like(source_tokens, -1)
        self.source_sizes = form.source_length(source_tokens)
        self.target_sizes = form.target_length(target_tokens)
        self.sizes = self.source_sizes + method.positions_per_target * self.target_sizes
        cut_sources = int((source_tokens + form.source_specials > form.max_source).sum())
        cut_targets = int((target_tokens + 1 > form.max_target).sum())
        if cut_sources or cut_targets:
            limited = any(form.fields.limits)
            logger.warning(
                f"{name}: {cut_sources:,} of {len(self):,} sources are cut to {'at most ' * limited}{form.max_source} "
                f"positions (--max-source-positions), {cut_targets:,} targets to {form.max_target} "
                f"(--max-target-positions){'; what --source-field-positions alone cuts is not counted' * limited}"
            )

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> dict[str, Any]:
        source = self.source[index][:-1].numpy().astype(np.int64)
        laid_out = self.form.source(source)
        if self.target is None:
            return {"id": index, "source": laid_out, "packed": (context_block(laid_out, self.form),)}
        target = self.target[index][:-1].numpy().astype(np.int64)
        rng = np.random.default_rng((self.seed, int(self.epoch), index))
        return {
            "id": index,
            "source": laid_out,
            "target": np.append(target, self.form.sep),
            "packed": self.method.pack(source, target, self.form, self.corruption, rng),
        }

    def collater(self, samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Make a batch.

        Returns:
            ``net_input``: the arguments of the model, with columns (B, L), and the clean sources ``src_tokens`` (B, S),
            ``src_lengths`` (B,) for the generator. ``labels``: the labels (N,) at the N positions where ``labelled`` is
            true. ``target``: the clean targets (B, T), or None; whole where those of training are cut, because
            hypotheses are scored against them. ``ntokens``: N. B: examples, L: packed positions.

        Raises:
            UserError: if the data was binarized with a larger dictionary.
        """
        if not samples:
            return {}
        pad = self.form.pad
        batch = collate([sample["packed"] for sample in samples], pad)
        highest = max(batch.token.max(), batch.label.max())
        if highest >= self.form.vocab_size:
            raise UserError(
                f"{self.name} holds the id {highest}, but the dictionary has {self.form.vocab_size} symbols: run "
                "fairseq-preprocess again with the dict.txt of the pretrained encoder"
            )
        label = torch.from_numpy(batch.label)
        labelled = label != pad
        return {
            "id": torch.tensor([sample["id"] for sample in samples]),
            "nsentences": len(samples),
            "ntokens": int(labelled.sum()),
            "net_input": {
                "tokens": torch.from_numpy(batch.token),
                "positions": torch.from_numpy(batch.position),
                "segments": torch.from_numpy(batch.segment),
                "steps": torch.from_numpy(batch.step),
                "groups": torch.from_numpy(batch.group),
                "block_lengths": batch.block_lengths,
                "labelled": labelled,
                "src_tokens": _pad_rows([sample["source"] for sample in samples], pad),
                "src_lengths": torch.tensor([len(sample["source"]) for sample in samples]),
            },
            "labels": label[labelled],
            "target": None if self.target is None else _pad_rows([sample["target"] for sample in samples], pad),
        }

    def num_tokens(self, index: int) -> int:
        """Return the positions of a packed example, placeholders among them."""
        return int(self.sizes[index])

    def num_tokens_vec(self, indices: np.ndarray) -> np.ndarray:
        """Return the positions of the packed examples at ``indices``."""
        return self.sizes[indices]

    def size(self, index: int) -> tuple[int, int]:
        """Return the lengths of the laid-out source and target."""
        return int(self.source_sizes[index]), int(self.target_sizes[index])

    def ordered_indices(self) -> np.ndarray:
        """Return all indices, the shortest examples first."""
        order = np.random.permutation(len(self)) if self.shuffle else np.arange(len(self))
        order = order[np.argsort(self.target_sizes[order], kind="stable")]
        return order[np.argsort(self.source_sizes[order], kind="stable")]

    def batch_by_size(
        self,
        indices: np.ndarray,
        max_tokens: int | None = None,
        max_sentences: int | None = None,
        required_batch_size_multiple: int = 1,
    ) -> list[np.ndarray]:
        """Batch as fairseq does, without its loss of the examples left over by ``--required-batch-size-multiple``.

        Raises:
            UserError: if an example alone has more positions than ``--max-tokens``.
        """
        if len(indices) == 0:
            return []
        longest = int(self.sizes[indices].max())
        if max_tokens is not None and longest > max_tokens:
            raise UserError(
                f"--max-tokens must be at least {longest}, the positions of the longest packed example of {self.name}, "
                f"but is {max_tokens}"
            )
        batches = list(super().batch_by_size(indices, max_tokens, max_sentences, required_batch_size_multiple))
        batched = sum(map(len, batches))
        return batches if batched == len(indices) else [*batches, indices[batched:]]

    @property
    def can_reuse_epoch_itr_across_epochs(self) -> bool:
        """False: batches made anew from (seed, epoch) are the same in a resumed run as in an uninterrupted one."""
        return False

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch from which random choices are drawn."""
        self.epoch.fill_(epoch)


def _pad_rows(rows: Sequence[np.ndarray], pad: int) -> torch.Tensor:
    """Pad arrays on their right to one tensor (rows, longest)."""
    padded = torch.full((len(rows), max(map(len, rows))), pad, dtype=torch.int64)
    for row, values in zip(padded, rows, strict=True):
        row[: len(values)] = torch.from_numpy(values)
    return padded
