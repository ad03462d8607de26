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

    def __call__(self, tokens: Tensor, log_probs: Tensor) -> Tensor:
        """Set the log-probabilities of forbidden tokens to -inf.

        Shape:
            tokens (R, T), log_probs (R, V) -> (R, V). R: hypotheses, T: tokens so far, V: vocabulary.
        """
        if tokens.size(1) < self.size:
            return log_probs
        ignore = self.ignore.to(tokens.device)
        # (R, T) -> (R, T - n + 1, n)
        ngrams = tokens.unfold(1, self.size, 1)
        last = tokens[:, tokens.size(1) - self.size + 1 :]
        repeats = (ngrams[..., :-1] == last.unsqueeze(1)).all(dim=-1)
        repeats &= ~torch.isin(last, ignore).any(dim=1, keepdim=True)
        completion = ngrams[..., -1]
        repeats &= ~torch.isin(completion, ignore)
        # What is not forbidden goes to a column of its own behind the vocabulary.
        vocab_size = log_probs.size(1)
        forbidden = torch.zeros(len(tokens), vocab_size + 1, dtype=torch.bool, device=tokens.device)
        forbidden.scatter_(1, completion.masked_fill(~repeats, vocab_size), True)
        return log_probs.masked_fill(forbidden[:, :-1], float("-inf"))
