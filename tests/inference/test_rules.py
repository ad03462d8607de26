"""From scores to candidates: the mean of several models, forbidden and forced tokens, and the choice."""

import math

import numpy as np
import pytest
import torch
from tiny import CLS, MASK, PAD, SEP, UNK, tiny_form

from s2sft_fairseq.inference import rules as rules_module
from s2sft_fairseq.inference.draws import SampleDraws
from s2sft_fairseq.inference.options import SearchOptions
from s2sft_fairseq.inference.rules import (
    MOST_IN_NUCLEUS,
    TokenRules,
    beam_candidates,
    least_of_nucleus,
    next_log_probs,
    sampled_candidates,
)

VOCAB = 10
SOURCE = torch.tensor([[CLS, 7, 8, 9, SEP], [CLS, 7, SEP, PAD, PAD], [CLS, SEP, PAD, PAD, PAD]])


def allowed(rules, tokens, lengths):
    """Return the tokens that can follow each hypothesis; check that these keep their log-probabilities."""
    tokens = torch.tensor(tokens, dtype=torch.int64).view(len(lengths), -1, len(tokens[0]) if tokens else 0)
    log_probs = torch.randn(len(lengths), 1, VOCAB).log_softmax(dim=-1)
    before = log_probs.clone()
    rules.apply(log_probs, tokens, torch.tensor(lengths))
    kept = log_probs > -math.inf
    assert log_probs[kept].equal(before[kept])
    return [row.nonzero().squeeze(1).tolist() for row in kept.squeeze(1)]


def rules(prefix=None, source=SOURCE, **options):
    return TokenRules(tiny_form(), SearchOptions(**options), source, prefix)


def test_limits_of_length():
    found = rules(max_len_a=1.0, max_len_b=2)
    # 5 + 2, 3 + 2, and 0 for an empty source.
    assert found.max_len.tolist() == [7, 5, 0]
    assert (found.shortest_limit, found.longest_limit) == (0, 7)
    assert rules().max_len.tolist() == [15, 15, 0], "the model's own limit"
    found.keep_sentences(torch.tensor([0, 1]))
    assert found.shortest_limit == 5


def test_forbidden_tokens_and_the_shortest_length():
    found = rules(never_generated=(PAD, UNK, CLS, MASK), min_len=2, source=SOURCE[:2])
    assert allowed(found, [[PAD, 7], [8, 9]], [1, 2]) == [[5, 6, 7, 8, 9], [SEP, 5, 6, 7, 8, 9]]


def test_eos_at_the_longest_length():
    everything = list(range(VOCAB))
    found = rules(max_len_b=2, min_len=0, never_generated=())
    assert allowed(found, [[7, 8], [PAD, 8], [PAD, PAD]], [2, 1, 0]) == [[SEP], everything, [SEP]]
    found = rules(max_len_b=2, min_len=0, keep_unfinished=True)
    assert allowed(found, [[7, 8], [PAD, 8], [PAD, PAD]], [2, 1, 0]) == [everything, everything, [SEP]]


def test_prefixes_override_forbidden_tokens():
    prefix = torch.tensor([[UNK, 9], [6, PAD], [7, 7]])
    found = rules(prefix, never_generated=(UNK,), min_len=0)
    others = [token for token in range(VOCAB) if token != UNK]
    assert allowed(found, [[PAD], [6], [PAD]], [0, 1, 0]) == [[UNK], others, [SEP]]
    assert allowed(found, [[5, UNK], [6, 7], [5, 5]], [1, 2, 2]) == [[9], others, [SEP]]
    found.keep_sentences(torch.tensor([1]))
    assert allowed(found, [[PAD]], [0]) == [[6]]


def test_repeated_ngrams():
    found = rules(no_repeat_ngram_size=2, min_len=0, source=SOURCE[:2])
    without = [token for token in range(VOCAB) if token != 8]
    assert allowed(found, [[7, 8, 7], [PAD, PAD, 7]], [3, 1]) == [without, list(range(VOCAB))]


# The mean probability of several models


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
@pytest.mark.parametrize("models", [1, 2, 3])
def test_mean_of_probabilities(models, temperature):
    logits = [torch.randn(2, 3, 7, dtype=torch.float64) for _ in range(models)]
    expected = sum((scores / temperature).softmax(dim=-1) for scores in logits) / models
    found = next_log_probs(logits, temperature)
    torch.testing.assert_close(found.exp().double(), expected, atol=1e-6, rtol=1e-5)


