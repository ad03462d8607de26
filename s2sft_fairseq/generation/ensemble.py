"""The scores of several models for one token."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def ensemble_log_probs(logits: Sequence[Tensor], temperature: float) -> Tensor:
    """Return the logarithm of the mean probability of the models.

    Args:
        logits: of each model (..., V), in whatever it computes in.
        temperature: what the logits are divided by.

    Returns:
        Log-probabilities (..., V) in float32, a tensor of its own.
    """
    each = [torch.log_softmax(_cooled(scores.float(), temperature), dim=-1) for scores in logits]
    return each[0] if len(each) == 1 else torch.logsumexp(torch.stack(each), dim=0) - math.log(len(each))


def _cooled(logits: Tensor, temperature: float) -> Tensor:
    return logits if temperature == 1 else logits / temperature
