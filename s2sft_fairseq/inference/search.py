"""Beam search and sampling: one token in each step, from models that score the next token of each hypothesis."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from s2sft_fairseq.inference.decoder import IncrementalDecoder
from s2sft_fairseq.inference.draws import SampleDraws
from s2sft_fairseq.inference.hypotheses import FinishedHypotheses
from s2sft_fairseq.inference.ngram_blocking import MINUS_INFINITY
from s2sft_fairseq.inference.options import SearchOptions
from s2sft_fairseq.inference.rules import (
    Candidates,
    NotANumberError,
    SentenceError,
    TokenRules,
    beam_candidates,
    next_log_probs,
    rows_with_nan,
    sampled_candidates,
)
from s2sft_fairseq.inference.step_graphs import StepGraphs, batch_size
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.objectives.sequence_form import SequenceForm

STEPS_BETWEEN_QUESTIONS = 8
"""Number of steps after which a search asks a GPU which sentences are done. Each question costs time: the host waits
for the answer, and then the GPU waits for the next kernel."""


class Search:
    """The search of one batch. Sentences leave the batch when they are done.

    A GPU is asked only every few steps which sentences are done, because the host waits for the answer. Until then
    done sentences stay in the batch, and their hypotheses no longer change. With CUDA graphs they stay until the batch
    fits into a smaller one of the recorded sizes.

    N: sentences still in the search, K: hypotheses of each, T: tokens so far, V: vocabulary.
    """

    tokens: Tensor
    """Tokens of the open hypotheses, padded on the left (N, ..., T)."""
    log_probs: Tensor
    """Log-probabilities of these tokens (N, ..., T)."""

    def __init__(
        self,
        models: Sequence[UnilmModel],
        form: SequenceForm,
        options: SearchOptions,
        source: Tensor,
        prefix: Tensor | None = None,
        graphs: Sequence[StepGraphs] | None = None,
        numbers: Tensor | None = None,
    ) -> None:
        """Begin with one empty hypothesis for each sentence.

        Args:
            models: one model, or an ensemble whose probabilities are averaged.
            form: the layout that they were trained with.
            options: the options of the search.
            source: laid-out sources (N, S), padded on the right.
            prefix: the tokens that every hypothesis begins with (N, P), padded on the right.
            graphs: the CUDA graphs of each model; None: none are used.
            numbers: the number of each source, on which its random numbers depend (N,); None: its index.
        """
        self.form, self.options = form, options
        count = len(source)
        self.batch_size = batch_size if graphs else int
        # Put sentences of similar length side by side: see `similar_lengths`. Copies of the shortest fill the batch up.
        order = (source != form.pad).sum(dim=1).argsort(descending=True, stable=True)
        order = torch.cat([order, order[-1:].expand(self.batch_size(count) - count)])
        self.sentences = order.cpu()
        """Index of each row's sentence in the batch (N,), on the CPU; -1: the row only fills the batch up."""
        self.sentences[count:] = -1
        self.draws = SampleDraws(options.seed, np.arange(count) if numbers is None else numbers.cpu().numpy())
        source, prefix = source[order], None if prefix is None else prefix[order]
        try:
            self.rules = TokenRules(form, options, source, prefix)
        except SentenceError as error:
            raise SentenceError(int(self.sentences[error.sentence]), error.reason) from None
        self.max_tokens = self.rules.longest_limit + 1
        self.decoders = [
            IncrementalDecoder(model, form, source, max_tokens=self.max_tokens, beams=options.beam, graphs=of_model)
            for model, of_model in zip(models, graphs or itertools.repeat(None, len(models)), strict=True)
        ]
        self.results: list[list[dict[str, Any]]] = [[] for _ in range(count)]
        """Hypotheses of each sentence of the batch once it is done, on the CPU."""
        self.steps = 0
        self.steps_between_questions = 1 if source.device.type == "cpu" else STEPS_BETWEEN_QUESTIONS
        """Number of steps after which the search asks which sentences are done."""
        self.done = torch.zeros(len(source), dtype=torch.bool, device=source.device)
        """Which sentences are done (N,)."""
        self.done[count:] = True
        self.broken = torch.zeros_like(self.done)
        """Which sentences got NaN from the models before they were done (N,)."""
        self.begin(source)

    def begin(self, source: Tensor) -> None:
        """Create the state of the hypotheses, for laid-out sources (N, S) in the order of the search."""
        raise NotImplementedError

    def step(self) -> bool:
        """Make the hypotheses grow, and return whether the search must go on.

        Raises:
            NotANumberError: if the models give NaN.
        """
        self.grow()
        self.steps += 1
        # A hypothesis grows by at least one token in each step, so all sentences are done after `max_tokens` steps.
        if self.steps % self.steps_between_questions == 0 or self.steps >= self.max_tokens:
            self._ask()
        return len(self.sentences) > 0

    def grow(self) -> None:
        """Make the hypotheses of all sentences grow, and mark the sentences that are `done`."""
        raise NotImplementedError

    def results_of(self, done: Tensor) -> list[list[dict[str, Any]]]:
        """Return the hypotheses of some done sentences (n,), the best first, in fairseq's form on the CPU."""
        raise NotImplementedError

    def next_log_probs(self, logits: Sequence[Tensor]) -> Tensor:
        """Return the log-probabilities (N, ..., V) of the models' logits, and mark the sentences that are `broken`."""
        log_probs = next_log_probs(logits, self.options.temperature)
        self.broken |= rows_with_nan(log_probs) & ~self.done
        self.dtype = logits[0].dtype
        return log_probs

    def _ask(self) -> None:
        """Remove the done sentences from the batch. The host waits for the GPU here, and only here.

        Raises:
            NotANumberError: if a sentence is broken.
        """
        broken, done = torch.stack([self.broken, self.done]).tolist()
        if any(broken):
            raise NotANumberError(int(self.sentences[broken.index(True)]), self.dtype)
        left = self.batch_size(done.count(False))
        leaving = [index for index, is_done in enumerate(done) if is_done][: len(done) - left]
        if not leaving:
            return
        for index, found in zip(leaving, self.results_of(self._uploaded(torch.tensor(leaving))), strict=True):
            if (sentence := int(self.sentences[index])) >= 0:
                self.results[sentence] = found
        # The last sentences fill the gaps, so that few sentences move.
        last = iter(sorted(set(range(left, len(done))).difference(leaving)))
        gaps = set(leaving)
        self.keep_sentences(torch.tensor([next(last) if i in gaps else i for i in range(left)], dtype=torch.int64))

    def keep_sentences(self, left: Tensor) -> None:
        """Keep only the sentences with the indices ``left`` (n,), on the CPU."""
        for decoder in self.decoders:
            decoder.keep_sentences(left)
        self.sentences = self.sentences[left]
        left = self._uploaded(left)
        self.rules.keep_sentences(left)
        self.tokens, self.log_probs = self.tokens[left], self.log_probs[left]
        self.done, self.broken = self.done[left], self.broken[left]

    def _uploaded(self, indices: Tensor) -> Tensor:
        return indices.to(self.tokens.device)


