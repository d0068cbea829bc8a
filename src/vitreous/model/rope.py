"""Rotary positions (Su et al., "RoFormer"; along two axes as in EVA-02, Perception Encoder and DINOv3).

Queries and keys of patches are turned, pair by pair of their numbers, by angles that grow with the patch's row and
column; so their product depends on how far two patches lie apart. Letters in shapes: B images, N patches, T tokens,
h heads, d = D/h.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.config.model import ViTConfig
from vitreous.config.rope import Rope
from vitreous.model.position import Grid, take_cells


def rope_angles(rope: Rope, grid: Grid, prefix: int, head_width: int) -> Tensor:
    """(1, prefix + N, d/2) float32: the angles of each token's pairs of numbers; 0 for tokens without a place."""
    pairs = head_width // 4  # of each axis
    periods = rope.base ** (torch.arange(pairs, dtype=torch.float64) / pairs)
    if rope.bfloat16:
        periods = periods.bfloat16().double()
    rows, columns = (_coordinates(rope, grid, axis)[:, None] / periods for axis in (0, 1))
    shape = (*grid, pairs)
    axes = [rows[:, None].expand(shape), columns[None].expand(shape)]
    angles = torch.cat(axes[::-1] if rope.columns_first else axes, dim=2).flatten(0, 1)
    return F.pad(angles, (0, 0, prefix, 0)).float()[None]


def _coordinates(rope: Rope, grid: Grid, axis: int) -> Tensor:
    """p for each row, or column, of a grid."""
    cell = torch.arange(grid[axis], dtype=torch.float64)
    if rope.coordinates == "centres":
        return 2 * math.pi * ((2 * cell + 1) / grid[axis] - 1)
    return (cell + rope.offset) * (1.0 if rope.reference is None else rope.reference[axis] / grid[axis])


def rotation_of(c: ViTConfig, grid: Grid, keep_ids: Tensor | None, device: torch.device) -> Rotation | None:
    """That of all tokens, or of those of the patches `keep_ids` (B, M); None for a model without rotary positions."""
    if c.rope is None:
        return None
    angles = rope_angles(c.rope, grid, c.prefix, c.width // c.heads).to(device)
    if keep_ids is not None:
        angles = angles.expand(len(keep_ids), -1, -1)
        angles = torch.cat([angles[:, : c.prefix], take_cells(angles[:, c.prefix :], keep_ids)], dim=1)
    return Rotation.of(angles, c.rope.interleaved)


class Rotation(NamedTuple):
    """Turns queries and keys."""

    angles: Tensor  # (1 or B, T, d/2)
    cos: Tensor  # (1 or B, T, 1, d)
    sin: Tensor
    interleaved: bool

    @classmethod
    def of(cls, angles: Tensor, interleaved: bool) -> Rotation:
        """angles: (1 or B, T, d/2), of pairs (2 k, 2 k + 1) if interleaved, else of pairs (k, k + d/2)."""
        full = angles.repeat_interleave(2, dim=2) if interleaved else torch.cat([angles, angles], dim=2)
        return cls(angles, full.cos()[:, :, None], full.sin()[:, :, None], interleaved)

    def turn(self, x: Tensor, tokens: int | None = None) -> Tensor:
        """Queries or keys (B, T, h, d), or those of the first `tokens`, computed in float32."""
        if self.interleaved:
            turned = torch.stack([-x[..., 1::2], x[..., ::2]], dim=-1).flatten(-2)
        else:
            first, second = x.chunk(2, dim=-1)
            turned = torch.cat([-second, first], dim=-1)
        return (x * self.cos[:, :tokens] + turned * self.sin[:, :tokens]).to(x.dtype)
