"""fairseq's search takes NaN for impossible, and ends in hypotheses without a word; here it is an error.

The search of encoder-decoders is fairseq's. Which sentence a row of its batch belongs to it does not tell, so that is
followed beside it.
"""

import functools
from collections.abc import Callable
from typing import Any

from fairseq.sequence_generator import EnsembleModel, SequenceGenerator
from torch import Tensor

from s2sft_fairseq.inference.rules import NotANumberError, check_log_probs


def _follow_rows(reorder: Callable) -> Callable:
    @functools.wraps(reorder)
    def reorder_encoder_out(self: EnsembleModel, encoder_outs: Any, new_order: Tensor) -> Any:
        rows = getattr(self, "sentence_of_row", None)
        self.sentence_of_row = new_order if rows is None else rows[new_order]
        return reorder(self, encoder_outs, new_order)

    return reorder_encoder_out


def _check(decode: Callable) -> Callable:
    @functools.wraps(decode)
    def forward_decoder(self: EnsembleModel, *args: Any, **options: Any) -> tuple:
        log_probs, attention = decode(self, *args, **options)
        dtype = next((parameter.dtype for parameter in self.single_model.parameters()), log_probs.dtype)
        check_log_probs(log_probs, dtype, lambda row: int(self.sentence_of_row[row]))
        return log_probs, attention

    return forward_decoder


def _name_sentence(generate: Callable) -> Callable:
    @functools.wraps(generate)
    def _generate(self: SequenceGenerator, sample: dict[str, Any], *args: Any, **options: Any) -> Any:
        self.model.sentence_of_row = None
        try:
            return generate(self, sample, *args, **options)
        except NotANumberError as error:
            raise error.named(sample) from None

    return _generate


def apply() -> None:
    """Put the check around every step of fairseq's search."""
    EnsembleModel.reorder_encoder_out = _follow_rows(EnsembleModel.reorder_encoder_out)
    EnsembleModel.forward_decoder = _check(EnsembleModel.forward_decoder)
    SequenceGenerator._generate = _name_sentence(SequenceGenerator._generate)
