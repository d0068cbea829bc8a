"""Everything that one pass through a network shows of one image, in every layer at once: for whoever moves a slider.

Letters in shapes: L layers, h heads, T tokens (class token and registers, then patches), N patches, D width, K classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.explain.attention import Rollout, as_grid, query_tokens
from vitreous.model.network import TracesAttention
from vitreous.model.trace import Trace


@dataclass(frozen=True)
class AllLayers:
    """What was seen inside a network while it looked at one image."""

    attention: Tensor  # (L, h, rows, columns): the attention that patches get from what the answer is read from
    rollout: Tensor  # (L, rows, columns): attention rollout up to each layer
    pooling: Tensor | None
    """(h, rows, columns): what the learned query of attention pooling looks at, where the model has one."""
    colours: NDArray[np.uint8]  # (L, N, 3): the patches' tokens after each layer as colours
    groups: Tensor | None
    """(L, N): for each patch the first of those that are one token after the layer; None where none are merged."""
    logits: Tensor  # (K,) the answer; (D,) the representation where there is no classifier


def trace_all_layers(model: TracesAttention, image: Tensor) -> AllLayers:
    """All layers of one image (1, C, H, W), normalised, in a single forward pass."""
    trace = _Inside(query_tokens(model))
    with torch.inference_mode():
        logits: Tensor = model(image, trace=trace)
    layers, grid, pool = range(model.config.depth), trace.grid, trace.pool_rows
    rolled = torch.stack([trace.attention[layer][0, 0] for layer in layers])
    if (read := trace.read_by_pooling()) is not None:
        rolled[-1] = read[0, 0]
    groups = None
    if trace.groups:
        alone = torch.arange(grid[0] * grid[1], device=image.device)  # before the first block that merges
        groups = torch.stack([trace.groups[layer][0] if layer in trace.groups else alone for layer in layers])
    return AllLayers(
        attention=as_grid(torch.stack([trace.rows[layer] for layer in layers]), grid),
        rollout=as_grid(rolled, grid),
        pooling=None if pool is None else as_grid(pool[0], grid),
        colours=token_colours(torch.stack([trace.tokens[layer] for layer in layers])),
        groups=groups,
        logits=logits[0],
    )


def attention_between_patches(model: TracesAttention, image: Tensor, layer: int) -> Tensor:
    """(h, N, N): what each patch (a row) gives to each other in one layer, of one image (1, C, H, W), normalised."""
    trace = Trace([layer], tokens=False)
    with torch.inference_mode():
        model(image, trace=trace)
    return trace.attention[layer % model.config.depth][0, :, trace.prefix :, trace.prefix :]


class _Inside(Rollout):
    """Beside the rollout, the heads' own rows (h, N) of each layer, and the patches' tokens (N, D)."""

    def __init__(self, query_tokens: slice) -> None:
        super().__init__(None, query_tokens)
        self.wants_tokens = True
        self.rows: dict[int, Tensor] = {}

    def record_attention(self, layer: int, attention: Tensor) -> None:
        super().record_attention(layer, attention)
        self.rows[layer] = attention[0, :, self.query_tokens, self.prefix :].mean(dim=1)

    def record_tokens(self, layer: int, tokens: Tensor) -> None:
        self.tokens[layer] = tokens[0, self.prefix :]


SPREAD = 2.2  # standard deviations from the middle of a colour's range to its end; what lies beyond is clipped


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
    return left @ right
