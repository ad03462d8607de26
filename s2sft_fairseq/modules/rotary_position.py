"""Rotary positions (RoFormer, arXiv 2104.09864): queries and keys are turned by an angle that grows with the position.

The score of two turned vectors depends on the distance of their positions alone, so that there is no position table and
no position that is too far.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Rotation(NamedTuple):
    """The turns at some positions, as the cosines and sines of their angles, each (..., 1, 1, d / 2).

    d: width of a head. In float32 or wider, whatever the layers compute in.
    """

    cos: Tensor
    sin: Tensor


def rotation_at(positions: Tensor, head_dim: int, base: float, dtype: torch.dtype) -> Rotation:
    """Work out the turns: pair ``i`` of a head's dimensions by ``position / base ** (2 * i / d)``.

    Shape:
        positions (...).
    """
    dtype = torch.promote_types(dtype, torch.float32)
    exponents = torch.arange(0, head_dim, 2, device=positions.device, dtype=dtype) / head_dim
    # (...) -> (..., 1, 1, 1), times (d / 2,)
    angles = positions[..., None, None, None] * base**-exponents
    return Rotation(angles.cos(), angles.sin())


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Turn queries or keys; dimensions ``i`` and ``i + d / 2`` of a head are a pair.

    Shape:
        (..., 2, h, d) -> the same. h: heads.
    """
    first, second = x.chunk(2, dim=-1)
    cos, sin = rotation
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)
