"""Packed data sets: what all have in common, batches by length and their form, and that of source-target pairs."""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from fairseq.data import FairseqDataset

from s2sft_fairseq.data.length_batches import bucketed_order, cut_into_batches, share_of_padding
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.objectives.blocks import Blocks
from s2sft_fairseq.objectives.finetuning import Corruption, context_section
from s2sft_fairseq.objectives.objective import Flow, Objective
from s2sft_fairseq.objectives.packing import PackedBatch, PackedExamples, collate, first_step
from s2sft_fairseq.objectives.ragged import Draws, Ragged
from s2sft_fairseq.objectives.sequence_form import SequenceForm

logger = logging.getLogger(__name__)


class PackedDataset(FairseqDataset):
    """Examples that are packed anew in each epoch.

    Every random choice is drawn from (seed, epoch, example index): it depends neither on the number of workers or GPUs
    nor on where a run was resumed.
    """

    def __init__(
        self,
        form: SequenceForm,
        flows: Sequence[Flow],
        sizes: np.ndarray,
        *,
        cut: Blocks | None = None,
        seed: int = 1,
        shuffle: bool = False,
        name: str = "data",
    ) -> None:
        """Take what does not depend on where examples come from.

        Args:
            form: the layout.
            flows: what is predicted.
            sizes: positions of each packed example (examples,), at most.
            cut: how targets are cut into blocks, where they are.
            seed: first part of the seed of every random choice.
            shuffle: whether examples of similar length come in random order.
            name: what messages call the data.
        """
        self.form, self.flows, self.cut, self.sizes = form, flows, cut, sizes
        self.seed, self.shuffle, self.name = seed, shuffle, name
        # In shared memory, because data loading workers that outlive an epoch hold a copy of this object.
        self.epoch = torch.ones(1, dtype=torch.int64).share_memory_()
        self._batches_logged = False

    def __len__(self) -> int:
        return len(self.sizes)

    def draws(self, examples: np.ndarray) -> Draws:
        """Return the random numbers of these examples (B,) in this epoch."""
        return Draws(self.seed, int(self.epoch), examples)

    def make_batch(self, ids: np.ndarray, packed: PackedExamples) -> dict[str, Any]:
        """Make a batch of packed examples.

        Args:
            ids: numbers of the examples (B,). B: examples.
            packed: their sections.

        Returns:
            ``net_input``: the arguments of the model, columns (T,) and ``labelled`` (N,), the numbers of the tokens
            that carry a label. ``labels``: these (N,). ``ntokens``: N. ``divisor``: what the loss is divided by, unless
            by the number of examples. ``weights`` (N,): of the labels, None if they are alike. ``flows``: which labels
            (N,) belong to each flow, by name, where there are several; else nothing. T: tokens of all packed examples.
        """
        batch = collate([packed])
        labelled = np.flatnonzero(batch.label != self.form.pad)
        labels = batch.label[labelled]
        return {
            "id": torch.from_numpy(ids),
            "nsentences": len(ids),
            "ntokens": len(labels),
            "net_input": {**model_input(batch), "labelled": torch.from_numpy(labelled)},
            "labels": torch.from_numpy(labels),
            **self._flows(batch, labelled),
        }

    def _flows(self, batch: PackedBatch, labelled: np.ndarray) -> dict[str, Any]:
        """Return what a batch holds of the flows, and what its labels weigh."""
        sections = batch.section()[labelled]
        members = {flow.name: sections == flow.section for flow in self.flows} if len(self.flows) > 1 else {}
        weights, divisor = None, len(labelled) // len(self.flows)
        if self.cut is not None:
            weights, divisor = self.cut.weights(batch, labelled)
        elif members:
            weights = sum(flow.weight * members[flow.name] for flow in self.flows)
        return {
            "flows": {name: torch.from_numpy(of_flow) for name, of_flow in members.items()},
            # float64: fairseq's --fp16 halves float32 alone
            "weights": None if weights is None else torch.from_numpy(weights),
            "divisor": divisor,
        }

    def check_ids(self, tokens: Ragged) -> None:
        """Raise a `UserError` if the dictionary lacks one of the tokens."""
        highest = tokens.values.max()
        if highest >= self.form.vocab_size:
            raise UserError(
                f"{self.name} holds the id {highest}, but the dictionary has {self.form.vocab_size} symbols: run "
                "fairseq-preprocess again with the dict.txt of the pretrained encoder"
            )

    def num_tokens(self, index: int) -> int:
        """Return the positions of a packed example at most, placeholders among them."""
        return int(self.sizes[index])

    def size(self, index: int) -> Any:
        """Return the positions of a packed example, or of its parts."""
        return self.num_tokens(index)

    def num_tokens_vec(self, indices: np.ndarray) -> np.ndarray:
        """Return the positions of the packed examples at ``indices``."""
        return self.sizes[indices]

    def share_of_padding(self, indices: np.ndarray, starts: np.ndarray) -> float:
        """Tell how much of these batches would be padding if examples were padded to the longest."""
        return share_of_padding([self.sizes[indices]], starts)

    def ordered_indices(self) -> np.ndarray:
        """Return all indices, the shortest examples first; shuffled, it is buckets of similar length that are in order.

        The length of an example is that of its whole packed sequence.
        """
        if not self.shuffle:
            return np.argsort(self.sizes, kind="stable")
        return bucketed_order(self.sizes, np.random.default_rng((self.seed, int(self.epoch))))

    def filter_indices_by_size(self, indices: np.ndarray, max_sizes: Any) -> tuple[np.ndarray, list[int]]:
        """Keep every example: all were cut to fit the layout, and none is left out because it is long.

        fairseq would leave out, with a warning, those with a side that is longer than ``--max-tokens``.
        """
        return indices, []

    def batch_by_size(
        self,
        indices: np.ndarray,
        max_tokens: int | None = None,
        max_sentences: int | None = None,
        required_batch_size_multiple: int = 1,
    ) -> list[np.ndarray]:
        """Return the indices of each batch; ``max_tokens`` counts its positions at most; there is no padding.

        fairseq would count the longest example of a batch for each of them, and drop what
        ``required_batch_size_multiple`` leaves over.

        Raises:
            UserError: if an example alone has more positions than ``--max-tokens``.
        """
        if len(indices) == 0:
            return []
        sizes = self.sizes[indices]
        if max_tokens is not None and sizes.max() > max_tokens:
            option = "--max-tokens" if self.shuffle else "--max-tokens (--max-tokens-valid while training)"
            raise UserError(
                f"{option} must be at least {sizes.max()}, the packed positions of the longest example of "
                f"{self.name} (number {indices[sizes.argmax()] + 1} of {len(self):,}), but is {max_tokens}"
            )
        starts = cut_into_batches(sizes, max_tokens, max_sentences, required_batch_size_multiple)
        if not self._batches_logged:
            self._batches_logged = True
            padding = self.share_of_padding(indices, starts)
            logger.info(
                f"{self.name}: {len(starts):,} batches of {sizes.sum() / len(starts):,.0f} positions on average, none "
                f"of them padding; padded to the longest of their batch {padding:.1%} would be"
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


def model_input(batch: PackedBatch) -> dict[str, Any]:
    """Return the arguments of the encoder: columns (T,), the lengths of the sections, and `packing.first_step`."""
    return {
        "tokens": torch.from_numpy(batch.token),
        "positions": torch.from_numpy(batch.position),
        "segments": torch.from_numpy(batch.segment),
        "steps": torch.from_numpy(batch.step),
        "groups": torch.from_numpy(batch.group),
        "lengths": batch.lengths,
        "first_step": first_step(batch),
    }


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
        sizes = self.source_sizes + objective.target_positions(self.target_sizes, form.max_target)
        super().__init__(form, objective.flows, sizes, cut=objective.cut, seed=seed, shuffle=shuffle, name=name)
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
            return self.make_batch(ids, (context_section(source, form),))
        target = Ragged.of([sample["target"] for sample in samples])
        return self.make_batch(ids, self.objective.pack(source, target, form, self.corruption, self.draws(ids)))

    def size(self, index: int) -> tuple[int, int]:
        """Return the lengths of the laid-out source and target."""
        return int(self.source_sizes[index]), int(self.target_sizes[index])

    def share_of_padding(self, indices: np.ndarray, starts: np.ndarray) -> float:
        """Tell how much of these batches would be padding if sources and targets were padded to their longest."""
        return share_of_padding([self.source_sizes[indices], self.sizes[indices] - self.source_sizes[indices]], starts)
