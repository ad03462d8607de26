"""Beam search and sampling: a token a step."""

from collections.abc import Sequence

import torch
from torch import Tensor

from s2sft_fairseq.generation.candidates import Candidates, CandidateSelection
from s2sft_fairseq.generation.ensemble import ensemble_log_probs
from s2sft_fairseq.generation.hypotheses import FinishedHypotheses, FinishedSentence
from s2sft_fairseq.generation.incremental_decoder import IncrementalDecoder
from s2sft_fairseq.generation.length_penalty import length_normalizer
from s2sft_fairseq.generation.not_a_number import check_log_probs
from s2sft_fairseq.generation.search_options import SearchOptions
from s2sft_fairseq.generation.token_rules import MINUS_INFINITY, TokenRules
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.objectives.sequence_form import SequenceForm


class BeamSearch:
    """The search of one batch, for the best hypotheses or, with another selection of candidates, for random ones.

    N: sentences still in the search, K: hypotheses of each, C: candidates, T: tokens so far, V: vocabulary.
    """

    def __init__(
        self,
        models: Sequence[UnilmModel],
        form: SequenceForm,
        options: SearchOptions,
        rules: TokenRules,
        select: CandidateSelection,
        source: Tensor,
    ) -> None:
        """Begin with one empty hypothesis for each of the laid-out sources (N, S), padded on the right."""
        self.form, self.options, self.rules, self.select = form, options, rules, select
        sentences, max_tokens = len(source), rules.longest_limit + 1
        self.decoders = [
            IncrementalDecoder(model, form, source, max_tokens=max_tokens, beams=options.beam) for model in models
        ]
        self.sentences = torch.arange(sentences, device=source.device)
        self.tokens = source.new_zeros(sentences, 1, 0)
        self.log_probs = torch.zeros(sentences, 1, 0, device=source.device)
        self.scores = torch.zeros(sentences, 1, device=source.device)
        self.finished = FinishedHypotheses(sentences, options.beam, max_tokens, source.device)
        self.wanted = options.nbest or options.beam
        # By the number of tokens, one more than there can be.
        lengths = torch.arange(max_tokens + 2, device=source.device)
        self.normalizers = length_normalizer(lengths, options.length_penalty, options.lenpen)
        self.results: dict[int, FinishedSentence] = {}
        """By the index of the sentence, as it is done."""

    def step(self) -> bool:
        """Add one token to every hypothesis; tell whether the search must go on.

        Raises:
            NotANumberError: if the models give NaN.
        """
        step = self.tokens.size(2)
        logits = [decoder.next_logits() for decoder in self.decoders]
        log_probs = ensemble_log_probs(logits, self.options.temperature)
        check_log_probs(log_probs, logits[0].dtype, lambda row: int(self.sentences[row]))
        self.rules.apply(log_probs, self.tokens, torch.full_like(self.sentences, step))
        candidates = self.select(log_probs, self.scores, self.options.beam)
        if self.options.rank_each_step:
            candidates = self._ranked_with_finished(candidates, step)
        self._finish(candidates, step)
        self._continue(candidates)
        return self._drop_finished(step + 1)

    def _ranked_with_finished(self, candidates: Candidates, step: int) -> Candidates:
        """Let only the K best of ended hypotheses and candidates live on; the others get the worst score."""
        beams = self.options.beam
        scores = torch.cat([self.finished.scores, candidates.scores / self.normalizers[step + 1]], dim=1)
        best = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, scores.topk(beams, dim=1).indices, True)
        self.finished.keep(best[:, :beams])
        return candidates._replace(scores=candidates.scores.masked_fill(~best[:, beams:], MINUS_INFINITY))

    def _finish(self, candidates: Candidates, step: int) -> None:
        """Take in the hypotheses that end among the first K candidates."""
        beams = self.options.beam
        scores, tokens, origins = (column[:, :beams] for column in candidates)
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

    def _drop_finished(self, length: int) -> bool:
        """Let the sentences that are done leave the batch; tell whether any is left."""
        done = self._done(length)
        if not bool(done.any()):
            return True
        for index, sentence in zip(done.nonzero().squeeze(1).tolist(), self.sentences[done].tolist(), strict=True):
            self.results[sentence] = self.finished.of(index, self.wanted)
        self._keep_sentences(closed_up(~done))
        return len(self.sentences) > 0

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

    def _keep_sentences(self, left: Tensor) -> None:
        for decoder in self.decoders:
            decoder.keep_sentences(left)
        self.finished.keep_sentences(left)
        self.rules.keep_sentences(left)
        self.sentences = self.sentences[left]
        self.tokens, self.log_probs, self.scores = self.tokens[left], self.log_probs[left], self.scores[left]


def closed_up(left: Tensor) -> Tensor:
    """Return the n indices of what is left (N,), of which the last ones fill the gaps, so that few change places."""
    order = torch.arange(int(left.sum()), device=left.device)
    kept = left.nonzero().squeeze(1)
    gaps = ~left[: len(order)]
    order[gaps] = kept[kept >= len(order)]
    return order
