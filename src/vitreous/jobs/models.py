"""`vitreous models`: the presets of all families and what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vitreous.arguments import Pixels, checked
from vitreous.config.model import ModelConfig, ViTConfig
from vitreous.errors import UserError
from vitreous.model.family import (
    FAMILIES,
    check_one_size,
    count_activation_bytes,
    count_flops,
    count_parameters,
    named_config,
)


@dataclass(frozen=True)
class ModelRow:
    """One model at one resolution, with 1,000 classes."""

    name: str
    family: str
    image_size: tuple[int, int]
    width: int | None
    """This and the next four are of a Vision Transformer; None for other families."""
    depth: int | None
    heads: int | None
    patch: int | None
    tokens: int | None
    parameters: int
    gflops: float
    """Billions of floating-point operations for one picture, forward; a multiplication and an addition are two."""
    activation_mb: float
    """Millions of bytes that training keeps for one picture, in float32."""


@checked
def models(names: Sequence[str] = (), *, image_size: Pixels | None = None) -> list[ModelRow]:
    """The cost of the named models, or of all that the image size suits: a ViT's patch must divide it."""
    for name in names:
        check_one_size(name, image_size)
    sized = {} if image_size is None else {"image_size": (image_size, image_size)}
    if names:
        return [_row(name, named_config(name, **sized)) for name in names]
    listed = [name for family in FAMILIES.values() for name in family.names]
    return [_row(name, config) for name in listed if (config := _fitting(name, sized)) is not None]


def _fitting(name: str, sized: dict[str, tuple[int, int]]) -> ModelConfig | None:
    """The preset at this image size; None if it cannot look at pictures of that."""
    try:
        return named_config(name, **sized)
    except UserError:
        return None


def _row(name: str, config: ModelConfig) -> ModelRow:
    vit = config if isinstance(config, ViTConfig) else None
    return ModelRow(
        name=name,
        family=config.family,
        image_size=config.image_size,
        width=None if vit is None else vit.width,
        depth=None if vit is None else vit.depth,
        heads=None if vit is None else vit.heads,
        patch=None if vit is None else vit.patch,
        tokens=None if vit is None else vit.prefix + vit.patches,
        parameters=count_parameters(config),
        gflops=round(count_flops(config) / 1e9, 3),
        activation_mb=round(count_activation_bytes(config) / 1e6, 1),
    )
