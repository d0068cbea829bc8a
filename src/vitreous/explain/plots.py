"""The paper's figure 7: what the patch filters look like, how alike positions are, and how far heads look.

Grey ink and no background, so that a figure reads on a light page and on a dark one.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from vitreous.config.model import grid_of
from vitreous.explain.attention import cell_distances
from vitreous.model.network import Network, has_stem
from vitreous.model.vit import ViT

INK = "#808080"
DOT = "#2a78d6"
FILTERS = 28
"""As many as the paper shows."""
MOST_CELLS = 16
"""Rows and columns of cells that a figure can show; of a larger grid, every second or third."""


def filter_components(model: Network, count: int = FILTERS) -> tuple[NDArray[np.float32], NDArray[np.float32]] | None:
    """The first principal components of the filters that look at the pixels, (count, P, P, C), and their shares.

    Each has length 1, and its share is that in the whole. Their sign means nothing; the largest number of each is made
    positive. None if no convolution looks at the pixels, channels together.
    """
    found = model.first_convolution()
    if found is None or found[1].groups != 1:
        return None
    weight = found[1].weight.detach().float()
    flat = weight.flatten(1)
    _, strength, components = torch.linalg.svd(flat - flat.mean(dim=0), full_matrices=False)
    components = components[:count]
    largest = components.gather(1, components.abs().argmax(dim=1, keepdim=True))
    shaped = (components * largest.sign()).reshape(-1, *weight.shape[1:]).permute(0, 2, 3, 1)
    shares = strength**2 / (strength**2).sum().clamp_min(torch.finfo(strength.dtype).tiny)
    return shaped.numpy(), shares[:count].numpy()


def position_similarity(model: ViT) -> NDArray[np.float32] | None:
    """(rows, columns, rows, columns): cosine of the position embeddings of every two cells; None if none are added."""
    cells = model.cell_positions(model.config.grid)
    if cells is None:
        return None
    directions = torch.nn.functional.normalize(cells.detach().float(), dim=1)
    return (directions @ directions.T).reshape(*model.config.grid, *model.config.grid).numpy()


def filters_figure(model: Network) -> Figure | None:
    """The principal components of the first layer's filters, strongest first, each scaled to its own range."""
    found = filter_components(model)
    if found is None:
        return None
    components, shares = found
    channels, said = components.shape[3], ""
    if channels not in (1, 3):  # no colours that could be drawn
        components, said = components.mean(axis=3, keepdims=True), f" (mean of {channels} channels)"
    count, height, width = components.shape[:3]
    columns, gap = 7, max(1, height // 8)
    rows = math.ceil(count / columns)
    page = np.ones((rows * (height + gap) - gap, columns * (width + gap) - gap, components.shape[3]), np.float32)
    mosaic = np.concatenate([page, np.zeros_like(page[:, :, :1])], axis=2)  # nothing is drawn between the filters
    for i, component in enumerate(components):
        top, left = i // columns * (height + gap), i % columns * (width + gap)
        reach = float(np.abs(component).max()) or 1.0
        tile = mosaic[top : top + height, left : left + width]
        tile[:, :, :-1], tile[:, :, -1] = component / (2 * reach) + 0.5, 1
    if mosaic.shape[2] == 2:  # one channel: grey
        mosaic = mosaic[:, :, [0, 0, 0, 1]]
    figure, axes = _axes(5.2, 0.5 + 5.2 * mosaic.shape[0] / mosaic.shape[1])
    axes.imshow(mosaic, interpolation="nearest")
    axes.set_axis_off()
    owner = "patch" if isinstance(model, ViT) and not has_stem(model) else "first layer's"
    axes.set_title(
        f"first {count} principal components of the {owner} filters{said}, {shares.sum():.0%} of their variance",
        color=INK,
        fontsize=9,
    )
    return figure


def positions_figure(model: ViT) -> Figure | None:
    """For each cell of the grid a small map: how alike its position is to every other; None where none are added."""
    alike = position_similarity(model)
    if alike is None:
        return None
    rows, columns = model.config.grid
    step = math.ceil(max(rows, columns) / MOST_CELLS)
    shown = alike[step // 2 :: step, step // 2 :: step]
    gap = max(1, rows // 10)
    mosaic = np.full((shown.shape[0] * (rows + gap) - gap, shown.shape[1] * (columns + gap) - gap), np.nan)
    for i, line in enumerate(shown):
        for j, cell in enumerate(line):
            top, left = i * (rows + gap), j * (columns + gap)
            mosaic[top : top + rows, left : left + columns] = cell
    figure, axes = _axes(5.2, 0.6 + 4.4 * mosaic.shape[0] / mosaic.shape[1])
    image = axes.imshow(mosaic, cmap="viridis", vmin=min(0.0, float(alike.min())), vmax=1, interpolation="nearest")
    places = np.arange(step // 2, columns, step), np.arange(step // 2, rows, step)
    axes.set_xticks(np.arange(shown.shape[1]) * (columns + gap) + columns / 2 - 0.5, [str(x) for x in places[0]])
    axes.set_yticks(np.arange(shown.shape[0]) * (rows + gap) + rows / 2 - 0.5, [str(y) for y in places[1]])
    axes.tick_params(length=0, labelsize=7)
    axes.set_xlabel("column of the patch")
    axes.set_ylabel("row of the patch")
    axes.spines[:].set_visible(False)
    bar = figure.colorbar(image, ax=axes, shrink=0.75, aspect=30)
    bar.set_label("cosine similarity of positions", color=INK)
    bar.ax.tick_params(colors=INK, labelsize=7)
    bar.outline.set_visible(False)
    return figure


def distance_figure(distances: NDArray[np.floating], even: float | None = None) -> Figure:
    """The mean attention distance (layers, heads), one dot per head, by depth.

    even: the distance of a head that looks everywhere alike, drawn as a line.
    """
    figure, axes = _axes(5.2, 3.2)
    layers, heads = distances.shape
    depth = np.repeat(np.arange(layers), heads)
    axes.plot(
        np.arange(layers), distances.mean(axis=1), color=DOT, alpha=0.35, linewidth=1.4, label="mean of the heads"
    )
    axes.scatter(depth, distances.ravel(), s=18, color=DOT, linewidths=0, alpha=0.85, label="a head")
    if even is not None:
        axes.axhline(even, color=INK, linewidth=0.9, linestyle=(0, (4, 3)), label="looking everywhere alike")
    axes.set_ylim(bottom=0)
    axes.set_xticks(range(0, layers, max(1, layers // 12)))
    axes.set_xlabel("layer")
    axes.set_ylabel("mean attention distance (pixels)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, labelcolor=INK, fontsize=8, loc="lower right")
    return figure


def even_distance(model: ViT, size: tuple[int, int]) -> float:
    """The mean distance between two patches of an image (height, width), in pixels: looking everywhere alike."""
    patch = model.config.patch
    return float(cell_distances(grid_of(size, patch), patch).mean())


def _axes(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.patch.set_alpha(0)
    axes = figure.add_subplot()
    axes.patch.set_alpha(0)
    axes.spines[:].set_color(INK)
    axes.tick_params(colors=INK, labelsize=8)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set_fontsize(9)
    return figure, axes
