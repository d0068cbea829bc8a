"""Occlusion: what happens to the prediction when a part of the image is missing.

A ViT takes any set of patches, so they are left out, not painted over: it sees no grey square that no image ever had
("Missingness Bias in Model Debugging", Jain et al.). For other networks, hybrids too, the square cannot be helped:
places are painted in the mean colour (Zeiler and Fergus 2014).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.config.data import Preprocess
from vitreous.data.augment import mean_colour
from vitreous.errors import UserError
from vitreous.explain.relevance import log_odds
from vitreous.model.network import LeavesPatchesOut, Network, can_leave_patches_out
from vitreous.model.predictions import predicted_class

BATCH = 32
CELLS = 14
"""Rows and columns, at most, into which an image is cut for a network that has no patches: as many as a ViT's."""


def occlusion_maps(
    model: Network | LeavesPatchesOut,
    images: Tensor,
    targets: Tensor | None,
    *,
    window: int | None = None,
    stride: int | None = None,
) -> tuple[Tensor, Tensor]:
    """((B, rows, columns), logits (B, K)): the loss of log-odds of the class without each patch and its neighbours.

    A window of `window` x `window` patches moves in steps of `stride`; a patch gets the mean loss of log-odds of the
    windows that hide it, and 0 where hiding it helps. Unless said otherwise, a window has two sevenths of the grid's
    shorter side and moves by three quarters of its own: 25 positions on 14 x 14 patches. For a network without patches,
    squares of pixels stand for them.
    """
    with torch.inference_mode():
        logits: Tensor = model(images)
        targets = predicted_class(logits) if targets is None else targets
        grid = occluded_grid(model, (images.shape[2], images.shape[3]))
        window = window or max(1, round(min(grid) * 2 / 7))
        hidden = windows(grid, window, stride or max(1, window * 3 // 4)).to(images.device)
        without = [
            log_odds(logits_without(model, image[None], part), target.expand(len(part)))
            for image, target in zip(images, targets, strict=True)
            for part in torch.split(hidden, BATCH)
        ]
        lost = log_odds(logits, targets)[:, None] - torch.cat(without).reshape(len(images), -1)
    counts = hidden.sum(dim=0)
    return (lost @ hidden.float() / counts).clamp(min=0).reshape(-1, *grid), logits


def occluded_grid(model: Network | LeavesPatchesOut, size: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of what can be hidden of an image (height, width): its patches, or squares of pixels."""
    return model.patch_grid(size) if isinstance(model, LeavesPatchesOut) else (min(CELLS, size[0]), min(CELLS, size[1]))


def check_several_patches(model: Network, size: tuple[int, int]) -> None:
    """Refuse a model that sees a single patch, or pixel."""
    if occluded_grid(model, size) == (1, 1):
        raise UserError("method occlusion: the model sees a single patch, so none can be left out; use another.")


def windows(grid: tuple[int, int], window: int, stride: int) -> Tensor:
    """(W, N) bool: the patches that each position of a window hides; the last of a row or column ends at the border."""
    sides = [min(window, side) for side in grid]
    starts = [
        sorted({*range(0, whole - side + 1, stride), whole - side}) for whole, side in zip(grid, sides, strict=True)
    ]
    hidden = torch.zeros(len(starts[0]), len(starts[1]), *grid, dtype=torch.bool)
    for i, top in enumerate(starts[0]):
        for j, left in enumerate(starts[1]):
            hidden[i, j, top : top + sides[0], left : left + sides[1]] = True
    return hidden.reshape(-1, grid[0] * grid[1])


def logits_without(model: Network | LeavesPatchesOut, image: Tensor, hidden: Tensor) -> Tensor:
    """(W, K): the logits of one image (1, C, H, W) without the patches of each row of `hidden` (W, N)."""
    if can_leave_patches_out(model):
        keep = (~hidden).nonzero()[:, 1].reshape(len(hidden), -1)
        return model(image.expand(len(keep), -1, -1, -1), keep_ids=keep)
    size = (image.shape[2], image.shape[3])
    cells = hidden.float().reshape(-1, 1, *occluded_grid(model, size))
    return model(image * (1 - F.interpolate(cells, size, mode="nearest")))  # 0 is the mean colour


def paint_over(view: Tensor, covered: Tensor, preprocess: Preprocess) -> Tensor:
    """The view (C, H, W) uint8 with covered cells (rows, columns) in the mean colour: for what only takes images."""
    cells = covered.float()[None, None]
    hidden = F.interpolate(cells, (view.shape[1], view.shape[2]), mode="nearest")[0] > 0
    return torch.where(hidden, mean_colour(preprocess)[:, None, None], view)
