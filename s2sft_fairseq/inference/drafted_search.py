"""Greedy search that verifies drafts of the next tokens: several tokens a step, the same as one by one.

Speculative decoding (Stern et al., 2018, blockwise parallel decoding; Leviathan et al., 2023) without a second model:
drafts come from placeholders further on, or from the source.
"""

import time
from typing import Any

import torch
from torch import Tensor

from s2sft_fairseq.inference.draft_planner import DraftPlanner, rows_of
from s2sft_fairseq.inference.growing_search import GrowingSearch
from s2sft_fairseq.inference.ngram_blocking import MINUS_INFINITY

# The longest end of a hypothesis that is looked for in the source, in tokens.
LONGEST_MATCH = 3


class Drafts:
    """A way to draft. N: sentences, D: drafts of a sentence."""

    ahead = 0
    """Positions behind each prefix, beyond the next one, whose scores it wants to see."""
    in_block = False
    """Whether these are scored as a block of a model that was trained in blocks, whose placeholders see each other."""

    def next(self, tokens: Tensor, further: Tensor) -> Tensor:
        """Draft what follows.

        Args:
            tokens: the hypotheses so far (N, T), padded on the left.
            further: scores (N, ahead, V) of the tokens that follow, from a prefix that is one token shorter.

        Returns:
            Tokens (N, D); D may differ from step to step.
        """
        raise NotImplementedError

    def keep_sentences(self, left: Tensor) -> None:
        """Go on with some sentences only, the indices ``left`` (n,)."""


class PlaceholderDrafts(Drafts):
    """The most probable tokens at placeholders beyond the next one: all see the same prefix, as those of a span do."""

    def __init__(self, count: int, never_generated: Tensor) -> None:
        """Draft ``count`` tokens, none of those that are never generated (M,)."""
        self.ahead, self.never_generated = count, never_generated

    def next(self, tokens: Tensor, further: Tensor) -> Tensor:
        """See :class:`Drafts`."""
        return further.index_fill_(-1, self.never_generated, MINUS_INFINITY).argmax(dim=-1)


class BlockDrafts(PlaceholderDrafts):
    """The most probable tokens of a block behind the prefix, all but its first, which is the next token."""

    in_block = True


class SourceDrafts(Drafts):
    """What follows in the source where it reads like the end of the hypothesis, for texts that copy."""

    def __init__(self, count: int, source: Tensor, pad: int) -> None:
        """Draft ``count`` tokens from laid-out sources (N, S)."""
        self.count, self.pad = count, pad
        # Behind the last position there is nothing to copy.
        self.source = torch.nn.functional.pad(source, (0, count), value=pad)

    def next(self, tokens: Tensor, further: Tensor) -> Tensor:
        """See :class:`Drafts`. The longest match counts, and of several the first; none at all gives no drafts."""
        positions = self.source.size(1) - self.count
        best = torch.zeros_like(self.source[:, :positions])
        matched = torch.ones_like(best, dtype=torch.bool)
        for back in range(min(LONGEST_MATCH, tokens.size(1))):
            # Whether the token so far back from the end is also so far back from each position of the source.
            token = tokens[:, tokens.size(1) - 1 - back, None]
            before = torch.nn.functional.pad(self.source[:, : positions - back], (back, 0), value=self.pad)
            matched = matched & (before == token) & (token != self.pad)
            best = best + matched
        length, position = best.max(dim=1)
        found = length > 0
        if not bool(found.any()):
            return tokens[:, :0]
        # (N, 1) + (D,) -> (N, D)
        index = position.unsqueeze(1) + torch.arange(1, self.count + 1, device=tokens.device)
        return self.source.gather(1, index).masked_fill(~found.unsqueeze(1), self.pad)

    def keep_sentences(self, left: Tensor) -> None:
        """See :class:`Drafts`."""
        self.source = self.source[left]


class DraftedSearch(GrowingSearch):
    """The greedy search of one batch, whose hypotheses grow by different numbers of tokens. D: drafts of a sentence."""

    further: Tensor
    """Scores of what comes after the next token of each hypothesis (N, ..., V), of the last step."""

    def __init__(self, *arguments: Any, planner: DraftPlanner | None = None) -> None:
        """Begin, with the arguments of :class:`Search`.

        Args:
            arguments: those of :class:`Search`.
            planner: chooses how long the drafts of blocks are; None: the options do.
        """
        self.planner = planner
        super().__init__(*arguments)

    def begin(self, source: Tensor) -> None:
        """See :meth:`Search.begin`."""
        super().begin(source)
        self.drafts = self.make_drafts(source)
        self.drafted = self.tokens

    def make_drafts(self, source: Tensor) -> Drafts:
        """Return the way to draft that the options ask for, for laid-out sources (N, S)."""
        options = self.options
        if options.draft_source:
            return SourceDrafts(options.draft_source, source, self.form.pad)
        if self.planner is not None:
            return BlockDrafts(self.planner.choose(len(source)), self.rules.never_generated)
        if options.draft_blocks:
            return BlockDrafts(options.draft_blocks, self.rules.never_generated)
        return PlaceholderDrafts(options.draft_placeholders, self.rules.never_generated)

    def grow(self) -> None:
        """Verify the drafts and add those that are right, and one token more; see :meth:`Search.grow`."""
        started = time.perf_counter()
        if self.steps:
            self.drafted = self.drafts.next(self.tokens, self.further)
        if self.planner is not None:
            self.drafts.ahead = self.planner.choose(len(self.tokens))
        drafted, ahead, in_block = self.drafted.size(1), self.drafts.ahead, self.drafts.in_block
        verified = [decoder.verify(self.drafted, ahead, in_block=in_block) for decoder in self.decoders]
        log_probs = self.next_log_probs([following for following, _ in verified])
        chosen, scores, grown, done = self._choose(log_probs)
        self._append(chosen, scores, grown)
        # No step has seen yet what follows the last token.
        last = (grown - 1).clamp(min=0)
        for decoder in self.decoders:
            decoder.accept(drafted, last, chosen.gather(1, last.unsqueeze(1)).squeeze(1))
        # Several models draft as the first one does.
        further = verified[0][1]
        self.further = further[torch.arange(len(further), device=last.device), last.clamp(max=further.size(1) - 1)]
        self.done |= done
        if self.planner is not None:
            right = last.cpu().numpy()  # waits for a GPU, so that the time is that of the pass
            rows = len(right) * rows_of(drafted, ahead)
            self.planner.observe(rows, time.perf_counter() - started, drafted, right)

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

    def keep_sentences(self, left: Tensor) -> None:
        """See :meth:`Search.keep_sentences`."""
        super().keep_sentences(left)
        left = self._uploaded(left)
        self.drafts.keep_sentences(left)
        self.further = self.further[left]
