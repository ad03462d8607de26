"""The layout of a step of decoding: new content of each hypothesis, placeholders behind it, and who sees whom."""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from s2sft_fairseq.modules.visibility import visible


class StepLayout(NamedTuple):
    """The new tokens of a step: content first, what is predicted from last.

    A: new tokens of a sentence, N: sentences.
    """

    hypotheses: Tensor
    """Which hypothesis of the sentence each token continues (A,)."""
    offsets: Tensor
    """How many positions behind the end of its hypothesis it stands (A,), or (N, A) where sentences differ."""
    visible: Tensor
    """Which of the new tokens each of them sees (A, A), or (N, A, A) where sentences differ."""
    num_kept: int
    """Number of content tokens. They come first, and their keys and values stay."""
    num_predicted: int
    """Number of tokens P, the last ones, at which the vocabulary can be scored."""
    wanted: Tensor | None = None
    """At which of these it is scored (N, P); None: at all of them."""


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


@lru_cache(maxsize=256)
def drafted_layout(
    pending: int,
    drafted: int,
    ahead: int,
    behind: tuple[int, ...],
    *,
    placeholder: bool,
    in_block: bool,
    device: torch.device,
) -> StepLayout:
    """Lay out tokens of one hypothesis of which the last ones are drafts, and placeholders behind each of them.

    What follows the pending tokens, and what follows each draft if it and those before it are right, is predicted as in
    pseudo-masked training: a placeholder sees the content before its own position alone. So the predictions are those
    of one token a step.

    Args:
        pending: tokens that no step has read yet; in a causal model at least one.
        drafted: tokens behind them that may be wrong.
        ahead: further placeholders, which draft what comes after the next token from a prefix alone.
        behind: the prefixes that have them, by the number of drafts in them.
        placeholder: whether a placeholder predicts, and not, as in a causal model, the last token of the prefix.
        in_block: whether the further placeholders of a prefix see each other, and one more for the next token.
        device: of the result.

    Returns:
        A layout whose predictions are first those of the next token behind each prefix, then, prefix by prefix, those
        ahead.
    """
    new = pending + drafted
    prefixes = torch.arange(pending, new + 1, device=device)
    content = torch.arange(new, device=device)
    if not placeholder:
        seen = visible(content, torch.zeros_like(content), content, torch.zeros_like(content))
        return StepLayout(torch.zeros_like(content), content, seen, num_kept=new, num_predicted=drafted + 1)
    starts = pending + torch.tensor(behind, dtype=torch.long, device=device)
    steps = starts.repeat_interleave(ahead)
    offsets = steps + torch.arange(1, ahead + 1, device=device).repeat(len(behind))
    # The numbers of the groups do not matter, as long as they differ.
    singles, others = prefixes + 1, new + 2 + torch.arange(len(steps), device=device)
    columns = [(content, content, torch.zeros_like(content)), (prefixes, prefixes, singles), (steps, offsets, others)]
    if in_block:
        columns[2] = (steps, offsets, steps + new + 2)
        # Nothing is predicted from these: the next token has a placeholder that sees itself alone.
        columns.insert(1, (starts, starts, starts + new + 2))
    steps, offsets, groups = (torch.cat(column) for column in zip(*columns, strict=True))
    predicted = drafted + 1 + len(behind) * ahead
    seen = visible(steps, groups, steps, groups)
    return StepLayout(torch.zeros_like(steps), offsets, seen, num_kept=new, num_predicted=predicted)


def block_layout(counts: Tensor, pending: int, room: Tensor, wanted: Tensor) -> StepLayout:
    """Lay out what no step has read yet of the only hypothesis of each sentence, and a block of placeholders behind it.

    Args:
        counts: of the tokens that are to be read (N,); what stands behind them is seen by none of them.
        pending: room for them, the largest count at least.
        room: how many placeholders there are (N,); those behind them are seen by none of these.
        wanted: which placeholders of a block are scored (N, B). All B of them see each other.

    Returns:
        A layout whose predictions are those of the block.
    """
    members = wanted.size(1)
    places = torch.arange(pending + members, device=counts.device)
    counts, member = counts.unsqueeze(1), places - pending
    # (N, A)
    steps = torch.where(member >= 0, counts, places)
    groups = torch.where(member >= room.unsqueeze(1), 2, 1).masked_fill(member < 0, 0)
    # What is seen by nobody stands somewhere, too: no position may be outside the table.
    furthest = counts + room.unsqueeze(1) - 1
    offsets = torch.where(member >= 0, (counts + member).minimum(furthest), places.minimum(counts))
    seen = visible(steps, groups, steps, groups)
    return StepLayout(torch.zeros_like(places), offsets, seen, pending, members, wanted)
