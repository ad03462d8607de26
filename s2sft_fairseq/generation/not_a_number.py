"""Scores that are no numbers: a search would end in empty hypotheses, and nothing would tell why."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from s2sft_fairseq.checkpoints.finite_weights import HALF_LIMIT
from s2sft_fairseq.errors import UserError


class NotANumberError(UserError):
    """The model gives NaN for a sentence; ``sentence`` is its index in the batch."""

    def __init__(self, sentence: int, dtype: torch.dtype, place: str = ""):
        told = f"{place or f'sentence {sentence} of a batch'}: scores must be numbers, but the model gives NaN"
        if dtype == torch.float16:
            told += f". It computes in float16, and {HALF_LIMIT}: give --bf16 in place of --fp16, or leave it out"
        super().__init__(told)
        self.sentence, self.dtype = sentence, dtype

    def at(self, place: str) -> "NotANumberError":
        """Return the same error for a sentence that has a name of its own."""
        return NotANumberError(self.sentence, self.dtype, place)


def check_log_probs(log_probs: Tensor, dtype: torch.dtype, sentence_of_row: Callable[[int], int]) -> None:
    """Look for NaN, before tokens are forbidden.

    One NaN or infinite logit makes a whole row of the log-softmax NaN, so it is enough to look at its first column.

    Args:
        log_probs: log-probabilities (R, ..., V). R: rows, V: vocabulary.
        dtype: what the model computes in.
        sentence_of_row: from the index of a row to that of its sentence in the batch.

    Raises:
        NotANumberError: for the first sentence that has one.
    """
    first = log_probs[..., 0].isnan()
    if first.any():
        row = int(first.flatten(1).any(dim=1).nonzero()[0]) if first.dim() > 1 else int(first.nonzero()[0])
        raise NotANumberError(sentence_of_row(row), dtype)


def named_by_id(error: NotANumberError, sample: dict[str, Any]) -> NotANumberError:
    """Return the error with the number that fairseq prints beside the sentence, as in ``H-5``."""
    ids: Sequence[Any] | Tensor | None = sample.get("id")
    return error if ids is None else error.at(f"sentence {int(ids[error.sentence])}")
