"""Methods to draft the next tokens: from placeholders beyond the next token, from blocks of them, or from the source.

N: sentences, T: tokens of a hypothesis so far, D: drafts of each, S: source positions, V: vocabulary.
"""

import time

import torch
from torch import Tensor

from s2sft_fairseq.inference.draft_planner import DraftPlanner
from s2sft_fairseq.inference.ngram_blocking import MINUS_INFINITY

LONGEST_MATCH = 3
"""Most tokens at the end of a hypothesis that are matched with the source."""


class Drafts:
    """A drafting method."""

    ahead = 0
    """Number of positions beyond the next token whose scores the method needs from each pass."""
    behind: tuple[int, ...] | None = None
    """The prefixes after which it needs these scores, given by their number of drafts; None: all prefixes."""
    in_block = False
    """Whether these positions form a block, whose placeholders see each other, for models trained in blocks."""

    def next(self, tokens: Tensor, further: Tensor, right: Tensor) -> Tensor:
        """Draft the tokens that follow the hypotheses.

        Args:
            tokens: the hypotheses so far (N, T), padded on the left.
            further: scores of the positions beyond the next token, after the prefixes ``behind`` (N, P, ahead, V).
                P: these prefixes.
            right: how many drafts of the pass were right (N,): the hypothesis is that prefix and one more token.

        Returns:
            Tokens (N, D); D may differ from pass to pass.
        """
        raise NotImplementedError

    def keep_sentences(self, left: Tensor) -> None:
        """Keep only the sentences with the indices ``left`` (n,)."""


class PlaceholderDrafts(Drafts):
    """Drafts the most probable tokens at placeholders beyond the next token; all see the same prefix, as in a span."""

    def __init__(self, count: int, never_generated: Tensor) -> None:
        """Draft ``count`` tokens, but no ids that are ``never_generated`` (M,)."""
        self.ahead, self.never_generated = count, never_generated

    def next(self, tokens: Tensor, further: Tensor, right: Tensor) -> Tensor:
        """See :class:`Drafts`."""
        of_prefix = further[torch.arange(len(right), device=right.device), right]
        return of_prefix.index_fill_(-1, self.never_generated, MINUS_INFINITY).argmax(dim=-1)


class BlockDrafts(PlaceholderDrafts):
    """Drafts the most probable tokens of a block after the prefix, except its first token, which is the next token."""

    in_block = True


class PlannedDrafts(Drafts):
    """Drafts from blocks. A planner chooses how many drafts a pass verifies, and which prefixes a block follows."""

    in_block = True

    def __init__(self, planner: DraftPlanner, never_generated: Tensor, pad: int, sentences: int) -> None:
        """Take the planner; ``pad`` fills the place of missing drafts and is never right."""
        self.planner, self.never_generated, self.pad = planner, never_generated, pad
        self.probabilities = torch.zeros(sentences, 0)
        """Probabilities of the drafts that are verified next (N, D), on the CPU."""
        self._plan()

    def next(self, tokens: Tensor, further: Tensor, right: Tensor) -> Tensor:
        """See :class:`Drafts`."""
        behind = self.plan.behind
        # Index of the block that follows each prefix; -1: no block.
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
            # The transfer waits for the GPU, so that the measured time includes the whole pass.
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
    """Drafts the source tokens that follow a match of the end of the hypothesis, for targets that copy from sources."""

    def __init__(self, count: int, source: Tensor, pad: int) -> None:
        """Draft ``count`` tokens from laid-out sources (N, S)."""
        self.count, self.pad = count, pad
        # Drafts beyond the end of the source are padding.
        self.source = torch.nn.functional.pad(source, (0, count), value=pad)

    def next(self, tokens: Tensor, further: Tensor, right: Tensor) -> Tensor:
        """See :class:`Drafts`. The first of the longest matches counts; a sentence without a match gets no drafts."""
        positions = self.source.size(1) - self.count
        best = torch.zeros_like(self.source[:, :positions])
        matched = torch.ones_like(best, dtype=torch.bool)
        for back in range(min(LONGEST_MATCH, tokens.size(1))):
            # Compare the token `back` places before the end with the token `back` places before each source position.
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
