"""The slow referee: what happens to the answer when a part of the picture is not there.

Patches are left out, not painted over: a ViT takes any set of patches, and so sees no grey square that no picture ever
had ("Missingness Bias in Model Debugging", Jain et al.).
"""

from __future__ import annotations

import torch
from torch import Tensor

from vitreous.explain.relevance import evidence
from vitreous.model.network import LeavesPatchesOut

BATCH = 32


def occlusion_maps(
    model: LeavesPatchesOut,
    images: Tensor,
    targets: Tensor | None,
    *,
    window: int | None = None,
    stride: int | None = None,
) -> tuple[Tensor, Tensor]:
    """((B, rows, columns), scores (B, K)): how much evidence for the class is lost without each patch's surroundings.

    A window of `window` x `window` patches moves in steps of `stride`; a patch gets the mean loss of log-odds of the
    windows that hide it, and 0 where hiding it helps. Unless said otherwise, a window has two sevenths of the grid's
    shorter side and moves by three quarters of its own: 25 positions on 14 x 14 patches.
    """
    with torch.inference_mode():
        scores: Tensor = model(images)
        targets = scores.argmax(dim=1) if targets is None else targets
        grid = model.patch_grid((images.shape[2], images.shape[3]))
        window = window or max(1, round(min(grid) * 2 / 7))
        hidden = windows(grid, window, stride or max(1, window * 3 // 4))
        whole = evidence(scores, targets)
        lost = torch.stack([_lost(model, images[i : i + 1], targets[i], whole[i], hidden) for i in range(len(images))])
    counts = hidden.sum(dim=0)
    return (lost @ hidden.float() / counts).clamp(min=0).reshape(-1, *grid), scores


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


def _lost(model: LeavesPatchesOut, image: Tensor, target: Tensor, whole: Tensor, hidden: Tensor) -> Tensor:
    """(W,) the evidence that one picture loses with each window hidden."""
    visible = (~hidden).nonzero()[:, 1].reshape(len(hidden), -1)
    found = [
        evidence(model(image.expand(len(keep), -1, -1, -1), keep=keep), target.expand(len(keep)))
        for keep in torch.split(visible, BATCH)
    ]
    return whole - torch.cat(found)
