"""The hypotheses that have ended, the best few of each sentence."""

from typing import NamedTuple

import torch
from torch import Tensor


class FinishedHypotheses:
    """The K best ended hypotheses of each of N sentences, in tensors.

    N: sentences, K: hypotheses kept, T: most tokens of one.
    """

    def __init__(self, sentences: int, kept: int, max_tokens: int, device: torch.device) -> None:
        self.scores = torch.full((sentences, kept), float("-inf"), device=device)
        self.lengths = torch.zeros(sentences, kept, dtype=torch.int64, device=device)
        self.tokens = torch.zeros(sentences, kept, max_tokens, dtype=torch.int64, device=device)
        self.log_probs = torch.zeros(sentences, kept, max_tokens, device=device)

    def add(self, ended: Tensor, scores: Tensor, tokens: Tensor, log_probs: Tensor) -> None:
        """Take in those of C hypotheses of one length t that have ended, and keep the best.

        Shape:
            ended and normalised scores (N, C), tokens and log-probabilities (N, C, t).
        """
        length = tokens.size(2)
        scores = scores.masked_fill(~ended, float("-inf"))
        kept = self.scores.size(1)
        self.scores, order = torch.cat([self.scores, scores], dim=1).topk(kept, dim=1)
        self.lengths = torch.cat([self.lengths, torch.full_like(ended, length, dtype=torch.int64)], 1).gather(1, order)
        room = self.tokens.size(2) - length
        across = order.unsqueeze(-1).expand(-1, -1, self.tokens.size(2))
        self.tokens = torch.cat([self.tokens, torch.nn.functional.pad(tokens, (0, room))], 1).gather(1, across)
        padded = torch.nn.functional.pad(log_probs, (0, room))
        self.log_probs = torch.cat([self.log_probs, padded], 1).gather(1, across)

    def keep(self, kept: Tensor) -> None:
        """Forget all other hypotheses than those that ``kept`` (N, K) tells; the next ``add`` puts them in order."""
        self.scores = self.scores.masked_fill(~kept, float("-inf"))

    def counts(self) -> Tensor:
        """Return how many hypotheses each sentence has (N,)."""
        return (self.scores > float("-inf")).sum(dim=1)

    def worst(self, wanted: int) -> Tensor:
        """Return the score that a new hypothesis must beat to be one of the best ``wanted`` (N,); -inf: any score."""
        return self.scores[:, wanted - 1]

    def keep_sentences(self, sentences: Tensor) -> None:
        """Go on with the given sentences only."""
        self.scores, self.lengths = self.scores[sentences], self.lengths[sentences]
        self.tokens, self.log_probs = self.tokens[sentences], self.log_probs[sentences]

    def of(self, sentence: int, wanted: int) -> "FinishedSentence":
        """Return the best ``wanted`` hypotheses of a sentence, or as many as it has."""
        count = min(wanted, int((self.scores[sentence] > float("-inf")).sum()))
        return FinishedSentence(
            *(kept[sentence, :count] for kept in (self.scores, self.lengths, self.tokens, self.log_probs))
        )


class FinishedSentence(NamedTuple):
    """The hypotheses of one sentence, the best first: (K,) and (K, T)."""

    scores: Tensor
    lengths: Tensor
    tokens: Tensor
    log_probs: Tensor

    def export(self) -> list[dict[str, Tensor | None]]:
        """Return them in fairseq's form, in tensors that may be changed in place outside of inference mode too."""
        scores, tokens, log_probs = self.scores.clone(), self.tokens.clone(), self.log_probs.clone()
        return [
            {
                "tokens": tokens[i, :length],
                "score": scores[i],
                "attention": None,
                "alignment": torch.empty(0),
                "positional_scores": log_probs[i, :length],
            }
            for i, length in enumerate(self.lengths.tolist())
        ]
