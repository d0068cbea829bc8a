"""The explanation methods, and which map of an image to compute: the options of `vitreous explain`.

Imports no torch, so that a command may.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from vitreous.arguments import Expected, OneOf


@dataclass(frozen=True)
class ExplanationMethod:
    """What a method computes, what it needs of a network, and which options it takes.

    Functions may be named by "module:function", to be imported when they are needed.
    """

    title: str
    hint: str  # one sentence below its map on the server's page
    maps: Callable[..., Any] | str
    """({layer: (B, heads or 1, rows, columns)}, logits (B, K)) of (model, images, layers=, and targets= or query=); if
    the method looks at no single layer, (maps (B, rows, columns), logits) of (model, images, targets)."""
    layer: Callable[[int], int] | None = None
    """The layer that suits it, by the network's depth; None: it looks at no single one, and needs no attention."""
    feature_map: Callable[..., Any] | str | None = None
    """What it computes of (model, images, targets) where a network has a feature map but no attention, and its hint."""
    feature_map_hint: str = ""
    explains_class: bool = True  # and not the attention of a point
    gradients: bool = False
    heads: bool = False  # its heads can be shown one by one
    check: Callable[..., None] | str | None = None
    """Called with a model and the (height, width) of its images: refuses those that it can tell nothing about."""


EXPLANATION_METHODS: dict[str, ExplanationMethod] = {
    "attention": ExplanationMethod(
        title="Attention",
        hint="Where the answer looks in this layer.",
        maps="vitreous.explain.attention:attention_maps",
        layer=lambda depth: depth - 1,
        explains_class=False,
        heads=True,
    ),
    "rollout": ExplanationMethod(
        title="Attention rollout",
        hint="Attention from the first layer up to this one.",
        maps="vitreous.explain.attention:rollout_maps",
        layer=lambda depth: depth - 1,
        explains_class=False,
    ),
    # The next two localise best from two thirds of the depth on; docs/explain.md has the measurement.
    "relevance": ExplanationMethod(
        title="Relevance",
        hint="What spoke for the class, from this layer to the answer.",
        maps="vitreous.explain.relevance:relevance_maps",
        layer=lambda depth: 2 * depth // 3,
        gradients=True,
    ),
    "gradcam": ExplanationMethod(
        title="Grad-CAM",
        hint="What spoke for the class at the entrance of this layer.",
        maps="vitreous.explain.relevance:gradcam_maps",
        layer=lambda depth: 2 * depth // 3 + 1,
        feature_map="vitreous.explain.relevance:feature_map_gradcam",
        feature_map_hint="What spoke for the class in the last feature map.",
        gradients=True,
        check="vitreous.explain.methods:check_feature_map",
    ),
    "occlusion": ExplanationMethod(
        title="Occlusion",
        hint="How much evidence for the class is lost without each place.",
        maps="vitreous.explain.occlusion:occlusion_maps",
        check="vitreous.explain.occlusion:check_several_patches",
    ),
}

Method = Annotated[str, OneOf(EXPLANATION_METHODS.keys)]
Layer = int | Literal["all"]
Head = int | Literal["mean", "all"]
Point = Annotated[tuple[float, float], Expected("two numbers, such as 120,80: across and down, in pixels")]


@dataclass(frozen=True, kw_only=True)
class ExplanationRequest:
    """How to explain a model's prediction; `vitreous.explain.methods.check_request` says what a model can do."""

    method: Method | None = None
    """How to explain. Default: relevance; attention if the model has no classifier or --query is given; of a network
    without attention gradcam, or occlusion if its last feature map has a single position."""
    layer: Layer | None = None
    """N|all: A layer, counted from 0, or from the end if negative; all draws one map per layer. Which layer's attention
    (attention), up to which layer (rollout), from which layer on (relevance), at which layer's input (gradcam).
    Default: what suits the method."""
    head: Head = "mean"
    """N|mean|all: The attention head, counted from 0, or from the end if negative; mean averages
    them, all draws one map per head."""
    target: str | None = None
    """NAME: The class to explain. Default: the one with the highest probability."""
    query: Point | None = None
    """X,Y: A point in the image, in pixels: show what the patch there attends to."""
