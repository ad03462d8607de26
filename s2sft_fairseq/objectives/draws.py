"""Random numbers that do not depend on what else is drawn.

Each is a hash of what it is drawn for, after SplitMix64 (Steele, Lea and Flood: Fast splittable pseudorandom number
generators, OOPSLA 2014): the n-th number of a sequence is a mixture of the bits of its state plus n times a constant,
so that it can be had without those before it, and may itself be the state of another sequence. Here the seed leads to
the epoch, this to the example, this to the call, and this to the token.
"""

import numpy as np

from s2sft_fairseq.objectives.ragged import Ragged

_GAMMA = np.uint64(0x9E3779B97F4A7C15)


class Draws:
    """The random numbers of some examples in one epoch.

    What an example gets depends on (seed, epoch, example) and on how many calls there were before: neither on the
    other examples nor on their order. Whether an objective calls must therefore never depend on what is drawn.
    """

    def __init__(self, seed: int, epoch: int, examples: np.ndarray) -> None:
        """Begin anew for the examples with the given numbers (B,)."""
        state = np.array([seed]).astype(np.uint64)
        for number in (np.array([epoch]), examples):
            state = member(state, number)
        self._state = state
        self._calls = 0

    def random(self, rows: Ragged) -> np.ndarray:
        """Draw uniformly from [0, 1) for each value of ragged rows, a row for an example (N,)."""
        sequence = member(self._state, np.array([self._calls]))
        self._calls += 1
        # The higher 53 bits are what a double can hold.
        return (member(sequence[rows.row], rows.place) >> np.uint64(11)) * 2.0**-53

    def integers(self, high: int, rows: Ragged) -> np.ndarray:
        """Draw uniformly from 0 ... high - 1 for each value of ragged rows, a row for an example, int64 (N,)."""
        return (self.random(rows) * high).astype(np.int64)


def member(state: np.ndarray, number: np.ndarray) -> np.ndarray:
    """Return the numbered members of the sequences that have these states, uint64; overflow is meant."""
    bits = state + (number.astype(np.uint64) + np.uint64(1)) * _GAMMA
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
