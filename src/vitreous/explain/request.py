"""Which map of an image to compute: the options of `vitreous explain`. Imports no torch, so that a command may."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from vitreous.arguments import Expected

Method = Literal["attention", "rollout", "relevance", "gradcam", "occlusion"]
METHODS: tuple[Method, ...] = get_args(Method)
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
    """N|mean|all: The attention head, counted from 0; mean averages them, all draws one map per head."""
    target: str | None = None
    """NAME: The class to explain. Default: the one with the highest probability."""
    query: Point | None = None
    """X,Y: A point in the image, in pixels: show what the patch there attends to."""
