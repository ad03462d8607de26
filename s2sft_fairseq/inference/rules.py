"""From the scores of the models to the candidates of the next step: rules for the next token, beams and samples."""

import math
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from s2sft_fairseq.checkpoints.finite_weights import HALF_LIMIT
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.inference.draws import exponentials
from s2sft_fairseq.inference.ngram_blocking import MINUS_INFINITY, forbid_repeats, forbid_repeats_at
from s2sft_fairseq.inference.options import SearchOptions
from s2sft_fairseq.objectives.sequence_form import SequenceForm
from s2sft_fairseq.search_bounds import too_short

MOST_IN_NUCLEUS = 1024
"""On a CPU, the nucleus is first searched among this many most probable tokens."""
_ONE = 0x3F800000
"""The bits of 1.0 as a float32."""


class SentenceError(UserError):
    """A sentence of a batch cannot be searched; ``sentence`` is its index in the batch."""

    def __init__(self, sentence: int, reason: str, place: str = ""):
        super().__init__(f"{place or f'sentence {sentence} of a batch'}: {reason}")
        self.sentence, self.reason = sentence, reason

    def at(self, place: str) -> "SentenceError":
        """Return the same error with ``place`` as the name of the sentence."""
        return SentenceError(self.sentence, self.reason, place)

    def moved(self, count: int) -> "SentenceError":
        """Return the same error for a batch that has ``count`` more sentences before this one."""
        return SentenceError(self.sentence + count, self.reason)

    def named(self, sample: dict[str, Any]) -> "SentenceError":
        """Return the same error with the number that fairseq prints for the sentence, such as 5 in ``H-5``."""
        ids: Sequence[Any] | Tensor | None = sample.get("id")
        return self if ids is None else self.at(f"sentence {int(ids[self.sentence])}")


class NotANumberError(SentenceError):
    """The model gives NaN for a sentence.

    Without this error a search would treat NaN as impossible and return empty hypotheses without a reason.
    """

    def __init__(self, sentence: int, dtype: torch.dtype):
        reason = "scores must be numbers, but the model gives NaN"
        if dtype == torch.float16:
            reason += f". It computes in float16, and {HALF_LIMIT}: give --bf16 in place of --fp16, or leave it out"
        super().__init__(sentence, reason)


def rows_with_nan(log_probs: Tensor) -> Tensor:
    """Return which rows have a NaN. Call it before tokens are forbidden.

    One NaN or infinite logit makes a whole row of the log-softmax NaN, so the first column is enough.

    Shape:
        log_probs (R, ..., V) -> bool (R,). R: rows, V: vocabulary.
    """
    return log_probs[..., 0].isnan().flatten(1).any(dim=1) if log_probs.dim() > 2 else log_probs[:, 0].isnan()


def check_log_probs(log_probs: Tensor, dtype: torch.dtype, sentence_of_row: Callable[[int], int]) -> None:
    """Check for NaN. Call it before tokens are forbidden.

    Args:
        log_probs: log-probabilities (R, ..., V). R: rows, V: vocabulary.
        dtype: the data type that the model computes in.
        sentence_of_row: maps the index of a row to the index of its sentence in the batch.

    Raises:
        NotANumberError: for the first sentence with NaN.
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
        logits: logits of each model (..., V), in the data type that it computes in.
        temperature: divisor of the logits.

    Returns:
        Log-probabilities (..., V) in float32, in a new tensor.
    """
    cooled = (scores.float() if temperature == 1 else scores.float() / temperature for scores in logits)
    return mean_of_models([torch.log_softmax(scores, dim=-1) for scores in cooled])


TokenRule = Callable[[Tensor, Tensor, Tensor, Tensor | None], None]
"""A rule of a plugin: sets the log-probabilities of tokens to -inf, in place. Its arguments are those of
`TokenRules.apply`."""
OWN_RULES: dict[str, TokenRule] = {}
"""The rules of plugins by name. All searches of this package's models apply them."""


def register_rule(name: str, rule: TokenRule) -> None:
    """Apply a rule in every search of an encoder with `unilm`'s decoder, before tokens are forced.

    Args:
        name: its name, for the log.
        rule: the rule.

    Raises:
        UserError: another rule has the name.
    """
    if OWN_RULES.setdefault(name, rule) is not rule:
        raise UserError(f"there is a rule {name} already: register yours under another name")


