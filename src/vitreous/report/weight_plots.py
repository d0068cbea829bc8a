"""The paper's figure 7 of a model as plots: its filters, how alike its positions are, and how far its heads look."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from vitreous.data.source import Source
from vitreous.explain.weight_statistics import (
    MAX_IMAGES,
    attention_distances,
    even_distance,
    filter_components,
    neighbour_similarity,
    position_similarity,
)
from vitreous.model.network import Network, has_stem
from vitreous.model.vit import ViT
from vitreous.report.plots import ACCENT, QUIET, draw_axes, figure_style
from vitreous.storage.files import write_output
from vitreous.storage.overwrite import GENERATOR, check_file, output_folder
from vitreous.weights.bundle import Bundle

FORMATS: dict[str, dict[str, Any]] = {
    "svg": {"metadata": {"Date": None, "Creator": GENERATOR}},
    "png": {"metadata": {"Software": GENERATOR}, "dpi": 160, "facecolor": "white"},
}
"""The files of a figure, and how each is written."""
PLOTS = ("filters", "positions", "distance")
MAX_CELLS = 16  # rows and columns of cells that a figure can show; of a larger grid, every second or third


@dataclass(frozen=True)
class WeightPlots:
    """What a model's weights look like, and how far its heads look."""

    model: Network
    size: tuple[int, int]  # height and width of its input
    distances: NDArray[np.float32] | None
    """(layers, heads) mean attention distance in pixels; None without images, or without attention."""
    files: tuple[Path, ...] = ()  # what `vitreous plot-weights` wrote

    def plots(self) -> dict[str, Figure]:
        """The plots by name: filters, positions and distance, as far as the model has them and images were given."""
        made: dict[str, Figure | None] = {}
        with figure_style():
            made["filters"] = filters_figure(self.model)
            if isinstance(self.model, ViT):
                made["positions"] = positions_figure(self.model)
                if self.distances is not None:
                    made["distance"] = distance_figure(self.distances, even_distance(self.model, self.size))
        return {name: figure for name, figure in made.items() if figure is not None}

    def save(self, folder: str | Path) -> tuple[Path, ...]:
        """Write each figure as SVG and PNG, and return the files; only plots of ours are replaced."""
        folder, files = check_plots(folder), []
        for name, figure in self.plots().items():
            for kind, options in FORMATS.items():
                made = io.BytesIO()
                with figure_style():
                    figure.savefig(made, format=kind, **options)
                files.append(write_output(folder / f"{name}.{kind}", made.getvalue()))
        return tuple(files)

    def to_json(self) -> dict[str, Any]:
        """The numbers behind the plots, None for a plot that is not there, and the files."""
        filters = filter_components(self.model)
        vit = self.model if isinstance(self.model, ViT) else None
        similarity = None if vit is None else position_similarity(vit)
        return {
            "filter_variance": None if filters is None else [round(float(share), 4) for share in filters[1]],
            "position_similarity": None if similarity is None else neighbour_similarity(similarity),
            "attention_distance": None
            if self.distances is None
            else [[round(float(head), 2) for head in layer] for layer in self.distances],
            "even_distance": None if vit is None else round(even_distance(vit, self.size), 2),
            "files": list(map(str, self.files)),
        }


def check_plots(folder: str | Path) -> Path:
    """The folder to save plots in; refused if it has a file of a plot's name that vitreous did not write."""
    place = output_folder(folder)
    for name in PLOTS:
        for kind in FORMATS:
            check_file(place / f"{name}.{kind}")
    return place


