"""`vitreous models`: the family and what its members cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vitreous.config.model import ViTConfig
from vitreous.errors import UserError
from vitreous.model.cost import count_activation_bytes, count_flops, count_parameters
from vitreous.model.presets import NAMES, preset


@dataclass(frozen=True)
class ModelRow:
    """One model at one resolution, with 1,000 classes."""

    name: str
    image_size: tuple[int, int]
    width: int
    depth: int
    heads: int
    patch: int
    tokens: int
    parameters: int
    gflops: float
    """Billions of floating-point operations for one picture, forward; a multiplication and an addition are two."""
    activation_mb: float
    """Millions of bytes that training keeps for one picture, in float32."""


def models(names: Sequence[str] = (), *, image_size: int | None = None) -> list[ModelRow]:
    """The cost of the named models, or of all that the image size suits."""
    if image_size is not None and image_size < 1:
        raise UserError(f"--image-size {image_size}: give the side of the picture in pixels, for example 224.")
    sized = {} if image_size is None else {"image_size": (image_size, image_size)}
    if names:
        return [_row(name, preset(name, **sized)) for name in names]
    fitting = [name for name in NAMES if image_size is None or image_size % preset(name).patch == 0]
    if not fitting:
        sides = sorted({preset(name).patch for name in NAMES})
        raise UserError(f"--image-size {image_size}: no preset has a patch that divides it; patches are {sides}.")
    return [_row(name, preset(name, **sized)) for name in fitting]


def _row(name: str, config: ViTConfig) -> ModelRow:
    return ModelRow(
        name=name,
        image_size=config.image_size,
        width=config.width,
        depth=config.depth,
        heads=config.heads,
        patch=config.patch,
        tokens=config.prefix + config.patches,
        parameters=count_parameters(config),
        gflops=round(count_flops(config) / 1e9, 3),
        activation_mb=round(count_activation_bytes(config) / 1e6, 1),
    )
