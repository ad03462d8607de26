"""No n-gram twice in one hypothesis, without a transfer to the host."""

import torch
from torch import Tensor


class NGramBlocker:
    """Forbids the tokens that would complete an n-gram which the hypothesis already holds.

    As in s2s-ft, the rule is off where one of the last n - 1 tokens, or the token to be forbidden, is in the ignore
    list.
    """

    def __init__(self, size: int, ignore: list[int] | None = None) -> None:
        self.size = size
        self.ignore = torch.tensor(ignore or [], dtype=torch.int64)

    def forbid(self, tokens: Tensor, log_probs: Tensor) -> None:
        """Set the log-probabilities of forbidden tokens to -inf, in place.

        Shape:
            tokens (..., T), log_probs (..., V). T: tokens so far, V: vocabulary.
        """
        if tokens.size(-1) < self.size:
            return
        ignore = self.ignore = self.ignore.to(tokens.device)  # moved once
        # (..., T) -> (..., T - n + 1, n)
        ngrams = tokens.unfold(-1, self.size, 1)
        last = tokens[..., tokens.size(-1) - self.size + 1 :]
        repeats = (ngrams[..., :-1] == last.unsqueeze(-2)).all(dim=-1)
        repeats &= ~torch.isin(last, ignore).any(dim=-1, keepdim=True)
        completion = ngrams[..., -1]
        repeats &= ~torch.isin(completion, ignore)
        # The same token may complete one n-gram that repeats and another that does not: the least counts.
        highest = torch.full_like(completion, float("inf"), dtype=log_probs.dtype)
        log_probs.scatter_reduce_(-1, completion, highest.masked_fill(repeats, float("-inf")), reduce="amin")
