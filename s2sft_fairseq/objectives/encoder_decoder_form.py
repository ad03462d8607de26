"""How the source and the target of an encoder-decoder are laid out."""

from dataclasses import dataclass

import numpy as np

from s2sft_fairseq.objectives.source_fields import SourceFields

_FIELDS = SourceFields(truncation=("right", "right"))


@dataclass(frozen=True)
class EncoderDecoderForm:
    """Everything that training and decoding must agree on. The limits count special symbols."""

    prefix: tuple[int, ...]
    """What every source begins with: the token of a language, or nothing."""
    eos: int
    pad: int
    max_source: int
    max_target: int

    @property
    def source_specials(self) -> int:
        """Number of special symbols that a source gets when it is laid out."""
        return len(self.prefix) + 1

    def source(self, tokens: np.ndarray) -> np.ndarray:
        """Lay out a source: ``prefix x eos``; a long one loses its end, but not its eos.

        Of several fields, such as passage and answer with eos between them, the longest loses its end.

        Args:
            tokens: ids without special symbols (n,).
        """
        kept = _FIELDS.cut(tokens, self.eos, self.max_source - self.source_specials)
        return np.concatenate([self.prefix, kept, [self.eos]]).astype(int)

    def target(self, tokens: np.ndarray) -> np.ndarray:
        """Lay out a target: ``y eos``, likewise.

        Args:
            tokens: ids without special symbols (m,).
        """
        return np.concatenate([tokens[: self.max_target - 1], [self.eos]])
