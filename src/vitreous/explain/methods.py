"""Maps of a batch of images by any method of `EXPLANATION_METHODS`, and which requests suit a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from vitreous.errors import UserError
from vitreous.explain.attention import pool_maps
from vitreous.explain.request import EXPLANATION_METHODS, ExplanationRequest, Layer
from vitreous.model.network import HasFeatureMap, Network, TracesAttention, evaluating, require
from vitreous.model.trace import Trace

LARGEST_STRIDE = 256
"""Pixels of input per position of any network's last feature map: larger images leave several positions."""


@dataclass(frozen=True)
class Maps:
    """What a method found in a batch of images."""

    layers: tuple[int, ...]  # the layers that `maps` has; () if a map belongs to no single one
    maps: Tensor  # (B, layers or 1, heads or 1, rows, columns)
    logits: Tensor  # (B, K); (B, D), the representation, of a model without a classifier


def compute_maps(
    model: Network,
    images: Tensor,
    method: str,
    *,
    layer: Layer | None = None,
    targets: Tensor | None = None,
    query: int | None = None,
) -> Maps:
    """Maps of a batch of images (B, C, H, W), normalised.

    layer: None for the one that suits the method; `ExplanationRequest.layer` says what it means to each. Grad-CAM of a
        network without attention looks at the last feature map.
    targets: (B,) the classes to explain; None for the most probable.
    query: the patch whose attention is shown; None for the tokens that the prediction is read from.
    """
    row = EXPLANATION_METHODS[method]
    if (function := _layerless(model, method)) is not None:
        maps, logits = function(model, images, targets)
        return Maps((), maps[:, None, None], logits)
    attentive = require(model, TracesAttention, f"method {method}")
    if method == "attention" and layer is None and query is None and attentive.config.pool == "attention":
        maps, logits = pool_maps(attentive, images)
        return Maps((), maps[:, None], logits)
    layers = chosen_layers(attentive.config.depth, method, layer)
    options = {"targets": targets} if row.explains_class else {"query": query}
    found, logits = _function(row.maps)(attentive, images, layers=layers, **options)
    return Maps(tuple(layers), torch.stack([found[number] for number in layers], dim=1), logits)


def _layerless(model: Network, method: str) -> Callable[..., Any] | None:
    """What computes one map of an image, where the method looks at no single layer of such a network; else None."""
    row = EXPLANATION_METHODS[method]
    if row.layer is None:
        return _function(row.maps)
    if row.feature_map is None or isinstance(model, TracesAttention):
        require(model, TracesAttention, f"method {method}")
        return None
    require(model, HasFeatureMap, f"method {method}")
    return _function(row.feature_map)


def _function(named: Callable[..., Any] | str) -> Callable[..., Any]:
    """The function itself, of one that a row of the table may name by "module:function"."""
    if not isinstance(named, str):
        return named
    module, _, name = named.partition(":")
    function: Callable[..., Any] = getattr(import_module(module), name)
    return function


def chosen_layers(depth: int, method: str, layer: Layer | None) -> Sequence[int]:
    """The layers that a method uses, counted from 0; refuses one that is not there."""
    if layer == "all":
        return range(depth)
    if layer is None:
        suited = EXPLANATION_METHODS[method].layer
        assert suited is not None
        return [min(suited(depth), depth - 1)]
    Trace([layer]).check(depth)
    return [layer % depth]


def default_method(model: Network, *, query: bool = False, size: tuple[int, int] | None = None) -> str:
    """What suits a model: relevance; attention without a classifier or for a point; Grad-CAM without attention.

    size: height and width of the images, if not the model's own. If they leave a single position of the last feature
    map, Grad-CAM has nothing to distinguish, and it is occlusion.
    """
    if not isinstance(model, TracesAttention):
        return "occlusion" if model.config.classes and _has_one_position(model, size) else "gradcam"
    return "relevance" if model.config.classes and not query else "attention"


def _has_one_position(model: Network, size: tuple[int, int] | None) -> bool:
    """Whether the last feature map of a network without attention is 1 x 1 for images of this size."""
    size = size or model.config.image_size
    if isinstance(model, TracesAttention) or not isinstance(model, HasFeatureMap) or max(size) > LARGEST_STRIDE:
        return False
    with evaluating(model), torch.inference_mode():
        features = model.feature_map(torch.zeros(1, model.config.channels, *size, device=model.device))
    return features.shape[2:] == (1, 1)


def can_explain_classes(model: Network) -> bool:
    """Whether any method can explain a predicted class."""
    return bool(model.config.classes) and isinstance(model, TracesAttention | HasFeatureMap)


def check_request(model: Network, request: ExplanationRequest, size: tuple[int, int] | None = None) -> None:
    """Refuse what its method cannot do with a model; size: of the images, if not the model's own."""
    method, layer, head = request.method, request.layer, request.head
    assert method is not None
    row = EXPLANATION_METHODS[method]
    _layerless(model, method)  # refuses a network that has not what the method needs
    if row.explains_class and not model.config.classes:
        other = "use attention or rollout" if isinstance(model, TracesAttention) else "fit one first"
        raise UserError(f"method {method}: it explains a class, and the model has no classifier; {other}.")
    if row.check is not None:
        _function(row.check)(model, size or model.config.image_size)
    if row.layer is None and layer is not None:
        raise UserError(f"layer {layer}: {method} looks at no single layer; leave it out.")
    if head != "mean" and not row.heads:
        raise UserError(f"head {head}: {method} joins all heads; only attention shows them one by one.")
    if not isinstance(model, TracesAttention):
        if layer is not None:
            raise UserError(f"layer {layer}: {method} looks only at the last feature map of this model; leave it out.")
    else:
        if row.layer is not None:
            chosen_layers(model.config.depth, method, layer)
        if isinstance(head, int) and not -model.config.heads <= head < model.config.heads:
            raise UserError(f"head {head}: the model has heads 0 to {model.config.heads - 1} in each layer.")
    if request.query is not None and row.explains_class:
        raise UserError(f"query: {method} explains the prediction, not a point; use attention or rollout.")
    if request.target is not None and not row.explains_class:
        *others, last = (name for name, other in EXPLANATION_METHODS.items() if other.explains_class)
        raise UserError(
            f"target class: {method} is the same for every class; leave it out, or use {', '.join(others)} or {last}."
        )


def check_feature_map(model: Network, size: tuple[int, int]) -> None:
    """Refuse Grad-CAM of a last feature map with a single position."""
    if _has_one_position(model, size):
        raise UserError(
            "method gradcam: the model's last feature map has a single position for images of this size, so there is "
            "nothing to distinguish; use occlusion, or larger images."
        )
