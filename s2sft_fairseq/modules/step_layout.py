"""What a step of decoding reads: new content of each hypothesis, and placeholders behind it."""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from s2sft_fairseq.modules.visibility import visible


class StepLayout(NamedTuple):
    """The new tokens of a step, laid out alike in every sentence: content first, what is predicted from last.

    A: new tokens of a sentence.
    """

    hypotheses: Tensor
    """Which hypothesis of the sentence each token continues (A,)."""
    offsets: Tensor
    """How many positions behind the end of its hypothesis it stands (A,)."""
    visible: Tensor
    """Which of the new tokens each of them sees (A, A)."""
    num_kept: int
    """So many tokens, the first ones, are content: their keys and values stay."""
    num_predicted: int
    """The vocabulary is scored at so many tokens, the last ones."""


@lru_cache(maxsize=64)
def next_token_layout(hypotheses: int, new: int, *, placeholder: bool, device: torch.device) -> StepLayout:
    """Lay out ``new`` tokens of each hypothesis, and a placeholder behind them.

    The order is that of the tokens, and the hypotheses side by side within it. Without a placeholder, as in a causal
    model, the last tokens predict.
    """
    count = new + placeholder
    # (A,)
    offsets = torch.arange(count, device=device).repeat_interleave(hypotheses)
    owners = torch.arange(hypotheses, device=device).repeat(count)
    # Content is of group 0 and one factorization step later each; a placeholder of the last step sees itself alone
    # beside it, for no other one continues its hypothesis.
    groups = (offsets == new).long()
    seen = visible(offsets, groups, offsets, groups) & (owners.unsqueeze(1) == owners)
    return StepLayout(owners, offsets, seen, num_kept=new * hypotheses, num_predicted=hypotheses)


@lru_cache(maxsize=64)
def drafted_layout(pending: int, drafted: int, ahead: int, *, placeholder: bool, device: torch.device) -> StepLayout:
    """Lay out tokens of one hypothesis of which the last ones are drafts, and placeholders behind each of them.

    What follows the pending tokens, and what follows each draft if it and those before it are right, is predicted as in
    pseudo-masked training: a placeholder sees the content before its own position alone. So the predictions are those
    of one token a step.

    Args:
        pending: tokens that no step has read yet; in a causal model at least one.
        drafted: tokens behind them that may be wrong.
        ahead: further placeholders behind each of these ``drafted + 1`` prefixes. Like the placeholders of a span they
            see the prefix alone, and so draft what comes after the next token.
        placeholder: whether a placeholder predicts, and not, as in a causal model, the last token of the prefix.
        device: of the result.

    Returns:
        A layout whose predictions are first those of the next token behind each prefix, then, prefix by prefix, those
        ahead.
    """
    new = pending + drafted
    prefixes = torch.arange(pending, new + 1, device=device)
    content = torch.arange(new, device=device)
    if not placeholder:
        steps, groups, offsets = content, torch.zeros_like(content), content
        predicted = drafted + 1
    else:
        behind = prefixes.repeat_interleave(ahead)
        steps = torch.cat([content, prefixes, behind])
        offsets = torch.cat([content, prefixes, behind + torch.arange(1, ahead + 1, device=device).repeat(drafted + 1)])
        predicted = len(steps) - new
        groups = torch.cat([torch.zeros_like(content), torch.arange(1, predicted + 1, device=device)])
    seen = visible(steps, groups, steps, groups)
    return StepLayout(torch.zeros_like(steps), offsets, seen, num_kept=new, num_predicted=predicted)
