"""Rotary positions against complex numbers, and what makes them positions: scores know distances alone."""

import pytest
import torch
from dense_reference import turned

from s2sft_fairseq.modules.rotary_position import rotate, rotation_at

EXAMPLES, HEADS, SIZE = 2, 3, 8
POSITIONS = torch.tensor([[0, 1, 2, 5, 5], [900, 3, 0, 8191, 64]])


@pytest.mark.parametrize("base", [10.0, 10000.0, 160000.0])
def test_turns_are_products_of_complex_numbers(base):
    x = torch.randn(EXAMPLES, HEADS, POSITIONS.size(1), SIZE, dtype=torch.float64)
    ours = rotate(x, rotation_at(POSITIONS, SIZE, base, x.dtype))
    for example, places in enumerate(POSITIONS.tolist()):
        for head in range(HEADS):
            torch.testing.assert_close(ours[example, head], turned(x[example, head], places, base))


def test_scores_know_distances_alone():
    torch.manual_seed(0)
    query, key = torch.randn(2, 1, 1, 1, SIZE, dtype=torch.float64)

    def score(query_position, key_position):
        query_turn, key_turn = (
            rotation_at(torch.tensor([[place]]), SIZE, 100.0, query.dtype) for place in (query_position, key_position)
        )
        return (rotate(query, query_turn) * rotate(key, key_turn)).sum().item()

    assert score(7, 3) == pytest.approx(score(2004, 2000))
    assert score(7, 3) != pytest.approx(score(3, 7), abs=1e-3)
    assert score(5, 5) == pytest.approx((query * key).sum().item())


def test_queries_and_keys_can_be_turned_together():
    both = torch.randn(2, EXAMPLES, HEADS, POSITIONS.size(1), SIZE)
    rotation = rotation_at(POSITIONS, SIZE, 100.0, both.dtype)
    torch.testing.assert_close(rotate(both, rotation), torch.stack([rotate(x, rotation) for x in both]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_that_of_the_result_alone(dtype):
    """Angles are in float32: bfloat16 could not tell position 8191 from 8192."""
    x = torch.randn(EXAMPLES, HEADS, POSITIONS.size(1), SIZE).to(dtype)
    ours = rotate(x, rotation_at(POSITIONS, SIZE, 10000.0, dtype))
    assert ours.dtype == dtype
    expected = rotate(x.double(), rotation_at(POSITIONS, SIZE, 10000.0, torch.float64))
    torch.testing.assert_close(ours.double(), expected, atol=0.002, rtol=torch.finfo(dtype).eps)
