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


CandidateSelection = Callable[[Tensor, Tensor, int], Candidates]


def beam_candidates(log_probs: Tensor, scores: Tensor, beams: int) -> Candidates:
    """Take twice as many continuations as there are to be beams, the best: at least half of them do not end.

    Shape:
        log_probs (N, K, V), scores so far (N, K). N: sentences, K: hypotheses, one at first, V: vocabulary.
    """
    # The best of all are among the best of each hypothesis, of which there are few.
    log_probs, tokens = log_probs.topk(min(2 * beams, log_probs.size(2)), dim=2)
    totals = (scores.unsqueeze(-1) + log_probs).flatten(1)
    best, index = totals.topk(min(2 * beams, totals.size(1)), dim=1)
    return Candidates(best, tokens.flatten(1).gather(1, index), index // tokens.size(2))


def sampled_candidates(top_k: int, top_p: float) -> CandidateSelection:
    """Make a selection that continues every hypothesis by tokens drawn at random: the first by one for each beam.

    Args:
        top_k: draw from the k most probable tokens only; off if not positive.
        top_p: draw from the smallest set of most probable tokens that together have at least this probability (nucleus
            sampling, Holtzman et al., 2020); off if not positive.
    """

    def select(log_probs: Tensor, scores: Tensor, beams: int) -> Candidates:
        sentences, hypotheses = scores.shape
        ordered, tokens = log_probs.sort(dim=-1, descending=True)
        # Normalised anew, for forbidden tokens have taken their share away; a forced one may be of any probability.
        probs = ordered.softmax(dim=-1)
        if top_k > 0:
            probs[..., top_k:] = 0
        if top_p > 0:
            # A token stays if those before it do not reach top_p yet; the first always stays.
            probs = probs.masked_fill(probs.cumsum(dim=-1) - probs >= top_p, 0)
        drawn = torch.multinomial(probs.flatten(0, 1), beams // hypotheses, replacement=True)
        # (N * K, D) -> (N, K, D). D: draws for each hypothesis.
        drawn = drawn.unflatten(0, (sentences, hypotheses))
        totals = scores.unsqueeze(-1) + ordered.gather(-1, drawn)
        origins = torch.arange(hypotheses, device=scores.device).view(1, -1, 1).expand_as(drawn)
        return Candidates(totals.flatten(1), tokens.gather(-1, drawn).flatten(1), origins.flatten(1))

    return select
