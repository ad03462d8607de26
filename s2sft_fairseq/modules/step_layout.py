"""The layout of a step of decoding: new content of each hypothesis, placeholders after it, and their visibility."""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from s2sft_fairseq.modules.visibility import visible


class StepLayout(NamedTuple):
    """The new tokens of a step: content comes first, tokens to predict at come last.

    A: new tokens of a sentence, N: sentences.
    """

    hypotheses: Tensor
    """Which hypothesis of the sentence each token continues (A,)."""
    offsets: Tensor
    """Position of each token, counted from the end of its hypothesis (A,), or (N, A) if sentences differ."""
    visible: Tensor
    """Which new tokens each new token sees (A, A), or (N, A, A) if sentences differ."""
    num_kept: int
    """Number of content tokens. They come first, and their keys and values are kept."""
    num_predicted: int
    """Number of tokens, the last ones, at which the vocabulary can be scored, P."""
    wanted: Tensor | None = None
    """At which of these the vocabulary is scored (N, P); None: all."""

    def positions(self, lengths: Tensor, limit: int) -> Tensor:
        """Return the position ids of the tokens (N, A).

        Drafts may go beyond the last position of the model. No hypothesis keeps these, and no other token sees them, so
        they take the last one.

        Args:
            lengths: the number of tokens of each source and hypothesis so far (N,).
            limit: the number of positions of the model.
        """
        return (lengths.unsqueeze(1) + self.offsets).clamp(max=limit - 1)


@lru_cache(maxsize=64)
def next_token_layout(hypotheses: int, new: int, *, placeholder: bool, device: torch.device) -> StepLayout:
    """Lay out ``new`` tokens of each hypothesis, and a placeholder after them.

    Tokens are in order of position; at each position the hypotheses are side by side. Without a placeholder, as in a
    causal model, the last tokens predict.
    """
    count = new + placeholder
    # (A,)
    offsets = torch.arange(count, device=device).repeat_interleave(hypotheses)
    owners = torch.arange(hypotheses, device=device).repeat(count)
    # Content is of group 0, each token one factorization step after the last. A placeholder is of the last step and
    # group 1; it sees content and itself, because no other placeholder continues its hypothesis.
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
    """Lay out pending tokens of one hypothesis, drafts that follow them, and a placeholder after each prefix of drafts.

    The placeholders predict the token after the pending tokens, and the token after each draft, provided that all
    drafts up to it are right. As in pseudo-masked training, a placeholder sees only the content before its own
    position. So the predictions equal those of decoding token by token.

    Args:
        pending: number of tokens that no step has read yet; at least one in a causal model.
        drafted: number of tokens after them that may be wrong.
        ahead: number of further placeholders after a prefix; they draft the tokens after the next one.
        behind: the prefixes that have further placeholders, given by their number of drafts.
        placeholder: whether placeholders predict; in a causal model the last token of the prefix does.
        in_block: whether the further placeholders of a prefix, and one for the next token, see each other.
        device: device of the result.

    Returns:
        A layout whose predictions are first the next token after each prefix, then, prefix by prefix, the further
        tokens.
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
    # Any numbers of groups will do, as long as they differ.
    singles, others = prefixes + 1, new + 2 + torch.arange(len(steps), device=device)
    columns = [(content, content, torch.zeros_like(content)), (prefixes, prefixes, singles), (steps, offsets, others)]
    if in_block:
        columns[2] = (steps, offsets, steps + new + 2)
        # Nothing is predicted here: the next token is predicted at a placeholder that sees no other one.
        columns.insert(1, (starts, starts, starts + new + 2))
    steps, offsets, groups = (torch.cat(column) for column in zip(*columns, strict=True))
    predicted = drafted + 1 + len(behind) * ahead
    seen = visible(steps, groups, steps, groups)
    return StepLayout(torch.zeros_like(steps), offsets, seen, num_kept=new, num_predicted=predicted)


def block_layout(counts: Tensor, pending: int, room: Tensor, wanted: Tensor) -> StepLayout:
    """Lay out the pending tokens of each sentence, and a block of placeholders. Each sentence has one hypothesis.

    Args:
        counts: number of pending tokens of each sentence (N,); further tokens are padding, which is not seen.
        pending: number of places for them, at least the largest count.
        room: number of placeholders of each sentence (N,), which see each other; further placeholders are padding,
            which these do not see.
        wanted: which placeholders of the block are scored (N, B).

    Returns:
        A layout whose predictions are those of the block.
    """
    members = wanted.size(1)
    places = torch.arange(pending + members, device=counts.device)
    counts, member = counts.unsqueeze(1), places - pending
    # (N, A)
    steps = torch.where(member >= 0, counts, places)
    groups = torch.where(member >= room.unsqueeze(1), 2, 1).masked_fill(member < 0, 0)
    # Padding needs a valid position, too: positions must not exceed the position embedding.
    furthest = counts + room.unsqueeze(1) - 1
    offsets = torch.where(member >= 0, (counts + member).minimum(furthest), places.minimum(counts))
    seen = visible(steps, groups, steps, groups)
    return StepLayout(torch.zeros_like(places), offsets, seen, pending, members, wanted)
