"""Where tokens look: raw attention, attention rollout, and how far heads look.

Letters in shapes: B images, h heads, T tokens (class token and registers, then patches), N patches.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.explain.analysis.measures import patch_attention
from vitreous.model.network import TracesAttention
from vitreous.model.trace import Trace


class _Rows(Trace):
    """Keeps of each layer only the attention of the query tokens to the patches, (B, h, N)."""

    def __init__(self, layers: Sequence[int] | None, query_tokens: slice) -> None:
        super().__init__(layers, tokens=False)
        self.query_tokens = query_tokens

    def record_attention(self, layer: int, attention: Tensor) -> None:
        self.attention[layer] = attention[:, :, self.query_tokens, self.prefix :].mean(dim=2)


class Rollout(Trace):
    """Multiplies the attention of all layers as they come; keeps the query tokens' rows after some layers or all."""

    def __init__(self, layers_kept: Sequence[int] | None, query_tokens: slice) -> None:
        super().__init__(None, tokens=False)
        self.layers_kept = layers_kept
        self.query_tokens = query_tokens
        self.rolled: Tensor | None = None

    def record_attention(self, layer: int, attention: Tensor) -> None:
        """Multiply the attention (B, h, T, T) of the next layer to that of all before it."""
        mixed = attention.mean(dim=1)
        stay = torch.eye(mixed.shape[1], device=mixed.device)  # the residual branch carries each token on
        mixed = (mixed + stay) / 2
        self.rolled = mixed if self.rolled is None else mixed @ self.rolled
        if self.layers_kept is None or layer in self.layers_kept:
            self.attention[layer] = self.rolled[:, None, self.query_tokens, self.prefix :].mean(dim=2)

    def read_by_pooling(self) -> Tensor | None:
        """(B, 1, N): after the last layer, what the learned query of attention pooling reads; None without pooling."""
        if self.pool_attention is None:
            return None
        assert self.rolled is not None
        read = self.pool_attention.mean(dim=1)  # (B, 1, N or T)
        return read @ self.rolled[:, -read.shape[2] :, self.prefix :]


def query_tokens(model: TracesAttention, query: int | None = None) -> slice:
    """The tokens whose mean attention is shown: the patch `query`, or those that the prediction is read from."""
    if query is None:
        return model.output_tokens()
    return slice(model.config.prefix + query, model.config.prefix + query + 1)


def attention_maps(
    model: TracesAttention, images: Tensor, *, layers: Sequence[int] | None = (-1,), query: int | None = None
) -> tuple[dict[int, Tensor], Tensor]:
    """({layer: (B, h, rows, columns)}, logits (B, K)): the attention that patches get in each layer.

    layers: which, None for all. query: the patch whose attention is shown; None for the prediction's tokens.
    """
    return _run(model, images, _Rows(layers, query_tokens(model, query)))


def rollout_maps(
    model: TracesAttention, images: Tensor, *, layers: Sequence[int] | None = (-1,), query: int | None = None
) -> tuple[dict[int, Tensor], Tensor]:
    """({layer: (B, 1, rows, columns)}, logits (B, K)): attention rollout (Abnar and Zuidema) from the first layer on.

    The mean attention of the heads, with half of each token staying in place, multiplied through the layers. With
    attention pooling, the patches of the last layer are weighted by it; those of other layers count equally.
    """
    depth = model.config.depth
    Trace(layers).check(depth)
    wanted = None if layers is None else [layer % depth for layer in layers]
    trace = Rollout(wanted, query_tokens(model, query))
    maps, logits = _run(model, images, trace)
    if query is None and (read := trace.read_by_pooling()) is not None and depth - 1 in maps:
        maps[depth - 1] = as_grid(read, trace.grid)
    return maps, logits


def pool_maps(model: TracesAttention, images: Tensor) -> tuple[Tensor, Tensor]:
    """((B, h, rows, columns), logits (B, K)): what the learned query of attention pooling looks at."""
    trace = Trace((), tokens=False)
    with torch.inference_mode():
        logits: Tensor = model(images, trace=trace)
    assert trace.pool_rows is not None
    return as_grid(trace.pool_rows, trace.grid), logits


def _run(model: TracesAttention, images: Tensor, trace: Trace) -> tuple[dict[int, Tensor], Tensor]:
    with torch.inference_mode():
        logits: Tensor = model(images, trace=trace)
    return {layer: as_grid(rows, trace.grid) for layer, rows in trace.attention.items()}, logits


