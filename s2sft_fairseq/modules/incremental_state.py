"""The incremental state of decoding: keys and values in slots, and which of them each hypothesis sees.

A slot holds what one position left in every layer: first those of the source, once for all hypotheses of the sentence,
short ones behind their padding, then those of the tokens that were generated. Hypotheses that go on from a common one
share its slots, so that the search may reorder them as it likes and no key moves: what changes is only who sees what.

On a CPU neighbours of similar length attend together, so that little is computed for padding; on a GPU all do.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from s2sft_fairseq.modules.visibility import StepLayout

# Padding of a group, at most, as a part of its positions.
MOST_PADDING = 1 / 8
# Slots that no hypothesis sees any more are given to others every so many steps.
STEPS_BETWEEN_COMPACTIONS = 8


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
    return torch.from_numpy(np.arange(ends[-1]) + np.repeat(moved, lengths)).to(device)


class LayerCache:
    """Keys and values of one layer, each (N, h, C, d). N: sentences, h: heads, C: slots there is room for."""

    def __init__(self, size: tuple[int, int, int, int], like: Tensor) -> None:
        """Make room, on the device and in the data type of a tensor."""
        self.key = like.new_empty(size)
        self.value = torch.empty_like(self.key)

    def store(self, keys_values: Tensor, places: Tensor, sentences: slice, slots: int) -> None:
        """Keep sources in the first slots.

        Args:
            keys_values: of the sources, one after the other (T, 2, h, d).
            places: of each position among the slots of these sentences (T,), see `source_places`.
            sentences: whose sources they are.
            slots: for a source and its padding.
        """
        count = sentences.stop - sentences.start
        # Padding is multiplied by its weight of 0, which would not make a number out of what is none.
        padded = keys_values.new_zeros(count * slots, *keys_values.shape[1:]).index_copy_(0, places, keys_values)
        # (n * S, 2, h, d) -> twice (n, h, S, d)
        new = padded.view(count, slots, *keys_values.shape[1:]).permute(2, 0, 3, 1, 4)
        self.key[sentences, :, :slots], self.value[sentences, :, :slots] = new

    def write(self, key: Tensor, value: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """Write those of A new tokens (N, h, A, d) behind the first ``start`` slots; return all up to there."""
        end = start + key.size(2)
        self.key[:, :, start:end] = key
        self.value[:, :, start:end] = value
        return self.key[:, :, :end], self.value[:, :, :end]

    def move(self, start: int, slots: Tensor) -> None:
        """Fill the slots from ``start`` on with the ones given for each sentence (N, c)."""
        end = start + slots.size(1)
        # (N, c) -> (N, h, c, d)
        index = slots[:, None, :, None].expand(-1, self.key.size(1), -1, self.key.size(3))
        self.key[:, :, start:end] = self.key.gather(2, index)
        self.value[:, :, start:end] = self.value.gather(2, index)

    def grow(self, used: int, capacity: int) -> None:
        """Make room for ``capacity`` slots, of which ``used`` are filled."""
        for name in ("key", "value"):
            old = getattr(self, name)
            new = old.new_empty(*old.shape[:2], capacity, old.size(3))
            new[:, :, :used] = old[:, :, :used]
            setattr(self, name, new)

    def keep_sentences(self, moved: Tensor, origins: Tensor, left: int, used: int) -> None:
        """Put the sentences ``origins`` in the places ``moved``, then go on with the first ``left`` sentences only."""
        for name in ("key", "value"):
            kept = getattr(self, name)
            kept[moved, :, :used] = kept[origins, :, :used]
            setattr(self, name, kept[:left])


@dataclass
class IncrementalState:
    """What decoding remembers of a batch for one model.

    N: sentences, K: hypotheses of each, S: slots in use.
    """

    layers: list[LayerCache]
    visible: Tensor
    """Which slots each hypothesis sees (N, K, S)."""
    positions: Tensor
    """Position ids of what is in the slots (N, S)."""
    lengths: Tensor
    """Positions that the hypotheses of each sentence take up by now (N,), its source included."""
    first_slots: list[int]
    """The slot where the source of each sentence begins, N of them: shorter ones stand further on."""
    capacity: int
    """Slots there is room for."""
    source_slots: int = field(init=False)
    """The first slots, which are those of the source and its padding."""
    compact_at: int = field(init=False)
    """Slots in use at which to look for those that nobody sees."""

    groups: list[tuple[slice, int]] = field(init=False)
    """Neighbours that attend together, and the first slot that any of them sees."""

    def __post_init__(self) -> None:
        self.source_slots = self.compact_at = self.used
        self._group()

    @property
    def used(self) -> int:
        """S, the slots in use."""
        return self.positions.size(1)

    @property
    def hypotheses(self) -> int:
        """K, the hypotheses of each sentence."""
        return self.visible.size(1)

    def make_room(self, layout: StepLayout) -> None:
        """See to it that the new tokens of a step find free slots."""
        new = len(layout.hypotheses)
        if self.used >= self.compact_at or self.used + new > self.capacity:
            self._compact()
            self.compact_at = self.used + STEPS_BETWEEN_COMPACTIONS * layout.num_kept
        if self.used + new > self.capacity:
            self.capacity = self.used + new + self.capacity // 4
            for layer in self.layers:
                layer.grow(self.used, self.capacity)

    def seen_by(self, layout: StepLayout) -> Tensor:
        """Return what the A new tokens of a step see (N, A, S + A): what their hypotheses see, and of each other."""
        sentences = len(self.visible)
        among = layout.visible.expand(sentences, -1, -1)
        return torch.cat([self.visible[:, layout.hypotheses], among], dim=2)

    def keep(self, layout: StepLayout, positions: Tensor) -> None:
        """Keep the slots of a step's content, which the hypotheses that it continues see; positions (N, A)."""
        kept = layout.num_kept
        if not kept:
            return
        owners = torch.arange(self.hypotheses, device=positions.device).unsqueeze(1) == layout.hypotheses[:kept]
        self.visible = torch.cat([self.visible, owners.expand(len(self.visible), -1, -1)], dim=2)
        self.positions = torch.cat([self.positions, positions[:, :kept]], dim=1)
        self.lengths = self.lengths + kept // self.hypotheses

    def forget(self, newest: int, kept: Tensor) -> None:
        """Let the only hypothesis of each sentence keep so many (N,) of its ``newest`` last tokens."""
        right = torch.arange(newest, device=kept.device) < kept.unsqueeze(1)
        self.visible[:, 0, self.used - newest :] = right
        self.lengths = self.lengths + kept - newest

    def follow(self, parents: Tensor) -> None:
        """Follow the search: hypothesis k of a sentence goes on from ``parents[n, k]``, (N, K')."""
        index = parents.unsqueeze(-1).expand(-1, -1, self.used)
        self.visible = self.visible.gather(1, index)

    def keep_sentences(self, left: Tensor) -> None:
        """Go on with the given sentences only.

        Args:
            left: their indices (n,), on the CPU. As few as possible should differ from 0, 1, ...
        """
        self.first_slots = [self.first_slots[sentence] for sentence in left.tolist()]
        self._group()
        device = self.positions.device
        moved = (left != torch.arange(len(left))).nonzero().squeeze(1)
        moved, origins, left = moved.to(device), left[moved].to(device), left.to(device)
        for layer in self.layers:
            layer.keep_sentences(moved, origins, len(left), self.used)
        self.visible, self.positions, self.lengths = self.visible[left], self.positions[left], self.lengths[left]

    def _group(self) -> None:
        lengths = [self.source_slots - first for first in self.first_slots]
        if self.positions.device.type != "cpu":  # kernels cost more there than padding
            self.groups = [(slice(0, len(lengths)), self.source_slots - max(lengths, default=0))]
            return
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
        across = slots.unsqueeze(1).expand(-1, self.hypotheses, -1)
        self.visible = torch.cat([self.visible[..., :start], self.visible.gather(2, across)], dim=2)
        self.positions = torch.cat([self.positions[:, :start], self.positions.gather(1, slots)], dim=1)
