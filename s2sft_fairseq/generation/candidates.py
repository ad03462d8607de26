"""From the scores of the next token to the candidates of the next step: beam search or sampling."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Candidates(NamedTuple):
    """Continuations of the hypotheses of each sentence, the best first; each (N, C). C: candidates."""

    scores: Tensor
    """Summed log-probabilities."""
    tokens: Tensor
    beams: Tensor
    """Which hypothesis of the sentence is continued."""


CandidateSelection = Callable[[Tensor, Tensor], Candidates]


def beam_candidates(log_probs: Tensor, scores: Tensor) -> Candidates:
    """Take the best 2K continuations, of which at least K do not end.

    Shape:
        log_probs (N, K, V), scores so far (N, K). N: sentences, K: beams, V: vocabulary.
    """
    beams, vocab_size = log_probs.shape[1:]
    totals = (scores.unsqueeze(-1) + log_probs).flatten(1)
    best, index = totals.topk(min(2 * beams, totals.size(1)), dim=1)
    return Candidates(best, index % vocab_size, index // vocab_size)


def sampled_candidates(top_k: int, top_p: float) -> CandidateSelection:
    """Make a selection that continues every hypothesis by one token drawn at random.

    Args:
        top_k: draw from the k most probable tokens only; off if not positive.
        top_p: draw from the smallest set of most probable tokens that together have at least this probability (nucleus
            sampling, Holtzman et al., 2020); off if not positive.
    """

    def select(log_probs: Tensor, scores: Tensor) -> Candidates:
        ordered, tokens = log_probs.sort(dim=-1, descending=True)
        # Normalised anew, for forbidden tokens have taken their share away; a forced one may be of any probability.
        probs = ordered.softmax(dim=-1)
        if top_k > 0:
            probs[..., top_k:] = 0
        if top_p > 0:
            # A token stays if those before it do not reach top_p yet; the first always stays.
            probs = probs.masked_fill(probs.cumsum(dim=-1) - probs >= top_p, 0)
        drawn = torch.multinomial(probs.flatten(0, 1), 1).view(*scores.shape, 1)
        sampled = tokens.gather(-1, drawn).squeeze(-1)
        totals = scores + ordered.gather(-1, drawn).squeeze(-1)
        beams = torch.arange(scores.size(1), device=scores.device).expand_as(scores)
        return Candidates(totals, sampled, beams)

    return select
