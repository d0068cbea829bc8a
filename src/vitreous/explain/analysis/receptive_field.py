"""The effective receptive field: how much each pixel moves the features of the central place (Luo et al. 2016).

Letters in shapes: B images, C channels, H x W pixels, N patches, D features, h x w places.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.data.rng import generator
from vitreous.errors import UserError
from vitreous.explain.analysis.bias_numbers import ReceptiveField
from vitreous.model.network import HasFeatureMap, Network, TracesAttention
from vitreous.model.trace import Trace

SIGNS = 3
"""Number of a view of `generator`: for the signs of the features."""
RADII = tuple(round(0.05 * step, 2) for step in range(1, 15))
"""Shares of the longer side; beyond the last there are only corners."""
ROUNDING = 1e-9

Map = NDArray[np.float64]


def has_places(network: Network) -> bool:
    """Whether its last features still have a place on the image."""
    return isinstance(network, TracesAttention | HasFeatureMap)


def gradient_maps(network: Network, images: Tensor, seed: int, index: Sequence[int]) -> Map:
    """(B, H, W), each of sum 1: the absolute gradient of the central features with respect to the pixels.

    The gradient is that of a sum of the features with random signs: plain sums of features after a LayerNorm never
    change, whatever the pixels do. index: the images' numbers, of which their signs follow.
    """
    # one at a time: what a backward pass keeps of a batch may not fit
    return np.concatenate([_gradient_map(network, images[i : i + 1], seed, index[i]) for i in range(len(images))])


def _gradient_map(network: Network, image: Tensor, seed: int, number: int) -> Map:
    with torch.enable_grad():
        leaf = image.detach().clone().requires_grad_()
        features = central_features(network, leaf)
        signs = 2.0 * generator(seed, 0, number, SIGNS).integers(0, 2, size=features.shape[1]) - 1
        total = (features * torch.from_numpy(signs).to(features)).sum()
        (gradient,) = torch.autograd.grad(total, leaf)
    found = gradient.abs().sum(dim=1).double().numpy()
    mass = found.sum()
    if not np.isfinite(mass):
        raise UserError("gives gradients that are not numbers: its weights are damaged, or its training diverged.")
    flat: Map = np.zeros_like(found)
    return found / mass if mass > 0 else flat  # features that no pixel moves


def central_features(network: Network, images: Tensor) -> Tensor:
    """(B, D): of the place in the middle of the last feature map, or of the patch token there."""
    if isinstance(network, TracesAttention):
        trace = Trace([-1], attention=False)
        network.representation(images, trace=trace)
        (tokens,) = trace.tokens.values()
        rows, columns = trace.grid
        return tokens[:, trace.prefix + rows // 2 * columns + columns // 2]
    assert isinstance(network, HasFeatureMap)
    places = network.feature_map(images)
    return places[:, :, places.shape[2] // 2, places.shape[3] // 2]


def receptive_field(mean: Map) -> ReceptiveField | None:
    """The field of a mean gradient (H, W), around its own centre of mass; None where nothing depends on any pixel.

    Around its own: strides and padding move the middle of what a place sees away from the middle of its cell.
    """
    whole = mean.sum()
    if whole <= 0:
        return None
    shares = mean / whole
    rows, columns = np.indices(mean.shape)
    away = np.hypot(rows - (shares * rows).sum(), columns - (shares * columns).sum()) / max(mean.shape)
    order = np.argsort(away, axis=None, kind="stable")
    reached = np.cumsum(shares.ravel()[order])
    radius = float(away.ravel()[order][np.searchsorted(reached, 0.5 - ROUNDING)])
    mass = tuple(round(float(shares[away <= limit + ROUNDING].sum()), 5) for limit in RADII)
    return ReceptiveField(round(radius, 5), RADII, mass)
