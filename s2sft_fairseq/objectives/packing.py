"""The packed format: each objective of the plugin is a choice of these columns.

A packed sequence holds an example for one encoder pass. A packed batch is its packed sequences one after the other,
without padding. Each token has

========  =================================================================================================
token     vocabulary id
position  position id; a placeholder has the position of the token that it stands for
segment   segment (token type) id
step      factorization step at which the content of this token becomes known; 0 = given
group     0 = content, > 0 = placeholder ([M], [P], [ATTN] in the papers)
label     the id to predict here, or the padding id
========  =================================================================================================

A query ``q`` sees a key ``k`` of its own example if and only if

* ``k`` is content and ``step[k] <= step[q]`` (``q`` is content) or ``step[k] < step[q]`` (``q`` is a placeholder), or
* ``k`` is a placeholder and ``q`` is a placeholder of the same group.

The tokens of an example are in *sections*: first the context, then content that is predicted (step > 0), then
placeholders. The context is content of step 0 with consecutive positions from 0; it may be empty. Attention relies on
this: the context attends to itself without a mask, and all later tokens attend to the whole example; in local layers
each run of queries attends to near keys. A model whose sources are causal gives the context steps up to 0, see
`s2sft_fairseq.modules.visibility.PackedColumns.with_causal_context`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from s2sft_fairseq.objectives.ragged import Ragged


class Section(NamedTuple):
    """The tokens of one kind of one or more examples, one example after the other.

    Each column is an int64 array (N,). N: tokens of this section in all its examples.
    """

    token: np.ndarray
    position: np.ndarray
    segment: np.ndarray
    step: np.ndarray
    group: np.ndarray
    label: np.ndarray
    lengths: np.ndarray
    """Number of tokens of this section in each example, int64 (B,). B: examples."""

    @classmethod
    def of(
        cls,
        token: Ragged,
        *,
        first_position: np.ndarray | int,
        segment: np.ndarray | int,
        label: np.ndarray | int,
        step: np.ndarray | int = 0,
        group: np.ndarray | int = 0,
    ) -> "Section":
        """Create a section. A single number holds for all tokens.

        Args:
            token: vocabulary ids, a row for each example.
            first_position: first position of each example (B,).
            segment: segment ids (N,).
            label: labels (N,).
            step: factorization steps (N,).
            group: groups (N,).
        """

        def column(value: np.ndarray | int) -> np.ndarray:
            return value if isinstance(value, np.ndarray) else np.full(len(token.values), value, dtype=np.int64)

        if isinstance(first_position, np.ndarray):
            first_position = first_position[token.row]
        position = token.place + first_position
        return cls(token.values, position, column(segment), column(step), column(group), column(label), token.lengths)


PackedExamples = tuple[Section, ...]
"""The sections of one or more examples."""


@dataclass(frozen=True)
class PackedBatch:
    """Packed sequences one after the other, without padding; within each, section after section.

    Each column is an int64 array (T,). T: tokens of all examples.
    """

    token: np.ndarray
    position: np.ndarray
    segment: np.ndarray
    step: np.ndarray
    group: np.ndarray
    label: np.ndarray
    lengths: tuple[tuple[int, ...], ...]
    """The length of each section of each example."""

    def section(self) -> np.ndarray:
        """Return the index of each token's section, from 0 (T,)."""
        lengths = np.array(self.lengths, dtype=np.int64)
        numbers = np.broadcast_to(np.arange(lengths.shape[1]), lengths.shape)
        return np.repeat(numbers.ravel(), lengths.ravel())


def collate(packed: Sequence[PackedExamples]) -> PackedBatch:
    """Join examples, which were packed one by one or many at once, into one batch.

    Raises:
        ValueError: if the examples do not all have the same number of sections.
    """
    if len(numbers := {len(sections) for sections in packed}) > 1:
        raise ValueError(f"examples of one batch need one number of sections, found {sorted(numbers)}")
    sections = [Section(*map(np.concatenate, zip(*run, strict=True))) for run in zip(*packed, strict=True)]
    # Reorder from section after section to example after example. A stable sort keeps the order of the sections.
    example = np.concatenate([np.repeat(np.arange(len(section.lengths)), section.lengths) for section in sections])
    order = np.argsort(example, kind="stable")
    columns = zip(*(section[:-1] for section in sections), strict=True)
    token, position, segment, step, group, label = (np.concatenate(column)[order] for column in columns)
    lengths = tuple(zip(*(section.lengths.tolist() for section in sections), strict=True))
    return PackedBatch(token, position, segment, step, group, label, lengths)


def first_step(batch: PackedBatch) -> int | None:
    """Return the step of the first placeholder of all examples if the batch is in order, or else None.

    The step is 1 if there are no placeholders. A batch is in order if in every example

    * there is a context; at most one section of content and one of placeholders follow it
    * content becomes known from left to right, one token in each step from 1 on
    * each placeholder is a group of its own; their steps are consecutive and begin with the same step in all examples;
      all content that the last placeholder sees exists
    * positions are consecutive, like the steps

    The visibility rule is then causal attention, except that the context attends to itself without a mask, and each
    placeholder also sees its own key.
    """
    if len(batch.lengths[0]) > 3:
        return None
    # (B, 3)
    lengths = np.zeros((len(batch.lengths), 3), dtype=np.int64)
    lengths[:, : len(batch.lengths[0])] = batch.lengths
    context, content, placeholders = lengths.T
    runs = Ragged.of_lengths(lengths.ravel())
    example, section, place = runs.row // 3, runs.row % 3, runs.place
    is_placeholder = section == 2
    first = int(batch.step[is_placeholder][0]) if is_placeholder.any() else 1
    step = np.where(section == 0, 0, place + np.where(is_placeholder, first, 1))
    position = np.where(section == 0, place, context[example] + step - 1)
    # Check that groups ascend: then they differ, and all objectives number them in this way.
    follows = is_placeholder[1:] & (place[1:] > 0)
    in_order = (
        context.all()
        and first > 0
        and np.array_equal(batch.step, step)
        and np.array_equal(batch.position, position)
        and np.array_equal(batch.group > 0, is_placeholder)
        and (np.diff(batch.group)[follows] > 0).all()
        and (first + placeholders - 2 <= content)[placeholders > 0].all()
    )
    return first if in_order else None
