"""The numbers of the paper's figure 7: a model's filters, how alike its positions are, and how far its heads look."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import numpy as np
import torch
from numpy.typing import NDArray

from vitreous.config.model import grid_of
from vitreous.data.augment import normalise
from vitreous.data.decode import ImageError
from vitreous.data.source import Source
from vitreous.data.view import Sample, make_view
from vitreous.errors import UserError
from vitreous.explain.attention import attention_distance, cell_distances
from vitreous.model.network import Network, evaluating, require
from vitreous.model.vit import ViT
from vitreous.weights.bundle import Bundle

MAX_IMAGES = 64  # enough: of a real ViT-Ti/16, even 8 images give every head's mean to within 7 pixels of that of 64
BATCH = 8
FILTERS = 28  # as many as the paper shows


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
    return shaped.cpu().numpy(), shares[:count].cpu().numpy()


def position_similarity(model: ViT) -> NDArray[np.float32] | None:
    """(rows, columns, rows, columns): cosine of the position embeddings of every two cells; None if none are added."""
    cells = model.cell_positions(model.config.grid)
    if cells is None:
        return None
    directions = torch.nn.functional.normalize(cells.detach().float(), dim=1)
    return (directions @ directions.T).reshape(*model.config.grid, *model.config.grid).cpu().numpy()


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
                    attention_distance(model, normalise(torch.stack(views).to(model.device), bundle.preprocess))
                )
            views = []
        progress(i + 1, count)
    if not found:
        raise UserError(f"{images.name(0)}: neither this image nor any other can be read; give others.")
    return np.concatenate(found).mean(axis=0)


def even_distance(model: ViT, size: tuple[int, int]) -> float:
    """The mean distance between two patches of an image (height, width), in pixels: looking everywhere alike."""
    patch = model.config.patch
    return float(cell_distances(grid_of(size, patch), patch).mean())
