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
from vitreous.explain.occlusion import occluded_grid, occlusion_maps
from vitreous.explain.relevance import feature_map_gradcam, gradcam_maps, relevance_maps
from vitreous.model.network import HasFeatureMap, Network, TracesAttention, evaluating, require
from vitreous.model.trace import Trace

Method = Literal["attention", "rollout", "relevance", "gradcam", "occlusion"]
METHODS: tuple[Method, ...] = get_args(Method)
ABOUT_A_CLASS = ("relevance", "gradcam", "occlusion")
LARGEST_STRIDE = 256
"""Of larger images the last map of any network has several places: no need to look, nor to take the memory."""


@dataclass(frozen=True)
class Maps:
    """What a method found in a batch of images."""

    layers: tuple[int, ...]
    """The layers that `maps` has; () where a map belongs to no single one."""
    maps: Tensor
    """(B, layers or 1, heads or 1, rows, columns)."""
    scores: Tensor
    """(B, K), the model's answer; (B, D), its representation, where it has no classifier."""


def compute_maps(
    model: Network,
    images: Tensor,
    method: Method,
    *,
    layer: int | Literal["all"] | None = None,
    targets: Tensor | None = None,
    query: int | None = None,
) -> Maps:
    """Maps of a batch of images (B, C, H, W), normalised.

    layer: whose attention (attention), up to which (rollout), from which on (relevance), at whose entrance (gradcam);
        None for the one that suits the method. Grad-CAM of a network with a feature map looks at that.
    targets: (B,) the classes to explain; None for the likeliest.
    query: the patch whose attention is shown; None for what the answer is read from.
    """
    if method == "occlusion":
        maps, scores = occlusion_maps(model, images, targets)
        return Maps((), maps[:, None, None], scores)
    if method == "gradcam" and not isinstance(model, TracesAttention):
        maps, scores = feature_map_gradcam(require(model, HasFeatureMap, "method gradcam"), images, targets)
        return Maps((), maps[:, None, None], scores)
    attentive = require(model, TracesAttention, f"method {method}")
    if method == "attention" and layer is None and query is None and attentive.config.pool == "attention":
        maps, scores = pool_maps(attentive, images)
        return Maps((), maps[:, None], scores)
    layers = chosen_layers(attentive.config.depth, method, layer)
    if method == "attention":
        found, scores = attention_maps(attentive, images, layers=layers, query=query)
    elif method == "rollout":
        found, scores = rollout_maps(attentive, images, layers=layers, query=query)
    elif method == "relevance":
        found, scores = relevance_maps(attentive, images, targets, layers=layers)
    else:
        found, scores = gradcam_maps(attentive, images, targets, layers=layers)
    return Maps(tuple(layers), torch.stack([found[number] for number in layers], dim=1), scores)


def chosen_layers(depth: int, method: Method, layer: int | Literal["all"] | None) -> Sequence[int]:
    """The layers of so many, counted from 0, that a method is to use; refuses one that is not there."""
    if layer == "all":
        return range(depth)
    if layer is None:
        # From two thirds of the depth on they point best; docs/explain.md has the measurement.
        best = {"relevance": 2 * depth // 3, "gradcam": 2 * depth // 3 + 1}
        return [min(best.get(method, depth - 1), depth - 1)]
    Trace([layer]).check(depth)
    return [layer % depth]


def default_method(model: Network, *, query: bool = False, size: tuple[int, int] | None = None) -> Method:
    """What suits a model: relevance; attention without a classifier or for a place; Grad-CAM without attention.

    size: height and width of the images, if not the model's own. Where they leave a single place of a network's last
    map, Grad-CAM has nothing to tell apart, and it is occlusion.
    """
    if not isinstance(model, TracesAttention):
        return "occlusion" if model.config.classes and _sees_one_place(model, size) else "gradcam"
    return "relevance" if model.config.classes and not query else "attention"


def _sees_one_place(model: Network, size: tuple[int, int] | None) -> bool:
    """Whether nothing but one place is left of such images on the last map of a network without attention."""
    size = size or model.config.image_size
    if isinstance(model, TracesAttention) or not isinstance(model, HasFeatureMap) or max(size) > LARGEST_STRIDE:
        return False
    with evaluating(model), torch.inference_mode():
        empty = torch.zeros(1, model.config.channels, *size, device=model.device)
        places = model.feature_map(empty)
    return places.shape[2:] == (1, 1)


def can_explain_classes(model: Network) -> bool:
    """Whether any method can say what spoke for an answer."""
    return bool(model.config.classes) and isinstance(model, TracesAttention | HasFeatureMap)


def check_request(
    model: Network,
    method: Method,
    layer: int | Literal["all"] | None,
    head: int | Literal["mean", "all"],
    *,
    target: bool,
    query: bool,
    size: tuple[int, int] | None = None,
) -> None:
    """Refuse what a method cannot do with a model; size: of the images, if not the model's own."""
    if method not in METHODS:
        raise UserError(f"method {method!r}: choose one of {', '.join(METHODS)}.")
    _check_capability(model, method)
    if method in ABOUT_A_CLASS and not model.config.classes:
        other = "use attention or rollout" if isinstance(model, TracesAttention) else "fit one first"
        raise UserError(f"method {method}: it explains a class, and the model has no classifier; {other}.")
    if method == "occlusion" and occluded_grid(model, model.config.image_size) == (1, 1):
        raise UserError(
            "method occlusion: the model sees a single patch, and without it there is nothing; use another."
        )
    if method == "gradcam" and _sees_one_place(model, size):
        raise UserError(
            "method gradcam: of images of this size the model's last feature map is a single place, so there is "
            "nothing to tell apart; use occlusion, or larger images."
        )
    if method == "occlusion" and layer is not None:
        raise UserError(f"layer {layer}: occlusion looks at no single layer; leave it out.")
    if head != "mean" and method != "attention":
        raise UserError(f"head {head}: {method} joins all heads; only attention shows them one by one.")
    if isinstance(model, TracesAttention):
        _check_layer_and_head(model.config, method, layer, head)
    elif layer is not None:
        raise UserError(f"layer {layer}: {method} looks at the last feature map of this model alone; leave it out.")
    if query and method not in ("attention", "rollout"):
        raise UserError(f"query: {method} explains the answer, not a place; use attention or rollout.")
    if target and method not in ABOUT_A_CLASS:
        raise UserError(f"class: {method} is the same for every class; leave it out, or use {_listed(ABOUT_A_CLASS)}.")


def _check_capability(model: Network, method: Method) -> None:
    if method == "gradcam" and not isinstance(model, TracesAttention):
        require(model, HasFeatureMap, "method gradcam")
    elif method not in ("gradcam", "occlusion"):
        require(model, TracesAttention, f"method {method}")


def _check_layer_and_head(
    config: ViTConfig, method: Method, layer: int | Literal["all"] | None, head: int | Literal["mean", "all"]
) -> None:
    if isinstance(layer, int):
        chosen_layers(config.depth, method, layer)
    if isinstance(head, int) and not -config.heads <= head < config.heads:
        raise UserError(f"head {head}: the model has heads 0 to {config.heads - 1} in each layer.")


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"
