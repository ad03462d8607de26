"""The incremental state of decoding: keys and values in slots, and which of them each hypothesis sees.

A slot holds what one position left in every layer: first those of the source, once for all hypotheses of the sentence,
short ones behind their padding, then those of the tokens that were generated. Hypotheses that go on from a common one
share its slots, so that the search may reorder them as it likes and no key moves: what changes is only who sees what.

On a CPU neighbours of similar length attend together, so that little is computed for padding. On a GPU all sentences
attend in one call, over a number of slots that rarely changes: kernels cost more there than padding, and a CUDA graph
has fixed shapes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from s2sft_fairseq.modules.step_layout import StepLayout
from s2sft_fairseq.modules.upload import upload

# Padding of a group, at most, as a part of its positions.
MOST_PADDING = 1 / 8
# Slots that no hypothesis sees any more are given to others every so many steps.
STEPS_BETWEEN_COMPACTIONS = 8
# A GPU's step reads a multiple of this number of slots. Slots that are not in use are masked.
SLOTS_AT_A_TIME = 64

Allocate = Callable[..., Tensor]
"""Takes a size, ``dtype`` and ``device``, as torch.zeros does. On a GPU its tensors hold finite numbers: a step reads
slots that are not in use, too. Their weight is 0, but 0 times NaN is NaN."""


def similar_lengths(lengths: Sequence[int]) -> Iterator[tuple[slice, int]]:
    """Yield groups of consecutive sentences, each as large as its padding allows, and the length of the longest in it.

    There are the fewer of them the better the sentences are sorted.

    Args:
        lengths: of the sentences.
    """
    start = longest = total = 0
    for index, length in enumerate(lengths):
        widest = max(longest, length)
        positions = widest * (index + 1 - start)
        if positions - total - length > MOST_PADDING * positions:
            yield slice(start, index), longest
            start, widest, total = index, length, 0
        longest, total = widest, total + length
    if start < len(lengths):
        yield slice(start, len(lengths)), longest


def consecutive(lengths: Sequence[int], most: int) -> Iterator[tuple[slice, slice]]:
    """Yield groups of consecutive sentences, and the positions that they take up where all stand one after the other.

    Args:
        lengths: of the sentences.
        most: positions of a group, at most; one sentence may have more.
    """
    start = begin = end = 0
    for index, length in enumerate(lengths):
        if index > start and end + length - begin > most:
            yield slice(start, index), slice(begin, end)
            start, begin = index, end
        end += length
    if start < len(lengths):
        yield slice(start, len(lengths)), slice(begin, end)


def slots_for(count: int, device: torch.device) -> int:
    """Round a number of slots up to what a device allocates and reads: on GPUs a multiple of `SLOTS_AT_A_TIME`."""
    return count if device.type == "cpu" else -(-count // SLOTS_AT_A_TIME) * SLOTS_AT_A_TIME


def source_places(lengths: Sequence[int], slots: int, device: torch.device) -> Tensor:
    """Return where the positions of sources, one after the other, stand among their slots, short ones at the end (T,).

    Args:
        lengths: of the sources, which add up to T.
        slots: for a source and its padding.
        device: of the result.
    """
    ends = np.cumsum(lengths)
    # The last position of each source stands in the last slot of its sentence.
    moved = slots * np.arange(1, len(ends) + 1) - ends
    return upload(np.arange(ends[-1]) + np.repeat(moved, lengths), device)


class LayerCache:
    """Keys and values of one layer, each (N, h, C, d). N: sentences, h: heads, C: slots there is room for."""

    def __init__(self, key: Tensor, value: Tensor) -> None:
        self.key, self.value = key, value

    def store(self, keys_values: Tensor, places: Tensor, sentences: slice, slots: int) -> None:
        """Keep sources in the first slots.

        Args:
            keys_values: of the sources, one after the other (T, 2, h, d).
            places: of each position among the slots of these sentences (T,), see `source_places`.
            sentences: whose sources they are.
            slots: for a source and its padding.
        """
        count = sentences.stop - sentences.start
        # Padding has the weight 0 in attention, but 0 times NaN is NaN.
        padded = keys_values.new_zeros(count * slots, *keys_values.shape[1:]).index_copy_(0, places, keys_values)
        # (n * S, 2, h, d) -> twice (n, h, S, d)
        new = padded.view(count, slots, *keys_values.shape[1:]).permute(2, 0, 3, 1, 4)
        self.key[sentences, :, :slots], self.value[sentences, :, :slots] = new

    def write(self, key: Tensor, value: Tensor, slots: slice | Tensor, end: int) -> tuple[Tensor, Tensor]:
        """Write those of A new tokens (N, h, A, d) into their slots; return the first ``end`` of all."""
        self.key[:, :, slots] = key
        self.value[:, :, slots] = value
        return self.key[:, :, :end], self.value[:, :, :end]

    def move(self, start: int, slots: Tensor) -> None:
        """Fill the slots from ``start`` on with the ones given for each sentence (N, c)."""
        end = start + slots.size(1)
        # (N, c) -> (N, h, c, d)
        index = slots[:, None, :, None].expand(-1, self.key.size(1), -1, self.key.size(3))
        self.key[:, :, start:end] = self.key.gather(2, index)
        self.value[:, :, start:end] = self.value.gather(2, index)


@dataclass
class IncrementalState:
    """What decoding remembers of a batch for one model.

    Its tensors keep their places in memory, as long as the slots that there is room for suffice: CUDA graphs read and
    write them there.

    N: sentences, K: hypotheses of each, S: slots in use, C: slots there is room for.
    """

    layers: list[LayerCache]
    seen: Tensor
    """Which slots each hypothesis sees, with room for as many hypotheses as there will be (N, K or more, C). False
    where a slot is not in use."""
    positions: Tensor
    """Position ids of what is in the slots (N, C)."""
    lengths: Tensor
    """Positions that the hypotheses of each sentence take up by now (N,), its source included."""
    first_slots: list[int]
    """The slot where the source of each sentence begins, N of them: shorter ones stand further on."""
    used: int
    """S, the slots in use. The first ones are those of the source and its padding."""
    hypotheses: int = 1
    """K."""
    source_slots: int = field(init=False)
    compact_at: int = field(init=False)
    """Slots in use at which to look for those that nobody sees."""
    groups: list[tuple[slice, int]] = field(init=False)
    """Neighbours that attend together, and the first slot that any of them sees."""

    @classmethod
    def begin(
        cls,
        positions: Tensor,
        lengths: Sequence[int],
        *,
        layers: int,
        heads: int,
        head_dim: int,
        num_tokens: int,
        hypotheses: int,
        dtype: torch.dtype,
        allocate: Allocate | None = None,
    ) -> "IncrementalState":
        """Make the state of a batch, whose keys and values are still to be stored.

        Args:
            positions: position ids of the sources, one after the other (T,).
            lengths: positions of each of the N sources, which add up to T.
            layers: of the model.
            heads: of each layer.
            head_dim: width of a head.
            num_tokens: slots to make room for besides those of the sources.
            hypotheses: most hypotheses that a sentence will have.
            dtype: of keys and values.
            allocate: memory for the state; None: memory of its own.
        """
        device, slots, count = positions.device, max(lengths), len(lengths)
        allocate = allocate or (torch.empty if device.type == "cpu" else torch.zeros)
        capacity = slots_for(slots + num_tokens, device)
        size = (count, heads, capacity, head_dim)
        keys_values = [allocate(size, dtype=dtype, device=device) for _ in range(2 * layers)]
        seen = allocate((count, hypotheses, capacity), dtype=torch.bool, device=device).fill_(False)
        slot_positions = allocate((count, capacity), dtype=torch.long, device=device).fill_(0)
        slot_lengths = allocate((count,), dtype=torch.long, device=device).copy_(upload(lengths, device))
        of_source = torch.arange(slots, device=device) >= slots - slot_lengths.unsqueeze(1)
        seen[:, 0, :slots] = of_source
        slot_positions[:, :slots] = torch.zeros_like(of_source, dtype=torch.long).masked_scatter_(of_source, positions)
        caches = [LayerCache(*pair) for pair in zip(keys_values[::2], keys_values[1::2], strict=True)]
        return cls(caches, seen, slot_positions, slot_lengths, [slots - length for length in lengths], used=slots)

    def __post_init__(self) -> None:
        self.source_slots = self.compact_at = self.used
        self._group()

    @property
    def visible(self) -> Tensor:
        """Which of the slots in use each hypothesis sees (N, K, S)."""
        return self.seen[:, : self.hypotheses, : self.used]

    @property
    def capacity(self) -> int:
        """C, the slots there is room for."""
        return self.positions.size(1)

    def slots_of(self, layout: StepLayout) -> slice:
        """Return the slots of the A new tokens of a step: those behind the ones in use."""
        return slice(self.used, self.used + len(layout.hypotheses))

    def read_by(self, layout: StepLayout) -> int:
        """Return how many slots a step reads: those in use and its own, on a GPU some more."""
        return slots_for(self.used + len(layout.hypotheses), self.positions.device)

    def make_room(self, layout: StepLayout) -> None:
        """See to it that the new tokens of a step find free slots."""
        new = len(layout.hypotheses)
        if self.used >= self.compact_at or self.used + new > self.capacity:
            self._compact()
            self.compact_at = self.used + STEPS_BETWEEN_COMPACTIONS * layout.num_kept
        if self.used + new > self.capacity:
            capacity = slots_for(self.capacity + new + self.capacity // 4, self.positions.device)
            more = capacity - self.capacity
            self.seen, self.positions = (_widened(x, -1, more) for x in (self.seen, self.positions))
            for layer in self.layers:
                layer.key, layer.value = (_widened(x, 2, more) for x in (layer.key, layer.value))

    def seen_by(self, layout: StepLayout, slots: slice | Tensor, end: int) -> Tensor:
        """Return what new tokens see of the first ``end`` slots (N, A, end): what their hypotheses see, and each other.

        Args:
            layout: what they are.
            slots: where they stand; a tensor (A,) where a CUDA graph is to find them.
            end: see `read_by`.
        """
        seen = self.seen[:, layout.hypotheses, :end]
        seen[:, :, slots] = layout.visible
        return seen

    def keep(self, layout: StepLayout) -> None:
        """Keep the slots of a step's content, which the hypotheses that it continues see."""
        kept = layout.num_kept
        hypotheses = torch.arange(self.hypotheses, device=self.seen.device)
        owners = hypotheses.unsqueeze(1) == layout.hypotheses[:kept]
        self.seen[:, : self.hypotheses, self.used : self.used + kept] = owners
        self.used += kept
        self.lengths += kept // self.hypotheses

    def forget(self, newest: int, kept: Tensor) -> None:
        """Let the only hypothesis of each sentence keep so many (N,) of its ``newest`` last tokens."""
        right = torch.arange(newest, device=kept.device) < kept.unsqueeze(1)
        self.seen[:, 0, self.used - newest : self.used] = right
        self.lengths += kept - newest

    def follow(self, parents: Tensor) -> None:
        """Follow the search: hypothesis k of a sentence goes on from ``parents[n, k]``, (N, K')."""
        followed = self.visible.gather(1, parents.unsqueeze(-1).expand(-1, -1, self.used))
        self.hypotheses = parents.size(1)
        self.seen[:, : self.hypotheses, : self.used] = followed

    def keep_sentences(self, left: Tensor) -> None:
        """Go on with the given sentences only.

        Args:
            left: their indices (n,), on the CPU. As few as possible should differ from 0, 1, ...
        """
        self.first_slots = [self.first_slots[sentence] for sentence in left.tolist()]
        self._group()
        count = len(left)
        moved = (left != torch.arange(count)).nonzero().squeeze(1)
        device = self.positions.device
        moved, origins = moved.to(device), left[moved].to(device)

        for layer in self.layers:
            for x in (layer.key, layer.value):
                x[moved, :, : self.used] = x[origins, :, : self.used]
            layer.key, layer.value = layer.key[:count], layer.value[:count]
        for x in (self.seen, self.positions, self.lengths):
            x[moved] = x[origins]
        self.seen, self.positions, self.lengths = self.seen[:count], self.positions[:count], self.lengths[:count]

    def _group(self) -> None:
        if self.positions.device.type != "cpu":
            self.groups = [(slice(0, len(self.first_slots)), 0)]
            return
        lengths = [self.source_slots - first for first in self.first_slots]
        self.groups = [(rows, self.source_slots - longest) for rows, longest in similar_lengths(lengths)]

    def _compact(self) -> None:
        """Free the slots that no hypothesis of the sentence sees any more."""
        # What all hypotheses of a sentence see, those that come of them will see: it never moves, nor does the source.
        settled = self.visible.all(dim=1).all(dim=0)
        settled[: self.source_slots] = True
        settled = settled.long().cumprod(dim=0)
        alive = self.visible.any(dim=1)
        most = (alive * (1 - settled)).sum(dim=1).max()
        start, count = torch.stack([settled.sum(), most]).tolist()  # the only wait for a GPU
        if start + count == self.used:
            return
        alive = alive[:, start:]
        # Those alive first, in their order. (N, S - start) -> (N, count)
        slots = start + alive.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :count]
        for layer in self.layers:
            layer.move(start, slots)
        end = start + count
        moved = self.visible.gather(2, slots.unsqueeze(1).expand(-1, self.hypotheses, -1))
        self.seen[:, : self.hypotheses, start:end] = moved
        self.seen[:, :, end : self.used] = False
        self.positions[:, start:end] = self.positions.gather(1, slots)
        self.used = end


def _widened(x: Tensor, dim: int, more: int) -> Tensor:
    """Return a tensor with room for more slots, which hold zeros."""
    size = list(x.shape)
    size[dim] = more
    return torch.cat([x, x.new_zeros(size)], dim=dim)
