"""How a source and a target are laid out: special symbols, segments, limits, truncation."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from s2sft_fairseq.objectives.ragged import Ragged
from s2sft_fairseq.objectives.source_fields import SourceFields

Start = Literal["sep", "cls"] | None
"""Where the content of a target begins: with the ``[SEP]`` of its source (causal), with a ``[CLS]`` of its own
(ERNIE-GEN), or with its first token."""


@dataclass(frozen=True)
class SequenceForm:
    """Everything that an objective and the decoder must agree on.

    The limits count special tokens, as in s2s-ft: ``max_source`` positions for ``[CLS] source [SEP]`` and
    ``max_target`` for ``target [SEP]``. A start symbol of the target's own is not counted.
    """

    cls: int
    sep: int
    pad: int
    placeholder: int
    vocab_size: int
    starts_with: Start = None
    fields: SourceFields = SourceFields()
    """How the fields of a source are cut and told apart."""
    target_segment: int = 1
    placeholder_segment: int = 1
    max_source: int = 464
    max_target: int = 48

    def source(self, tokens: np.ndarray) -> np.ndarray:
        """Lay out a source: ``[CLS] x [SEP]``, or ``[CLS] x`` for causal models, whose target begins with ``[SEP]``.

        The ``[SEP]`` between the fields of ``x`` is part of it; how ``x`` is cut to fit is up to :class:`SourceFields`.

        Args:
            tokens: ids (n,), without special symbols but for the ``[SEP]`` between fields.
        """
        kept = self.fields.cut(tokens, self.sep, self.max_source - self.source_specials)
        laid_out = np.full(len(kept) + self.source_specials, self.sep, dtype=np.int64)
        laid_out[0] = self.cls
        laid_out[1 : len(kept) + 1] = kept  # what is left is the final [SEP], if there is one
        return laid_out

    def source_segments(self, source: np.ndarray) -> np.ndarray:
        """Return the segment ids of laid-out sources (..., S); those of padding on the right mean nothing.

        ``[CLS]`` has the segment of the first field, each ``[SEP]`` that of the field before it. What counts are the
        fields that are left of a cut source, so that the segments can be told from the laid-out ids alone.
        """
        separators = source == self.sep
        num_fields = separators.sum(axis=-1, keepdims=True) + (not self.has_placeholders)
        return self.fields.segment_column(separators.cumsum(axis=-1) - separators, num_fields)

    def segment_column(self, source: Ragged) -> np.ndarray:
        """Return the segment ids (N,) of laid-out sources; see :meth:`source_segments`."""
        if self.fields.is_one_segment:
            return np.full_like(source.values, self.fields.segments[0])
        return self.source_segments(source.padded(self.pad))[source.is_real]

    def target(self, tokens: np.ndarray) -> np.ndarray:
        """Lay out what is to be generated: ``y [SEP]``. A target that is cut still ends in ``[SEP]``, as in s2s-ft.

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
        """The ids that the content of a target begins with: one, or none."""
        return {"sep": (self.sep,), "cls": (self.cls,), None: ()}[self.starts_with]

    @property
    def source_specials(self) -> int:
        """Number of special symbols that a source gets when it is laid out."""
        return 1 + self.has_placeholders

    def source_length(self, num_tokens: np.ndarray) -> np.ndarray:
        """Lengths of laid-out sources of ``num_tokens`` ids, as far as that number tells.

        They are upper bounds: a cut on the left may leave one position less, and limits of single fields many less.
        Otherwise they are exact.
        """
        return np.minimum(num_tokens + self.source_specials, self.max_source)

    def target_length(self, num_tokens: np.ndarray) -> np.ndarray:
        """Lengths of laid-out targets of ``num_tokens`` ids."""
        return np.minimum(num_tokens + 1, self.max_target)
