"""Tokens as colours: what is alike to the network has a like colour.

Letters in shapes: L layers, N patches, D width.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

SPREAD = 2.2
"""Standard deviations from the middle of a colour's range to its end; what lies beyond is clipped."""


def token_colours(tokens: Tensor) -> NDArray[np.uint8]:
    """(L, N, 3) uint8, red, green and blue: the three strongest principal components of each layer's tokens (L, N, D).

    A layer has components of its own, each brought to the same variance. Which of them is red, and which of its ends is
    bright, means nothing: so they are turned to agree with the layer before as well as they can (the orthogonal
    Procrustes problem), and a colour keeps its meaning from layer to layer.
    """
    found: list[Tensor] = []
    for layer in tokens.double():
        components = _components(layer)
        found.append(components @ _turn(components, found[-1]) if found else components)
    levels = torch.stack(found) / (2 * SPREAD) + 0.5
    return (levels.clamp(0, 1) * 255).round().to(torch.uint8).cpu().numpy()


def _components(tokens: Tensor) -> Tensor:
    """(N, 3): how strongly tokens (N, D) have each of their first three components, variance 1; else 0."""
    places, strength, _ = torch.linalg.svd(tokens - tokens.mean(dim=0), full_matrices=False)
    real = strength[:3] > 1e-9 * (strength[0] + 1e-300)
    places = places[:, :3] * real * len(tokens) ** 0.5
    places = places * places.gather(0, places.abs().argmax(dim=0, keepdim=True)).sign()  # the largest is positive
    return torch.nn.functional.pad(places, (0, 3 - places.shape[1]))


def _turn(components: Tensor, before: Tensor) -> Tensor:
    """(3, 3): the rotation or reflection that brings components (N, 3) nearest to those of the layer before."""
    left, _, right = torch.linalg.svd(components.T @ before)
    turned: Tensor = left @ right
    return turned
