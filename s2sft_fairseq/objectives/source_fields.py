"""The fields of a source, such as passage and answer or the turns of a dialogue: how they are cut and told apart.

They stand one behind the other with ``[SEP]`` between them: ``f1 [SEP] f2 [SEP] f3``. A source without ``[SEP]`` is one
field; two ``[SEP]`` side by side have an empty field between them.

A *dialogue* is one of a knowledge, such as a persona or a passage, and turns: ``knowledge [SEP] turn [SEP] turn``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

SIDES = ("left", "right")
KNOWLEDGE_ROLE = 2
"""Of a dialogue; the two who speak have 0 and 1."""


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
    dialogue: tuple[int, int] | None = None
    """A dialogue, for a model of so many roles and turns, whose segments these are; None: it is none."""

    @property
    def is_one_segment(self) -> bool:
        """Whether all tokens have the same segment, which is ``segments[0]``."""
        return len(self.segments) == 1 and self.dialogue is None

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
        one_by_one = len(self.truncation) > 1 and self.dialogue is None
        if any(self.limits) or one_by_one:
            tokens = self._cut_fields(tokens, sep, room if one_by_one else None)
        if len(tokens) <= room:
            return tokens
        if self.dialogue is not None and sep in tokens:
            return self._cut_dialogue(tokens, sep, room)
        of_the_end = self.truncation[0] == "left" and not one_by_one
        return _last(tokens, sep, room) if of_the_end else tokens[:room]

    def _cut_dialogue(self, tokens: np.ndarray, sep: int, room: int) -> np.ndarray:
        """Cut a dialogue, whose knowledge keeps its ``[SEP]`` always.

        With one side, ``left``, it loses its left end, the knowledge first. With two, of the knowledge and ``left``,
        turns are lost first, the oldest first; then the knowledge gives way, and at last the last turn.
        """
        end = int(np.flatnonzero(tokens == sep)[0])
        knowledge, turns = tokens[:end], tokens[end + 1 :]
        room -= 1
        if len(self.truncation) > 1:
            last_turn = len(turns) - int(np.flatnonzero(tokens == sep)[-1] - end)
            room_of_turns = min(room, max(last_turn, room - len(knowledge)))
        else:
            room_of_turns = room
        kept = min(end, room - min(room_of_turns, len(turns)))
        knowledge = knowledge[end - kept :] if self.truncation[0] == "left" else knowledge[:kept]
        turns = _last(turns, sep, room_of_turns) if len(turns) > room_of_turns else turns
        return np.concatenate([knowledge, [sep], turns])

    def _cut_fields(self, tokens: np.ndarray, sep: int, room: int | None) -> np.ndarray:
        """Cut each field to its limit, and further, until all fit into the room, if there is one to fit into."""
        ends = [*np.flatnonzero(tokens == sep).tolist(), len(tokens)]
        starts = [0, *(end + 1 for end in ends[:-1])]
        whole = [end - start for start, end in zip(starts, ends, strict=True)]
        limits = [_of(index, self.limits) or len(tokens) + 1 for index in range(len(ends))]
        lengths = [min(length, limit - 1) for length, limit in zip(whole, limits, strict=True)]
        if room is not None:
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

        In a dialogue segment ``s`` is role ``s % roles`` and turn ``s // roles``. The response is turn 0 of role 0, the
        turn before it turn 1 of role 1, the one before that turn 2 of role 0 again; turns beyond the last row of the
        table share it. The knowledge is turn 0 of role 2 (ERNIE-GEN's program).

        Shape:
            field (..., S), num_fields (..., 1) -> (..., S).
        """
        if self.dialogue is not None:
            roles, turns = self.dialogue
            back = num_fields - field
            return np.where(field == 0, KNOWLEDGE_ROLE, np.minimum(back, turns - 1) * roles + back % 2)
        segments = np.array(self.segments, dtype=np.int64)
        if self.alternate:
            return segments[(field - num_fields) % len(segments)]
        return segments[np.minimum(field, len(segments) - 1)]


def _of(index: int, values: Sequence[Any]) -> Any:
    """Return the value for a field; the last one holds for all further fields."""
    return values[min(index, len(values) - 1)]


def _last(tokens: np.ndarray, sep: int, room: int) -> np.ndarray:
    """Return the end of tokens that are too long, without the ``[SEP]`` of a field that is gone at its beginning."""
    excess = len(tokens) - room
    of_a_lost_field = room > 0 and tokens[excess] == sep and tokens[excess - 1] != sep
    return tokens[excess + int(of_a_lost_field) :]


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
