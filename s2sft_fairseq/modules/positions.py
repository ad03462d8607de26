"""Positions in the attention scores: relative position bias and rotary positions.

The relative position bias has T5's buckets, as in UniLMv2 and s2s-ft. Rotary positions (RoFormer, arXiv 2104.09864)
rotate queries and keys by an angle that grows with the position. A score then depends only on the distance of query and
key, so that there is no position table and no largest position.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn


def relative_position_bucket(distance: Tensor, num_bins: int, max_distance: int) -> Tensor:
    """Map distances, position of the key minus position of the query, to bins.

    The upper half of the bins is for keys after the query. In each half the first ``num_bins // 4`` distances have
    their own bins; larger distances share bins of logarithmically growing width up to ``max_distance``.

    Shape:
        any, integer -> the same shape.
    """
    half = num_bins // 2
    exact = half // 2
    magnitude = distance.abs()
    scale = (half - exact) / math.log(max_distance / exact)
    # Clamp small distances to avoid log(0): they have their own bins anyway.
    coarse = exact + (torch.log(magnitude.clamp(min=exact).float() / exact) * scale).long()
    bin_of_magnitude = torch.where(magnitude < exact, magnitude, coarse.clamp(max=half - 1))
    return bin_of_magnitude + half * (distance > 0)


class RelativePositionBias(nn.Module):
    """One table of biases for all layers, added to the attention scores after their scaling by 1/sqrt(d)."""

    def __init__(self, num_heads: int, num_bins: int, max_distance: int, locality: float = 0.0) -> None:
        """Initialize the biases.

        Args:
            num_heads: heads, each with its own biases.
            num_bins: bins of distances, an even number.
            max_distance: distances from this one on share the last bin.
            locality: how much smaller the initial bias is from each bin to the next. With 1, attention weights fall by
                a factor of e per bin. A token itself has the bias of its neighbours.
        """
        super().__init__()
        self.num_bins, self.max_distance = num_bins, max_distance
        weight = torch.empty(num_heads, num_bins).normal_(std=0.02)
        self.weight = nn.Parameter(weight - locality * torch.arange(num_bins // 2).clamp(min=1).repeat(2))

    def bucket(self, distance: Tensor) -> Tensor:
        """Map distances, position of the key minus position of the query, to bins, (...) -> (...)."""
        return relative_position_bucket(distance, self.num_bins, self.max_distance)

    def forward(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """Look up the bias from position ids, so that a placeholder has the bias of the token that it stands for.

        Shape:
            (..., Q), (..., K) -> (..., h, Q, K). Q: queries, K: keys, h: heads.
        """
        distance = key_positions.unsqueeze(-2) - query_positions.unsqueeze(-1)
        # (h, bins) -> (bins, h), looked up -> (..., Q, K, h) -> (..., h, Q, K); contiguous, as every layer reads it
        return nn.functional.embedding(self.bucket(distance), self.weight.t()).movedim(-1, -3).contiguous()


class Rotation(NamedTuple):
    """The rotations at some positions, as the cosines and sines of their angles, each (..., 1, 1, d / 2).

    d: width of a head. The data type is float32 or wider, independent of that of the layers.
    """

    cos: Tensor
    sin: Tensor


def rotation_at(positions: Tensor, head_dim: int, base: float, dtype: torch.dtype, *, scaling: str = "") -> Rotation:
    """Compute the rotations: pair ``i`` of a head's dimensions rotates by ``position / base ** (2 * i / d)``.

    Args:
        positions: position ids (...).
        head_dim: width of a head, d.
        base: the base.
        dtype: data type of the layers.
        scaling: makes the rotations slower, see `scaled`; empty: it does not.
    """
    dtype = torch.promote_types(dtype, torch.float32)
    exponents = torch.arange(0, head_dim, 2, device=positions.device, dtype=dtype) / head_dim
    frequencies = base**-exponents
    if scaling:
        frequencies = scaled(frequencies, scaling)
    # (...) -> (..., 1, 1, 1), times (d / 2,)
    angles = positions[..., None, None, None] * frequencies
    return Rotation(angles.cos(), angles.sin())


SCALINGS = {"linear": 1, "llama3": 4}
"""Kinds of scaling, each with its number of settings."""


def scaled(frequencies: Tensor, scaling: str) -> Tensor:
    """Make rotations slower, so that positions beyond those of pre-training have angles that are known from it.

    ``linear:FACTOR`` divides all frequencies (Chen et al. 2023, arXiv 2306.15595). ``llama3:FACTOR:LOW:HIGH:ORIGINAL``
    divides only low ones: those that turn at most LOW times in the ORIGINAL positions. It keeps those that turn HIGH
    times or more, and interpolates between them (Llama 3.1, arXiv 2407.21783).

    Args:
        frequencies: angles between neighboring positions (d / 2,).
        scaling: the kind and its settings.
    """
    kind, *settings = scaling.split(":")
    factor, *others = map(float, settings)
    if kind == "linear":
        return frequencies / factor
    low, high, original = others
    turns = frequencies * original / (2 * math.pi)
    unchanged = ((turns - low) / (high - low)).clamp(0, 1)
    return torch.lerp(frequencies / factor, frequencies, unchanged)


def scaling_problem(scaling: str) -> str | None:
    """Return what is wrong with a scaling of rotations; None: nothing."""
    if not scaling:
        return None
    kind, *settings = scaling.split(":")
    form = f"must be linear:FACTOR or llama3:FACTOR:LOW:HIGH:ORIGINAL, but is {scaling:.60}"
    if SCALINGS.get(kind) != len(settings):
        return form
    try:
        numbers = [float(each) for each in settings]
    except ValueError:
        return form
    if not all(math.isfinite(each) and each > 0 for each in numbers):
        return f"must have positive numbers, but is {scaling:.60}"
    if kind == "llama3" and numbers[1] >= numbers[2]:
        return f"must have LOW below HIGH, but is {scaling:.60}"
    return None


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotate queries and keys; dimensions ``i`` and ``i + d / 2`` of a head are a pair.

    Shape:
        (..., 2, h, d) -> (..., 2, h, d). h: heads.
    """
    first, second = x.chunk(2, dim=-1)
    cos, sin = rotation
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)
