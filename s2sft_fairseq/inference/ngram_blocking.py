"""No n-gram twice in a text: which tokens would complete one that is there already."""

import torch
from torch import Tensor

MINUS_INFINITY = float("-inf")


def forbid_repeats(log_probs: Tensor, tokens: Tensor, size: int, ignored: Tensor) -> None:
    """Forbid the tokens that would complete an n-gram which the hypothesis already holds, in place.

    As in s2s-ft, the rule is off where one of the last n - 1 tokens, or the token to be forbidden, is ignored.

    Shape:
        log_probs (..., V), tokens (..., T), ignored ids (I,). T: tokens so far, V: vocabulary.
    """
    if tokens.size(-1) < size:
        return
    # (..., T) -> (..., T - n + 1, n)
    ngrams = tokens.unfold(-1, size, 1)
    last = tokens[..., tokens.size(-1) - size + 1 :]
    repeats = (ngrams[..., :-1] == last.unsqueeze(-2)).all(dim=-1)
    repeats &= ~torch.isin(last, ignored).any(dim=-1, keepdim=True)
    completion = ngrams[..., -1]
    repeats &= ~torch.isin(completion, ignored)
    # The same token may complete one n-gram that repeats and another that does not: the least counts.
    highest = torch.full_like(completion, float("inf"), dtype=log_probs.dtype)
    log_probs.scatter_reduce_(-1, completion, highest.masked_fill(repeats, MINUS_INFINITY), reduce="amin")


def forbid_repeats_at(log_probs: Tensor, tokens: Tensor, place: Tensor, size: int, ignored: Tensor) -> None:
    """Forbid the tokens that would complete, in a gap of each text, an n-gram which the text already holds, in place.

    What is not known yet is one of the ignored tokens.

    Args:
        log_probs: of the token in the gap (N, V).
        tokens: the texts (N, T).
        place: where the gap is (N,); what stands there does not matter.
        size: n.
        ignored: n-grams with one of these (I,) may repeat, and these may stand anywhere.
    """
    width = tokens.size(1)
    if width < size:
        return
    tokens = tokens.scatter(1, place.unsqueeze(1), ignored[:1].expand(len(tokens), 1))
    # (N, T) -> (N, T - n + 1, n)
    ngrams = tokens.unfold(1, size, 1)
    lowest = log_probs.new_full((), MINUS_INFINITY)
    for gap in range(size):
        start = place - gap
        inside = (start >= 0) & (start + size <= width)
        around = ngrams.gather(1, start.clamp(0, width - size)[:, None, None].expand(-1, 1, size))
        same = ngrams == around
        known = ~torch.isin(around, ignored)
        same[..., gap] = known[..., gap] = True
        completion = ngrams[..., gap]
        repeats = same.all(dim=2) & known.all(dim=2) & inside.unsqueeze(1) & ~torch.isin(completion, ignored)
        highest = torch.full_like(completion, float("inf"), dtype=log_probs.dtype)
        log_probs.scatter_reduce_(1, completion, torch.where(repeats, lowest, highest), reduce="amin")
        for shift in range(1, gap + 1):
            _forbid_overlap(log_probs, tokens, place, start, shift, size, ignored)


def _forbid_overlap(
    log_probs: Tensor, tokens: Tensor, place: Tensor, start: Tensor, shift: int, size: int, ignored: Tensor
) -> None:
    """Forbid the token that makes the n-grams at ``start`` (N,) and ``shift`` further on equal, which both hold it."""
    last = tokens.size(1) - 1
    inside = (start >= 0) & (start + shift + size - 1 <= last)
    # Only this token can make them equal: the second one has the gap where the first one has it.
    token = tokens.gather(1, (place - shift).clamp(0, last).unsqueeze(1))
    filled = tokens.scatter(1, place.unsqueeze(1), token)
    # (N, n)
    index = start.unsqueeze(1) + torch.arange(size, device=tokens.device)
    first, second = (filled.gather(1, (index + further).clamp(0, last)) for further in (0, shift))
    repeats = inside & (first == second).all(dim=1) & ~torch.isin(first, ignored).any(dim=1)
    log_probs.scatter_(1, token, log_probs.gather(1, token).masked_fill(repeats.unsqueeze(1), MINUS_INFINITY))
