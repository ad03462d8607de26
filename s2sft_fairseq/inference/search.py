"""Beam search and sampling: a token a step, and the hypotheses that have ended."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from s2sft_fairseq.inference.decoder import IncrementalDecoder
from s2sft_fairseq.inference.options import SearchOptions
from s2sft_fairseq.inference.rules import (
    MINUS_INFINITY,
    Candidates,
    TokenRules,
    beam_candidates,
    check_log_probs,
    next_log_probs,
    sampled_candidates,
)
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.objectives.sequence_form import SequenceForm


class Search:
    """The search of one batch, whose sentences leave it when they are done.

    N: sentences still in the search, K: hypotheses of each, T: tokens so far, V: vocabulary.
    """

    tokens: Tensor
    """Of the open hypotheses, padded on the left (N, ..., T)."""
    log_probs: Tensor
    """Of these tokens (N, ..., T)."""

    def __init__(
        self,
        models: Sequence[UnilmModel],
        form: SequenceForm,
        options: SearchOptions,
        source: Tensor,
        prefix: Tensor | None = None,
    ) -> None:
        """Begin with one empty hypothesis for each sentence.

        Args:
            models: one, or an ensemble whose probabilities are averaged.
            form: the layout that they were trained with.
            options: what is to be found.
            source: laid-out sources (N, S), padded on the right.
            prefix: what every hypothesis begins with (N, P), padded on the right.
        """
        self.form, self.options = form, options
        # Sentences of similar length side by side: see `similar_lengths`.
        self.sentences = (source != form.pad).sum(dim=1).argsort(descending=True, stable=True)
        """Which sentence of the batch each one is (N,)."""
        source, prefix = source[self.sentences], None if prefix is None else prefix[self.sentences]
        self.rules = TokenRules(form, options, source, prefix)
        self.max_tokens = self.rules.longest_limit + 1
        self.decoders = [
            IncrementalDecoder(model, form, source, max_tokens=self.max_tokens, beams=options.beam) for model in models
        ]
        self.results: list[list[dict[str, Any]]] = [[] for _ in range(len(source))]
        """The hypotheses of each sentence of the batch, once it is done."""
        self.begin(source)

    def begin(self, source: Tensor) -> None:
        """Make what the search keeps of its hypotheses, for laid-out sources (N, S) in the order of the search."""
        raise NotImplementedError

    def step(self) -> bool:
        """Let hypotheses grow; tell whether the search must go on.

        Raises:
            NotANumberError: if the models give NaN.
        """
        raise NotImplementedError

    def hypotheses_of(self, index: int) -> list[dict[str, Any]]:
        """Return the hypotheses of a sentence that is done, the best first, in fairseq's form."""
        raise NotImplementedError

    def next_log_probs(self, logits: Sequence[Tensor]) -> Tensor:
        """Return the log-probabilities (N, ..., V) of the models' logits; see :func:`rules.next_log_probs`."""
        log_probs = next_log_probs(logits, self.options.temperature)
        check_log_probs(log_probs, logits[0].dtype, lambda row: int(self.sentences[row]))
        return log_probs

    def leave(self, done: Tensor) -> None:
        """Let the sentences that are done (N,) leave the batch."""
        for index, sentence in zip(done.nonzero().squeeze(1).tolist(), self.sentences[done].tolist(), strict=True):
            self.results[sentence] = self.hypotheses_of(index)
        # The n indices of those that are left. The last ones fill the gaps, so that few change places.
        left = torch.arange(int((~done).sum()), device=done.device)
        kept = (~done).nonzero().squeeze(1)
        left[done[: len(left)]] = kept[kept >= len(left)]
        self.keep_sentences(left)

    def keep_sentences(self, left: Tensor) -> None:
        """Go on with some sentences only, the indices ``left`` (n,)."""
        for part in (*self.decoders, self.rules):
            part.keep_sentences(left)
        self.sentences, self.tokens, self.log_probs = self.sentences[left], self.tokens[left], self.log_probs[left]