def as_grid(values: Tensor, grid: tuple[int, int]) -> Tensor:
    """(..., N) to (..., rows, columns)."""
    return values.reshape(*values.shape[:-1], *grid)


SINK_RATIO = 5
"""From how many times an average patch's attention on a patch is a sink. In 49 test images of Pets, a ViT-Ti/16
(AugReg) has 3 or 4 patches with 6.5 to 61 times as much in each of layers 8 to 11, and all others have less than 4."""


def attention_sinks(attention: Tensor, prefix: int) -> Tensor:
    """(B, N) bool: the patches that nearly all tokens attend to, whatever the image shows there.

    Of each head and query of attention (B, h, T, T): what a patch gets, relative to the mean of the patches. The median
    of that over heads and queries is above `SINK_RATIO`. See Darcet et al. 2024, "Vision Transformers Need Registers".
    """
    patches = attention[..., prefix:]
    mean = patches.mean(dim=-1, keepdim=True).clamp_min(torch.finfo(patches.dtype).tiny)
    return (patches / mean).flatten(1, 2).median(dim=1).values > SINK_RATIO


def find_sinks(model: TracesAttention, images: Tensor, layers: Sequence[int]) -> Tensor:
    """(B, N) bool: the patches of images (B, C, H, W), normalised, that are attention sinks in one of the layers."""
    trace = _Sinks(layers)
    with torch.inference_mode():
        model(images, trace=trace)
    found = list(trace.attention.values())
    return torch.stack(found).any(dim=0) if found else torch.zeros(len(images), 0, dtype=torch.bool)


class _Sinks(Trace):
    """Keeps of each layer which patches are attention sinks, (B, N)."""

    def __init__(self, layers: Sequence[int]) -> None:
        super().__init__(layers, tokens=False)

    def record_attention(self, layer: int, attention: Tensor) -> None:
        self.attention[layer] = attention_sinks(attention, self.prefix)


def describe_sinks(sinks: Sequence[int], patches: int) -> str:
    """What a reader of an attention map must know of its sinks; nothing where there are none."""
    if not sinks:
        return ""
    return (
        f"{len(sinks)} of {patches} patches are attention sinks: in the median over heads and tokens they get more "
        f"than {SINK_RATIO} times the attention of an average patch. Models keep information about the whole image in "
        "such tokens; it says little about what the image shows there (Darcet et al. 2024, Vision Transformers Need "
        "Registers)."
    )


class _Distances(Trace):
    """Reduces each layer's attention to one distance per image and head, (B, h)."""

    def __init__(self, patch: int) -> None:
        super().__init__(None, tokens=False)
        self.patch = patch

    def record_attention(self, layer: int, attention: Tensor) -> None:
        distances = cell_distances(self.grid, self.patch).to(attention)
        self.attention[layer] = mean_distance(patch_attention(attention, self.prefix), distances)


def attention_distance(model: TracesAttention, images: Tensor) -> NDArray[np.float32]:
    """(B, layers, heads): the mean distance, in pixels of the input, between a patch and what it attends to.

    The paper's figure 7: for each query patch the distances to all patches, weighted with its attention, and the mean
    of the queries. Class token and registers have no place: they are left out as queries, and what a patch gives to
    them is shared among the patches in proportion. A patch that gives all to them is left out too.
    """
    trace = _Distances(model.config.patch)
    with torch.inference_mode():
        model(images, trace=trace)
    return torch.stack([trace.attention[layer] for layer in sorted(trace.attention)], dim=1).cpu().numpy()


def mean_distance(weights: Tensor, distances: Tensor) -> Tensor:
    """(B, h): how far queries look, on average over those that look at patches at all; 0 where none does.

    weights: (B, h, N, N) attention among patches, of which a row sums to 1, or to 0 if it looks at none.
    distances: (N, N), in pixels.
    """
    looking = (weights.sum(dim=-1) > 0.5).sum(dim=-1)
    return (weights * distances).sum(dim=-1).sum(dim=-1) / looking.clamp_min(1)


def cell_distances(grid: tuple[int, int], patch: int) -> Tensor:
    """(N, N): the distance between the centres of every two patches, in pixels."""
    row, column = torch.meshgrid(*(torch.arange(side, dtype=torch.float32) for side in grid), indexing="ij")
    places = torch.stack([row.flatten(), column.flatten()], dim=1) * patch
    return torch.cdist(places, places)
