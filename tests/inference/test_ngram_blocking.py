"""Blocking of repeated n-grams, compared with plain Python."""

import numpy as np
import pytest
import torch
from naive_block_search import repeats
from naive_search import repeats_ngram
from tiny import MASK

from s2sft_fairseq.inference.ngram_blocking import MINUS_INFINITY, forbid_repeats, forbid_repeats_at

FEW = 4
NONE = torch.tensor([], dtype=torch.int64)


@pytest.mark.parametrize("ignore", [(), (2,), (0, 3)])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_repeats_as_in_plain_python(size, ignore):
    rng = np.random.default_rng(size)
    ignored = torch.tensor(ignore, dtype=torch.int64)
    forbidden_ones = 0
    for length in range(13):
        tokens = rng.integers(0, FEW, (150, length))
        log_probs = torch.randn(150, FEW)
        expected = log_probs.clone()
        for row, history in enumerate(tokens.tolist()):
            for candidate in range(FEW):
                if repeats_ngram(tuple(history), candidate, size, ignore):
                    expected[row, candidate] = float("-inf")
                    forbidden_ones += 1
        # (rows, ...) -> (sentences, hypotheses, ...)
        histories = torch.from_numpy(tokens).unflatten(0, (50, 3))
        forbid_repeats(log_probs.unflatten(0, (50, 3)), histories, size, ignored)
        torch.testing.assert_close(log_probs, expected, atol=0, rtol=0)
    assert forbidden_ones > 20


def test_forbidden_tokens_stay_forbidden():
    log_probs = torch.tensor([[0.0, float("-inf"), 0.0]])
    forbid_repeats(log_probs, torch.tensor([[2]]), 1, NONE)
    assert log_probs.tolist() == [[0.0, float("-inf"), float("-inf")]]


def test_the_rule_by_hand():
    log_probs = torch.zeros(3, 4)
    forbid_repeats(log_probs, torch.tensor([[1, 2, 1], [3, 2, 3], [1, 3, 1]]), 2, torch.tensor([3]))
    forbidden = torch.isinf(log_probs)
    # "1 2" came before: no second 2 after 1. "3 2" came too, but 3 is ignored, first or last.
    assert forbidden.tolist() == [[False, False, True, False], [False] * 4, [False] * 4]


def test_a_token_that_completes_a_repeated_and_a_new_ngram():
    log_probs = torch.zeros(2, 4)
    # "1 2" is repeated after 1, "0 2" is not; in either order.
    forbid_repeats(log_probs, torch.tensor([[0, 2, 1, 2, 1], [1, 2, 0, 2, 1]]), 2, NONE)
    assert torch.isinf(log_probs).tolist() == [[False, False, True, False]] * 2


def test_repeats_in_a_gap():
    """Compare with a loop over all tokens, with gaps anywhere."""
    rng = np.random.default_rng(5)
    for _ in range(50):
        size, width = int(rng.integers(1, 4)), int(rng.integers(1, 12))
        texts = rng.integers(0, 5, size=(3, width))
        places = rng.integers(0, width, size=3)
        texts[np.arange(3), places] = MASK
        log_probs = torch.zeros(3, 6)
        forbid_repeats_at(log_probs, torch.from_numpy(texts), torch.from_numpy(places), size, torch.tensor([MASK, 0]))
        for row, text, place in zip(log_probs.tolist(), texts.tolist(), places.tolist(), strict=True):
            forbidden = [token not in (MASK, 0) and repeats(text, place, token, size, {MASK, 0}) for token in range(6)]
            assert [value == MINUS_INFINITY for value in row] == forbidden
