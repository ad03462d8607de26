"""N-gram blocking: forbid tokens that would repeat an n-gram of the text."""

import torch
from torch import Tensor

MINUS_INFINITY = float("-inf")


def forbid_repeats(log_probs: Tensor, tokens: Tensor, size: int, ignored: Tensor) -> None:
    """Forbid the tokens that would complete an n-gram that the hypothesis already has, in place.

    As in s2s-ft, the rule does not apply if one of the last n - 1 tokens, or the token to forbid, is ignored.

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
    # A token may complete both a repeated n-gram and another one: the minimum forbids it.
    highest = torch.full_like(completion, float("inf"), dtype=log_probs.dtype)
    log_probs.scatter_reduce_(-1, completion, highest.masked_fill(repeats, MINUS_INFINITY), reduce="amin")


def forbid_repeats_at(log_probs: Tensor, tokens: Tensor, place: Tensor, size: int, ignored: Tensor) -> None:
    """Forbid the tokens that would complete, in a gap of each text, an n-gram that the text already has, in place.

    Unknown tokens of the text must be among the ignored ones.

    Args:
        log_probs: log-probabilities of the token in the gap (N, V).
        tokens: the texts (N, T).
        place: index of the gap (N,); the token at this index is not used.
        size: n.
        ignored: ids (I,) that are never forbidden; n-grams with one of them may repeat.
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
    """Forbid the token that makes the n-grams at ``start`` (N,) and ``start + shift`` equal; both contain the gap."""
    last = tokens.size(1) - 1
    inside = (start >= 0) & (start + shift + size - 1 <= last)
    # Only this token can make them equal: the first n-gram has it where the second one has the gap.
    token = tokens.gather(1, (place - shift).clamp(0, last).unsqueeze(1))
    filled = tokens.scatter(1, place.unsqueeze(1), token)
    # (N, n)
    index = start.unsqueeze(1) + torch.arange(size, device=tokens.device)
    first, second = (filled.gather(1, (index + further).clamp(0, last)) for further in (0, shift))
    repeats = inside & (first == second).all(dim=1) & ~torch.isin(first, ignored).any(dim=1)
    log_probs.scatter_(1, token, log_probs.gather(1, token).masked_fill(repeats.unsqueeze(1), MINUS_INFINITY))
