"""From the scores of the models to the candidates of the next step: what may come next, and what does."""

import math
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor

from s2sft_fairseq.checkpoints.finite_weights import HALF_LIMIT
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.inference.ngram_blocking import MINUS_INFINITY, forbid_repeats, forbid_repeats_at
from s2sft_fairseq.inference.options import SearchOptions
from s2sft_fairseq.objectives.sequence_form import SequenceForm

MOST_IN_NUCLEUS = 1024
"""Tokens among which a nucleus is looked for first on a CPU."""
_ONE = 0x3F800000
"""The bits of 1.0 as a float32."""


class NotANumberError(UserError):
    """The model gives NaN for a sentence; ``sentence`` is its index in the batch.

    A search would take NaN for impossible and end in empty hypotheses, and nothing would tell why.
    """

    def __init__(self, sentence: int, dtype: torch.dtype, place: str = ""):
        told = f"{place or f'sentence {sentence} of a batch'}: scores must be numbers, but the model gives NaN"
        if dtype == torch.float16:
            told += f". It computes in float16, and {HALF_LIMIT}: give --bf16 in place of --fp16, or leave it out"
        super().__init__(told)
        self.sentence, self.dtype = sentence, dtype

    def at(self, place: str) -> "NotANumberError":
        """Return the same error for a sentence that has a name of its own."""
        return NotANumberError(self.sentence, self.dtype, place)

    def named(self, sample: dict[str, Any]) -> "NotANumberError":
        """Return the error with the number that fairseq prints beside the sentence, as in ``H-5``."""
        ids: Sequence[Any] | Tensor | None = sample.get("id")
        return self if ids is None else self.at(f"sentence {int(ids[self.sentence])}")


def rows_with_nan(log_probs: Tensor) -> Tensor:
    """Return which rows have a NaN, before tokens are forbidden.

    One NaN or infinite logit makes a whole row of the log-softmax NaN, so it is enough to look at its first column.

    Shape:
        log_probs (R, ..., V) -> bool (R,). R: rows, V: vocabulary.
    """
    return log_probs[..., 0].isnan().flatten(1).any(dim=1) if log_probs.dim() > 2 else log_probs[:, 0].isnan()


def check_log_probs(log_probs: Tensor, dtype: torch.dtype, sentence_of_row: Callable[[int], int]) -> None:
    """Look for NaN, before tokens are forbidden.

    Args:
        log_probs: log-probabilities (R, ..., V). R: rows, V: vocabulary.
        dtype: what the model computes in.
        sentence_of_row: from the index of a row to that of its sentence in the batch.

    Raises:
        NotANumberError: for the first sentence that has one.
    """
    rows = rows_with_nan(log_probs)
    if rows.any():
        raise NotANumberError(sentence_of_row(int(rows.nonzero()[0])), dtype)


def mean_of_models(log_probs: Sequence[Tensor]) -> Tensor:
    """Return the logarithm of the mean probability, from the log-probabilities of each model."""
    if len(log_probs) == 1:
        return log_probs[0]
    return torch.logsumexp(torch.stack(list(log_probs)), dim=0) - math.log(len(log_probs))


def next_log_probs(logits: Sequence[Tensor], temperature: float) -> Tensor:
    """Return the log-probabilities of the next token, the logarithm of the models' mean probability.

    Args:
        logits: of each model (..., V), in whatever it computes in.
        temperature: what the logits are divided by.

    Returns:
        Log-probabilities (..., V) in float32, a tensor of its own.
    """
    cooled = (scores.float() if temperature == 1 else scores.float() / temperature for scores in logits)
    return mean_of_models([torch.log_softmax(scores, dim=-1) for scores in cooled])


