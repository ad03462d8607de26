"""The data set of source-target pairs: truncated, laid out and packed by an objective."""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from fairseq.data import FairseqDataset

from s2sft_fairseq.data.length_batches import bucketed_order, cut_into_batches, share_of_padding
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.objectives.corruption import Corruption
from s2sft_fairseq.objectives.draws import Draws
from s2sft_fairseq.objectives.finetuning import Method, context_block
from s2sft_fairseq.objectives.packing import collate
from s2sft_fairseq.objectives.ragged import Ragged
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
            shuffle: whether examples of similar length come in random order.
            name: what messages call the data.
        """
        self.source, self.target, self.form = source, target, form
        self.method, self.corruption = method, corruption
        self.seed, self.shuffle, self.name = seed, shuffle, name
        # In shared memory, because data loading workers that outlive an epoch hold a copy of this object.
        self.epoch = torch.ones(1, dtype=torch.int64).share_memory_()
        self._batches_logged = False
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
        """Return the laid-out source and the whole target of an example, without any randomness."""
        example = {"id": index, "source": self.form.source(self.source[index].numpy()[:-1])}
        if self.target is not None:
            example["target"] = np.asarray(self.target[index], dtype=np.int64)
        return example

    def collater(self, samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Make a batch.

        Returns:
            ``net_input``: the arguments of the model, with columns (T,), and the clean sources ``src_tokens`` (B, S),
            ``src_lengths`` (B,) for the generator. ``labels``: the labels (N,) at the N positions where ``labelled``
            (T,) is true. ``target``: the clean targets (B, L), or None; whole where those of training are cut, because
            hypotheses are scored against them. ``ntokens``: N. B: examples, T: tokens of all packed examples.

        Raises:
            UserError: if the data was binarized with a larger dictionary.
        """
        if not samples:
            return {}
        form = self.form
        ids = np.array([sample["id"] for sample in samples])
        source = Ragged.of([sample["source"] for sample in samples])
        self._check_ids(source)
        if self.target is None:
            whole_target = None
            packed = (context_block(source, form),)
        else:
            targets = [sample["target"] for sample in samples]
            whole_target = Ragged.of(targets)
            self._check_ids(whole_target)
            target = Ragged.of([form.target(each[:-1]) for each in targets])
            draws = Draws(self.seed, int(self.epoch), ids)
            packed = self.method.pack(source, target, form, self.corruption, draws)
        batch = collate([packed])
        labelled = batch.label != form.pad
        labels = batch.label[labelled]
        return {
            "id": torch.from_numpy(ids),
            "nsentences": len(samples),
            "ntokens": len(labels),
            "net_input": {
                "tokens": torch.from_numpy(batch.token),
                "positions": torch.from_numpy(batch.position),
                "segments": torch.from_numpy(batch.segment),
                "steps": torch.from_numpy(batch.step),
                "groups": torch.from_numpy(batch.group),
                "lengths": batch.lengths,
                "labelled": torch.from_numpy(labelled),
                "src_tokens": torch.from_numpy(source.padded(form.pad)),
                "src_lengths": torch.from_numpy(source.lengths),
            },
            "labels": torch.from_numpy(labels),
            "target": None if whole_target is None else torch.from_numpy(whole_target.padded(form.pad)),
        }

    def _check_ids(self, tokens: Ragged) -> None:
        """Raise a `UserError` if the dictionary lacks one of the tokens."""
        highest = tokens.values.max()
        if highest >= self.form.vocab_size:
            raise UserError(
                f"{self.name} holds the id {highest}, but the dictionary has {self.form.vocab_size} symbols: run "
                "fairseq-preprocess again with the dict.txt of the pretrained encoder"
            )

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
        """Return all indices, the shortest examples first; shuffled, it is buckets of similar length that are in order.

        The length of an example is that of its whole packed sequence.
        """
        if not self.shuffle:
            return np.argsort(self.sizes, kind="stable")
        return bucketed_order(self.sizes, np.random.default_rng((self.seed, int(self.epoch))))

    def batch_by_size(
        self,
        indices: np.ndarray,
        max_tokens: int | None = None,
        max_sentences: int | None = None,
        required_batch_size_multiple: int = 1,
    ) -> list[np.ndarray]:
        """Return the indices of each batch; ``max_tokens`` counts the positions that a batch really has.

        fairseq would count the longest example of a batch for each of them, and drop what
        ``required_batch_size_multiple`` leaves over.

        Raises:
            UserError: if an example alone has more positions than ``--max-tokens``.
        """
        if len(indices) == 0:
            return []
        sizes = self.sizes[indices]
        if max_tokens is not None and sizes.max() > max_tokens:
            raise UserError(
                f"--max-tokens must be at least {sizes.max()}, the positions of the longest packed example of "
                f"{self.name}, but is {max_tokens}"
            )
        starts = cut_into_batches(sizes, max_tokens, max_sentences, required_batch_size_multiple)
        if not self._batches_logged:
            self._batches_logged = True
            targets = sizes - self.source_sizes[indices]
            padding = share_of_padding(self.source_sizes[indices], targets, starts)
            logger.info(
                f"{self.name}: {len(starts):,} batches of {sizes.sum() / len(starts):,.0f} positions on average, none "
                f"of them padding; with sources and targets padded to the longest of their batch {padding:.1%} would be"
            )
        ends = [*starts[1:].tolist(), len(indices)]
        return [indices[start:end] for start, end in zip(starts.tolist(), ends, strict=True)]

    @property
    def can_reuse_epoch_itr_across_epochs(self) -> bool:
        """False: batches made anew from (seed, epoch) are the same in a resumed run as in an uninterrupted one."""
        return False

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch from which random choices are drawn."""
        self.epoch.fill_(epoch)
