"""Where a patch is: the position embeddings that the paper compares (appendix D.4), and how they move to another grid.

A grid is (rows, columns). A table lists a grid's cells row by row.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.config.model import Resampling, ViTConfig

if TYPE_CHECKING:
    from vitreous.model.rope import Rotation

Grid = tuple[int, int]


class Layout(NamedTuple):
    """How a sequence of tokens lies on the image."""

    grid: Grid
    prefix: int  # class and register tokens, which come first and have no place
    keep_ids: Tensor | None  # (B, K) cells whose patch tokens are in the sequence, in its order; None for all of them
    rotation: Rotation | None = None  # of queries and keys, with rotary positions


def draw_cells(images: int, grid: Grid, fraction: float, uniform: Tensor | None = None) -> Tensor:
    """A random fraction of a grid's cells for each image, one at least: (B, K) cells, in random order.

    uniform: (B, N) random numbers whose order decides; None: torch's generator.
    """
    cells = grid[0] * grid[1]
    uniform = torch.rand(images, cells) if uniform is None else uniform
    return uniform.argsort(dim=1, stable=True)[:, : max(1, round(fraction * cells))]


def take_cells(values: Tensor, cells: Tensor) -> Tensor:
    """(B, N, X) at cells (B, M): (B, M, X)."""
    return values.gather(1, cells[:, :, None].expand(-1, -1, values.shape[2]))


def resample_grid(table: Tensor, old: Grid, new: Grid, how: Resampling) -> Tensor:
    """A table (old rows x columns, D) seen from another grid: (new rows x columns, D). Same grid, same table."""
    if old == new:
        return table
    cells = table.float().reshape(1, *old, -1).permute(0, 3, 1, 2)  # (1, D, rows, columns)
    if how == "bilinear":
        cells = F.interpolate(cells, new, mode="bilinear", align_corners=True)
    else:
        cells = F.interpolate(cells, new, mode="bicubic", antialias=how == "bicubic")
    return cells.permute(0, 2, 3, 1).reshape(new[0] * new[1], -1).to(table.dtype)


def resample_axis(table: Tensor, new: int, how: Resampling) -> Tensor:
    """One axis of a learned 2-D embedding, (old, D/2), at another length: (new, D/2)."""
    return resample_grid(table, (len(table), 1), (new, 1), how)


def learned_2d(rows: Tensor, columns: Tensor, grid: Grid, how: Resampling) -> Tensor:
    """Positions (rows x columns, D) of a grid from what was learned for rows and for columns, (old, D/2) each."""
    return join_axes(resample_axis(rows, grid[0], how), resample_axis(columns, grid[1], how))


def join_axes(rows: Tensor, columns: Tensor) -> Tensor:
    """Of each cell (rows x columns, D) the column's half-embedding (X), then the row's (Y)."""
    shape = (len(rows), len(columns), rows.shape[1])
    return torch.cat([columns[None, :].expand(shape), rows[:, None].expand(shape)], dim=-1).flatten(0, 1)


def sincos_2d(grid: Grid, width: int, trained: Grid | None = None) -> Tensor:
    """Fixed positions (rows x columns, D), as in MAE: sines and cosines of the column, then of the row, D/4 of each.

    On a grid other than the one trained on, cells keep their place in the image: the formula is evaluated between
    the trained cells instead of being continued beyond them.
    """
    frequency = 10_000.0 ** -(torch.arange(width // 4, dtype=torch.float64) / (width // 4))

    def waves(axis: int) -> Tensor:
        cell = torch.arange(grid[axis], dtype=torch.float64)
        if trained is not None:
            cell = (cell + 0.5) * trained[axis] / grid[axis] - 0.5
        angle = cell[:, None] * frequency
        return torch.cat([angle.sin(), angle.cos()], dim=1)

    return join_axes(waves(0), waves(1)).float()


def sincos_like(tensor: Tensor, grid: Grid, width: int, trained: Grid) -> Tensor:
    """`sincos_2d` on a tensor's device and in its precision: computed once for each, so not to be changed in place."""
    if torch.compiler.is_compiling():  # what is traced is no tensor to keep
        return sincos_2d(grid, width, trained).to(tensor)
    return _kept_sincos(grid, width, trained, tensor.device, tensor.dtype)