class BeamSearch(Search):
    """The search for the best hypotheses or, with ``sampling``, for random ones. C: candidates."""

    def begin(self, source: Tensor) -> None:
        """See :meth:`Search.begin`."""
        self.tokens = source.new_zeros(len(source), 1, 0)
        self.log_probs = torch.zeros(len(source), 1, 0, device=source.device)
        self.scores = torch.zeros(len(source), 1, device=source.device)
        self.finished = FinishedHypotheses(len(source), self.options.beam, self.max_tokens, source.device)
        self.wanted = self.options.nbest or self.options.beam
        # By the number of tokens, one more than there can be.
        self.normalizers = self.options.normalizer(torch.arange(self.max_tokens + 2, device=source.device))

    def step(self) -> bool:
        """Add one token to every hypothesis; see :meth:`Search.step`."""
        step = self.tokens.size(2)
        log_probs = self.next_log_probs([decoder.next_logits() for decoder in self.decoders])
        self.rules.apply(log_probs, self.tokens, torch.full_like(self.sentences, step))
        if self.options.sampling:
            candidates = sampled_candidates(log_probs, self.scores, self.options)
        else:
            candidates = beam_candidates(log_probs, self.scores, self.options.beam)
        if self.options.rank_each_step:
            candidates = self._ranked_with_finished(candidates, step)
        self._finish(candidates, step)
        self._continue(candidates)
        done = self._done(step + 1)
        if bool(done.any()):
            self.leave(done)
        return len(self.sentences) > 0

    def _ranked_with_finished(self, candidates: Candidates, step: int) -> Candidates:
        """Let only the K best of ended hypotheses and candidates live on; the others get the worst score."""
        beams = self.options.beam
        scores = torch.cat([self.finished.scores, candidates.scores / self.normalizers[step + 1]], dim=1)
        best = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, scores.topk(beams, dim=1).indices, True)
        self.finished.keep(best[:, :beams])
        return candidates._replace(scores=candidates.scores.masked_fill(~best[:, beams:], MINUS_INFINITY))

    def _finish(self, candidates: Candidates, step: int) -> None:
        """Take in the hypotheses that end among the first K candidates."""
        scores, tokens, origins = (column[:, : self.options.beam] for column in candidates)
        ended = tokens == self.form.sep
        if self.options.keep_unfinished:
            ended = ended | (self.rules.max_len <= step).unsqueeze(1)
        ended = ended & (scores > MINUS_INFINITY)
        history, log_probs = self._histories(scores, tokens, origins)
        self.finished.add(ended, scores / self.normalizers[step + 1], history, log_probs)

    def _continue(self, candidates: Candidates) -> None:
        """Go on with the first K candidates that have not ended."""
        ended = candidates.tokens == self.form.sep
        rank = torch.arange(ended.size(1), device=ended.device) + ended * ended.size(1)
        chosen = rank.topk(self.options.beam, dim=1, largest=False, sorted=True).indices
        scores, tokens, origins = (column.gather(1, chosen) for column in candidates)
        self.tokens, self.log_probs = self._histories(scores, tokens, origins)
        self.scores = scores.masked_fill(tokens == self.form.sep, MINUS_INFINITY)
        for decoder in self.decoders:
            decoder.append(tokens, origins)

    def _histories(self, scores: Tensor, tokens: Tensor, origins: Tensor) -> tuple[Tensor, Tensor]:
        """Return tokens and log-probabilities (N, C, T + 1) of candidates, from the hypotheses they continue."""
        across = origins.unsqueeze(-1).expand(-1, -1, self.tokens.size(2))
        history = torch.cat([self.tokens.gather(1, across), tokens.unsqueeze(-1)], dim=-1)
        newest = (scores - self.scores.gather(1, origins)).unsqueeze(-1)
        return history, torch.cat([self.log_probs.gather(1, across), newest], dim=-1)

    def _done(self, length: int) -> Tensor:
        """Return which sentences are done (N,). ``length``: tokens of the open hypotheses."""
        highest = self.scores.max(dim=1).values
        done = (highest == MINUS_INFINITY) | (self.rules.max_len < length)
        if self.options.beam == 1 or self.options.early_stop == "fairseq":
            done |= self.finished.counts() >= self.options.beam
        elif self.options.early_stop == "exact":
            # Log-probabilities are never positive: at best an open hypothesis keeps its sum. It ends one token later at
            # the earliest, and a normaliser that rises or falls with the length is largest at one of the two ends.
            normalizer = torch.maximum(self.normalizers[length + 1], self.normalizers[self.rules.max_len + 1])
            # Equal is not enough: of equal scores any may be kept.
            done |= self.finished.worst(self.wanted) > highest / normalizer
        return done

    def hypotheses_of(self, index: int) -> list[dict[str, Any]]:
        """See :meth:`Search.hypotheses_of`."""
        return self.finished.of(index, self.wanted)

    def keep_sentences(self, left: Tensor) -> None:
        """See :meth:`Search.keep_sentences`."""
        super().keep_sentences(left)
        self.finished.keep_sentences(left)
        self.scores = self.scores[left]


