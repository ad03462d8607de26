"""Packed data sets: their base class, which batches by length and makes batches; and the one of pairs."""

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
    """Base class of data sets whose examples are packed anew in each epoch.

    All random choices depend only on (seed, epoch, example index): not on the number of workers or GPUs, nor on where a
    run was resumed.
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
        """Set what all packed data sets need.

        Args:
            form: the layout.
            flows: the flows of the objective.
            sizes: maximum number of positions of each packed example (examples,).
            cut: how targets are cut into blocks; None: they are not.
            seed: first part of the seed of all random choices.
            shuffle: whether examples of similar length are in random order.
            name: name of the data in messages.
        """
        self.form, self.flows, self.cut, self.sizes = form, flows, cut, sizes
        self.seed, self.shuffle, self.name = seed, shuffle, name
        # In shared memory, because workers of the data loader that outlive an epoch have a copy of this object.
        self.epoch = torch.ones(1, dtype=torch.int64).share_memory_()
        self._batches_logged = False

    def __len__(self) -> int:
        return len(self.sizes)

    def draws(self, examples: np.ndarray) -> Draws:
        """Return the random draws for these examples (B,) in this epoch."""
        return Draws(self.seed, int(self.epoch), examples)

    def make_batch(self, ids: np.ndarray, packed: PackedExamples) -> dict[str, Any]:
        """Make a batch of packed examples.

        Args:
            ids: indices of the examples (B,). B: examples.
            packed: their sections.

        Returns:
            ``net_input``: the arguments of the model, columns (T,) and ``labelled`` (N,), the indices of the tokens
            with a label. ``labels``: the labels (N,). ``ntokens``: N. ``divisor``: the divisor of the loss, unless it
            is averaged over examples; with several flows the number of labels of the first. ``weights``: the weights
            of the labels (N,); None if they are equal. ``flows``: for each flow by name, a mask of its labels (N,);
            empty if there is only one flow. T: tokens of all packed examples; N: labels.
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
        """Return the masks of the flows, the weights of the labels, and the divisor of the loss."""
        sections = batch.section()[labelled]
        members = {flow.name: sections == flow.section for flow in self.flows} if len(self.flows) > 1 else {}
        weights, divisor = None, len(labelled)
        if self.cut is not None:
            weights, divisor = self.cut.weights(batch, labelled)
        elif members:
            divisor = int(members[self.flows[0].name].sum())
            weights = sum(flow.weight * members[flow.name] for flow in self.flows)
        return {
            "flows": {name: torch.from_numpy(of_flow) for name, of_flow in members.items()},
            # float64, because fairseq's --fp16 would convert float32 to 16 bits.
            "weights": None if weights is None else torch.from_numpy(weights),
            "divisor": divisor,
        }

    def check_ids(self, tokens: Ragged) -> None:
        """Check that the dictionary has all tokens.

        Raises:
            UserError: if it lacks one of them.
        """
        highest = tokens.values.max()
        if highest >= self.form.vocab_size:
            raise UserError(
                f"{self.name} holds the id {highest}, but the dictionary has {self.form.vocab_size} symbols: run "
                "fairseq-preprocess again with the dict.txt of the pretrained encoder"
            )

    def num_tokens(self, index: int) -> int:
        """Return the maximum number of positions of a packed example, with placeholders."""
        return int(self.sizes[index])

    def size(self, index: int) -> Any:
        """Return the number of positions of a packed example, or the lengths of its parts."""
        return self.num_tokens(index)

    def num_tokens_vec(self, indices: np.ndarray) -> np.ndarray:
        """Return the maximum number of positions of each packed example at ``indices``."""
        return self.sizes[indices]

    def share_of_padding(self, indices: np.ndarray, starts: np.ndarray) -> float:
        """Return the share of padding that these batches would have if examples were padded to the longest."""
        return share_of_padding([self.sizes[indices]], starts)

    def ordered_indices(self) -> np.ndarray:
        """Return all indices, the shortest packed sequences first.

        With ``shuffle``, only buckets of similar length are in order; within a bucket the order is random.
        """
        if not self.shuffle:
            return np.argsort(self.sizes, kind="stable")
        return bucketed_order(self.sizes, np.random.default_rng((self.seed, int(self.epoch))))

    def filter_indices_by_size(self, indices: np.ndarray, max_sizes: Any) -> tuple[np.ndarray, list[int]]:
        """Return all indices: examples are cut to fit the layout, and long ones are kept.

        fairseq would leave out, with a warning, examples with a side longer than ``--max-tokens``.
        """
        return indices, []

    def batch_by_size(
        self,
        indices: np.ndarray,
        max_tokens: int | None = None,
        max_sentences: int | None = None,
        required_batch_size_multiple: int = 1,
    ) -> list[np.ndarray]:
        """Return the indices of each batch; ``max_tokens`` limits the sum of its positions, as there is no padding.

        fairseq would count the longest example of a batch for each of its examples, and drop the last examples if they
        are fewer than ``required_batch_size_multiple``.

        Raises:
            UserError: if a single example has more positions than ``--max-tokens``.
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
                f"{self.name}: {len(starts):,} batches of {sizes.sum() / len(starts):,.0f} positions on average, no "
                f"padding; if padded to the longest of a batch, {padding:.1%} would be padding"
            )
        ends = [*starts[1:].tolist(), len(indices)]
        return [indices[start:end] for start, end in zip(starts.tolist(), ends, strict=True)]

    @property
    def can_reuse_epoch_itr_across_epochs(self) -> bool:
        """False: batches are made from (seed, epoch), so that a resumed run has the same as an uninterrupted one."""
        return False

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, on which all random choices depend."""
        self.epoch.fill_(epoch)


def model_input(batch: PackedBatch) -> dict[str, Any]:
    """Return the arguments of the encoder: columns (T,), the lengths of the sections, and `packing.first_step`.

    T: tokens of the packed batch.
    """
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
            target: ids of the targets in the same form, or None for generation without targets.
            form: the layout.
            objective: the objective.
            corruption: the corruption of sources and targets.
            seed: first part of the seed of all random choices.
            shuffle: whether examples of similar length are in random order.
            for_decoding: make batches for a generator, which are not packed.
            name: name of the data in messages.
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
            The batch of `PackedDataset.make_batch`. For decoding, ``net_input`` has the sources ``src_tokens`` (B, S)
            and ``src_lengths`` (B,) instead, and ``target`` has the whole targets (B, L), against which hypotheses are
            scored, or is None. B: examples; S, L: lengths of the longest source and target.

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
        """Return the share of padding that these batches would have if sources and targets were padded separately."""
        return share_of_padding([self.source_sizes[indices], self.sizes[indices] - self.source_sizes[indices]], starts)
