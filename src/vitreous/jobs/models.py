"""`vitreous models`: the presets of all families and what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from vitreous.arguments import Count, Pixels, checked
from vitreous.config.model import ModelConfig, ViTConfig
from vitreous.errors import UserError
from vitreous.inputs import parse_size
from vitreous.model.family import (
    FAMILIES,
    check_one_size,
    count_activation_bytes,
    count_flops,
    count_parameters,
    named_config,
)
from vitreous.training.parallelism import GpuPlan, fit_on


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
    """Billions of floating-point operations for one image, forward; a multiplication and an addition are two."""
    activation_mb: float
    """Millions of bytes that training keeps for one image, in float32."""
    fit: GpuPlan | None = None
    """How it can be trained on the GPUs that were asked about."""


@checked
def models(
    names: Sequence[str] = (),
    *,
    image_size: Pixels | None = None,
    gpus: Count | None = None,
    memory: str | int | None = None,
    batch_size: Count | None = None,
) -> list[ModelRow]:
    """The cost of the named models, or of all that the image size suits: a ViT's patch must divide it.

    gpus, memory: how many GPUs there are, and how much memory each has ("80GB", or bytes): then each row says whether
        and how the model can be trained on them, with a batch of `batch_size` images over all of them.
    """
    for name in names:
        check_one_size(name, image_size)
    if (gpus is None) != (memory is None):
        raise UserError("gpus and memory belong together: give both, such as gpus=8 and memory='80GB', or neither.")
    if batch_size is not None and gpus is None:
        raise UserError("batch_size: of what GPUs; give gpus and memory too, or leave it out.")
    sized = {} if image_size is None else {"image_size": (image_size, image_size)}
    listed = names or [name for family in FAMILIES.values() for name in family.names]
    found = [(name, named_config(name, **sized) if names else _fitting(name, sized)) for name in listed]
    rows = [(config, _row(name, config)) for name, config in found if config is not None]
    if gpus is None or memory is None:
        return [row for _, row in rows]
    each = parse_size(memory, "memory")
    return [replace(row, fit=fit_on(config, gpus, each, batch_size)) for config, row in rows]


def _fitting(name: str, sized: dict[str, tuple[int, int]]) -> ModelConfig | None:
    """The preset at this image size; None if it cannot look at images of that."""
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
