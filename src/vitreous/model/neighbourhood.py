"""Attention within a window: every patch looks at those near it, and at class token and registers.

Tile by tile, without the full matrix, where that saves work; else by the full matrix with a mask. Both give the same.
Letters in shapes: B images, h heads, T tokens (prefix, then patches), N patches, d = D/h, t tiles.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.model.attention_window import AttentionWindow, Grid, Tiles, tiles_of
from vitreous.model.layers import attend
from vitreous.model.position import Layout


def attend_within(
    window: AttentionWindow, layout: Layout, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, explicit: bool
) -> tuple[Tensor, Tensor | None]:
    """As `attend`, of tokens (B, h, T, d) that see no patch beyond their window: its attention there is 0.

    Where the matrix is wanted, where a bias is added to it, and where patches are left out, it is computed whole.
    """
    queries = q.shape[2]
    if window.covers(layout.grid) or queries <= layout.prefix:  # tokens without a place see everything
        return attend(q, k, v, bias, explicit)
    tiles = None if explicit or bias is not None or layout.keep_ids is not None else tiles_of(window, layout.grid)
    if tiles is not None and queries == k.shape[2]:
        return _attend_tiles(tiles, window, layout, q, k, v).transpose(1, 2).flatten(2), None
    unseen = ~window_mask(window, layout, q.device)[:, :, :queries]
    bias = torch.zeros_like(unseen, dtype=q.dtype) if bias is None else bias
    return attend(q, k, v, bias.masked_fill(unseen, float("-inf")), explicit)


def window_mask(window: AttentionWindow, layout: Layout, device: torch.device | None = None) -> Tensor:
    """(1 or B, 1, T, T) bool: which token (row) sees which (column)."""
    rows, columns = layout.grid
    cells = torch.arange(rows * columns, device=device)[None] if layout.keep_ids is None else layout.keep_ids
    near = _near(cells // columns, cells // columns, window.rows)
    near = near & _near(cells % columns, cells % columns, window.columns)
    tokens = layout.prefix + cells.shape[1]
    mask = torch.ones(len(cells), 1, tokens, tokens, dtype=torch.bool, device=device)
    mask[:, 0, layout.prefix :, layout.prefix :] = near
    return mask


def _attend_tiles(tiles: Tiles, window: AttentionWindow, layout: Layout, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """What each token reads, (B, h, T, d)."""
    prefix, count = layout.prefix, tiles.count[0] * tiles.count[1]
    asking = _cut_tiles(q[:, :, prefix:], layout.grid, tiles, (0, 0))
    keys, values = (_cut_tiles(x[:, :, prefix:], layout.grid, tiles, tiles.halo) for x in (k, v))
    if prefix:
        everywhere = [x[:, :, :prefix].flatten(0, 1)[:, None].expand(-1, count, -1, -1) for x in (k, v)]
        keys, values = (torch.cat(pair, dim=2) for pair in zip(everywhere, (keys, values), strict=True))
    mask = _tile_mask(tiles, window, layout.grid, prefix, q.device)
    read = F.scaled_dot_product_attention(asking, keys, values, attn_mask=mask)  # (B * h, t, queries, d)
    patches = _join_tiles(read, layout.grid, tiles).view(*q.shape[:2], -1, q.shape[3])
    if not prefix:
        return patches
    return torch.cat([F.scaled_dot_product_attention(q[:, :, :prefix], k, v), patches], dim=2)


def _cut_tiles(x: Tensor, grid: Grid, tiles: Tiles, halo: Grid) -> Tensor:
    """(B, h, N, d) to (B * h, t, patches of a tile with this halo, d); zeros beyond the grid."""
    x = x.reshape(-1, *grid, x.shape[3])  # (B * h, rows, columns, d)
    (down, right), (up, left) = _overhang(grid, tiles), halo
    if down or right or up or left:
        x = F.pad(x, (0, 0, left, left + right, up, up + down))
    for axis in (0, 1):
        x = x.unfold(1 + axis, tiles.side[axis] + 2 * halo[axis], tiles.side[axis])
    return x.permute(0, 1, 2, 4, 5, 3).flatten(3, 4).flatten(1, 2)


def _join_tiles(x: Tensor, grid: Grid, tiles: Tiles) -> Tensor:
    """(B * h, t, patches of a tile, d) to (B * h, N, d)."""
    x = x.view(x.shape[0], *tiles.count, *tiles.side, -1)  # (B * h, tiles down, tiles across, rows, columns, d)
    x = x.transpose(2, 3).flatten(3, 4).flatten(1, 2)
    return x[:, : grid[0], : grid[1]].flatten(1, 2)


def _tile_mask(tiles: Tiles, window: AttentionWindow, grid: Grid, prefix: int, device: torch.device) -> Tensor | None:
    """(1, t, queries, prefix + keys) bool: what each patch of a tile sees; None if all that there is.

    A patch beyond the grid sees everything. Nobody reads what it finds, but without anything to see it would find no
    number, which spoils gradients.
    """
    if not any(tiles.halo) and not any(_overhang(grid, tiles)):
        return None
    axes = [_axis_mask(tiles, window, grid, axis, device) for axis in (0, 1)]
    (down, rows, seen_rows), (across, columns, seen_columns) = (mask.shape for mask in axes)
    mask = axes[0].view(down, 1, rows, 1, seen_rows, 1) & axes[1].view(1, across, 1, columns, 1, seen_columns)
    beyond = [_positions(tiles, axis, 0, device) >= grid[axis] for axis in (0, 1)]
    mask = mask | beyond[0].view(down, 1, rows, 1, 1, 1) | beyond[1].view(1, across, 1, columns, 1, 1)
    mask = mask.reshape(1, down * across, rows * columns, seen_rows * seen_columns)
    return F.pad(mask, (prefix, 0), value=True)


def _axis_mask(tiles: Tiles, window: AttentionWindow, grid: Grid, axis: int, device: torch.device) -> Tensor:
    """(tiles, side, side + 2 halo) bool: which rows (or columns) of the grid a patch in each row of a tile sees."""
    asking, seen = (_positions(tiles, axis, halo, device) for halo in (0, tiles.halo[axis]))
    return _near(asking, seen, window[axis]) & ((seen >= 0) & (seen < grid[axis]))[:, None]


def _positions(tiles: Tiles, axis: int, halo: int, device: torch.device) -> Tensor:
    """(tiles, side + 2 halo): the rows (or columns) of the grid that each tile has."""
    start = torch.arange(tiles.count[axis], device=device) * tiles.side[axis] - halo
    return start[:, None] + torch.arange(tiles.side[axis] + 2 * halo, device=device)


def _near(asking: Tensor, seen: Tensor, limit: int | None) -> Tensor:
    """(X, n, m) bool: which places (X, n) and (X, m) along an axis are within the limit of each other."""
    apart = (asking[:, :, None] - seen[:, None]).abs()
    return torch.ones_like(apart, dtype=torch.bool) if limit is None else apart <= limit


def _overhang(grid: Grid, tiles: Tiles) -> Grid:
    """Rows and columns by which the tiles go beyond the grid."""
    return tiles.count[0] * tiles.side[0] - grid[0], tiles.count[1] * tiles.side[1] - grid[1]
