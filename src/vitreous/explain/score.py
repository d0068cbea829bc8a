"""How good an explanation is: by what the model loses without it, and by where it lies.

Letters in shapes: B images, N patches, K classes, S fractions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.explain.place import Map, PatchGeometry
from vitreous.model.network import LeavesPatchesOut
from vitreous.model.predictions import class_probabilities

FRACTIONS = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Parts of the patches that are taken away, or shown; their mean is the area under the curve, by midpoints."""


class Localisation(NamedTuple):
    """How well a map agrees with a mask."""

    energy: float
    """The fraction of the map that lies on the mask."""
    pointing: float
    """1 if the map's highest point lies on the mask, else 0; among equals, the fraction of those that do."""
    iou: float
    """Intersection over union with the mask, of the map cut at the height that suits this image best."""


def removal_curves(model: LeavesPatchesOut, images: Tensor, order: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Deletion and insertion, each (B, S): probability of the target without the first patches, and with only these.

    order: (B, N) the patches, the most important first. Patches are left out, as a ViT can, and nothing is painted in
    their place. A good explanation makes the first curve fall and the second rise at once.
    """
    count = order.shape[1]
    deletion: list[Tensor] = []
    insertion: list[Tensor] = []
    with torch.inference_mode():
        for fraction in FRACTIONS:
            cut = min(max(round(fraction * count), 1), count - 1)
            for curve, keep in ((deletion, order[:, cut:]), (insertion, order[:, :cut])):
                probabilities = class_probabilities(model(images, keep_ids=keep))
                curve.append(probabilities.gather(1, targets[:, None])[:, 0])
    return torch.stack(deletion, dim=1), torch.stack(insertion, dim=1)


def localise(map: NDArray[np.floating], mask: NDArray[np.bool_]) -> Localisation:
    """How well a map (height, width), nowhere negative, agrees with a mask of the same size that is not empty."""
    total = float(map.sum())
    highest = map == map.max()
    order = np.argsort(-map, axis=None, kind="stable")
    values, inside = map.ravel()[order], mask.ravel()[order]
    hits = np.cumsum(inside)
    union = np.arange(1, len(order) + 1) + hits[-1] - hits
    steps = np.append(values[1:] < values[:-1], True)  # a cut takes all pixels of one height or none
    return Localisation(
        energy=float(map[mask].sum()) / total if total > 0 else float(mask.mean()),
        pointing=float(mask[highest].mean()),
        iou=float((hits / union)[steps].max()),
    )


def centre_map(place: PatchGeometry) -> Map:
    """(height, width): a Gaussian in the middle of the image, sigma a quarter of each side; it ignores the image."""
    height, width = place.size
    return _gaussian(np.arange(height) + 0.5, np.arange(width) + 0.5, (0.0, 0.0, width, height))


def seen_centre_map(place: PatchGeometry) -> Map:
    """The same in the middle of what the model saw, and 0 elsewhere: a baseline that knows where the crop is."""
    height, width = place.size
    return _gaussian(np.arange(height) + 0.5, np.arange(width) + 0.5, place.box) * place.seen()


def centre_patches(place: PatchGeometry, box: tuple[float, float, float, float] | None = None) -> Map:
    """(rows, columns): a Gaussian in the middle of the image, or of a box in it, at the patches' centres."""
    height, width = place.size
    return _gaussian(*place.centres(), box or (0.0, 0.0, width, height))


def _gaussian(rows: NDArray[np.floating], columns: NDArray[np.floating], box: tuple[float, float, float, float]) -> Map:
    left, top, right, bottom = box
    down = (rows - (top + bottom) / 2) / ((bottom - top) / 4)
    across = (columns - (left + right) / 2) / ((right - left) / 4)
    made: Map = np.exp(-(down[:, None] ** 2 + across**2) / 2).astype(np.float32)
    return made
