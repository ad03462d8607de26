"""The layout of sources and targets: special symbols, segments, limits, truncation.

The fields of a source, such as passage and answer or the turns of a dialogue, are separated by ``[SEP]``:
``f1 [SEP] f2 [SEP] f3``. A source without ``[SEP]`` is one field; two adjacent ``[SEP]`` have an empty field between
them.

A *dialogue* consists of knowledge, such as a persona or a passage, and turns: ``knowledge [SEP] turn [SEP] turn``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from s2sft_fairseq.objectives.ragged import Ragged

SIDES = ("left", "right")
KNOWLEDGE_ROLE = 2
"""Role of the knowledge in a dialogue; the two speakers have the roles 0 and 1."""
Start = Literal["sep", "cls"] | None
"""The first content token of a target: the ``[SEP]`` of its source (causal), a ``[CLS]`` of its own (ERNIE-GEN), or its
first token (None)."""


@dataclass(frozen=True)
class SourceFields:
    """The rules for the fields of a source. If there are fewer values than fields, the last one holds for the rest."""

    segments: tuple[int, ...] = (0,)
    """Segment id of each field."""
    alternate: bool = False
    """Repeat the segment ids cyclically instead, aligned to the end: the last field always has the last id."""
    truncation: tuple[str, ...] = ("right",)
    """The side that is cut, ``left`` or ``right``. One value: the source is cut as a whole. Several values: each field
    is cut on its own side."""
    limits: tuple[int, ...] = (0,)
    """Most positions of each field, with its ``[SEP]``; 0: no limit."""
    dialogue: tuple[int, int] | None = None
    """Numbers of roles and turns of the model, which determine the segments of a dialogue; None: not a dialogue."""

    @property
    def is_one_segment(self) -> bool:
        """Whether all tokens have the same segment, which is ``segments[0]``."""
        return len(self.segments) == 1 and self.dialogue is None

    def cut(self, tokens: np.ndarray, sep: int, room: int) -> np.ndarray:
        """Cut each field to its own limit, then all fields together to ``room``.

        A source that is cut as a whole may lose complete fields with their ``[SEP]``. After a cut on the left it never
        begins with the ``[SEP]`` of a lost field; after a cut on the right just after a ``[SEP]`` it ends in an empty
        field. With a side for each field the longest fields are cut first, see :func:`_give_way`, and no field is lost:
        a field that is cut to nothing keeps its ``[SEP]``, unless ``room`` is too small for the ``[SEP]`` of all.

        Args:
            tokens: ids (n,), without special symbols except the ``[SEP]`` between fields.
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
        """Cut a dialogue. The ``[SEP]`` after the knowledge always remains.

        With one side, ``left``, the dialogue is cut on the left: first the knowledge, then the turns. With two sides,
        that of the knowledge and ``left``, the oldest turns are cut first, then the knowledge, and the last turn last.
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
        """Cut each field to its limit, and further until all fields fit into ``room`` if that is given."""
        ends = [*np.flatnonzero(tokens == sep).tolist(), len(tokens)]
        starts = [0, *(end + 1 for end in ends[:-1])]
        whole = [end - start for start, end in zip(starts, ends, strict=True)]
        limits = [_of(index, self.limits) or len(tokens) + 1 for index in range(len(ends))]
        lengths = [min(length, limit - 1) for length, limit in zip(whole, limits, strict=True)]
        if room is not None:
            lengths = _give_way(lengths, max(0, room - len(ends) + 1))
        if lengths == whole:
            return tokens
        kept: list[np.ndarray | list[int]] = []
        for index, (start, end, length) in enumerate(zip(starts, ends, lengths, strict=True)):
            left = _of(index, self.truncation) == "left"
            kept += [[sep], tokens[end - length : end] if left else tokens[start : start + length]]
        return np.concatenate(kept[1:])

    def segment_column(self, field: np.ndarray, num_fields: np.ndarray | int) -> np.ndarray:
        """Return the segment ids of tokens, from the index of each token's field and the number of fields.

        In a dialogue segment ``s`` is role ``s % roles`` and turn ``s // roles``. The response is turn 0 of role 0, the
        turn before it is turn 1 of role 1, the turn before that is turn 2 of role 0, and so on; further turns share the
        last row of the turn embedding. The knowledge is turn 0 of role 2 (ERNIE-GEN's program).

        Shape:
            field (..., S), num_fields (..., 1) -> (..., S).
        """
        if self.dialogue is not None:
            roles, turns = self.dialogue
            back = num_fields - field
            return np.where(field == 0, KNOWLEDGE_ROLE, np.minimum(back, turns - 1) * roles + back % 2)
        segments = np.array(self.segments, dtype=np.int64)
        row = (field - num_fields) % len(segments) if self.alternate else np.minimum(field, len(segments) - 1)
        column: np.ndarray = segments[row]
        return column


def _of(index: int, values: Sequence[Any]) -> Any:
    """Return the value for a field; the last value holds for all further fields."""
    return values[min(index, len(values) - 1)]


def _last(tokens: np.ndarray, sep: int, room: int) -> np.ndarray:
    """Return the last ``room`` tokens, without a leading ``[SEP]`` whose field is lost."""
    excess = len(tokens) - room
    of_a_lost_field = room > 0 and tokens[excess] == sep and tokens[excess - 1] != sep
    return tokens[excess + int(of_a_lost_field) :]


def _give_way(lengths: Sequence[int], room: int) -> list[int]:
    """Shorten fields to a common length so that together they fit into ``room``. Shorter fields stay whole.

    If ``room`` does not divide evenly, originally shorter fields keep one position more, and of equally long fields the
    first: as if each position were removed from the field that is longest at that time.
    """
    kept = [0] * len(lengths)
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    for done, index in enumerate(order):
        share = -(-room // (len(order) - done))
        kept[index] = min(lengths[index], share)
        room -= kept[index]
    return kept


@dataclass(frozen=True)
class SequenceForm:
    """The layout, on which objective and decoder must agree.

    The limits count special symbols, as in s2s-ft: ``max_source`` positions for ``[CLS] source [SEP]`` and
    ``max_target`` for ``target [SEP]``. A ``[CLS]`` that begins the target is not counted.
    """

    cls: int
    sep: int
    pad: int
    placeholder: int
    vocab_size: int
    starts_with: Start = None
    fields: SourceFields = SourceFields()
    """How the fields of a source are cut, and their segments."""
    target_segment: int = 1
    placeholder_segment: int = 1
    max_source: int = 464
    max_target: int = 48

    def source(self, tokens: np.ndarray) -> np.ndarray:
        """Lay out a source: ``[CLS] x [SEP]``, or ``[CLS] x`` for causal models, whose target begins with ``[SEP]``.

        ``x`` contains the ``[SEP]`` between its fields. :class:`SourceFields` tells how ``x`` is cut to fit.

        Args:
            tokens: ids (n,), without special symbols except the ``[SEP]`` between fields.
        """
        kept = self.fields.cut(tokens, self.sep, self.max_source - self.source_specials)
        laid_out = np.full(len(kept) + self.source_specials, self.sep, dtype=np.int64)
        laid_out[0] = self.cls
        laid_out[1 : len(kept) + 1] = kept  # the final [SEP], if there is one, follows
        return laid_out

    def source_segments(self, source: np.ndarray) -> np.ndarray:
        """Return the segment ids of laid-out sources (..., S); those of padding on the right are meaningless.

        ``[CLS]`` has the segment of the first field, and each ``[SEP]`` that of the field before it. Fields are counted
        after cutting, so that the segments follow from the laid-out ids.
        """
        separators = source == self.sep
        num_fields = separators.sum(axis=-1, keepdims=True) + (not self.has_placeholders)
        return self.fields.segment_column(separators.cumsum(axis=-1) - separators, num_fields)

    def segment_column(self, source: Ragged) -> np.ndarray:
        """Return the segment ids (N,) of laid-out sources; see :meth:`source_segments`."""
        if self.fields.is_one_segment:
            return np.full_like(source.values, self.fields.segments[0])
        column: np.ndarray = self.source_segments(source.padded(self.pad))[source.is_real]
        return column

    def target(self, tokens: np.ndarray) -> np.ndarray:
        """Lay out a target: ``y [SEP]``. A target that is cut still ends in ``[SEP]``, as in s2s-ft.

        Args:
            tokens: ids without special symbols (m,).
        """
        return np.concatenate([tokens[: self.max_target - 1], [self.sep]])

    @property
    def has_placeholders(self) -> bool:
        """Whether the next token is predicted at a placeholder; causal models predict it at the last token."""
        return self.starts_with != "sep"

    @property
    def start(self) -> tuple[int, ...]:
        """The start symbol of the content of a target, as a tuple of one id, or of none."""
        return {"sep": (self.sep,), "cls": (self.cls,), None: ()}[self.starts_with]

    @property
    def source_specials(self) -> int:
        """Number of special symbols that a source gets when it is laid out."""
        return 1 + self.has_placeholders

    def source_length(self, num_tokens: np.ndarray) -> np.ndarray:
        """Return upper bounds for the lengths of laid-out sources, from their numbers of ids before layout.

        A cut on the left may leave one position less, and limits of single fields many less. Otherwise the bounds are
        exact.
        """
        length: np.ndarray = np.minimum(num_tokens + self.source_specials, self.max_source)
        return length

    def target_length(self, num_tokens: np.ndarray) -> np.ndarray:
        """Return the lengths of laid-out targets, from their numbers of ids before layout."""
        length: np.ndarray = np.minimum(num_tokens + 1, self.max_target)
        return length


_FIELDS = SourceFields(truncation=("right", "right"))


@dataclass(frozen=True)
class EncoderDecoderForm:
    """The layout of encoder-decoders, on which training and decoding must agree. The limits count special symbols."""

    prefix: tuple[int, ...]
    """Ids that every source begins with: a language token, or none."""
    eos: int
    pad: int
    max_source: int
    max_target: int

    @property
    def source_specials(self) -> int:
        """Number of special symbols that a source gets when it is laid out."""
        return len(self.prefix) + 1

    def source(self, tokens: np.ndarray) -> np.ndarray:
        """Lay out a source: ``prefix x eos``. A long source is cut at its end, before eos.

        If there are several fields, such as passage and answer with eos between them, the longest is cut at its end.

        Args:
            tokens: ids without special symbols (n,).
        """
        kept = _FIELDS.cut(tokens, self.eos, self.max_source - self.source_specials)
        return np.concatenate([self.prefix, kept, [self.eos]]).astype(int)

    def target(self, tokens: np.ndarray) -> np.ndarray:
        """Lay out a target: ``y eos``. A long target is cut at its end, before eos.

        Args:
            tokens: ids without special symbols (m,).
        """
        return np.concatenate([tokens[: self.max_target - 1], [self.eos]])


def decoder_input(target: Ragged, eos: int) -> Ragged:
    """Return what a decoder reads to predict laid-out targets: eos, then each target without its last token."""
    return target.with_values(np.where(target.place == 0, eos, np.roll(target.values, 1)))
