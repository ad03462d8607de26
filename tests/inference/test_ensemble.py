"""The mean probability of several models."""

import pytest
import torch

from s2sft_fairseq.inference.rules import next_log_probs


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
