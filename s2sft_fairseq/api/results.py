"""The return types of the methods of `Seq2Seq`."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Hypothesis:
    """A text that a model generated."""

    text: str
    score: float
    """Natural logarithm of its probability, normalized by the length penalty."""
    tokens: list[str]
    """Symbols of the dictionary, with the final one."""
    log_probs: list[float]
    """Natural logarithm of the probability of each token."""


@dataclass(frozen=True)
class Score:
    """How probable a target is, given its source."""

    total: float
    """Natural logarithm of its probability: the sum of `log_probs`."""
    tokens: list[str]
    log_probs: list[float]


@dataclass(frozen=True)
class Attention:
    """The attention from the prediction of each target token to the source."""

    source: list[str]
    """Tokens of the source, with special symbols."""
    target: list[str]
    weights: Tensor
    """Attention weights from the prediction of each target token to the source tokens (T, S), the mean over the heads.
    In an encoder-only model the rest of a row goes to the target; in an encoder-decoder a row sums to 1.

    T: tokens of the target, S: tokens of the source."""
