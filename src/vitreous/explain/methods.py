"""The ways to explain, by name, behind one call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vitreous.explain.attention import attention_maps, pool_maps, rollout_maps
from vitreous.model.vit import ViT

Method = Literal["attention", "rollout"]


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
    layers: Sequence[int] | None = None,
    query: int | None = None,
) -> Maps:
    """Maps of a batch of pictures (B, C, H, W), normalised."""
    if method == "attention":
        if layers is None and query is None and model.config.pool == "attention":
            pooled, scores = pool_maps(model, images)
            return Maps((), pooled[:, None], scores)
        return _join(*attention_maps(model, images, layers=layers or (-1,), query=query))
    return _join(*rollout_maps(model, images, layers=layers or (-1,), query=query))


def _join(found: dict[int, Tensor], scores: Tensor) -> Maps:
    layers = tuple(sorted(found))
    return Maps(layers, torch.stack([found[layer] for layer in layers], dim=1), scores)
