"""Beam search and sampling over models that decode at placeholders."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from s2sft_fairseq.generation.candidates import Candidates, CandidateSelection, beam_candidates
from s2sft_fairseq.generation.hypotheses import FinishedHypotheses
from s2sft_fairseq.generation.incremental_decoder import IncrementalDecoder
from s2sft_fairseq.generation.length_penalty import length_normalizer
from s2sft_fairseq.generation.ngram_blocking import NGramBlocker
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.objectives.sequence_form import SequenceForm

MINUS_INFINITY = float("-inf")


@dataclass(frozen=True)
class SearchOptions:
    """What the search is to find."""

    beam: int = 5
    max_len_a: float = 0.0
    """A hypothesis has at most ``max_len_a * source length + max_len_b`` tokens, eos not counted ..."""
    max_len_b: int = 200
    """... and never more than the model was trained for."""
    min_len: int = 1
    """Fewest tokens before eos."""
    length_penalty: str = "length"
    """See :func:`length_normalizer`."""
    lenpen: float = 1.0
    temperature: float = 1.0
    never_generated: tuple[int, ...] = ()
    """Ids that no hypothesis may hold."""
    exhaustive: bool = False
    """Go on until no hypothesis can get among the best ``beam`` any more; otherwise until ``beam`` have ended."""
    keep_unfinished: bool = False
    """At the maximum length, rank hypotheses without eos too, as s2s-ft does; otherwise eos is forced there."""


class SequenceGenerator:
    """Generates for a batch, with one model or with an ensemble whose probabilities are averaged.

    N: sentences still in the search, K: beams, C: candidates, T: steps, V: vocabulary.
    """

    def __init__(
        self,
        models: Sequence[UnilmModel],
        form: SequenceForm,
        options: SearchOptions,
        select: CandidateSelection = beam_candidates,
        ngram_blocker: NGramBlocker | None = None,
    ) -> None:
        self.models, self.form, self.options = list(models), form, options
        self.select, self.ngram_blocker = select, ngram_blocker
        self.symbols_to_strip_from_output = {form.sep, form.cls, form.pad}

    @torch.no_grad()
    def generate(
        self,
        models: Sequence[UnilmModel],
        sample: dict[str, Any],
        prefix_tokens: Tensor | None = None,
        constraints: Tensor | None = None,
    ) -> list[list[dict[str, Any]]]:
        """Generate, as fairseq's generators do.

        Args:
            models: not used, those given at construction are.
            sample: a batch with ``src_tokens`` (N, S) in its ``net_input``: laid-out sources, padded on the right.
            prefix_tokens: what every hypothesis begins with (N, P), padded on the right.
            constraints: not supported.

        Returns:
            For each sentence its hypotheses, the best first: ``tokens`` with eos, normalised ``score`` and
            ``positional_scores``, both natural logarithms.
        """
        for model in self.models:
            model.eval()
        search = _Search(self, sample["net_input"]["src_tokens"], prefix_tokens)
        while search.step():
            pass
        return search.results


class _Search:
    """The state of one batch's search."""

    def __init__(self, generator: SequenceGenerator, source: Tensor, prefix_tokens: Tensor | None) -> None:
        self.options, self.form = generator.options, generator.form
        self.select, self.ngram_blocker = generator.select, generator.ngram_blocker
        sentences, beams = len(source), self.options.beam
        lengths = (source != self.form.pad).sum(dim=1)
        limit = (self.options.max_len_a * lengths + self.options.max_len_b).long()
        # Nothing is generated from nothing, such as a source whose fields are all empty.
        nothing = torch.tensor([self.form.pad, self.form.cls, self.form.sep], device=source.device)
        self.empty = torch.isin(source, nothing).all(dim=1)
        self.max_len = limit.clamp(max=self.form.max_target - 1).masked_fill(self.empty, 0)
        max_tokens = int(self.max_len.max()) + 1
        self.decoders = [
            IncrementalDecoder(model, self.form, source, beams=beams, max_tokens=max_tokens)
            for model in generator.models
        ]
        self.prefix_tokens = prefix_tokens
        self.sentences = torch.arange(sentences, device=source.device)
        self.tokens = source.new_zeros(sentences, beams, 0)
        self.log_probs = torch.zeros(sentences, beams, 0, device=source.device)
        self.scores = torch.zeros(sentences, beams, device=source.device)
        if self.select is beam_candidates:
            # All beams begin alike: only the first may be continued.
            self.scores[:, 1:] = MINUS_INFINITY
        self.finished = FinishedHypotheses(sentences, beams, max_tokens, source.device)
        self.results: list[list[dict[str, Any]]] = [[] for _ in range(sentences)]

    def step(self) -> bool:
        """Add one token to every hypothesis; tell whether the search must go on."""
        step = self.tokens.size(2)
        log_probs = self._next_log_probs(step)
        # (N * K, V) -> (N, K, V)
        candidates = self.select(log_probs.unflatten(0, self.scores.shape), self.scores)
        self._finish(candidates, step)
        self._continue(candidates)
        return self._drop_finished(step + 1)

    def _next_log_probs(self, step: int) -> Tensor:
        """Return the log-probabilities (N * K, V) of the next token, -inf where it is forbidden."""
        temperature = self.options.temperature
        each = [torch.log_softmax(d.next_logits().float() / temperature, dim=-1) for d in self.decoders]
        plain = each[0] if len(each) == 1 else torch.logsumexp(torch.stack(each), dim=0) - math.log(len(each))
        log_probs = plain.clone()
        if self.options.never_generated:
            log_probs[:, list(self.options.never_generated)] = MINUS_INFINITY
        if step < self.options.min_len:
            log_probs[:, self.form.sep] = MINUS_INFINITY
        if self.ngram_blocker is not None:
            log_probs = self.ngram_blocker(self.tokens.flatten(0, 1), log_probs)
        if self.prefix_tokens is not None and step < self.prefix_tokens.size(1):
            prefix = self.prefix_tokens[:, step]
            log_probs = _force(log_probs, plain, prefix, prefix != self.form.pad)
        # Last, so that a prefix longer than the limit ends there too, and that of an empty source at once.
        at_limit = self.max_len <= step
        if self.options.keep_unfinished:
            at_limit = at_limit & self.empty
        return _force(log_probs, plain, torch.full_like(self.max_len, self.form.sep), at_limit)

    def _finish(self, candidates: Candidates, step: int) -> None:
        """Take in the hypotheses that end among the first K candidates."""
        beams = self.options.beam
        scores, tokens, origins = (column[:, :beams] for column in candidates)
        ended = tokens == self.form.sep
        if self.options.keep_unfinished:
            ended = ended | (self.max_len <= step).unsqueeze(1)
        ended = ended & (scores > MINUS_INFINITY)
        length = torch.tensor(step + 1, device=scores.device)
        normalizer = length_normalizer(length, self.options.length_penalty, self.options.lenpen)
        history, log_probs = self._histories(scores, tokens, origins)
        self.finished.add(ended, scores / normalizer, history, log_probs)

    def _continue(self, candidates: Candidates) -> None:
        """Go on with the first K candidates that have not ended."""
        beams = self.options.beam
        ended = candidates.tokens == self.form.sep
        rank = torch.arange(ended.size(1), device=ended.device) + ended * ended.size(1)
        chosen = rank.topk(beams, dim=1, largest=False, sorted=True).indices
        scores, tokens, origins = (column.gather(1, chosen) for column in candidates)
        self.tokens, self.log_probs = self._histories(scores, tokens, origins)
        self.scores = scores.masked_fill(tokens == self.form.sep, MINUS_INFINITY)
        # (N, K) within the sentence -> (N * K,) rows
        rows = origins + torch.arange(len(origins), device=origins.device).unsqueeze(1) * beams
        for decoder in self.decoders:
            decoder.append(tokens.flatten(), rows.flatten())

    def _histories(self, scores: Tensor, tokens: Tensor, origins: Tensor) -> tuple[Tensor, Tensor]:
        """Return tokens and log-probabilities (N, C, T + 1) of candidates, from the hypotheses they continue."""
        across = origins.unsqueeze(-1).expand(-1, -1, self.tokens.size(2))
        history = torch.cat([self.tokens.gather(1, across), tokens.unsqueeze(-1)], dim=-1)
        newest = (scores - self.scores.gather(1, origins)).unsqueeze(-1)
        return history, torch.cat([self.log_probs.gather(1, across), newest], dim=-1)

    def _drop_finished(self, length: int) -> bool:
        """Let the sentences that are done leave the batch; tell whether any is left."""
        best_live = self.scores.max(dim=1).values
        done = (best_live == MINUS_INFINITY) | (self.max_len < length)
        if self.options.exhaustive:
            # Scores only fall, so a live hypothesis can at best keep its own, normalised at the length that suits it.
            lengths = torch.stack([torch.full_like(self.max_len, length + 1), self.max_len + 1])
            normalizer = length_normalizer(lengths, self.options.length_penalty, self.options.lenpen)
            done |= self.finished.worst() >= (best_live / normalizer).max(dim=0).values
        else:
            done |= self.finished.counts() >= self.options.beam
        left = (~done).nonzero().squeeze(1)
        if len(left) == len(done):
            return True
        for index, sentence in zip(done.nonzero().squeeze(1).tolist(), self.sentences[done].tolist(), strict=True):
            self.results[sentence] = self.finished.export(index)
        self._keep_sentences(left)
        return len(left) > 0

    def _keep_sentences(self, left: Tensor) -> None:
        rows = (left.unsqueeze(1) * self.options.beam + torch.arange(self.options.beam, device=left.device)).flatten()
        for decoder in self.decoders:
            decoder.keep_sentences(left, rows)
        self.finished.keep_sentences(left)
        self.sentences, self.max_len, self.empty = self.sentences[left], self.max_len[left], self.empty[left]
        self.tokens, self.log_probs, self.scores = self.tokens[left], self.log_probs[left], self.scores[left]
        if self.prefix_tokens is not None:
            self.prefix_tokens = self.prefix_tokens[left]


def _force(log_probs: Tensor, plain: Tensor, tokens: Tensor, where: Tensor) -> Tensor:
    """Forbid all but one token in some sentences: that one keeps its plain log-probability.

    Shape:
        log_probs, plain (N * K, V), tokens and where (N,) -> (N * K, V).
    """
    beams = len(log_probs) // len(tokens)
    rows, column = where.repeat_interleave(beams).unsqueeze(1), tokens.repeat_interleave(beams).unsqueeze(1)
    forced = torch.full_like(plain, MINUS_INFINITY).scatter(1, column, plain.gather(1, column))
    return torch.where(rows, forced, log_probs)