class FinishedHypotheses:
    """The K best ended hypotheses of each of N sentences, in tensors.

    N: sentences, K: hypotheses kept, T: most tokens of one.
    """

    def __init__(self, sentences: int, kept: int, max_tokens: int, device: torch.device) -> None:
        self.scores = torch.full((sentences, kept), MINUS_INFINITY, device=device)
        self.lengths = torch.zeros(sentences, kept, dtype=torch.int64, device=device)
        self.tokens = torch.zeros(sentences, kept, max_tokens, dtype=torch.int64, device=device)
        self.log_probs = torch.zeros(sentences, kept, max_tokens, device=device)

    def add(self, ended: Tensor, scores: Tensor, tokens: Tensor, log_probs: Tensor) -> None:
        """Take in those of C hypotheses of one length t that have ended, and keep the best.

        Shape:
            ended and normalised scores (N, C), tokens and log-probabilities (N, C, t).
        """
        length = tokens.size(2)
        scores = scores.masked_fill(~ended, MINUS_INFINITY)
        kept = self.scores.size(1)
        self.scores, order = torch.cat([self.scores, scores], dim=1).topk(kept, dim=1)
        self.lengths = torch.cat([self.lengths, torch.full_like(ended, length, dtype=torch.int64)], 1).gather(1, order)
        room = self.tokens.size(2) - length
        across = order.unsqueeze(-1).expand(-1, -1, self.tokens.size(2))
        self.tokens = torch.cat([self.tokens, torch.nn.functional.pad(tokens, (0, room))], 1).gather(1, across)
        padded = torch.nn.functional.pad(log_probs, (0, room))
        self.log_probs = torch.cat([self.log_probs, padded], 1).gather(1, across)

    def keep(self, kept: Tensor) -> None:
        """Forget all other hypotheses than those that ``kept`` (N, K) tells; the next ``add`` puts them in order."""
        self.scores = self.scores.masked_fill(~kept, MINUS_INFINITY)

    def counts(self) -> Tensor:
        """Return how many hypotheses each sentence has (N,)."""
        return (self.scores > MINUS_INFINITY).sum(dim=1)

    def worst(self, wanted: int) -> Tensor:
        """Return the score that a new hypothesis must beat to be one of the best ``wanted`` (N,); -inf: any score."""
        return self.scores[:, wanted - 1]

    def keep_sentences(self, left: Tensor) -> None:
        """Go on with some sentences only, the indices ``left`` (n,)."""
        self.scores, self.lengths = self.scores[left], self.lengths[left]
        self.tokens, self.log_probs = self.tokens[left], self.log_probs[left]

    def of(self, sentence: int, wanted: int) -> list[dict[str, Any]]:
        """Return the best ``wanted`` hypotheses of a sentence, or as many as it has; see :func:`hypotheses`."""
        count = min(wanted, int((self.scores[sentence] > MINUS_INFINITY).sum()))
        columns = (self.scores, self.lengths, self.tokens, self.log_probs)
        return hypotheses(*(column[sentence, :count] for column in columns))


@torch.inference_mode(False)
def hypotheses(scores: Tensor, lengths: Tensor, tokens: Tensor, log_probs: Tensor) -> list[dict[str, Any]]:
    """Return the hypotheses of a sentence in fairseq's form, in tensors that fairseq may change in place.

    Args:
        scores: normalised scores, the best first (K,).
        lengths: tokens of each, eos counted (K,).
        tokens: (K, T).
        log_probs: natural logarithms of the probabilities of the tokens (K, T).
    """
    scores, tokens, log_probs = scores.clone(), tokens.clone(), log_probs.clone()
    return [
        {
            "tokens": tokens[i, :length],
            "score": scores[i],
            "attention": None,
            "alignment": torch.empty(0),
            "positional_scores": log_probs[i, :length],
        }
        for i, length in enumerate(lengths.tolist())
    ]
