"""`--no-repeat-ngram-size` in fairseq's own search does nothing without its CUDA extension, which is mostly not built.

What is compared then are the last tokens of a buffer for hypotheses of the greatest length, which is padding until the
end, and not the last ones that were generated.
"""

import functools
from collections.abc import Callable

from fairseq.ngram_repeat_block import NGramRepeatBlock
from torch import Tensor


def _without_padding(block: Callable) -> Callable:
    @functools.wraps(block)
    def no_repeat_ngram(
        module: NGramRepeatBlock, tokens: Tensor, lprobs: Tensor, bsz: int, beam_size: int, step: int
    ) -> Tensor:
        return block(module, tokens[:, : step + 1], lprobs, bsz, beam_size, step)

    return no_repeat_ngram


def apply() -> None:
    """Cut the buffer behind the token that was generated last."""
    NGramRepeatBlock._no_repeat_ngram = _without_padding(NGramRepeatBlock._no_repeat_ngram)
