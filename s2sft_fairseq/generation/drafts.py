"""Drafts of the next tokens, which a step of decoding verifies: from placeholders further on, or from the source.

Speculative decoding (Stern et al., 2018, blockwise parallel decoding; Leviathan et al., 2023) without a second model.
"""

from typing import Protocol

import torch
from torch import Tensor

# The longest end of a hypothesis that is looked for in the source, in tokens.
LONGEST_MATCH = 3


class Drafts(Protocol):
    """A way to draft. N: sentences, D: drafts of a sentence."""

    ahead: int
    """Positions behind each prefix, beyond the next one, whose scores it wants to see."""

    def next(self, tokens: Tensor, further: Tensor) -> Tensor:
        """Draft what follows.

        Args:
            tokens: the hypotheses so far (N, T), padded on the left.
            further: scores (N, ahead, V) of the tokens that follow, from a prefix that is one token shorter.

        Returns:
            Tokens (N, D); D may differ from step to step.
        """

    def keep_sentences(self, left: Tensor) -> None:
        """Go on with some sentences only, the indices ``left`` (n,)."""


class PlaceholderDrafts:
    """The most probable tokens at placeholders beyond the next one: all see the same prefix, as those of a span do."""

    def __init__(self, count: int, never_generated: tuple[int, ...]) -> None:
        self.ahead, self.never_generated = count, list(never_generated)

    def next(self, tokens: Tensor, further: Tensor) -> Tensor:
        """See :class:`Drafts`."""
        further[..., self.never_generated] = float("-inf")
        return further.argmax(dim=-1)

    def keep_sentences(self, left: Tensor) -> None:
        """There is nothing to keep."""


class SourceDrafts:
    """What follows in the source where it reads like the end of the hypothesis, for texts that copy."""

    ahead = 0

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
