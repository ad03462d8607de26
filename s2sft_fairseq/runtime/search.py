"""Patches of fairseq's own beam search, which encoder-decoders use."""

from typing import Any

from fairseq.ngram_repeat_block import NGramRepeatBlock
from fairseq.sequence_generator import EnsembleModel, SequenceGenerator
from torch import Tensor

from s2sft_fairseq.inference.rules import NotANumberError, check_log_probs
from s2sft_fairseq.runtime import Function, wrap


def install() -> None:
    """Share the keys of the source, refuse NaN, and let ``--no-repeat-ngram-size`` work."""
    wrap(SequenceGenerator, "_generate", _generate)
    wrap(EnsembleModel, "reorder_encoder_out", _reorder_encoder_out)
    wrap(EnsembleModel, "forward_decoder", _forward_decoder)
    wrap(NGramRepeatBlock, "_no_repeat_ngram", _no_repeat_ngram)


def _generate(
    generate: Function, generator: SequenceGenerator, sample: dict[str, Any], *args: Any, **options: Any
) -> Any:
    """Patch ``SequenceGenerator._generate`` of fairseq/sequence_generator.py. The steps, in this order:

    1. Models that have ``share_source_keys`` learn the size of the beam for as long as the search takes: then they
       compute keys and values of the source once for each sentence, not once for each hypothesis. fairseq's attention
       can do so, but the generator calls a method for it that no model has. While models read whole targets, as in
       training between two validations, they must not know a beam: they would take rows of the batch for hypotheses of
       one sentence.
    2. A score that is NaN is an error, which names the sentence. fairseq's search takes NaN for impossible, and ends
       without a word in whatever hypotheses are left. It does not tell to which sentence a row of its batch belongs:
       the next two patches follow that.
    """
    models = [model for model in generator.model.models if hasattr(model, "share_source_keys")]
    for model in models:
        model.share_source_keys(generator.beam_size)
    generator.model.sentence_of_row = None
    try:
        return generate(generator, sample, *args, **options)
    except NotANumberError as error:
        raise error.named(sample) from None
    finally:
        for model in models:
            model.share_source_keys(1)


def _reorder_encoder_out(reorder: Function, ensemble: EnsembleModel, encoder_outs: Any, new_order: Tensor) -> Any:
    """Patch ``EnsembleModel.reorder_encoder_out`` of fairseq/sequence_generator.py: follow the rows of the batch.

    Args:
        reorder: fairseq's method.
        ensemble: of the search.
        encoder_outs: of its models.
        new_order: (rows,) the row before that each new row continues; of the first call, the sentence.
    """
    rows = getattr(ensemble, "sentence_of_row", None)
    ensemble.sentence_of_row = new_order if rows is None else rows[new_order]
    return reorder(ensemble, encoder_outs, new_order)


def _forward_decoder(decode: Function, ensemble: EnsembleModel, *args: Any, **options: Any) -> tuple[Any, ...]:
    """Patch ``EnsembleModel.forward_decoder`` of fairseq/sequence_generator.py: check the log-probabilities."""
    log_probs, attention = decode(ensemble, *args, **options)
    dtype = next((parameter.dtype for parameter in ensemble.single_model.parameters()), log_probs.dtype)
    check_log_probs(log_probs, dtype, lambda row: int(ensemble.sentence_of_row[row]))
    return log_probs, attention


def _no_repeat_ngram(
    block: Function, module: NGramRepeatBlock, tokens: Tensor, lprobs: Tensor, bsz: int, beam_size: int, step: int
) -> Tensor:
    """Patch ``NGramRepeatBlock._no_repeat_ngram`` of fairseq/ngram_repeat_block.py: compare the last tokens that were
    generated.

    Without its CUDA extension, which is mostly not built, fairseq compares the last tokens of a buffer for hypotheses
    of the greatest length: until the end that is padding, and nothing is blocked.

    Args:
        block: fairseq's method.
        module: that it is of.
        tokens: (rows, longest hypothesis + 2)
        lprobs: (rows, vocabulary)
        bsz: number of sentences.
        beam_size: number of rows of each.
        step: of the search; so many tokens follow the first one of `tokens`.
    """
    return block(module, tokens[:, : step + 1], lprobs, bsz, beam_size, step)
