"""The ways to explain, by name, behind one call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from vitreous.config.model import ViTConfig
from vitreous.errors import UserError
from vitreous.explain.attention import attention_maps, pool_maps, rollout_maps
from vitreous.explain.occlusion import occlusion_maps
from vitreous.explain.relevance import gradcam_maps, relevance_maps
from vitreous.model.trace import Trace
from vitreous.model.vit import ViT

Method = Literal["attention", "rollout", "relevance", "gradcam", "occlusion"]
METHODS: tuple[Method, ...] = get_args(Method)
ABOUT_A_CLASS = ("relevance", "gradcam", "occlusion")


@dataclass(frozen=True)
class Maps:
    """What a method found in a batch of pictures."""

    layers: tuple[int, ...]
    """The layers that `maps` has; () where a map belongs to no single one."""
    maps: Tensor
    """(B, layers or 1, heads or 1, rows, columns)."""
    scores: Tensor
    """(B, K), the model's answer; (B, D), its representation, where it has no classifier."""


def compute_maps(
    model: ViT,
    images: Tensor,
    method: Method,
    *,
    layer: int | Literal["all"] | None = None,
    targets: Tensor | None = None,
    query: int | None = None,
) -> Maps:
    """Maps of a batch of pictures (B, C, H, W), normalised.

    layer: whose attention (attention), up to which (rollout), from which on (relevance), at whose entrance (gradcam);
        None for the one that suits the method.
    targets: (B,) the classes to explain; None for the likeliest.
    query: the patch whose attention is shown; None for what the answer is read from.
    """
    if method == "occlusion":
        maps, scores = occlusion_maps(model, images, targets)
        return Maps((), maps[:, None, None], scores)
    if method == "attention" and layer is None and query is None and model.config.pool == "attention":
        maps, scores = pool_maps(model, images)
        return Maps((), maps[:, None], scores)
    layers = chosen_layers(model.config, method, layer)
    if method == "attention":
        found, scores = attention_maps(model, images, layers=layers, query=query)
    elif method == "rollout":
        found, scores = rollout_maps(model, images, layers=layers, query=query)
    elif method == "relevance":
        found, scores = relevance_maps(model, images, targets, layers=layers)
    else:
        found, scores = gradcam_maps(model, images, targets, layers=layers)
    return Maps(tuple(layers), torch.stack([found[number] for number in layers], dim=1), scores)


def chosen_layers(config: ViTConfig, method: Method, layer: int | Literal["all"] | None) -> Sequence[int]:
    """The layers, counted from 0, that a method is to use; refuses one that is not there."""
    depth = config.depth
    if layer == "all":
        return range(depth)
    if layer is None:
        # From two thirds of the depth on they point best; docs/explain.md has the measurement.
        best = {"relevance": 2 * depth // 3, "gradcam": 2 * depth // 3 + 1}
        return [min(best.get(method, depth - 1), depth - 1)]
    Trace([layer]).check(depth)
    return [layer % depth]


def check_request(
    config: ViTConfig,
    method: Method,
    layer: int | Literal["all"] | None,
    head: int | Literal["mean", "all"],
    *,
    target: bool,
    query: bool,
) -> None:
    """Refuse what a method cannot do with a model."""
    if method not in METHODS:
        raise UserError(f"method {method!r}: choose one of {', '.join(METHODS)}.")
    if method in ABOUT_A_CLASS and not config.classes:
        raise UserError(
            f"method {method}: it explains a class, and the model has no classifier; use attention or rollout."
        )
    if method == "occlusion" and config.patches == 1:
        raise UserError(
            "method occlusion: the model sees a single patch, and without it there is nothing; use another."
        )
    if method == "occlusion" and layer is not None:
        raise UserError(f"layer {layer}: occlusion looks at no single layer; leave it away.")
    if method != "occlusion" and isinstance(layer, int):
        chosen_layers(config, method, layer)
    if head != "mean" and method != "attention":
        raise UserError(f"head {head}: {method} joins all heads; only attention shows them one by one.")
    if isinstance(head, int) and not -config.heads <= head < config.heads:
        raise UserError(f"head {head}: the model has heads 0 to {config.heads - 1} in each layer.")
    if query and method not in ("attention", "rollout"):
        raise UserError(f"query: {method} explains the answer, not a place; use attention or rollout.")
    if target and method not in ABOUT_A_CLASS:
        raise UserError(f"class: {method} is the same for every class; leave it away, or use {_listed(ABOUT_A_CLASS)}.")


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"
