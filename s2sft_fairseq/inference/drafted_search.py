"""Greedy search that verifies drafts of the next tokens: several tokens in one step, with the same result.

This is speculative decoding (Stern et al., 2018, blockwise parallel decoding; Leviathan et al., 2023) without a second
model: drafts come from placeholders beyond the next token, or from the source.
"""

from typing import Any

import torch
from torch import Tensor

from s2sft_fairseq.inference.draft_planner import DraftPlanner
from s2sft_fairseq.inference.drafts import BlockDrafts, Drafts, PlaceholderDrafts, PlannedDrafts, SourceDrafts
from s2sft_fairseq.inference.growing_search import GrowingSearch
from s2sft_fairseq.inference.ngram_blocking import MINUS_INFINITY


class DraftedSearch(GrowingSearch):
    """The greedy search of one batch, whose hypotheses grow by different numbers of tokens. D: drafts of a sentence."""

    drafted: Tensor
    """Drafts that the next pass verifies (N, D)."""

    def __init__(self, *arguments: Any, planner: DraftPlanner | None = None) -> None:
        """Begin as :class:`Search` does.

        Args:
            arguments: the arguments of :class:`Search`.
            planner: chooses the drafts of blocks; None: the options do.
        """
        self.planner = planner
        super().__init__(*arguments)

    def begin(self, source: Tensor) -> None:
        """See :meth:`Search.begin`."""
        super().begin(source)
        self.drafts = self.make_drafts(source)
        self.drafted = self.tokens

    def make_drafts(self, source: Tensor) -> Drafts:
        """Return the drafting method that the options choose, for laid-out sources (N, S)."""
        options = self.options
        if options.draft_source:
            return SourceDrafts(options.draft_source, source, self.form.pad)
        if self.planner is not None:
            return PlannedDrafts(self.planner, self.rules.never_generated, self.form.pad, len(source))
        if options.draft_blocks:
            return BlockDrafts(options.draft_blocks, self.rules.never_generated)
        return PlaceholderDrafts(options.draft_placeholders, self.rules.never_generated)

    def grow(self) -> None:
        """Verify the drafts and append those that are right, and one more token; see :meth:`Search.grow`."""
        drafts, drafted = self.drafts, self.drafted
        verified = [
            decoder.verify(drafted, drafts.ahead, drafts.behind, in_block=drafts.in_block) for decoder in self.decoders
        ]
        log_probs = self.next_log_probs([following for following, _ in verified])
        chosen, scores, grown, done = self._choose(log_probs)
        self._append(chosen, scores, grown)
        # The last token is the one that no step has read yet.
        right = (grown - 1).clamp(min=0)
        for decoder in self.decoders:
            decoder.accept(drafted.size(1), right, chosen.gather(1, right.unsqueeze(1)).squeeze(1))
        # In an ensemble, only the first model drafts.
        self.drafted = drafts.next(self.tokens, verified[0][1], right)
        self.done |= done

    def _choose(self, log_probs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Choose tokens as long as the drafts before them are right.

        Args:
            log_probs: log-probabilities of the token after each prefix (N, D + 1, V).

        Returns:
            The tokens chosen after each prefix and their log-probabilities (N, up to D + 1); how many of these tokens
            follow a right prefix and are kept (N,), and whether the sentence is done with them (N,).
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
            if right.device.type == "cpu" and not bool(right.any()):  # on a GPU, the host would wait for the answer
                break
        return torch.stack(tokens, dim=1), torch.stack(scores, dim=1), grown, done

    def keep_sentences(self, left: Tensor) -> None:
        """See :meth:`Search.keep_sentences`."""
        super().keep_sentences(left)
        left = self._uploaded(left)
        self.drafts.keep_sentences(left)
        self.drafted = self.drafted[left]
