"""What the methods of `Seq2Seq` return."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Hypothesis:
    """A text that a model generated."""

    text: str
    score: float
    """Natural logarithm of its probability, divided as the length penalty says."""
    tokens: list[str]
    """Symbols of the dictionary, the final one included."""
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
    """What the prediction of each target token attends to."""

    source: list[str]
    """Tokens of the source, special symbols included."""
    target: list[str]
    weights: Tensor
    """Share of its attention that the prediction of a target token gives to a source token (T, S), the mean of all
    heads. The rest goes to the target; a decoder's attention to the source has no rest.

    T: tokens of the target, S: tokens of the source."""