def test_in_float32_and_not_in_place():
    logits = torch.randn(2, 1, 5, dtype=torch.bfloat16)
    before = logits.clone()
    found = next_log_probs([logits], 1.0)
    assert found.dtype == torch.float32
    found.fill_(0)
    assert logits.equal(before)


# Candidates


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


def keys(sentences, hypotheses):
    """Return a key for each draw."""
    return SampleDraws(1, np.arange(sentences)).keys(np.arange(sentences)[:, None], 0, np.arange(hypotheses))


def test_every_hypothesis_gets_one_sampled_token():
    torch.manual_seed(0)
    log_probs = torch.randn(4, 5, 8).log_softmax(dim=-1)
    scores = torch.randn(4, 5)
    found = sampled_candidates(log_probs, scores, SearchOptions(beam=5), keys(4, 5))
    assert (found.beams == torch.arange(5)).all()
    drawn = log_probs.gather(2, found.tokens.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(found.scores, scores + drawn)
    assert len(set(found.tokens.flatten().tolist())) > 1


def test_one_hypothesis_branches_into_as_many_as_there_are_beams():
    torch.manual_seed(0)
    log_probs = torch.randn(3, 1, 8).log_softmax(dim=-1)
    found = sampled_candidates(log_probs, torch.full((3, 1), -2.0), SearchOptions(beam=6), keys(3, 6))
    assert found.tokens.shape == (3, 6)
    assert not found.beams.any()
    torch.testing.assert_close(found.scores, log_probs.squeeze(1).gather(1, found.tokens) - 2)
    best = beam_candidates(log_probs, torch.zeros(3, 1), 2)
    assert best.tokens.tolist() == log_probs.squeeze(1).topk(4).indices.tolist()


def sampled_tokens(probabilities, top_k, top_p, draws=2000):
    torch.manual_seed(0)
    log_probs = torch.tensor(probabilities).log().expand(1, draws, len(probabilities))
    options = SearchOptions(beam=draws, sampling_topk=top_k, sampling_topp=top_p)
    return set(sampled_candidates(log_probs, torch.zeros(1, draws), options, keys(1, draws)).tokens.flatten().tolist())


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


def test_the_nucleus_holds_allowed_tokens_only():
    """Half of the probability is forbidden: of the rest, 0.3 is 60 %, which alone reaches p."""
    log_probs = torch.tensor([0.5, 0.3, 0.2]).log()
    log_probs[0] = float("-inf")
    torch.manual_seed(0)
    options = SearchOptions(beam=500, sampling_topp=0.55)
    found = sampled_candidates(log_probs.expand(1, 500, 3), torch.zeros(1, 500), options, keys(1, 500))
    assert set(found.tokens.flatten().tolist()) == {1}
    # The score is still the model's.
    torch.testing.assert_close(found.scores, torch.full((1, 500), 0.3).log())


def test_a_token_of_no_probability_can_be_the_only_one():
    log_probs = torch.full((1, 2, 4), float("-inf"))
    log_probs[..., 2] = -500.0
    found = sampled_candidates(log_probs, torch.zeros(1, 2), SearchOptions(beam=2, sampling_topp=0.9), keys(1, 2))
    assert found.tokens.tolist() == [[2, 2]]
    assert found.scores.tolist() == [[-500.0, -500.0]]


@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("spread", [0.0, 1.0, 8.0])
def test_nucleus(top_p, spread, monkeypatch):
    """Compare with sorting, for a search among few tokens and by bisection; equal probabilities stay together."""
    torch.manual_seed(1)
    probs = (spread * torch.randn(3, 2, 40)).softmax(dim=-1)
    ordered = probs.double().sort(dim=-1, descending=True).values
    before = ordered.cumsum(dim=-1) - ordered
    # Where rounding decides whether a token is needed, both bounds are right.
    least, most = (
        ordered.masked_fill(before >= bound, 2.0).min(dim=-1, keepdim=True).values
        for bound in (top_p - 1e-5, top_p + 1e-5)
    )
    for among in (MOST_IN_NUCLEUS, 1):
        monkeypatch.setattr(rules_module, "MOST_IN_NUCLEUS", among)
        found = least_of_nucleus(probs, top_p)
        assert found.shape == (3, 2, 1)
        # If all tokens are needed, the bound can be any value below them.
        assert ((found <= least) & ((found >= most) | (top_p == 1))).all()
