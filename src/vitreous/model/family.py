"""The families of networks, one row each, and what is asked of a family by its name or a configuration.

A new family is its configuration (`vitreous.config.model.ModelConfig`), its network (`vitreous.model.network.Network`)
and a row that holds both.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from vitreous.arguments import shown
from vitreous.config.bit import BiTConfig
from vitreous.config.efficientnet import EfficientNetConfig
from vitreous.config.fields import from_fields
from vitreous.config.model import ModelConfig, ViTConfig, preset
from vitreous.errors import UserError
from vitreous.memory import check_memory
from vitreous.model.conv_cost import bit_layers, conv_cost, efficientnet_layers
from vitreous.model.cost import NetworkCost, measure_cost
from vitreous.model.vit_cost import vit_cost

if TYPE_CHECKING:
    from vitreous.model.network import Network


class Family(NamedTuple):
    """A family of networks."""

    config: type[ModelConfig]
    network: type[Network] | str
    """The class, or "module:class", imported when it is needed: called with a configuration and a seed."""
    cost: Callable[[Any, float], NetworkCost] | None = None
    """(config, patch_fraction), counted without torch; None: measured on a network without memory for its weights."""


FAMILIES: dict[str, Family] = {
    "vit": Family(ViTConfig, "vitreous.model.vit:ViT", vit_cost),
    "bit": Family(BiTConfig, "vitreous.model.resnet:BiT", partial(conv_cost, bit_layers)),
    "efficientnet": Family(
        EfficientNetConfig, "vitreous.model.efficientnet:EfficientNet", partial(conv_cost, efficientnet_layers)
    ),
}
"""By the name that configurations and bundles have."""


def _family(name: str, where: object = "model") -> Family:
    if name not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise UserError(
            f"{where}: a model of the family {shown(name)}, and those known here are {known}; install a newer "
            "vitreous, or add the family to FAMILIES of vitreous.model.family first."
        )
    return FAMILIES[name]


def config_from_json(fields: Mapping[str, Any], where: object = "model") -> ModelConfig:
    """What `vitreous.config.model.model_to_json` kept. Without a family, as older versions wrote it, it is a ViT's.

    where: the file that it comes from, for messages.
    """
    name = fields.get("family", "vit")
    family = _family(name if isinstance(name, str) else shown(name), where)
    return from_fields(family.config, {name: value for name, value in fields.items() if name != "family"}, where)


def named_config(name: str, **overrides: Any) -> ModelConfig:
    """The preset of any family that has this name, such as "B/16" or "L/16@384"; `overrides` set fields."""
    base, _, side = name.partition("@")
    others = [family.config for key, family in FAMILIES.items() if key != "vit"]  # a ViT's name says its side itself
    for kind in others:
        if base in kind.presets:
            config = kind.preset(base, **overrides)
            if side and not side.isdigit():
                raise UserError(f"model {name!r}: write the side of the image after the @, in pixels.")
            return config.for_size((int(side), int(side))) if side else config
    names = [other for kind in others for other in kind.presets]
    if "/" not in base and (near := get_close_matches(base.lower(), names, n=1, cutoff=0.6)):
        raise UserError(f"model {name!r}: there is none of this name; did you mean {near[0]!r}?")
    return preset(name, **overrides)


def check_one_size(name: str | None, image_size: int | None) -> None:
    """Refuse two sizes for one model: after the @ of its name, and as an argument."""
    if name is not None and "@" in name and image_size is not None:
        raise UserError(f"image_size={image_size}: model {name!r} says its size after the @; give one of the two.")


def network_class(config: ModelConfig) -> type[Network]:
    network = _family(config.family).network
    return pkgutil.resolve_name(network) if isinstance(network, str) else network


def build_network(config: ModelConfig, seed: int | None = 0) -> Network:
    """The network, its weights drawn from the seed alone; None: left undefined, to be loaded."""
    check_weights_fit(config)
    return network_class(config)(config, seed=seed)


def check_weights_fit(config: ModelConfig) -> None:
    """Refuse a network whose weights need more memory than there is, before any of it is taken."""
    check_memory(
        4 * count_parameters(config),
        f"{config.describe()}, {config.input_text()}, {config.classes:,} classes",
        "choose a smaller model, smaller images or fewer classes",
    )


def network_cost(config: ModelConfig, patch_fraction: float = 1.0) -> NetworkCost:
    """What one image costs. patch_fraction: of its patches that are looked at, which `flops` follows."""
    if patch_fraction != 1.0 and not config.has_patches:
        raise UserError(
            f"patch_fraction={patch_fraction}: one of the family {config.family!r} leaves no patches out; give 1."
        )
    return _family_cost(_family(config.family), config, patch_fraction)


@lru_cache(maxsize=1024)
def _family_cost(family: Family, config: ModelConfig, patch_fraction: float) -> NetworkCost:
    if family.cost is not None:
        return family.cost(config, patch_fraction)
    import torch

    with torch.device("meta"):
        return measure_cost(network_class(config)(config, seed=None))


def count_parameters(config: ModelConfig) -> int:
    return network_cost(config).parameters


def count_flops(config: ModelConfig, patch_fraction: float = 1.0) -> int:
    """Floating-point operations of one image's forward pass; a multiplication and an addition are two."""
    return network_cost(config, patch_fraction).flops


def count_activation_bytes(config: ModelConfig) -> int:
    """Bytes of one image that a float32 training step keeps from the forward pass for the backward pass."""
    return network_cost(config).activation_bytes


def count_forward_bytes(config: ModelConfig) -> int:
    """Bytes of one image that a forward pass needs at once where no gradient is wanted."""
    return network_cost(config).forward_bytes


CACHED_BYTES = 10_000_000
"""Of the largest activation, up to which a forward pass is fastest: beyond, memory is asked of the system anew in each
layer (docs/log.md)."""


def inference_batch(config: ModelConfig) -> int:
    return max(4, min(128, CACHED_BYTES // max(1, network_cost(config).largest_activation)))