class TokenRules:
    """The rules for the next tokens of a batch: forbidden tokens, forced tokens, and limits of the length.

    N: sentences, K: hypotheses of each, T: tokens so far, V: vocabulary.
    """

    def __init__(self, form: SequenceForm, options: SearchOptions, source: Tensor, prefix: Tensor | None) -> None:
        """Create the rules for laid-out sources (N, S); the hypotheses must begin with the prefix (N, P), if given.

        Raises:
            SentenceError: for the first source whose longest hypothesis is shorter than ``min_len``.
        """
        self.form, self.options, self.prefix = form, options, prefix
        self.never_generated = torch.tensor(options.never_generated, dtype=torch.int64, device=source.device)
        # These too: padding on the left of shorter hypotheses, unknown tokens of a block, and eos, which fills a block.
        fill = (form.pad, form.placeholder, form.sep)
        self.never_blocked = torch.tensor([*fill, *options.never_blocked], device=source.device)
        lengths = (source != form.pad).sum(dim=1)
        limit = (options.max_len_a * lengths + options.max_len_b).clamp(max=form.max_target - 1).long()
        # An empty source gets an empty hypothesis. Its fields may all be empty.
        nothing = torch.tensor([form.pad, form.cls, form.sep], device=source.device)
        self.empty = torch.isin(source, nothing).all(dim=1)
        # Most tokens before eos (N,).
        self.max_len = limit.masked_fill(self.empty, 0)
        limits = self.max_len.tolist()
        if options.max_len_a:
            self._check_limits(lengths.tolist(), limits)
        self.shortest_limit, self.longest_limit = min(limits), max(limits)

    def _check_limits(self, lengths: Sequence[int], limits: Sequence[int]) -> None:
        empty = self.empty.tolist()
        for sentence, (length, limit) in enumerate(zip(lengths, limits, strict=True)):
            if limit < self.options.min_len and not empty[sentence]:
                raise SentenceError(sentence, too_short(self.options, limit, length))

    def of(self, sentences: Tensor) -> "TokenRules":
        """Return the rules of some sentences (n,); an index may occur several times."""
        rules = copy(self)
        rules.keep_sentences(sentences)
        return rules

    def apply(self, log_probs: Tensor, tokens: Tensor, lengths: Tensor, gap: Tensor | None = None) -> None:
        """Set the log-probabilities of tokens that must not come next to -inf, in place.

        A forced token keeps its log-probability, even if another rule forbids the token.

        Shape:
            log_probs (N, K, V), tokens (N, K, T), and ``lengths`` (N,), the number of tokens of each hypothesis, less
            than T if it is padded on the left. With K = 1 the next token may fill a ``gap`` (N,), its index among the
            tokens; ``lengths`` then counts the tokens to the left of the gap.
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
        for rule in OWN_RULES.values():
            rule(log_probs, tokens, lengths, gap)
        if required is not None:
            where = where[:, None, None]
            log_probs.masked_fill_(where, MINUS_INFINITY)
            log_probs.scatter_(2, column, torch.where(where, plain, log_probs.gather(2, column)))

    def forced(self, longest: int, lengths: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the forced token of each sentence (N,), of the prefix or eos, and which sentences have one (N,).

        Args:
            longest: no hypothesis has more tokens than this.
            lengths: number of tokens of the hypotheses (N,).

        Returns:
            Both tensors; None if no sentence has a forced token.
        """
        if self.prefix is None and longest < self.shortest_limit:
            return None
        # The limit overrides the prefix: a longer prefix ends there, and the prefix of an empty source at once.
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
        """Keep only the sentences with the indices ``left`` (n,)."""
        self.max_len, self.empty = self.max_len[left], self.empty[left]
        if self.prefix is not None:
            self.prefix = self.prefix[left]
        if len(left):
            self.shortest_limit = int(self.max_len.min())


class Candidates(NamedTuple):
    """Continuations of the hypotheses of each sentence, the best first; each field (N, C). C: candidates."""

    scores: Tensor
    """Summed log-probabilities."""
    tokens: Tensor
    beams: Tensor
    """Index of the hypothesis of the sentence that is continued."""


