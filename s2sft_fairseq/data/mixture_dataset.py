"""A data set of several parts for an encoder-decoder, sampled anew in each epoch."""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from fairseq.data import FairseqDataset, data_utils

from s2sft_fairseq.data.length_batches import bucketed_order
from s2sft_fairseq.data.mixture_parts import MixturePart, TemperatureSchedule, whole_counts
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.objectives.ragged import Draws, Ragged
from s2sft_fairseq.objectives.sequence_form import decoder_input

logger = logging.getLogger(__name__)


class MixtureDataset(FairseqDataset):
    """A data set of one or two groups of parts.

    The schedule sets the number of examples of each part of a group in an epoch. Two groups have half of the batches
    each.

    Indices count the examples of all parts, one part after the other. If an epoch needs an example more than once, copy
    n has the index plus n times the number of all examples, so that each copy is corrupted differently. The indices of
    an epoch depend only on (seed, epoch), and random choices for an example only on (seed, epoch, index): not on the
    number of workers or GPUs, nor on where a run was resumed.
    """

    def __init__(
        self,
        groups: Sequence[Sequence[MixturePart]],
        schedule: TemperatureSchedule | None,
        *,
        pad: int,
        eos: int,
        vocab_size: int,
        seed: int = 1,
        epoch_examples: int | None = None,
        name: str = "data",
    ) -> None:
        """Combine parts.

        Args:
            groups: one or two groups of parts.
            schedule: the temperature schedule; None, for validation and generation: each example once, by length.
            pad: id of the padding.
            eos: first id of the decoder's input.
            vocab_size: number of symbols of the dictionary.
            seed: first part of the seed of all random choices.
            epoch_examples: number of examples of each group in an epoch (default: the size of the first group).
            name: name of the data in messages.

        Raises:
            UserError: if a part has no examples.
        """
        self.parts = [part for group in groups for part in group]
        if empty := [part.name for part in self.parts if not len(part)]:
            raise UserError(f"{name}: no examples of {', '.join(empty)}")
        self.schedule, self.pad, self.eos, self.vocab_size = schedule, pad, eos, vocab_size
        self.seed, self.epoch, self.name = seed, 1, name
        self.group_of_part = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
        self.part_sizes = np.array([len(part) for part in self.parts])
        self.epoch_examples = epoch_examples or int(self.part_sizes[self.group_of_part == 0].sum())
        self._starts = np.cumsum(self.part_sizes) - self.part_sizes
        # fairseq's batching needs int64, but its data sets have int32.
        self.source_sizes = np.concatenate([part.source_sizes for part in self.parts]).astype(np.int64)
        self.target_sizes = np.concatenate([part.target_sizes for part in self.parts]).astype(np.int64)

    def __len__(self) -> int:
        return len(self.source_sizes)

    def part_of(self, indices: np.ndarray) -> np.ndarray:
        """Return the index of the part of each example index (N,)."""
        return np.searchsorted(self._starts, indices % len(self), side="right") - 1

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return the ids of an example, without any randomness."""
        part = int(self.part_of(np.array(index)))
        return {"id": index, "part": part, "item": self.parts[part][index % len(self) - int(self._starts[part])]}

    def collater(self, samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Make a batch for fairseq's encoder-decoder models and criterions.

        Returns:
            ``net_input``: ``src_tokens`` (B, S), ``src_lengths`` (B,) and, if there are targets,
            ``prev_output_tokens`` (B, T), eos followed by the target without its last token. ``target``: (B, T) or
            None. All are padded on the right. ``ntokens``: number of tokens of the targets, or of the sources if there
            are no targets. ``part``: name of the part of the first example. B: examples; S, T: positions of the longest
            source and target.

        Raises:
            UserError: if the data was binarized with a larger dictionary.
        """
        if not samples:
            return {}
        ids = np.array([sample["id"] for sample in samples])
        parts = np.array([sample["part"] for sample in samples])
        sources: list[np.ndarray] = [np.empty(0)] * len(samples)
        targets: list[np.ndarray | None] = [None] * len(samples)
        for part in np.unique(parts):
            places = np.flatnonzero(parts == part)
            draws = Draws(self.seed, self.epoch, ids[places])
            source, target = self.parts[part].make([samples[place]["item"] for place in places.tolist()], draws)
            for place, row in zip(places, _rows(source), strict=True):
                sources[place] = row
            if target is not None:
                for place, row in zip(places, _rows(target), strict=True):
                    targets[place] = row
        source = self._ragged(sources)
        batch = {
            "id": torch.from_numpy(ids),
            "nsentences": len(ids),
            "part": self.parts[parts[0]].name,
            "ntokens": int(source.lengths.sum()),
            "net_input": {
                "src_tokens": torch.from_numpy(source.padded(self.pad)),
                "src_lengths": torch.from_numpy(source.lengths),
            },
            "target": None,
        }
        if all(target is not None for target in targets):
            target = self._ragged([row for row in targets if row is not None])
            batch["ntokens"] = int(target.lengths.sum())
            batch["target"] = torch.from_numpy(target.padded(self.pad))
            previous = decoder_input(target, self.eos)
            batch["net_input"]["prev_output_tokens"] = torch.from_numpy(previous.padded(self.pad))
        return batch

    def _ragged(self, rows: list[np.ndarray]) -> Ragged:
        joined = Ragged.of(rows)
        if (highest := joined.values.max()) >= self.vocab_size:
            raise UserError(
                f"{self.name} holds the id {highest}, but the dictionary has {self.vocab_size} symbols: binarize it "
                "again with the dict.txt of the pretrained model"
            )
        return joined

    def num_tokens(self, index: int) -> int:
        """Return the larger number of positions of source and target."""
        return int(self.num_tokens_vec(np.array([index]))[0])

    def num_tokens_vec(self, indices: np.ndarray) -> np.ndarray:
        """Return the larger number of positions of source and target, for each index."""
        example = indices % len(self)
        return np.maximum(self.source_sizes[example], self.target_sizes[example])

    def size(self, index: int) -> tuple[int, int]:
        """Return the numbers of positions of source and target."""
        example = index % len(self)
        return int(self.source_sizes[example]), int(self.target_sizes[example])

    def counts(self) -> np.ndarray:
        """Return the number of examples of each part in this epoch (parts,)."""
        if self.schedule is None:
            return self.part_sizes
        counts = np.empty_like(self.part_sizes)
        for group in np.unique(self.group_of_part):
            members = self.group_of_part == group
            shares = self.schedule.shares(self.part_sizes[members], self.epoch)
            counts[members] = whole_counts(shares, self.epoch_examples)
        return counts

    def ordered_indices(self) -> np.ndarray:
        """Return the indices of this epoch by length; in training, in random order within buckets of similar length."""
        if self.schedule is None:
            return np.argsort(self.num_tokens_vec(np.arange(len(self))), kind="stable")
        indices = np.concatenate([self._sample(part, count) for part, count in enumerate(self.counts())])
        sizes = self.num_tokens_vec(indices)
        return indices[bucketed_order(sizes, np.random.default_rng((self.seed, self.epoch)))]

    def _sample(self, part: int, count: int) -> np.ndarray:
        """Return ``count`` indices of a part: whole copies of it, and a random choice for the rest."""
        size, start = int(self.part_sizes[part]), int(self._starts[part])
        copies, rest = divmod(int(count), size)
        chosen = np.random.default_rng((self.seed, self.epoch, part)).permutation(size)[:rest]
        whole = np.tile(np.arange(size), copies) + len(self) * np.repeat(np.arange(copies), size)
        return start + np.concatenate([whole, chosen + copies * len(self)])

    def filter_indices_by_size(self, indices: np.ndarray, max_sizes: Any) -> tuple[np.ndarray, list[int]]:
        """Return all indices: no example is too long, as examples are cut."""
        return indices, []

    def batch_by_size(
        self,
        indices: np.ndarray,
        max_tokens: int | None = None,
        max_sentences: int | None = None,
        required_batch_size_multiple: int = 1,
    ) -> list[np.ndarray]:
        """Return the indices of each batch.

        In training, all examples of a batch are from one group. The second group gets as many batches as the first:
        a random choice of its batches, or all of them and some repeated. In validation and generation, all examples of
        a batch are from one part, so that each part can be scored by itself.

        Raises:
            UserError: if an example has more positions than ``--max-tokens``.
        """
        if not len(indices):
            return []
        parts = self.part_of(indices)
        groups = parts if self.schedule is None else self.group_of_part[parts]
        first, *others = (
            self._batches(indices[groups == group], max_tokens, max_sentences, required_batch_size_multiple)
            for group in np.unique(groups)
        )
        if self.schedule is None:
            return [batch for batches in (first, *others) for batch in batches]
        rng = np.random.default_rng((self.seed, self.epoch, len(self.parts)))
        for batches in others:
            order = np.resize(rng.permutation(len(batches)), len(first))
            first += [batches[number] for number in order]
        return first

    def _batches(
        self, indices: np.ndarray, max_tokens: int | None, max_sentences: int | None, multiple: int
    ) -> list[np.ndarray]:
        sizes = self.num_tokens_vec(indices)
        if max_tokens is not None and sizes.max() > max_tokens:
            option = "--max-tokens" if self.schedule is not None else "--max-tokens (--max-tokens-valid while training)"
            raise UserError(
                f"{option} must be at least {sizes.max()}, the positions of the longest example of {self.name} "
                f"(number {indices[sizes.argmax()] % len(self) + 1} of {len(self):,}), but is {max_tokens}"
            )
        batches = data_utils.batch_by_size(
            indices,
            num_tokens_fn=self.num_tokens,
            num_tokens_vec=sizes,
            max_tokens=max_tokens,
            max_sentences=max_sentences,
            required_batch_size_multiple=multiple,
        )
        # fairseq drops the last examples if they are fewer than the multiple.
        done = sum(map(len, batches))
        return batches if done == len(indices) else [*batches, indices[done:]]

    @property
    def can_reuse_epoch_itr_across_epochs(self) -> bool:
        """False: each epoch has its own examples."""
        return False

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which determines temperature, examples and corruption."""
        self.epoch = epoch

    def log_counts(self) -> None:
        """Log the temperature and the number of examples of each part in this epoch."""
        if self.schedule is None or len(self.parts) == 1:
            return
        parts = ", ".join(f"{part.name} {count:,}" for part, count in zip(self.parts, self.counts(), strict=True))
        temperature = self.schedule.temperature(self.epoch)
        logger.info(f"{self.name}, epoch {self.epoch}: temperature {temperature:g}; examples: {parts}")


def _rows(ragged: Ragged) -> list[np.ndarray]:
    return np.split(ragged.values, np.cumsum(ragged.lengths)[:-1])
