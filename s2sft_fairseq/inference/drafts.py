"""Where drafts of the next tokens come from: placeholders further on, blocks of them, or the source.

N: sentences, T: tokens of a hypothesis so far, D: drafts of each, S: source positions, V: vocabulary.
"""

import time

import torch
from torch import Tensor

from s2sft_fairseq.inference.draft_planner import DraftPlanner
from s2sft_fairseq.inference.ngram_blocking import MINUS_INFINITY

LONGEST_MATCH = 3
"""The longest end of a hypothesis that is looked for in the source, in tokens."""


class Drafts:
    """A way to draft."""

    ahead = 0
    """Positions behind a prefix, beyond the next one, whose scores it wants to see in each pass."""
    behind: tuple[int, ...] | None = None
    """The prefixes behind which it wants to see them, by the number of drafts in them; None: behind each."""
    in_block = False
    """Whether these are scored as a block of a model that was trained in blocks, whose placeholders see each other."""

    def next(self, tokens: Tensor, further: Tensor, right: Tensor) -> Tensor:
        """Draft what follows the tokens of a pass.

        Args:
            tokens: the hypotheses so far (N, T), padded on the left.
            further: scores ahead of the prefixes ``behind`` (N, P, ahead, V). P: these prefixes.
            right: how many drafts of the pass were right (N,): the hypothesis is that prefix and one token more.

        Returns:
            Tokens (N, D); D may differ from pass to pass.
        """
        raise NotImplementedError

    def keep_sentences(self, left: Tensor) -> None:
        """Go on with some sentences only, the indices ``left`` (n,)."""


class PlaceholderDrafts(Drafts):
    """The most probable tokens at placeholders beyond the next one: all see the same prefix, as those of a span do."""

    def __init__(self, count: int, never_generated: Tensor) -> None:
        """Draft ``count`` tokens, none of those that are never generated (M,)."""
        self.ahead, self.never_generated = count, never_generated

    def next(self, tokens: Tensor, further: Tensor, right: Tensor) -> Tensor:
        """See :class:`Drafts`."""
        of_prefix = further[torch.arange(len(right), device=right.device), right]
        return of_prefix.index_fill_(-1, self.never_generated, MINUS_INFINITY).argmax(dim=-1)


class BlockDrafts(PlaceholderDrafts):
    """The most probable tokens of a block behind the prefix, all but its first, which is the next token."""

    in_block = True


class PlannedDrafts(Drafts):
    """Drafts of blocks. A planner chooses how many are verified, and behind which prefixes there are blocks."""

    in_block = True

    def __init__(self, planner: DraftPlanner, never_generated: Tensor, pad: int, sentences: int) -> None:
        """Let a planner choose; ``pad`` stands where a sentence has no draft, and is never right."""
        self.planner, self.never_generated, self.pad = planner, never_generated, pad
        self.probabilities = torch.zeros(sentences, 0)
        """Of the drafts that are verified next (N, D), on the CPU."""
        self._plan()

    def next(self, tokens: Tensor, further: Tensor, right: Tensor) -> Tensor:
        """See :class:`Drafts`."""
        behind = self.plan.behind
        # Which block stands behind each prefix; -1: none.
        block_of = [behind.index(prefix) if prefix in behind else -1 for prefix in range(self.plan.drafts + 1)]
        block = torch.tensor(block_of, device=right.device)[right]
        drafts = torch.full((len(right), self.ahead), self.pad, device=right.device)
        probabilities = torch.zeros(drafts.shape)
        if behind:
            # (N, P, ahead, V) -> (N, ahead, V)
            scores = further[torch.arange(len(right), device=right.device), block].index_fill_(
                -1, self.never_generated, MINUS_INFINITY
            )
            highest, drafts = scores.max(dim=-1)
            without = (block < 0).unsqueeze(1)
            drafts = drafts.masked_fill(without, self.pad)
            chances = (scores - highest.unsqueeze(-1)).exp_().sum(dim=-1).float().reciprocal()
            # The transfer waits for a GPU, so that what is measured is the time of the pass.
            probabilities = chances.masked_fill(without, 0.0).cpu()
        rows, seconds = len(right) * self.plan.rows(), time.perf_counter() - self._started
        self.planner.observe(rows, seconds, self.probabilities.numpy(), right.cpu().numpy())
        self.probabilities = probabilities
        self._plan()
        return drafts[:, : self.plan.drafts]

    def _plan(self) -> None:
        self._started = time.perf_counter()
        self.plan = self.planner.plan(self.probabilities.numpy())
        self.ahead, self.behind = self.plan.ahead, self.plan.behind
        self.probabilities = self.probabilities[:, : self.plan.drafts]

    def keep_sentences(self, left: Tensor) -> None:
        """See :class:`Drafts`."""
        self.probabilities = self.probabilities[left.cpu()]


class SourceDrafts(Drafts):
    """What follows in the source where it reads like the end of the hypothesis, for texts that copy."""

    def __init__(self, count: int, source: Tensor, pad: int) -> None:
        """Draft ``count`` tokens from laid-out sources (N, S)."""
        self.count, self.pad = count, pad
        # Behind the last position there is nothing to copy.
        self.source = torch.nn.functional.pad(source, (0, count), value=pad)

    def next(self, tokens: Tensor, further: Tensor, right: Tensor) -> Tensor:
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
