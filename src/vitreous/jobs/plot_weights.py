"""`vitreous plot-weights`: what a model's weights have learned to look at, as in the paper's figure 7."""

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

from vitreous.arguments import Count, checked
from vitreous.config.data import Preprocess
from vitreous.data.augment import normalise
from vitreous.data.decode import ImageError
from vitreous.data.source import Data
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
from vitreous.inference.needs import check_explanation_memory
from vitreous.inference.opening import choose_split, open_images, open_model
from vitreous.model.network import Network, evaluating, require
from vitreous.model.vit import ViT
from vitreous.storage.files import write_output
from vitreous.storage.overwrite import GENERATOR, check_file, output_folder
from vitreous.weights.bundle import Bundle

IMAGES = 64
"""Enough: of a real ViT-Ti/16, even 8 images give every head's mean to within 7 pixels of that of 64."""
BATCH = 8
KINDS: dict[str, dict[str, Any]] = {
    "svg": {"metadata": {"Date": None, "Creator": GENERATOR}},
    "png": {"metadata": {"Software": GENERATOR}, "dpi": 160, "facecolor": "white"},
}
"""The files of a figure, and how each is written."""
PLOTS = ("filters", "positions", "distance")


@dataclass(frozen=True)
class WeightsView:
    """What a model's weights look like, and where its heads look."""

    model: Network
    size: tuple[int, int]
    """Height and width of the images that it looks at."""
    distances: NDArray[np.float32] | None
    """(layers, heads) mean attention distance in pixels; None where no images were given, or no tokens attend."""

    def plots(self) -> dict[str, Figure]:
        """The plots by name: filters, positions if the model adds any, distance if images were given.

        Of a model without patches, filters alone; none where no convolution looks at the pixels.
        """
        made: dict[str, Figure | None] = {"filters": filters_figure(self.model)}
        if isinstance(self.model, ViT):
            made["positions"] = positions_figure(self.model)
            if self.distances is not None:
                made["distance"] = distance_figure(self.distances, even_distance(self.model, self.size))
        return {name: figure for name, figure in made.items() if figure is not None}

    def save(self, folder: str | Path) -> list[Path]:
        """Write each figure as SVG and PNG, and return the files; only plots of ours are replaced."""
        folder, files = check_plots(folder), []
        for name, figure in self.plots().items():
            for kind, options in KINDS.items():
                made = io.BytesIO()
                figure.savefig(made, format=kind, **options)
                files.append(write_output(folder / f"{name}.{kind}", made.getvalue()))
        return files

    def to_json(self) -> dict[str, Any]:
        """{"filter_variance", "position_similarity", "attention_distance", "even_distance"}; None for what is not."""
        filters = filter_components(self.model)
        vit = self.model if isinstance(self.model, ViT) else None
        alike = None if vit is None else position_similarity(vit)
        return {
            "filter_variance": None if filters is None else [round(float(share), 4) for share in filters[1]],
            "position_similarity": None if alike is None else neighbour_similarity(alike),
            "attention_distance": None
            if self.distances is None
            else [[round(float(head), 2) for head in layer] for layer in self.distances],
            "even_distance": None if vit is None else round(even_distance(vit, self.size), 2),
        }


def check_plots(folder: str | Path) -> Path:
    """The folder to save plots in; refused if a file of anybody else's has the name of one."""
    place = output_folder(folder)
    for name in PLOTS:
        for kind in KINDS:
            check_file(place / f"{name}.{kind}")
    return place


@checked
def plot_weights(
    model: str | Path | Bundle,
    data: str | Path | Data | None = None,
    *,
    count: Count | None = None,
    preprocess: Preprocess | str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> WeightsView:
    """The paper's figure 7 of a model: its patch filters, its positions and, over `count` images, how far it sees.

    Of a model without patches and attention, what there is of it: the filters of its first layer.
    """
    if count is not None and data is None:
        raise UserError(f"count={count}: counts the images of data; give data too, or leave count out.")
    bundle = open_model(model, preprocess)
    found = None
    if data is not None and isinstance(bundle.model, ViT):
        found = attention_distances(bundle, data, count=count or IMAGES, progress=progress)
    return WeightsView(bundle.model, bundle.preprocess.size, found)


def neighbour_similarity(alike: NDArray[np.float32]) -> dict[str, float]:
    """Mean cosine of a cell's position with those beside it, in its row and column, and elsewhere, of (r, c, r, c)."""
    rows, columns = alike.shape[:2]
    row, column = np.divmod(np.arange(rows * columns), columns)
    down, across = np.abs(row[:, None] - row), np.abs(column[:, None] - column)
    flat = alike.reshape(rows * columns, -1)
    parts = {
        "beside": down + across == 1,
        "same row or column": ((down == 0) ^ (across == 0)) & (down + across > 1),
        "elsewhere": (down > 0) & (across > 0),
    }
    return {name: round(float(flat[where].mean()), 4) for name, where in parts.items() if where.any()}


def attention_distances(
    bundle: Bundle,
    data: str | Path | Data,
    *,
    count: int = IMAGES,
    progress: Callable[[int, int], None] | None = None,
) -> NDArray[np.float32]:
    """(layers, heads): how far each head looks, in pixels of the input; the mean over `count` images of the data.

    The images are spread evenly over the split that `evaluate` would take; those that cannot be read are left out.
    """
    model = require(bundle.model, ViT, "attention distance")
    check_explanation_memory(bundle, "attention")
    _, source = choose_split(open_images(data), None)
    count = min(count, len(source))
    views, found = [], []
    for i in range(count):
        with suppress(ImageError):
            views.append(make_view(Sample(source, i * len(source) // count), bundle.preprocess))
        if views and (len(views) == BATCH or i == count - 1):
            with evaluating(model):
                found.append(attention_distance(model, normalise(torch.stack(views), bundle.preprocess)))
            views = []
        if progress is not None:
            progress(i + 1, count)
    if not found:
        raise UserError(f"{data}: none of its images can be read.")
    mean: NDArray[np.float32] = np.concatenate(found).mean(axis=0)
    return mean
