"""The incremental state of decoding: keys and values in slots, and which slots each hypothesis sees.

A slot holds the key and value of one position in every layer. The first slots hold the source, once for all hypotheses
of a sentence, with padding on the left; the next slots hold generated tokens. Hypotheses with a common beginning share
its slots. So the search reorders hypotheses without moving keys: only the visibility changes.

On a CPU neighboring sentences of similar length attend together, to compute little for padding. On a GPU all sentences
attend in one call, over a number of slots that rarely changes: there a kernel costs more than padding, and a CUDA graph
has fixed shapes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from s2sft_fairseq.modules.step_layout import StepLayout
from s2sft_fairseq.modules.upload import upload

# Largest share of padding among the positions of a group.
MOST_PADDING = 1 / 8
# Number of steps after which slots that no hypothesis sees are freed.
STEPS_BETWEEN_COMPACTIONS = 8
# On a GPU a step reads a multiple of this number of slots. Slots that are not in use are masked.
SLOTS_AT_A_TIME = 64

Allocate = Callable[..., Tensor]
"""Takes a size, ``dtype`` and ``device``, as torch.zeros does. On a GPU its tensors must hold finite numbers: a step
also reads slots that are not in use, with the weight 0, but 0 * NaN is NaN."""


def similar_lengths(lengths: Sequence[int]) -> Iterator[tuple[slice, int]]:
    """Yield groups of consecutive sentences, each as large as its padding allows, and the greatest length of each.

    Sorted sentences make fewer groups.

    Args:
        lengths: lengths of the sentences.
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
    """Yield slices of consecutive sentences, and of their positions when all sentences follow one another.

    Args:
        lengths: lengths of the sentences.
        most: most positions of a group; a single sentence may have more.
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
    """Round up the number of slots that a device allocates or reads: on GPUs to a multiple of `SLOTS_AT_A_TIME`."""
    return count if device.type == "cpu" else -(-count // SLOTS_AT_A_TIME) * SLOTS_AT_A_TIME


def source_places(lengths: Sequence[int], slots: int, device: torch.device) -> Tensor:
    """Return the slot of each position of the sources (T,), counted through all sentences. Padding is on the left.

    Args:
        lengths: lengths of the sources, which sum to T.
        slots: number of slots for a source with its padding.
        device: device of the result.
    """
    ends = np.cumsum(lengths)
    # The last position of each source is in the last of its sentence's slots.
    moved = slots * np.arange(1, len(ends) + 1) - ends
    return upload(np.arange(ends[-1]) + np.repeat(moved, lengths), device)


class LayerCache:
    """Keys and values of a layer, each (N, h, C, d). N: sentences, h: heads, C: allocated slots, d: width of a head."""

    def __init__(self, key: Tensor, value: Tensor) -> None:
        self.key, self.value = key, value

    def store(self, keys_values: Tensor, places: Tensor, sentences: slice, slots: int) -> None:
        """Store sources in the first slots.

        Args:
            keys_values: keys and values of the sources, one after the other (T, 2, h, d).
            places: slot of each position (T,), see `source_places`.
            sentences: the sentences of these sources.
            slots: number of slots for a source with its padding.
        """
        count = sentences.stop - sentences.start
        # Zero the padding: its weight in attention is 0, but 0 * NaN is NaN.
        padded = keys_values.new_zeros(count * slots, *keys_values.shape[1:]).index_copy_(0, places, keys_values)
        # (n * S, 2, h, d) -> twice (n, h, S, d)
        new = padded.view(count, slots, *keys_values.shape[1:]).permute(2, 0, 3, 1, 4)
        self.key[sentences, :, :slots], self.value[sentences, :, :slots] = new

    def write(self, key: Tensor, value: Tensor, slots: slice | Tensor, end: int) -> tuple[Tensor, Tensor]:
        """Write keys and values of A new tokens (N, h, A, d) to slots; return those of the first ``end`` slots."""
        self.key[:, :, slots] = key
        self.value[:, :, slots] = value
        return self.key[:, :, :end], self.value[:, :, :end]

    def move(self, start: int, slots: Tensor) -> None:
        """Copy the given ``slots`` of each sentence (N, c) to the slots from ``start`` on."""
        end = start + slots.size(1)
        # (N, c) -> (N, h, c, d)
        index = slots[:, None, :, None].expand(-1, self.key.size(1), -1, self.key.size(3))
        self.key[:, :, start:end] = self.key.gather(2, index)
        self.value[:, :, start:end] = self.value.gather(2, index)


@dataclass
class IncrementalState:
    """The state of decoding of a batch, for one model.

    Its tensors stay at the same addresses, where CUDA graphs read and write them, as long as the allocated slots
    suffice.

    N: sentences, K: hypotheses of each, S: slots in use, C: allocated slots.
    """

    layers: list[LayerCache]
    seen: Tensor
    """Which slots each hypothesis sees (N, K or more, C), with room for the most hypotheses that there will be. False
    for slots that are not in use."""
    positions: Tensor
    """Position ids of the slots (N, C)."""
    lengths: Tensor
    """Number of positions of the hypotheses of each sentence so far, including the source (N,)."""
    first_slots: list[int]
    """First slot of the source of each of the N sentences; shorter sources begin later."""
    used: int
    """Number of slots in use, S. The first ones hold the source and its padding."""
    hypotheses: int = 1
    """Number of hypotheses of a sentence, K."""
    source_slots: int = field(init=False)
    compact_at: int = field(init=False)
    """Number of slots in use from which on `make_room` frees slots that no hypothesis sees."""
    groups: list[tuple[slice, int]] = field(init=False)
    """Sentences that attend together, and the first slot that any of them sees."""

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
        """Create the state of a batch. The keys and values of the sources must still be stored.

        Args:
            positions: position ids of the sources, one after the other (T,).
            lengths: number of positions of each of the N sources, which sum to T.
            layers: number of layers of the model.
            heads: number of heads of keys and values.
            head_dim: width of a head.
            num_tokens: number of slots to allocate besides those of the sources.
            hypotheses: most hypotheses that a sentence will have.
            dtype: data type of keys and values.
            allocate: allocates memory for the state; None: new memory.
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
        """Which slots in use each hypothesis sees (N, K, S)."""
        return self.seen[:, : self.hypotheses, : self.used]

    @property
    def capacity(self) -> int:
        """Number of allocated slots, C."""
        return self.positions.size(1)

    def slots_of(self, layout: StepLayout) -> slice:
        """Return the slots of the A new tokens of a step: the first ones after those in use."""
        return slice(self.used, self.used + len(layout.hypotheses))

    def read_by(self, layout: StepLayout) -> int:
        """Return how many slots a step reads: those in use and its own, rounded up on a GPU."""
        return slots_for(self.used + len(layout.hypotheses), self.positions.device)

    def make_room(self, layout: StepLayout) -> None:
        """Make room for the new tokens of a step: free unseen slots from time to time, and allocate more if needed."""
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
        """Return which of the first ``end`` slots new tokens see (N, A, end).

        They see the slots that their hypotheses see, and each other's as the layout says.

        Args:
            layout: the layout of the new tokens.
            slots: the slots of the new tokens; a tensor (A,) in a CUDA graph.
            end: number of slots that are read, see `read_by`.
        """
        seen = self.seen[:, layout.hypotheses, :end]
        seen[:, :, slots] = layout.visible
        return seen

    def keep(self, layout: StepLayout) -> None:
        """Keep the slots of a step's content; each is seen by the hypothesis that it continues."""
        kept = layout.num_kept
        hypotheses = torch.arange(self.hypotheses, device=self.seen.device)
        owners = hypotheses.unsqueeze(1) == layout.hypotheses[:kept]
        self.seen[:, : self.hypotheses, self.used : self.used + kept] = owners
        self.used += kept
        self.lengths += kept // self.hypotheses

    def forget(self, newest: int, kept: Tensor) -> None:
        """Keep the first ``kept`` (N,) of the last ``newest`` tokens. Each sentence has one hypothesis."""
        right = torch.arange(newest, device=kept.device) < kept.unsqueeze(1)
        self.seen[:, 0, self.used - newest : self.used] = right
        self.lengths += kept - newest

    def follow(self, parents: Tensor) -> None:
        """Follow the search: hypothesis k of a sentence continues hypothesis ``parents[n, k]``, (N, K')."""
        followed = self.visible.gather(1, parents.unsqueeze(-1).expand(-1, -1, self.used))
        self.hypotheses = parents.size(1)
        self.seen[:, : self.hypotheses, : self.used] = followed

    def keep_sentences(self, left: Tensor) -> None:
        """Keep only the given sentences.

        Args:
            left: their indices (n,), on the CPU. The fewer differ from 0, 1, ..., the less is copied.
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
        # Slots that all hypotheses of a sentence see remain visible to their continuations, so they never move. The
        # source does not move, either.
        settled = self.visible.all(dim=1).all(dim=0)
        settled[: self.source_slots] = True
        settled = settled.long().cumprod(dim=0)
        alive = self.visible.any(dim=1)
        most = (alive * (1 - settled)).sum(dim=1).max()
        start, count = torch.stack([settled.sum(), most]).tolist()  # the only wait for a GPU
        if start + count == self.used:
            return
        alive = alive[:, start:]
        # Visible slots first, in their order. (N, S - start) -> (N, count)
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
    """Return a tensor with more slots, which hold zeros."""
    size = list(x.shape)
    size[dim] = more
    return torch.cat([x, x.new_zeros(size)], dim=dim)
