"""How a source and a target are laid out: special symbols, segments, limits, truncation."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class SequenceForm:
    """Everything that an objective and the decoder must agree on.

    The limits count special tokens, as in s2s-ft: ``max_source`` positions for ``[CLS] source [SEP]`` and
    ``max_target`` for ``target [SEP]``.
    """

    cls: int
    sep: int
    pad: int
    placeholder: int
    vocab_size: int
    shifted: bool
    """True for causal models: the next token is read at the last one. False: it is read at a placeholder."""
    source_segment: int = 0
    target_segment: int = 1
    max_source: int = 464
    max_target: int = 48

    def source(self, tokens: np.ndarray) -> np.ndarray:
        """Lay out a source: ``[CLS] x [SEP]``, or ``[CLS] x`` for causal models, whose target begins with ``[SEP]``.

        Args:
            tokens: ids without special symbols (n,).
        """
        if self.shifted:
            return np.concatenate([[self.cls], tokens[: self.max_source - 1]])
        return np.concatenate([[self.cls], tokens[: self.max_source - 2], [self.sep]])

    def target(self, tokens: np.ndarray) -> np.ndarray:
        """Lay out what is to be generated: ``y [SEP]``. A target that is cut still ends in ``[SEP]``, as in s2s-ft.

        Args:
            tokens: ids without special symbols (m,).
        """
        return np.concatenate([tokens[: self.max_target - 1], [self.sep]])

    @property
    def source_specials(self) -> int:
        """Number of special symbols of a laid-out source."""
        return 1 if self.shifted else 2

    def source_length(self, num_tokens: np.ndarray) -> np.ndarray:
        """Lengths of laid-out sources of ``num_tokens`` ids."""
        return np.minimum(num_tokens + self.source_specials, self.max_source)

    def target_length(self, num_tokens: np.ndarray) -> np.ndarray:
        """Lengths of laid-out targets of ``num_tokens`` ids."""
        return np.minimum(num_tokens + 1, self.max_target)
