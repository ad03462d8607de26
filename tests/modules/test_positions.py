"""Relative position buckets and bias compared with scalar computations in double precision; rotary positions with
complex numbers, and their main property: scores only depend on distances.
"""

import math

import pytest
import torch
from dense_reference import bucket, turned

from s2sft_fairseq.modules.positions import RelativePositionBias, relative_position_bucket, rotate, rotation_at

# UniLMv2, the golden recordings, T5, the smallest sizes, and sizes whose logarithmic bins begin at odd places.
TABLES = [(32, 128), (8, 16), (32, 256), (4, 8), (20, 100)]


@pytest.mark.parametrize(("bins", "furthest"), TABLES)
def test_buckets(bins, furthest):
    distances = range(-600, 601)
    ours = relative_position_bucket(torch.tensor(distances), bins, furthest).tolist()
    assert ours == [bucket(distance, bins, furthest) for distance in distances]


@pytest.mark.parametrize(("bins", "furthest"), TABLES)
def test_shape_of_the_buckets(bins, furthest):
    half, exact = bins // 2, bins // 4
    near = torch.arange(exact)
    assert relative_position_bucket(-near, bins, furthest).tolist() == near.tolist()
    assert relative_position_bucket(near[1:], bins, furthest).tolist() == (near[1:] + half).tolist()
    # They never decrease with the distance, all bins are used, and the last one has all distances from the furthest on.
    behind = relative_position_bucket(torch.arange(1, 3 * furthest), bins, furthest)
    assert (behind.diff() >= 0).all()
    assert set(behind.tolist()) == set(range(half + 1, bins))
    assert (behind[furthest - 1 :] == bins - 1).all()
    before = relative_position_bucket(-torch.arange(3 * furthest), bins, furthest)
    assert set(before.tolist()) == set(range(half))


def test_known_values_of_t5():
    """32 bins up to 128: 8 bins for 0 to 7 and 8 for 8 to 127, each 2 ** 0.5 times as wide as the one before."""
    edges = [8, *(math.ceil(8 * 2 ** (i / 2) - 1e-9) for i in range(1, 8))]
    assert edges == [8, 12, 16, 23, 32, 46, 64, 91]
    expected = {edge: 8 + i for i, edge in enumerate(edges)} | {edge - 1: 7 + i for i, edge in enumerate(edges)}
    for distance, bin_ in expected.items():
        assert relative_position_bucket(torch.tensor(-distance), 32, 128).item() == bin_
        assert relative_position_bucket(torch.tensor(distance), 32, 128).item() == bin_ + 16


def test_bias_is_looked_up_by_head_and_position():
    bias = RelativePositionBias(num_heads=3, num_bins=8, max_distance=16)
    torch.nn.init.normal_(bias.weight)
    queries, keys = torch.tensor([[3, 9], [0, 40]]), torch.tensor([[0, 3, 9, 9], [1, 0, 2, 60]])
    out = bias(queries, keys)
    assert out.shape == (2, 3, 2, 4)
    for example in range(2):
        for head in range(3):
            for i, query in enumerate(queries[example].tolist()):
                for j, key in enumerate(keys[example].tolist()):
                    assert out[example, head, i, j] == bias.weight[head, bucket(key - query, 8, 16)]


def test_initial_locality():
    """It falls from bin to bin on both sides; a token itself has the bias of a neighbour."""
    torch.manual_seed(0)
    bias = RelativePositionBias(num_heads=2, num_bins=8, max_distance=16, locality=3.0)
    torch.manual_seed(0)
    uniform = RelativePositionBias(num_heads=2, num_bins=8, max_distance=16)
    expected = torch.tensor([-3.0, -3.0, -6.0, -9.0] * 2).expand(2, -1)
    torch.testing.assert_close((bias.weight - uniform.weight).detach(), expected)


def test_bias_learns_from_every_pair():
    bias = RelativePositionBias(num_heads=2, num_bins=8, max_distance=16)
    positions = torch.arange(4).unsqueeze(0)
    bias(positions, positions).sum().backward()
    counts = torch.zeros(8)
    for query in range(4):
        for key in range(4):
            counts[bucket(key - query, 8, 16)] += 1
    torch.testing.assert_close(bias.weight.grad, counts.expand(2, 8))


HEADS, SIZE = 3, 8
POSITIONS = torch.tensor([[0, 1, 2, 5, 5], [900, 3, 0, 8191, 64]])


@pytest.mark.parametrize("base", [10.0, 10000.0, 160000.0])
def test_rotations_are_products_of_complex_numbers(base):
    """For queries and keys of a packed batch, and of new tokens of several sentences."""
    x = torch.randn(*POSITIONS.shape, 2, HEADS, SIZE, dtype=torch.float64)
    ours = rotate(x, rotation_at(POSITIONS, SIZE, base, x.dtype))
    for example, places in enumerate(POSITIONS.tolist()):
        packed = rotate(x[example], rotation_at(POSITIONS[example], SIZE, base, x.dtype))
        torch.testing.assert_close(packed, ours[example], atol=0, rtol=0)
        for which in range(2):
            for head in range(HEADS):
                expected = turned(x[example, :, which, head], places, base)
                torch.testing.assert_close(ours[example, :, which, head], expected)


def test_scaled_rotations_are_those_of_transformers():
    pytest.importorskip("transformers", reason="transformers is not installed")
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    positions = torch.tensor([[0, 1, 7, 100, 8191]])
    kinds = {
        "linear:8": {"rope_type": "linear", "factor": 8.0},
        "llama3:32:1:4:8192": {
            **{"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
            "original_max_position_embeddings": 8192,
        },
    }
    for scaling, settings in kinds.items():
        config = LlamaConfig(
            hidden_size=64, num_attention_heads=1, head_dim=64, rope_parameters={"rope_theta": 500000.0, **settings}
        )
        cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), positions)
        ours = rotation_at(positions, 64, 500000.0, torch.float32, scaling=scaling)
        plain = rotation_at(positions, 64, 500000.0, torch.float32)
        # Angles reach 8191, with the rounding errors of float32.
        torch.testing.assert_close(ours.cos.flatten(-3), cos[..., :32], atol=2e-3, rtol=0)
        torch.testing.assert_close(ours.sin.flatten(-3), sin[..., :32], atol=2e-3, rtol=0)
        assert (ours.sin - plain.sin).abs().max() > 0.1


def test_scores_depend_on_distances_only():
    torch.manual_seed(0)
    # One token, as the query and as the key, in one head.
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
def test_only_the_result_has_half_precision(dtype):
    """Angles are in float32: bfloat16 cannot tell position 8191 from 8192."""
    x = torch.randn(*POSITIONS.shape, 2, HEADS, SIZE).to(dtype)
    ours = rotate(x, rotation_at(POSITIONS, SIZE, 10000.0, dtype))
    assert ours.dtype == dtype
    expected = rotate(x.double(), rotation_at(POSITIONS, SIZE, 10000.0, torch.float64))
    torch.testing.assert_close(ours.double(), expected, atol=0.002, rtol=torch.finfo(dtype).eps)
