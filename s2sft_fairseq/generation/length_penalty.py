"""How the score of a hypothesis is normalised by its length."""

from torch import Tensor

LENGTH_PENALTIES = ("length", "gnmt")


def length_normalizer(length: Tensor, kind: str, penalty: float) -> Tensor:
    """Return what a summed log-probability is divided by.

    Args:
        length: tokens of the hypothesis, eos counted (any shape).
        kind: ``length``: ``length ** penalty`` as in fairseq; ``gnmt``: ``((5 + length) / 6) ** penalty`` as in s2s-ft
            (Wu et al., 2016, equation 14, without its coverage term).
        penalty: exponent; 0 leaves the sum as it is.

    Returns:
        The same shape, float32.
    """
    base = (5.0 + length) / 6.0 if kind == "gnmt" else length.float()
    return base**penalty