class BeamSearch(Search):
    """Beam search or, with ``sampling``, random sampling of hypotheses. C: candidates."""

    def begin(self, source: Tensor) -> None:
        """See :meth:`Search.begin`."""
        self.tokens = source.new_zeros(len(source), 1, 0)
        self.log_probs = torch.zeros(len(source), 1, 0, device=source.device)
        self.scores = torch.zeros(len(source), 1, device=source.device)
        # In each step at most `beam` hypotheses end.
        beam, all_ended = self.options.beam, self.options.all_ended
        capacity = beam * self.max_tokens if all_ended else beam
        self.finished = FinishedHypotheses(len(source), capacity, self.max_tokens, source.device)
        self.nbest = capacity if all_ended else self.options.nbest or beam
        # Indexed by the number of tokens; one more entry than the longest hypothesis needs.
        self.normalizers = self.options.normalizer(torch.arange(self.max_tokens + 2, device=source.device))

    def grow(self) -> None:
        """Add one token to every hypothesis; see :meth:`Search.grow`."""
        step = self.tokens.size(2)
        log_probs = self.next_log_probs([decoder.next_logits() for decoder in self.decoders])
        self.rules.apply(log_probs, self.tokens, torch.full_like(self.rules.max_len, step))
        if self.options.sampling:
            keys = self.draws.keys(self.sentences.numpy()[:, np.newaxis], step, np.arange(self.options.beam))
            candidates = sampled_candidates(log_probs, self.scores, self.options, keys)
        else:
            candidates = beam_candidates(log_probs, self.scores, self.options.beam)
        if self.options.count_ended:
            # Without the further candidates, nothing takes the place of those that end.
            candidates = Candidates(*(column[:, : self.options.beam] for column in candidates))
        if self.options.rank_each_step:
            candidates = self._ranked_with_finished(candidates, step)
        self._finish(candidates, step)
        self._continue(candidates)
        self.done |= self._ended(step + 1)

    def _ranked_with_finished(self, candidates: Candidates, step: int) -> Candidates:
        """Keep only the K best of ended hypotheses and candidates; the score of the others becomes -inf."""
        beams = self.options.beam
        scores = torch.cat([self.finished.scores, candidates.scores / self.normalizers[step + 1]], dim=1)
        best = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, scores.topk(beams, dim=1).indices, True)
        self.finished.keep(best[:, :beams] | self.done.unsqueeze(1))
        return candidates._replace(scores=candidates.scores.masked_fill(~best[:, beams:], MINUS_INFINITY))

    def _finish(self, candidates: Candidates, step: int) -> None:
        """Add the hypotheses that end among the first K candidates to the finished ones."""
        scores, tokens, origins = (column[:, : self.options.beam] for column in candidates)
        ended = tokens == self.form.sep
        if self.options.keep_unfinished:
            ended = ended | (self.rules.max_len <= step).unsqueeze(1)
        ended = ended & (scores > MINUS_INFINITY) & ~self.done.unsqueeze(1)
        history, log_probs = self._histories(scores, tokens, origins)
        self.finished.add(ended, scores / self.normalizers[step + 1], history, log_probs)

    def _continue(self, candidates: Candidates) -> None:
        """Continue with the first K candidates that have not ended."""
        ended = candidates.tokens == self.form.sep
        rank = torch.arange(ended.size(1), device=ended.device) + ended * ended.size(1)
        chosen = rank.topk(self.options.beam, dim=1, largest=False, sorted=True).indices
        scores, tokens, origins = (column.gather(1, chosen) for column in candidates)
        self.tokens, self.log_probs = self._histories(scores, tokens, origins)
        self.scores = scores.masked_fill(tokens == self.form.sep, MINUS_INFINITY)
        for decoder in self.decoders:
            decoder.append(tokens, origins)

    def _histories(self, scores: Tensor, tokens: Tensor, origins: Tensor) -> tuple[Tensor, Tensor]:
        """Return the hypotheses that candidates continue, with the new token: tokens and log-probs (N, C, T + 1)."""
        across = origins.unsqueeze(-1).expand(-1, -1, self.tokens.size(2))
        history = torch.cat([self.tokens.gather(1, across), tokens.unsqueeze(-1)], dim=-1)
        newest = (scores - self.scores.gather(1, origins)).unsqueeze(-1)
        return history, torch.cat([self.log_probs.gather(1, across), newest], dim=-1)

    def _ended(self, length: int) -> Tensor:
        """Return which sentences are done (N,). ``length``: number of tokens of the open hypotheses."""
        highest = self.scores.max(dim=1).values
        done = (highest == MINUS_INFINITY) | (self.rules.max_len < length)
        if self.options.beam == 1 or self.options.early_stop == "fairseq":
            done |= self.finished.counts() >= self.options.beam
        elif self.options.early_stop == "exact":
            # Log-probabilities are never positive, so the sum of an open hypothesis can only fall. The hypothesis ends
            # after 1 to max_len + 1 - length more tokens. The normalizer is monotonic in the length: its maximum is at
            # one of these two ends.
            normalizer = torch.maximum(self.normalizers[length + 1], self.normalizers[self.rules.max_len + 1])
            # Strictly greater: any of several hypotheses of equal score may be kept.
            done |= self.finished.worst(self.nbest) > highest / normalizer
        return done

    def results_of(self, done: Tensor) -> list[list[dict[str, Any]]]:
        """See :meth:`Search.results_of`."""
        return self.finished.of(done, self.nbest)

    def keep_sentences(self, left: Tensor) -> None:
        """See :meth:`Search.keep_sentences`."""
        super().keep_sentences(left)
        left = self._uploaded(left)
        self.finished.keep_sentences(left)
        self.scores = self.scores[left]