def plot_weights(
    bundle: Bundle,
    images: Source | None = None,
    count: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> WeightPlots:
    """The paper's figure 7 of a model; of one without attention, the filters of its first layer.

    images: what the attention distance is measured on, at most `count` of them; None for no such plot.
    """
    distances = None
    if images is not None and isinstance(bundle.model, ViT):
        distances = attention_distances(bundle, images, count or MAX_IMAGES, progress)
    return WeightPlots(bundle.model, bundle.preprocess.size, distances)


def filters_figure(model: Network) -> Figure | None:
    """The principal components of the first layer's filters, strongest first, each scaled to its own range."""
    found = filter_components(model)
    if found is None:
        return None
    components, shares = found
    channels, remark = components.shape[3], ""
    if channels not in (1, 3):  # no colours that could be drawn
        components, remark = components.mean(axis=3, keepdims=True), f" (mean of {channels} channels)"
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
    figure, axes = draw_axes(5.2, 0.5 + 5.2 * mosaic.shape[0] / mosaic.shape[1])
    axes.imshow(mosaic, interpolation="nearest")
    axes.set_axis_off()
    owner = "patch" if isinstance(model, ViT) and not has_stem(model) else "first layer's"
    axes.set_title(
        f"first {count} principal components of the {owner} filters{remark}, {shares.sum():.0%} of their variance",
        color=QUIET,
    )
    return figure


def positions_figure(model: ViT) -> Figure | None:
    """For each cell of the grid a small map: how alike its position is to every other; None where none are added."""
    alike = position_similarity(model)
    if alike is None:
        return None
    rows, columns = model.config.grid
    step = math.ceil(max(rows, columns) / MAX_CELLS)
    shown = alike[step // 2 :: step, step // 2 :: step]
    gap = max(1, rows // 10)
    mosaic = np.full((shown.shape[0] * (rows + gap) - gap, shown.shape[1] * (columns + gap) - gap), np.nan)
    for i, line in enumerate(shown):
        for j, cell in enumerate(line):
            top, left = i * (rows + gap), j * (columns + gap)
            mosaic[top : top + rows, left : left + columns] = cell
    figure, axes = draw_axes(5.2, 0.6 + 4.4 * mosaic.shape[0] / mosaic.shape[1])
    image = axes.imshow(mosaic, cmap="viridis", vmin=min(0.0, float(alike.min())), vmax=1, interpolation="nearest")
    places = np.arange(step // 2, columns, step), np.arange(step // 2, rows, step)
    axes.set_xticks(np.arange(shown.shape[1]) * (columns + gap) + columns / 2 - 0.5, [str(x) for x in places[0]])
    axes.set_yticks(np.arange(shown.shape[0]) * (rows + gap) + rows / 2 - 0.5, [str(y) for y in places[1]])
    axes.tick_params(labelsize=7)
    axes.set_xlabel("column of the patch")
    axes.set_ylabel("row of the patch")
    axes.spines[:].set_visible(False)
    bar = figure.colorbar(image, ax=axes, shrink=0.75, aspect=30)
    bar.set_label("cosine similarity of positions")
    bar.ax.tick_params(labelsize=7)
    bar.outline.set_visible(False)
    return figure


def distance_figure(distances: NDArray[np.floating], even: float | None = None) -> Figure:
    """The mean attention distance (layers, heads), one dot per head, by depth.

    even: the distance of a head that looks everywhere alike, drawn as a line.
    """
    figure, axes = draw_axes(5.2, 3.2)
    layers, heads = distances.shape
    depth = np.repeat(np.arange(layers), heads)
    axes.plot(
        np.arange(layers), distances.mean(axis=1), color=ACCENT, alpha=0.35, linewidth=1.4, label="mean of the heads"
    )
    axes.scatter(depth, distances.ravel(), s=18, color=ACCENT, linewidths=0, alpha=0.85, label="a head")
    if even is not None:
        axes.axhline(even, color=QUIET, linewidth=0.9, linestyle=(0, (4, 3)), label="looking everywhere alike")
    axes.set_ylim(bottom=0)
    axes.set_xticks(range(0, layers, max(1, layers // 12)))
    axes.set_xlabel("layer")
    axes.set_ylabel("mean attention distance (pixels)")
    axes.legend(frameon=False, labelcolor=QUIET, fontsize=8, loc="lower right")
    return figure
