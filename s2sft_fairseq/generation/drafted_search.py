"""Greedy search that verifies drafts: several tokens a step, the same as one by one."""

from collections.abc import Sequence

import torch
from torch import Tensor

from s2sft_fairseq.generation.beam_search import closed_up
from s2sft_fairseq.generation.drafts import Drafts
from s2sft_fairseq.generation.ensemble import ensemble_log_probs
from s2sft_fairseq.generation.hypotheses import FinishedSentence
from s2sft_fairseq.generation.incremental_decoder import IncrementalDecoder
from s2sft_fairseq.generation.length_penalty import length_normalizer
from s2sft_fairseq.generation.not_a_number import check_log_probs
from s2sft_fairseq.generation.search_options import SearchOptions
from s2sft_fairseq.generation.token_rules import MINUS_INFINITY, TokenRules
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.objectives.sequence_form import SequenceForm


class DraftedSearch:
    """The greedy search of one batch, whose hypotheses grow by different numbers of tokens.

    N: sentences still in the search, D: drafts of each, T: tokens of the longest hypothesis, V: vocabulary.
    """

    def __init__(
        self,
        models: Sequence[UnilmModel],
        form: SequenceForm,
        options: SearchOptions,
        rules: TokenRules,
        drafts: Drafts,
        source: Tensor,
    ) -> None:
        """Begin with an empty hypothesis for each of the laid-out sources (N, S), padded on the right."""
        self.form, self.options, self.rules, self.drafts = form, options, rules, drafts
        max_tokens = rules.longest_limit + 1
        self.decoders = [IncrementalDecoder(model, form, source, max_tokens=max_tokens, beams=1) for model in models]
        self.sentences = torch.arange(len(source), device=source.device)
        # Hypotheses and their log-probabilities, padded on the left; and what may follow them.
        self.tokens = source.new_zeros(len(source), 0)
        self.log_probs = torch.zeros(len(source), 0, device=source.device)
        self.lengths = torch.zeros_like(self.sentences)
        self.drafted = self.tokens
        self.results: dict[int, FinishedSentence] = {}
        """By the index of the sentence, as it is done."""

    def step(self) -> bool:
        """Verify the drafts and add those that are right, and one token more; tell whether the search must go on.

        Raises:
            NotANumberError: if the models give NaN.
        """
        verified = [decoder.verify(self.drafted, self.drafts.ahead) for decoder in self.decoders]
        log_probs = ensemble_log_probs([following for following, _ in verified], self.options.temperature)
        check_log_probs(log_probs, verified[0][0].dtype, lambda row: int(self.sentences[row]))
        chosen, scores, grown, done = self._choose(log_probs)
        self._grow(chosen, scores, grown)
        # The token that comes last is the first one of which no step has seen what follows.
        last = (grown - 1).clamp(min=0)
        drafted = self.drafted.size(1)
        for decoder in self.decoders:
            decoder.accept(drafted, last, chosen.gather(1, last.unsqueeze(1)).squeeze(1))
        # Several models draft as the first one does.
        further = verified[0][1]
        further = further[torch.arange(len(further), device=last.device), last.clamp(max=further.size(1) - 1)]
        if bool(done.any()):
            further = further[self._drop(done)]
        if len(self.sentences):
            self.drafted = self.drafts.next(self.tokens, further)
        return len(self.sentences) > 0

    def _choose(self, log_probs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Go along the drafts as far as they are what the models would choose.

        Args:
            log_probs: of the token behind each prefix (N, D + 1, V).

        Returns:
            The tokens chosen behind each prefix and their log-probabilities (N, D + 1); how many of them count, as far
            as their prefixes are right, and whether the sentence is done with them (N,).
        """
        tokens, scores = [], []
        right = torch.ones_like(self.lengths, dtype=torch.bool)
        done, grown = torch.zeros_like(right), torch.zeros_like(self.lengths)
        history = self.tokens
        for i in range(log_probs.size(1)):
            next_log_probs, lengths = log_probs[:, i : i + 1], self.lengths + i
            self.rules.apply(next_log_probs, history.unsqueeze(1), lengths)
            score, token = next_log_probs.squeeze(1).max(dim=1)
            possible = score > MINUS_INFINITY
            ended = token == self.form.sep
            if self.options.keep_unfinished:
                ended = ended | (self.rules.max_len <= lengths)
            grown = grown + (right & possible)
            done = done | (right & (ended | ~possible))
            right = right & ~done
            if i < self.drafted.size(1):
                right = right & (token == self.drafted[:, i])
            tokens.append(token)
            scores.append(score)
            history = torch.cat([history, token.unsqueeze(1)], dim=1)
        return torch.stack(tokens, dim=1), torch.stack(scores, dim=1), grown, done

    def _grow(self, chosen: Tensor, scores: Tensor, grown: Tensor) -> None:
        """Append the first tokens (N, D + 1) of each sentence, ``grown`` (N,) many."""
        self.lengths = self.lengths + grown
        width, longest = self.tokens.size(1), int(self.lengths.max())
        # Each row is moved so that what it has now ends on the right.
        index = torch.arange(longest, device=grown.device) + (width + grown - longest).unsqueeze(1)
        outside = index < 0
        index = index.clamp(min=0)
        self.tokens = torch.cat([self.tokens, chosen], dim=1).gather(1, index).masked_fill(outside, self.form.pad)
        self.log_probs = torch.cat([self.log_probs, scores], dim=1).gather(1, index).masked_fill(outside, 0.0)

    def _drop(self, done: Tensor) -> Tensor:
        """Let the sentences that are done leave the batch; return the indices of those that are left."""
        for index, sentence in zip(done.nonzero().squeeze(1).tolist(), self.sentences[done].tolist(), strict=True):
            self.results[sentence] = self._finished(index)
        left = closed_up(~done)
        for decoder in self.decoders:
            decoder.keep_sentences(left)
        self.rules.keep_sentences(left)
        self.drafts.keep_sentences(left)
        self.sentences, self.lengths = self.sentences[left], self.lengths[left]
        self.tokens, self.log_probs = self.tokens[left], self.log_probs[left]
        return left

    def _finished(self, index: int) -> FinishedSentence:
        length = self.lengths[index]
        first = self.tokens.size(1) - int(length)
        tokens, log_probs = self.tokens[index, first:], self.log_probs[index, first:]
        # A sentence is done without a hypothesis where nothing may follow.
        at_limit = self.options.keep_unfinished and bool(self.rules.max_len[index] < length)
        ended = at_limit or self.form.sep in tokens[-1:]
        normalizer = length_normalizer(length, self.options.length_penalty, self.options.lenpen)
        count = slice(int(ended))
        return FinishedSentence(
            (log_probs.sum() / normalizer)[None][count],
            length[None][count],
            tokens[None][count],
            log_probs[None][count],
        )
