"""Patches of fairseq's own search, which encoder-decoders use, and of its interactive command."""

from collections.abc import Iterator, Sequence
from typing import Any

from fairseq.ngram_repeat_block import NGramRepeatBlock
from fairseq.sequence_generator import EnsembleModel, SequenceGenerator
from fairseq.tasks import FairseqTask
from fairseq_cli import interactive
from torch import Tensor

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.inference.rules import SentenceError, check_log_probs
from s2sft_fairseq.runtime import Function, wrap
from s2sft_fairseq.search_bounds import too_short


def install() -> None:
    """Share the keys of the source among hypotheses, report NaN, and make ``--no-repeat-ngram-size`` work.

    Also number the sources of an interactive search.
    """
    wrap(SequenceGenerator, "_generate", _generate)
    wrap(EnsembleModel, "reorder_encoder_out", _reorder_encoder_out)
    wrap(EnsembleModel, "forward_decoder", _forward_decoder)
    wrap(NGramRepeatBlock, "_no_repeat_ngram", _no_repeat_ngram)
    wrap(interactive, "make_batches", _make_batches)
    wrap(FairseqTask, "inference_step", _inference_step)


def _generate(
    generate: Function, generator: SequenceGenerator, sample: dict[str, Any], *args: Any, **options: Any
) -> Any:
    """Patch ``SequenceGenerator._generate`` of fairseq/sequence_generator.py.

    The changes:

    1. During the search, models with ``share_source_keys`` know the beam size. They then compute keys and values of the
       source once per sentence, not once per hypothesis. fairseq's attention can do this, but the generator calls a
       method that no model has. After the search, the beam size is reset to 1: otherwise a model that reads whole
       targets, as in training, would treat consecutive rows of the batch as hypotheses of one sentence.
    2. A NaN score is an error that names the sentence. fairseq's search treats NaN as impossible, and silently returns
       the hypotheses that are left. It does not record the sentence of each row of the batch; the next two patches do.
    3. A minimum length above the maximum length is an error that names both; fairseq asserts it.
    """
    if not generator.match_source_len:
        _check_lengths(generator, sample["net_input"])
    models = [model for model in generator.model.models if hasattr(model, "share_source_keys")]
    for model in models:
        model.share_source_keys(generator.beam_size)
    generator.model.sentence_of_row = None
    try:
        return generate(generator, sample, *args, **options)
    except SentenceError as error:
        raise error.named(sample) from None
    finally:
        for model in models:
            model.share_source_keys(1)


def _check_lengths(generator: SequenceGenerator, net_input: dict[str, Any]) -> None:
    """Raise UserError if no hypothesis for these sources can have the minimum length.

    In fairseq the longest source of a batch counts for all of them.
    """
    source = net_input.get("src_tokens")
    if source is None:
        return
    longest = source.size(1)
    limit = min(int(generator.max_len_a * longest + generator.max_len_b), generator.max_len - 1)
    if limit < generator.min_len:
        raise UserError(too_short(generator, limit, longest))


def _reorder_encoder_out(reorder: Function, ensemble: EnsembleModel, encoder_outs: Any, new_order: Tensor) -> Any:
    """Patch ``EnsembleModel.reorder_encoder_out`` of fairseq/sequence_generator.py: follow the rows of the batch.

    Args:
        reorder: fairseq's method.
        ensemble: the ensemble of the search.
        encoder_outs: the encoder outputs of its models.
        new_order: (rows,) the old row that each new row continues; in the first call, its sentence.
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
    """Patch ``NGramRepeatBlock._no_repeat_ngram`` of fairseq/ngram_repeat_block.py: compare the last generated tokens.

    Without its CUDA extension, which usually is not built, fairseq compares the last tokens of a buffer of the maximum
    length. These are padding until the end of the search, so that it blocks nothing.

    Args:
        block: fairseq's method.
        module: its instance.
        tokens: (rows, longest hypothesis + 2)
        lprobs: (rows, vocabulary)
        bsz: number of sentences.
        beam_size: number of rows of each.
        step: step of the search; `tokens` has this many tokens after the first one.
    """
    return block(module, tokens[:, : step + 1], lprobs, bsz, beam_size, step)


def _make_batches(make: Function, lines: Sequence[str], cfg: Any, task: FairseqTask, *others: Any) -> Iterator[Any]:
    """Patch ``make_batches`` of fairseq_cli/interactive.py: the task knows the numbers of the sources in each batch.

    fairseq leaves ``id`` out of the batch that it gives to the search. Random samples depend on it.
    """
    first = getattr(task, "sources_read", 0)
    task.sources_read = first + len(lines)
    for batch in make(lines, cfg, task, *others):
        task.numbers_of_batch = batch.ids + first
        yield batch


def _inference_step(
    step: Function, task: FairseqTask, generator: Any, models: Any, sample: dict[str, Any], *args: Any, **options: Any
) -> Any:
    """Patch ``FairseqTask.inference_step`` of fairseq/tasks/fairseq_task.py: add the numbers of `_make_batches`."""
    numbers = vars(task).pop("numbers_of_batch", None)
    if numbers is not None:
        sample = {"id": numbers, **sample}
    return step(task, generator, models, sample, *args, **options)
