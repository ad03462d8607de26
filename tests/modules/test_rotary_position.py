"""Rotary positions against complex numbers, and what makes them positions: scores know distances alone."""

import pytest
import torch
from dense_reference import turned

from s2sft_fairseq.modules.rotary_position import rotate, rotation_at

HEADS, SIZE = 3, 8
POSITIONS = torch.tensor([[0, 1, 2, 5, 5], [900, 3, 0, 8191, 64]])


@pytest.mark.parametrize("base", [10.0, 10000.0, 160000.0])
def test_turns_are_products_of_complex_numbers(base):
    """Queries and keys of a packed batch, or of the new tokens of several sentences."""
    x = torch.randn(*POSITIONS.shape, 2, HEADS, SIZE, dtype=torch.float64)
    ours = rotate(x, rotation_at(POSITIONS, SIZE, base, x.dtype))
    for example, places in enumerate(POSITIONS.tolist()):
        packed = rotate(x[example], rotation_at(POSITIONS[example], SIZE, base, x.dtype))
        torch.testing.assert_close(packed, ours[example], atol=0, rtol=0)
        for which in range(2):
            for head in range(HEADS):
                expected = turned(x[example, :, which, head], places, base)
                torch.testing.assert_close(ours[example, :, which, head], expected)


def test_scores_know_distances_alone():
    torch.manual_seed(0)
    # One token, as query and as key, one head.
    x = torch.randn(1, 2, 1, SIZE, dtype=torch.float64)

    def score(query_position, key_position):
        query, key = (
            rotate(x, rotation_at(torch.tensor([place]), SIZE, 100.0, x.dtype))[0, which, 0]
            for which, place in enumerate((query_position, key_position))
        )
        return (query @ key).item()

    assert score(7, 3) == pytest.approx(score(2004, 2000))
    assert score(7, 3) != pytest.approx(score(3, 7), abs=1e-3)
    assert score(5, 5) == pytest.approx((x[0, 0] * x[0, 1]).sum().item())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_that_of_the_result_alone(dtype):
    """Angles are in float32: bfloat16 could not tell position 8191 from 8192."""
    x = torch.randn(*POSITIONS.shape, 2, HEADS, SIZE).to(dtype)
    ours = rotate(x, rotation_at(POSITIONS, SIZE, 10000.0, dtype))
    assert ours.dtype == dtype
    expected = rotate(x.double(), rotation_at(POSITIONS, SIZE, 10000.0, torch.float64))
    torch.testing.assert_close(ours.double(), expected, atol=0.002, rtol=torch.finfo(dtype).eps)
