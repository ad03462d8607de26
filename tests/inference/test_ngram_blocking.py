"""No n-gram twice: the tensor version against plain Python."""

import numpy as np
import pytest
import torch
from naive_search import repeats_ngram

from s2sft_fairseq.inference.rules import forbid_repeats

VOCAB = 4
NONE = torch.tensor([], dtype=torch.int64)


@pytest.mark.parametrize("ignore", [(), (2,), (0, 3)])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_equals_plain_python(size, ignore):
    rng = np.random.default_rng(size)
    ignored = torch.tensor(ignore, dtype=torch.int64)
    forbidden_ones = 0
    for length in range(13):
        tokens = rng.integers(0, VOCAB, (150, length))
        log_probs = torch.randn(150, VOCAB)
        expected = log_probs.clone()
        for row, history in enumerate(tokens.tolist()):
            for candidate in range(VOCAB):
                if repeats_ngram(tuple(history), candidate, size, ignore):
                    expected[row, candidate] = float("-inf")
                    forbidden_ones += 1
        # (rows, ...) -> (sentences, hypotheses, ...)
        histories = torch.from_numpy(tokens).unflatten(0, (50, 3))
        forbid_repeats(log_probs.unflatten(0, (50, 3)), histories, size, ignored)
        torch.testing.assert_close(log_probs, expected, atol=0, rtol=0)
    assert forbidden_ones > 20


def test_what_was_forbidden_before_stays_forbidden():
    log_probs = torch.tensor([[0.0, float("-inf"), 0.0]])
    forbid_repeats(log_probs, torch.tensor([[2]]), 1, NONE)
    assert log_probs.tolist() == [[0.0, float("-inf"), float("-inf")]]


def test_the_rule_by_hand():
    log_probs = torch.zeros(3, 4)
    forbid_repeats(log_probs, torch.tensor([[1, 2, 1], [3, 2, 3], [1, 3, 1]]), 2, torch.tensor([3]))
    forbidden = torch.isinf(log_probs)
    # "1 2" came before: no second 2 behind 1. "3 2" came too, but 3 is ignored, first or last.
    assert forbidden.tolist() == [[False, False, True, False], [False] * 4, [False] * 4]


def test_a_token_that_completes_two_ngrams_of_which_one_repeats():
    log_probs = torch.zeros(2, 4)
    # "1 2" repeats behind 1, "0 2" does not; in either order.
    forbid_repeats(log_probs, torch.tensor([[0, 2, 1, 2, 1], [1, 2, 0, 2, 1]]), 2, NONE)
    assert torch.isinf(log_probs).tolist() == [[False, False, True, False]] * 2
