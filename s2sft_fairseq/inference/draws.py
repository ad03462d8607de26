"""The random numbers of samples. They depend on the source and the step, not on the batch that the source is in.

A draw has a key, hashed from (seed, number of the source, step, number of the hypothesis). The random number of a token
is hashed from this key and the id of the token. So batches, their order, resumption and the device change nothing.

N: sentences, V: vocabulary.
"""

import secrets
from typing import Any

import numpy as np
import torch
from torch import Tensor

from s2sft_fairseq.objectives.ragged import member

_STEP = 0x61C88647
"""Distance between the states of consecutive ids, an odd number near 2 ** 32 / golden ratio."""


class SampleDraws:
    """The keys of the draws for the sources of a batch."""

    def __init__(self, seed: int, numbers: np.ndarray) -> None:
        """Begin the sequences of some sources, given by their numbers in the call, file or data set (N,)."""
        state = np.random.SeedSequence(abs(seed)).generate_state(1, np.uint64)
        self._state = member(state, numbers)

    def keys(self, sentence: np.ndarray, *counters: np.ndarray | int) -> np.ndarray:
        """Return a key for each draw, uint64.

        Args:
            sentence: index of the sentence of each draw in the batch; any shape.
            counters: whole numbers that tell apart the draws of a sentence, such as its step; shapes that broadcast.
        """
        keys: np.ndarray = self._state[sentence]
        for counter in counters:
            keys = member(keys, np.atleast_1d(counter))
        return keys


def exponentials(keys: np.ndarray, tokens: Tensor) -> Tensor:
    """Return a random number for each token, with the exponential distribution of rate 1, float32, always above 0.

    Args:
        keys: the key of each draw (...), uint64.
        tokens: ids (..., V), on the device of the result; all but the last dimension may be left out or 1.
    """
    halves = np.ascontiguousarray(keys).view(np.int32).reshape(*keys.shape, 2)
    low, high = torch.from_numpy(halves).to(tokens.device, non_blocking=True).unsqueeze(-2).unbind(-1)
    # Two rounds of multiplication and shifts. Overflow is intended.
    bits = tokens.int() * _STEP + low
    bits = _scrambled(bits, 16, 0x21F0AAAD) + high
    bits = _scrambled(_scrambled(bits, 15, 0x735A2D97), 15, 1)
    # Small numbers, which decide, are the finest: 31 bits begin at 2 ** -32. 1 itself would become infinite.
    uniform = bits.bitwise_and_(0x7FFFFFFF).float().add_(0.5).mul_(2.0**-31).clamp_(max=1 - 2.0**-24)
    return uniform.neg_().log1p_().neg_()


def _scrambled(bits: Tensor, shift: int, factor: int) -> Tensor:
    """Return int32 numbers xor their upper bits, times a factor."""
    upper = (bits >> shift).bitwise_and_((1 << (32 - shift)) - 1)  # without the sign
    return bits.bitwise_xor_(upper).mul_(factor)


def seed_of(args: Any, task: Any) -> int:
    """Return the seed of a search: that of the options, or with fairseq's ``no_seed_provided`` another one each time.

    Args:
        args: fairseq's `GenerationConfig`.
        task: the options of the task.
    """
    if getattr(args, "no_seed_provided", False):
        return secrets.randbits(63)
    seed = getattr(task, "seed", 1)
    return seed if isinstance(seed, int) else 1  # a configuration that fairseq has not filled refers to another option


def source_numbers(sample: dict[str, Any]) -> np.ndarray:
    """Return the number of each source of a batch in fairseq's form (N,); without ``id``, its index in the batch."""
    ids = sample.get("id")
    if ids is None:
        return np.arange(len(sample["net_input"]["src_tokens"]))
    return torch.as_tensor(ids).cpu().numpy()