def beam_candidates(log_probs: Tensor, scores: Tensor, beams: int) -> Candidates:
    """Return the best ``2 * beams`` continuations: at least half of them do not end.

    Shape:
        log_probs (N, K, V), scores so far (N, K). N: sentences, K: hypotheses, one at first, V: vocabulary.
    """
    # First the best of each hypothesis: the best of all are among them, and sorting those few is faster.
    log_probs, tokens = log_probs.topk(min(2 * beams, log_probs.size(2)), dim=2)
    totals = (scores.unsqueeze(-1) + log_probs).flatten(1)
    best, index = totals.topk(min(2 * beams, totals.size(1)), dim=1)
    return Candidates(best, tokens.flatten(1).gather(1, index), index // tokens.size(2))


def sampled_candidates(log_probs: Tensor, scores: Tensor, options: SearchOptions, keys: np.ndarray) -> Candidates:
    """Continue every hypothesis by a random token; in the first step, the only hypothesis by ``beam`` random tokens.

    They are drawn from the ``sampling_topk`` most probable tokens, and from the smallest set of most probable tokens
    that together have at least the probability ``sampling_topp`` (nucleus sampling, Holtzman et al., 2020). Either
    limit is off if it is not positive.

    Shape:
        log_probs (N, K, V), scores so far (N, K), as for :func:`beam_candidates`; ``keys`` of the draws (N, beam).
    """
    hypotheses = log_probs.size(1)
    log_probs, probs, tokens = _drawn_from(log_probs, options)
    # (N, K, V) -> (N, K, D, V). D: draws for each hypothesis.
    of_hypothesis = keys.reshape(len(keys), hypotheses, -1)
    drawn = _race(probs.unsqueeze(2), None if tokens is None else tokens.unsqueeze(2), of_hypothesis)
    totals = scores.unsqueeze(-1) + log_probs.gather(-1, drawn)
    origins = torch.arange(hypotheses, device=scores.device).view(1, -1, 1).expand_as(drawn)
    drawn = drawn if tokens is None else tokens.gather(-1, drawn)
    return Candidates(totals.flatten(1), drawn.flatten(1), origins.flatten(1))


def draw_tokens(log_probs: Tensor, options: SearchOptions, keys: np.ndarray) -> tuple[Tensor, Tensor]:
    """Return the most probable token of each row, or with ``sampling`` a random one, and its log-probability.

    Shape:
        log_probs (..., V), ``keys`` of the draws (...) -> tokens (...), log-probabilities (...).
    """
    if not options.sampling:
        scores, tokens = log_probs.max(dim=-1)
        return tokens, scores
    log_probs, probs, among = _drawn_from(log_probs, options)
    drawn = _race(probs, among, keys).unsqueeze(-1)
    tokens = drawn if among is None else among.gather(-1, drawn)
    return tokens.squeeze(-1), log_probs.gather(-1, drawn).squeeze(-1)


def _race(probs: Tensor, tokens: Tensor | None, keys: np.ndarray) -> Tensor:
    """Return the index of a random token of each row (...).

    This is an exponential race: the token with the smallest exponential time / probability is a draw.

    Args:
        probs: probabilities (..., V).
        tokens: their tokens (..., V); None: the whole vocabulary.
        keys: the keys of the draws (...).
    """
    ids = torch.arange(probs.size(-1), device=probs.device) if tokens is None else tokens
    return (probs / exponentials(keys, ids)).argmax(dim=-1)


def _drawn_from(log_probs: Tensor, options: SearchOptions) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the log-probabilities and probabilities from which samples are drawn, and the ids of their tokens.

    Shape:
        log_probs (..., V) -> each (..., V), or (..., k) of the k most probable tokens; ids are None for the whole
        vocabulary.
    """
    # Renormalize: the probability of forbidden tokens is gone, and a forced token may have any probability.
    total, tokens = log_probs.logsumexp(dim=-1, keepdim=True), None
    if 0 < options.sampling_topk < log_probs.size(-1):
        log_probs, tokens = log_probs.topk(options.sampling_topk, dim=-1)
    probs = (log_probs - total).exp()
    if options.sampling_topp > 0:
        probs = probs.masked_fill(probs < least_of_nucleus(probs, options.sampling_topp), 0)
    return log_probs, probs, tokens


def least_of_nucleus(probs: Tensor, top_p: float) -> Tensor:
    """Return the lowest probability in the smallest set of most probable tokens that together have at least ``top_p``.

    All tokens of this probability belong to the set. This is faster than sorting the whole vocabulary, above all on
    GPUs.

    Shape:
        probs (..., V), float32 -> (..., 1). V: vocabulary.
    """
    if probs.device.type == "cpu":  # on a GPU, the host would wait for the answer
        best = probs.topk(min(MOST_IN_NUCLEUS, probs.size(-1)), dim=-1).values
        enough = best.cumsum(dim=-1) >= top_p
        if bool(enough[..., -1].all()):
            return best.gather(-1, enough.int().argmax(dim=-1, keepdim=True))
    # Bisection for the largest bound that leaves at least top_p, over the bits of a float32: for numbers that are not
    # negative, their order is the order of the values.
    low = torch.zeros_like(probs[..., :1], dtype=torch.int32)
    high = low + _ONE + 1
    for _ in range(_ONE.bit_length() + 1):
        middle = (low + high) // 2
        enough = (probs * (probs >= middle.view(torch.float32))).sum(dim=-1, keepdim=True) >= top_p
        low, high = torch.where(enough, middle, low), torch.where(enough, high, middle)
    return low.view(torch.float32)
