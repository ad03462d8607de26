"""Base class of searches for one hypothesis per sentence that grows by several tokens in a pass."""

from typing import Any

import torch
from torch import Tensor

from s2sft_fairseq.inference.hypotheses import hypotheses
from s2sft_fairseq.inference.search import Search


class GrowingSearch(Search):
    """A search for one hypothesis of each sentence. Hypotheses grow by different numbers of tokens in a pass.

    N: sentences, D: most new tokens of a pass.
    """

    lengths: Tensor
    """Number of tokens of each hypothesis so far (N,)."""

    def begin(self, source: Tensor) -> None:
        """See :meth:`Search.begin`."""
        # Each pass waits for the GPU anyway: the shapes of the next pass depend on how much the hypotheses grow.
        self.steps_between_questions = 1
        self.tokens = source.new_zeros(len(source), 0)
        self.log_probs = torch.zeros(len(source), 0, device=source.device)
        self.lengths = torch.zeros_like(self.rules.max_len)

    def _append(self, chosen: Tensor, scores: Tensor, grown: Tensor) -> None:
        """Append the first ``grown`` (N,) of the chosen tokens (N, D) and their log-probabilities to each sentence."""
        self.lengths = self.lengths + grown
        width, longest = self.tokens.size(1), int(self.lengths.max())
        # Shift each row so that its tokens end on the right.
        index = torch.arange(longest, device=grown.device) + (width + grown - longest).unsqueeze(1)
        outside = index < 0
        index = index.clamp(min=0)
        self.tokens = torch.cat([self.tokens, chosen], dim=1).gather(1, index).masked_fill(outside, self.form.pad)
        self.log_probs = torch.cat([self.log_probs, scores], dim=1).gather(1, index).masked_fill(outside, 0.0)

    def results_of(self, done: Tensor) -> list[list[dict[str, Any]]]:
        """See :meth:`Search.results_of`. A sentence has no hypothesis if every next token was forbidden."""
        columns = (self.lengths, self.rules.max_len, self.tokens, self.log_probs)
        return [self._results(*each) for each in zip(*(column[done].cpu() for column in columns), strict=True)]

    def _results(self, length: Tensor, max_len: Tensor, tokens: Tensor, log_probs: Tensor) -> list[dict[str, Any]]:
        first = len(tokens) - int(length)
        tokens, log_probs = tokens[first:], log_probs[first:]
        at_limit = self.options.keep_unfinished and bool(max_len < length)
        if not at_limit and self.form.sep not in tokens[-1:]:
            return []
        score = log_probs.sum() / self.options.normalizer(length)
        return hypotheses(score[None], length[None], tokens[None], log_probs[None])

    def keep_sentences(self, left: Tensor) -> None:
        """See :meth:`Search.keep_sentences`."""
        super().keep_sentences(left)
        self.lengths = self.lengths[self._uploaded(left)]
