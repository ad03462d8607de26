"""From scores to candidates."""

import numpy as np
import torch

from s2sft_fairseq.inference.options import SearchOptions
from s2sft_fairseq.inference.rules import beam_candidates, sampled_candidates


def test_beam_candidates_are_the_best_continuations():
    rng = np.random.default_rng(0)
    log_probs = torch.from_numpy(rng.normal(size=(2, 3, 9)).astype(np.float32))
    scores = torch.from_numpy(rng.normal(size=(2, 3)).astype(np.float32))
    found = beam_candidates(log_probs, scores, 3)
    for sentence in range(2):
        everything = [
            (scores[sentence, beam].item() + log_probs[sentence, beam, token].item(), token, beam)
            for beam in range(3)
            for token in range(9)
        ]
        best = sorted(everything, reverse=True)[:6]
        np.testing.assert_allclose(found.scores[sentence].numpy(), [total for total, _, _ in best], rtol=1e-6)
        assert found.tokens[sentence].tolist() == [token for _, token, _ in best]
        assert found.beams[sentence].tolist() == [beam for _, _, beam in best]


def test_fewer_continuations_than_candidates():
    found = beam_candidates(torch.tensor([[[-1.0]]]), torch.zeros(1, 1), 1)
    assert [column.tolist() for column in found] == [[[-1.0]], [[0]], [[0]]]


def test_forbidden_tokens_and_dead_hypotheses_come_last():
    minus = float("-inf")
    log_probs = torch.tensor([[[minus, -1.0, -2.0], [-0.1, -0.2, -0.3]]])
    found = beam_candidates(log_probs, torch.tensor([[0.0, minus]]), 2)
    assert found.scores[0, :2].tolist() == [-1.0, -2.0]
    assert torch.isinf(found.scores[0, 2:]).all()


def test_every_hypothesis_goes_on_by_one_sampled_token():
    torch.manual_seed(0)
    log_probs = torch.randn(4, 5, 8).log_softmax(dim=-1)
    scores = torch.randn(4, 5)
    found = sampled_candidates(log_probs, scores, SearchOptions(beam=5))
    assert (found.beams == torch.arange(5)).all()
    drawn = log_probs.gather(2, found.tokens.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(found.scores, scores + drawn)
    assert len(set(found.tokens.flatten().tolist())) > 1


def test_one_hypothesis_branches_into_as_many_as_there_are_beams():
    torch.manual_seed(0)
    log_probs = torch.randn(3, 1, 8).log_softmax(dim=-1)
    found = sampled_candidates(log_probs, torch.full((3, 1), -2.0), SearchOptions(beam=6))
    assert found.tokens.shape == (3, 6)
    assert not found.beams.any()
    torch.testing.assert_close(found.scores, log_probs.squeeze(1).gather(1, found.tokens) - 2)
    best = beam_candidates(log_probs, torch.zeros(3, 1), 2)
    assert best.tokens.tolist() == log_probs.squeeze(1).topk(4).indices.tolist()


def sampled_tokens(probabilities, top_k, top_p, draws=2000):
    torch.manual_seed(0)
    log_probs = torch.tensor(probabilities).log().expand(1, draws, len(probabilities))
    options = SearchOptions(beam=draws, sampling_topk=top_k, sampling_topp=top_p)
    return set(sampled_candidates(log_probs, torch.zeros(1, draws), options).tokens.flatten().tolist())


def test_which_tokens_can_be_drawn():
    probabilities = [0.1, 0.4, 0.2, 0.3, 0.0]
    assert sampled_tokens(probabilities, 0, 0.0) == {0, 1, 2, 3}
    assert sampled_tokens(probabilities, 1, 0.0) == {1}
    assert sampled_tokens(probabilities, 3, 0.0) == {1, 2, 3}
    assert sampled_tokens(probabilities, 99, 0.0) == {0, 1, 2, 3}
    # The smallest set that reaches p: 0.4, 0.4 + 0.3, 0.4 + 0.3 + 0.2, all.
    assert sampled_tokens(probabilities, 0, 0.39) == {1}
    assert sampled_tokens(probabilities, 0, 0.5) == {1, 3}
    assert sampled_tokens(probabilities, 0, 0.75) == {1, 2, 3}
    assert sampled_tokens(probabilities, 0, 0.95) == {0, 1, 2, 3}
    assert sampled_tokens(probabilities, 2, 0.95) == {1, 3}


def test_the_nucleus_is_of_what_is_allowed():
    """Half of the probability is forbidden: of the rest, 0.3 is 60 % and reaches p alone."""
    log_probs = torch.tensor([0.5, 0.3, 0.2]).log()
    log_probs[0] = float("-inf")
    torch.manual_seed(0)
    options = SearchOptions(beam=500, sampling_topp=0.55)
    found = sampled_candidates(log_probs.expand(1, 500, 3), torch.zeros(1, 500), options)
    assert set(found.tokens.flatten().tolist()) == {1}
    # The score stays that of the model.
    torch.testing.assert_close(found.scores, torch.full((1, 500), 0.3).log())


def test_a_token_of_no_probability_can_be_the_only_one():
    log_probs = torch.full((1, 2, 4), float("-inf"))
    log_probs[..., 2] = -500.0
    found = sampled_candidates(log_probs, torch.zeros(1, 2), SearchOptions(beam=2, sampling_topp=0.9))
    assert found.tokens.tolist() == [[2, 2]]
    assert found.scores.tolist() == [[-500.0, -500.0]]
