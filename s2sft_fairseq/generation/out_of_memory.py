"""A batch that does not fit into memory is halved and tried again."""

import gc
import logging
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.generation.not_a_number import NotANumberError

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

# What else PyTorch raises as a plain RuntimeError: its CPU allocator (Linux and macOS, Windows), the driver, cuBLAS.
_MESSAGES = ("can't allocate memory", "not enough memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


def generate_in_halves(
    generate: Callable[..., list[Result]], source: Tensor, *columns: Tensor | None, pad: int
) -> list[Result]:
    """Call ``generate(source, *columns)``; a batch for which memory runs out is halved until its parts fit.

    Linux promises more memory than it has: there a process that takes too much may be killed before PyTorch hears of
    it. So this is the net below an estimate, not a way to find the largest batch.

    Args:
        generate: returns a result for each sentence.
        source: laid-out sources, padded on the right (N, S). N: sentences, S: source positions.
        columns: what else there is of each sentence, padded on the right (N, L), or None.
        pad: what padding consists of. Halves lose the columns that hold nothing else.

    Returns:
        The results of all sentences, in their order.

    Raises:
        UserError: if a single sentence does not fit.
    """
    try:
        return generate(source, *columns)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        reason = str(error).strip().split("\n")[0]
    # Not before the exception is gone: its traceback keeps every tensor of the failed attempt alive.
    _free_caches()
    sentences = len(source)
    if sentences == 1:
        raise UserError(
            f"a sentence of {source.size(1)} source positions does not fit into memory, not even alone: lower --beam "
            f"or --max-len-b, or cut sources with --max-source-positions ({reason})"
        )
    logger.warning(
        f"a batch of {sentences} sentences of up to {source.size(1)} source positions does not fit into memory and is "
        f"generated in halves; lower --max-batch-memory or --batch-size to save the attempt ({reason})"
    )
    half = (sentences + 1) // 2
    results = []
    for part in (slice(half), slice(half, None)):
        rows = [None if column is None else _trimmed(column[part], pad) for column in (source, *columns)]
        try:
            results += generate_in_halves(generate, *rows, pad=pad)
        except NotANumberError as error:
            raise NotANumberError(error.sentence + (part.start or 0), error.dtype) from None
    return results


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an allocation has failed, on a GPU or on the CPU."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and any(message in str(error) for message in _MESSAGES)
    )


def _trimmed(rows: Tensor, pad: int) -> Tensor:
    """Return rows (N, L) without the columns on their right that are padding in all of them."""
    used = (rows != pad).any(dim=0).nonzero()
    return rows[:, : int(used[-1]) + 1 if len(used) else 0]


def _free_caches() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
