"""The paper's figure 7 of a model: filters, similarity of positions, attention distance."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from vitreous.data.augment import normalise
from vitreous.data.decode import ImageError
from vitreous.data.source import Source
from vitreous.data.view import Sample, make_view
from vitreous.errors import UserError
from vitreous.explain.attention import attention_distance
from vitreous.explain.plots import (
    distance_figure,
    even_distance,
    filter_components,
    filters_figure,
    position_similarity,
    positions_figure,
)
from vitreous.model.network import Network, evaluating, require
from vitreous.model.vit import ViT
from vitreous.storage.files import write_output
from vitreous.storage.overwrite import GENERATOR, check_file, output_folder
from vitreous.weights.bundle import Bundle

MAX_IMAGES = 64
"""Enough: of a real ViT-Ti/16, even 8 images give every head's mean to within 7 pixels of that of 64."""
BATCH = 8
FORMATS: dict[str, dict[str, Any]] = {
    "svg": {"metadata": {"Date": None, "Creator": GENERATOR}},
    "png": {"metadata": {"Software": GENERATOR}, "dpi": 160, "facecolor": "white"},
}
"""The files of a figure, and how each is written."""
PLOTS = ("filters", "positions", "distance")


@dataclass(frozen=True)
class WeightPlots:
    """What a model's weights look like, and how far its heads look."""

    model: Network
    size: tuple[int, int]
    """Height and width of its input."""
    distances: NDArray[np.float32] | None
    """(layers, heads) mean attention distance in pixels; None without images, or without attention."""
    files: tuple[Path, ...] = ()
    """What `vitreous plot-weights` wrote."""

    def plots(self) -> dict[str, Figure]:
        """The plots by name: filters, positions and distance, as far as the model has them and images were given."""
        made: dict[str, Figure | None] = {"filters": filters_figure(self.model)}
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
    count: int = MAX_IMAGES,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> WeightPlots:
    """The paper's figure 7 of a model; of one without attention, the filters of its first layer.

    images: what the attention distance is measured on, at most `count` of them; None for no such plot.
    """
    distances = None
    if images is not None and isinstance(bundle.model, ViT):
        distances = attention_distances(bundle, images, count, progress)
    return WeightPlots(bundle.model, bundle.preprocess.size, distances)


def neighbour_similarity(similarity: NDArray[np.float32]) -> dict[str, float]:
    """Mean cosine of a patch's position with its neighbours', in its row and column, and elsewhere, of (r, c, r, c)."""
    rows, columns = similarity.shape[:2]
    row, column = np.divmod(np.arange(rows * columns), columns)
    down, across = np.abs(row[:, None] - row), np.abs(column[:, None] - column)
    flat = similarity.reshape(rows * columns, -1)
    parts = {
        "beside": down + across == 1,
        "same row or column": ((down == 0) ^ (across == 0)) & (down + across > 1),
        "elsewhere": (down > 0) & (across > 0),
    }
    return {name: round(float(flat[where].mean()), 4) for name, where in parts.items() if where.any()}


def attention_distances(
    bundle: Bundle,
    images: Source,
    count: int = MAX_IMAGES,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> NDArray[np.float32]:
    """(layers, heads): how far each head looks, in pixels of the input; the mean over images.

    At most `count` images, spread evenly; those that cannot be read are left out.
    """
    model = require(bundle.model, ViT, "attention distance")
    count = min(count, len(images))
    views, found = [], []
    for i in range(count):
        with suppress(ImageError):
            views.append(make_view(Sample(images, i * len(images) // count), bundle.preprocess))
        if views and (len(views) == BATCH or i == count - 1):
            with evaluating(model):
                found.append(
                    attention_distance(model, normalise(torch.stack(views), bundle.preprocess).to(model.device))
                )
            views = []
        progress(i + 1, count)
    if not found:
        raise UserError(f"{images.name(0)}: neither this image nor any other can be read; give others.")
    mean: NDArray[np.float32] = np.concatenate(found).mean(axis=0)
    return mean