@lru_cache(maxsize=64)
def _kept_sincos(grid: Grid, width: int, trained: Grid, device: torch.device, dtype: torch.dtype) -> Tensor:
    with torch.inference_mode(False):  # training may ask for it next
        return sincos_2d(grid, width, trained).to(device, dtype)


class RelativeBias(nn.Module):
    """A learned number for every head and every 2-D offset between two patches, added to the attention logits.

    Three more entries serve the tokens without a place: prefix to patch, patch to prefix, prefix to prefix.
    """

    def __init__(self, heads: int, grid: Grid, resampling: Resampling) -> None:
        super().__init__()
        self.grid = grid
        self.resampling = resampling
        self.relative_position_bias_table = nn.Parameter(torch.zeros(offsets(grid) + 3, heads))

    def forward(self, layout: Layout) -> Tensor:
        """(1 or B, heads, T, T)."""
        rows, columns = layout.grid
        count = offsets(layout.grid)
        window = resample_grid(
            self.relative_position_bias_table[:-3], _window(self.grid), _window(layout.grid), self.resampling
        )
        table = torch.cat([window, self.relative_position_bias_table[-3:]])  # (offsets + 3, heads)

        cell = torch.arange(rows * columns, device=table.device)
        row, column = cell // columns, cell % columns
        index = (row[:, None] - row + rows - 1) * (2 * columns - 1) + column[:, None] - column + columns - 1  # (N, N)
        keep_ids = layout.keep_ids
        index = index[None] if keep_ids is None else index[keep_ids[:, :, None], keep_ids[:, None, :]]  # (1 or B, M, M)
        index = F.pad(index, (layout.prefix, 0, layout.prefix, 0), value=count + 2)
        index[:, : layout.prefix, layout.prefix :] = count
        index[:, layout.prefix :, : layout.prefix] = count + 1
        # not table[index]: its gradient is added up in another order each time, where there are several threads
        return F.embedding(index, table).permute(0, 3, 1, 2)


def offsets(grid: Grid) -> int:
    """How many 2-D offsets there are between two cells of a grid."""
    rows, columns = _window(grid)
    return rows * columns


def _window(grid: Grid) -> Grid:
    return 2 * grid[0] - 1, 2 * grid[1] - 1


def resample_patch(weight: Tensor, patch: int) -> Tensor:
    """A patch projection (D, C, P, P) for patches of another side: (D, C, patch, patch).

    With B the resize of a patch, as a matrix, the new kernels are the pseudo-inverse of B^T times the old ones
    (FlexiViT, equation 4): enlarged patches give exactly the old tokens, and shrunk ones the nearest there are.
    """
    if patch == weight.shape[-1]:
        return weight
    old = weight.shape[-1] ** 2
    basis = torch.eye(old, dtype=torch.float64).reshape(old, 1, *weight.shape[2:])
    B = F.interpolate(basis, (patch, patch), mode="bicubic", antialias=True).reshape(old, -1).T  # (new, old)
    kernels: Tensor = weight.double().flatten(2) @ torch.linalg.pinv(B)  # (D, C, new)
    return kernels.reshape(*weight.shape[:2], patch, patch).to(weight.dtype)


def resample_state(
    state: dict[str, Tensor], config: ViTConfig, image_size: tuple[int, int], patch: int | None = None
) -> tuple[dict[str, Tensor], ViTConfig]:
    """A model's tensors and configuration with its positions resampled, once and for all, to another resolution.

    patch: another side of a patch, which also changes the grid; None for the same.
    """
    new = config.resized(image_size, patch)
    how = config.position_resampling
    moved = dict(state)
    for name, tensor in state.items():
        if name == "pos_embed":
            prefix, cells = tensor[0, : config.prefix_positions], tensor[0, config.prefix_positions :]
            moved[name] = torch.cat([prefix, resample_grid(cells, config.grid, new.grid, how)])[None]
        elif name == "patch_embed.proj.weight":
            moved[name] = resample_patch(tensor, new.kernel[1])
        elif name in ("pos_embed_y", "pos_embed_x"):
            moved[name] = resample_axis(tensor, new.grid[name == "pos_embed_x"], how)
        elif name.endswith("relative_position_bias_table"):
            window = resample_grid(tensor[:-3], _window(config.grid), _window(new.grid), how)
            moved[name] = torch.cat([window, tensor[-3:]])
    return moved, new