class TokenRules:
    """What may come next in a batch: forbidden tokens, forced ones, and the length of a hypothesis.

    N: sentences, K: hypotheses of each, T: tokens so far, V: vocabulary.
    """

    def __init__(self, form: SequenceForm, options: SearchOptions, source: Tensor, prefix: Tensor | None) -> None:
        """Make the rules for laid-out sources (N, S), with what their hypotheses must begin with (N, P)."""
        self.form, self.options, self.prefix = form, options, prefix
        self.never_generated = torch.tensor(options.never_generated, dtype=torch.int64, device=source.device)
        # Padding too, which hypotheses of several lengths have on their left; and of a block what is not known yet, and
        # eos, which fills it up.
        fill = (form.pad, form.placeholder, form.sep)
        self.never_blocked = torch.tensor([*fill, *options.never_blocked], device=source.device)
        lengths = (source != form.pad).sum(dim=1)
        limit = (options.max_len_a * lengths + options.max_len_b).long()
        # Nothing is generated from nothing, such as a source whose fields are all empty.
        nothing = torch.tensor([form.pad, form.cls, form.sep], device=source.device)
        self.empty = torch.isin(source, nothing).all(dim=1)
        # Most tokens before eos (N,).
        self.max_len = limit.clamp(max=form.max_target - 1).masked_fill(self.empty, 0)
        limits = self.max_len.tolist()
        self.shortest_limit, self.longest_limit = min(limits), max(limits)

    def of(self, sentences: Tensor) -> "TokenRules":
        """Return the rules of some sentences (n,), of each as often as it occurs."""
        rules = copy(self)
        rules.keep_sentences(sentences)
        return rules

    def apply(self, log_probs: Tensor, tokens: Tensor, lengths: Tensor, gap: Tensor | None = None) -> None:
        """Set the log-probabilities of what must not come next to -inf, in place.

        What is forced keeps its log-probability, also where it would be forbidden.

        Shape:
            log_probs (N, K, V), tokens (N, K, T), their number (N,) in each hypothesis, fewer than T where it is padded
            on the left. With K = 1 the token may stand in a gap (N,) among them; it has ``lengths`` tokens on its left.
        """
        required = self.forced(tokens.size(2), lengths)
        if required is not None:
            forced, where = required
            # (N,) -> (N, K, 1)
            column = forced[:, None, None].expand(-1, log_probs.size(1), 1)
            plain = log_probs.gather(2, column)
        log_probs.index_fill_(-1, self.never_generated, MINUS_INFINITY)
        if self.options.min_len:
            log_probs[..., self.form.sep].masked_fill_((lengths < self.options.min_len).unsqueeze(1), MINUS_INFINITY)
        if size := self.options.no_repeat_ngram_size:
            if gap is None:
                forbid_repeats(log_probs, tokens, size, self.never_blocked)
            else:
                forbid_repeats_at(log_probs.squeeze(1), tokens.squeeze(1), gap, size, self.never_blocked)
        if required is not None:
            where = where[:, None, None]
            log_probs.masked_fill_(where, MINUS_INFINITY)
            log_probs.scatter_(2, column, torch.where(where, plain, log_probs.gather(2, column)))

    def forced(self, longest: int, lengths: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return tokens (N,), and where they must come next (N,): those of the prefix, or eos at the maximum length.

        Args:
            longest: no hypothesis has more tokens.
            lengths: tokens of the hypotheses (N,).
        """
        if self.prefix is None and longest < self.shortest_limit:
            return None
        # The limit counts more, so that a prefix longer than it ends there too, and that of an empty source at once.
        at_limit = self.max_len <= lengths
        if self.options.keep_unfinished:
            at_limit = at_limit & self.empty
        forced = torch.full_like(self.max_len, self.form.sep)
        if self.prefix is None:
            return forced, at_limit
        last = self.prefix.size(1) - 1
        prefix = self.prefix.gather(1, lengths.clamp(max=last).unsqueeze(1)).squeeze(1)
        prefixed = (prefix != self.form.pad) & (lengths <= last)
        return torch.where(at_limit, forced, prefix), at_limit | prefixed

    def keep_sentences(self, left: Tensor) -> None:
        """Go on with some sentences only, the indices ``left`` (n,)."""
        self.max_len, self.empty = self.max_len[left], self.empty[left]
        if self.prefix is not None:
            self.prefix = self.prefix[left]
        if len(left):
            self.shortest_limit = int(self.max_len.min())


class Candidates(NamedTuple):
    """Continuations of the hypotheses of each sentence, the best first; each (N, C). C: candidates."""

    scores: Tensor
    """Summed log-probabilities."""
    tokens: Tensor
    beams: Tensor
    """Which hypothesis of the sentence is continued."""


def beam_candidates(log_probs: Tensor, scores: Tensor, beams: int) -> Candidates:
    """Take twice as many continuations as there are to be beams, the best: at least half of them do not end.

    Shape:
        log_probs (N, K, V), scores so far (N, K). N: sentences, K: hypotheses, one at first, V: vocabulary.
    """
    # Each hypothesis first: the best of all are among its best, and sorting those few is quicker.
    log_probs, tokens = log_probs.topk(min(2 * beams, log_probs.size(2)), dim=2)
    totals = (scores.unsqueeze(-1) + log_probs).flatten(1)
    best, index = totals.topk(min(2 * beams, totals.size(1)), dim=1)
    return Candidates(best, tokens.flatten(1).gather(1, index), index // tokens.size(2))


def sampled_candidates(log_probs: Tensor, scores: Tensor, options: SearchOptions) -> Candidates:
    """Continue every hypothesis by a token drawn at random, the first one by as many as there are to be beams.

    They are drawn from the ``sampling_topk`` most probable tokens, and from the smallest set of most probable tokens
    that together have at least the probability ``sampling_topp`` (nucleus sampling, Holtzman et al., 2020). Either is
    off if it is not positive.

    Shape:
        log_probs (N, K, V), scores so far (N, K), as for :func:`beam_candidates`.
    """
    hypotheses = log_probs.size(1)
    log_probs, probs, tokens = _drawn_from(log_probs, options)
    # Of clocks that ring after exponential times, each at the rate of its probability, the first is a draw.
    # (N, K, V) -> (N, K, D, V). D: draws for each hypothesis.
    probs = probs.unsqueeze(2).expand(-1, -1, options.beam // hypotheses, -1)
    drawn = (probs / torch.empty_like(probs, memory_format=torch.contiguous_format).exponential_()).argmax(dim=-1)
    totals = scores.unsqueeze(-1) + log_probs.gather(-1, drawn)
    origins = torch.arange(hypotheses, device=scores.device).view(1, -1, 1).expand_as(drawn)
    drawn = drawn if tokens is None else tokens.gather(-1, drawn)
    return Candidates(totals.flatten(1), drawn.flatten(1), origins.flatten(1))


def draw_tokens(log_probs: Tensor, options: SearchOptions) -> tuple[Tensor, Tensor]:
    """Return the most probable token everywhere, or with ``sampling`` a random one, and its log-probability.

    Shape:
        log_probs (..., V) -> tokens (...), log-probabilities (...).
    """
    if not options.sampling:
        scores, tokens = log_probs.max(dim=-1)
        return tokens, scores
    log_probs, probs, among = _drawn_from(log_probs, options)
    drawn = (probs / torch.empty_like(probs).exponential_()).argmax(dim=-1, keepdim=True)
    tokens = drawn if among is None else among.gather(-1, drawn)
    return tokens.squeeze(-1), log_probs.gather(-1, drawn).squeeze(-1)


def _drawn_from(log_probs: Tensor, options: SearchOptions) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return what samples are drawn from: log-probabilities, probabilities, and the tokens that these are of.

    Shape:
        log_probs (..., V) -> each (..., V) or (..., k) of the k most probable tokens; tokens are None if they are all.
    """
    # Normalised anew, for forbidden tokens have taken their share away; a forced one may be of any probability.
    total, tokens = log_probs.logsumexp(dim=-1, keepdim=True), None
    if 0 < options.sampling_topk < log_probs.size(-1):
        log_probs, tokens = log_probs.topk(options.sampling_topk, dim=-1)
    probs = (log_probs - total).exp()
    if options.sampling_topp > 0:
        probs = probs.masked_fill(probs < least_of_nucleus(probs, options.sampling_topp), 0)
    return log_probs, probs, tokens


def least_of_nucleus(probs: Tensor, top_p: float) -> Tensor:
    """Return the least probability of the smallest set of most probable tokens that together have at least ``top_p``.

    Tokens of equal probability all stay. Sorting the whole vocabulary takes longer, on GPUs above all.

    Shape:
        probs (..., V), float32 -> (..., 1). V: vocabulary.
    """
    if probs.device.type == "cpu":  # a GPU would have to be asked
        best = probs.topk(min(MOST_IN_NUCLEUS, probs.size(-1)), dim=-1).values
        enough = best.cumsum(dim=-1) >= top_p
        if bool(enough[..., -1].all()):
            return best.gather(-1, enough.int().argmax(dim=-1, keepdim=True))
    # The largest bound that leaves so much, by bisection over the bits of a float32: their order is that of its values.
    low = torch.zeros_like(probs[..., :1], dtype=torch.int32)
    high = low + _ONE + 1
    for _ in range(_ONE.bit_length() + 1):
        middle = (low + high) // 2
        enough = (probs * (probs >= middle.view(torch.float32))).sum(dim=-1, keepdim=True) >= top_p
        low, high = torch.where(enough, middle, low), torch.where(enough, high, middle)
    return low.view(torch.float32)
