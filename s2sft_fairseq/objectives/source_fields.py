"""The fields of a source, such as passage and answer or the turns of a dialogue: how they are cut and told apart.

They stand one behind the other with ``[SEP]`` between them: ``f1 [SEP] f2 [SEP] f3``. A source without ``[SEP]`` is one
field; two ``[SEP]`` side by side have an empty field between them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

SIDES = ("left", "right")


@dataclass(frozen=True)
class SourceFields:
    """The rules for the fields of a source; of values for each field the last one holds for all further fields."""

    segments: tuple[int, ...] = (0,)
    """Segment id of each field."""
    alternate: bool = False
    """The segment ids take turns instead, counted from the last field backwards, so that it always has the last id."""
    truncation: tuple[str, ...] = ("right",)
    """The side that is cut, ``left`` or ``right``. One: of the source as one run. Several: of each field on its own."""
    limits: tuple[int, ...] = (0,)
    """Most positions of each field, its ``[SEP]`` included; 0: no limit."""

    def cut(self, tokens: np.ndarray, sep: int, room: int) -> np.ndarray:
        """Cut each field to its own limit, then all together to the room there is.

        Cut as one run, a source may lose whole fields with their ``[SEP]``. Cut on the left it never begins with the
        ``[SEP]`` of a field that is gone; cut on the right just behind a ``[SEP]`` it ends in an empty field. With a
        side for each field the longest give way first, see :func:`_give_way`, and none is lost: a field that is cut to
        nothing keeps its ``[SEP]``, unless there is no room for the ``[SEP]`` alone.

        Args:
            tokens: ids (n,), without special symbols but for the ``[SEP]`` between fields.
            sep: id of ``[SEP]``.
            room: most ids to keep, at least 1.
        """
        if any(self.limits) or len(self.truncation) > 1:
            tokens = self._cut_fields(tokens, sep, room)
        excess = len(tokens) - room
        if excess <= 0:
            return tokens
        if self.truncation == ("left",):
            of_a_lost_field = tokens[excess] == sep and tokens[excess - 1] != sep
            return tokens[excess + int(of_a_lost_field) :]
        return tokens[:room]

    def _cut_fields(self, tokens: np.ndarray, sep: int, room: int) -> np.ndarray:
        """Cut each field to its limit, and with a side for each field further, until all fit into the room."""
        ends = [*np.flatnonzero(tokens == sep).tolist(), len(tokens)]
        starts = [0, *(end + 1 for end in ends[:-1])]
        whole = [end - start for start, end in zip(starts, ends, strict=True)]
        limits = [_of(index, self.limits) or len(tokens) + 1 for index in range(len(ends))]
        lengths = [min(length, limit - 1) for length, limit in zip(whole, limits, strict=True)]
        if len(self.truncation) > 1:
            lengths = _give_way(lengths, max(0, room - len(ends) + 1))
        if lengths == whole:
            return tokens
        kept = []
        for index, (start, end, length) in enumerate(zip(starts, ends, lengths, strict=True)):
            left = _of(index, self.truncation) == "left"
            kept += [[sep], tokens[end - length : end] if left else tokens[start : start + length]]
        return np.concatenate(kept[1:])

    def segment_column(self, field: np.ndarray, num_fields: np.ndarray | int) -> np.ndarray:
        """Return the segment ids of tokens, from the number of each one's field, 0 for the first, and of all fields.

        Shape:
            field (..., S), num_fields (..., 1) -> (..., S).
        """
        segments = np.array(self.segments, dtype=np.int64)
        if self.alternate:
            return segments[(field - num_fields) % len(segments)]
        return segments[np.minimum(field, len(segments) - 1)]


def _of(index: int, values: Sequence[Any]) -> Any:
    """Return the value for a field; the last one holds for all further fields."""
    return values[min(index, len(values) - 1)]


def _give_way(lengths: Sequence[int], room: int) -> list[int]:
    """Shorten fields to a common length, so that they fit into the room together; those that are shorter stay whole.

    Where it does not come out even, one position more goes to the fields that were shorter, of equally long ones to the
    first: as if each position in turn were taken from the field that is longest by then.
    """
    kept = [0] * len(lengths)
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    for done, index in enumerate(order):
        share = -(-room // (len(order) - done))
        kept[index] = min(lengths[index], share)
        room -= kept[index]
    return kept
