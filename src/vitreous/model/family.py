"""The one table of families of networks, and the questions that it answers for any of them.

A new family is a file with its configuration, its network and its row, and one line in `FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from vitreous.config.fields import from_fields
from vitreous.config.model import ModelConfig
from vitreous.errors import UserError
from vitreous.memory import check_memory
from vitreous.model.bit_family import BIT
from vitreous.model.cost import CACHED, FEWEST, MOST
from vitreous.model.efficientnet_family import EFFICIENTNET
from vitreous.model.presets import preset
from vitreous.model.table import Family as Family
from vitreous.model.table import Size, check_whole, input_text, plain_description, plain_facts
from vitreous.model.vit_family import VIT
from vitreous.wording import shown

if TYPE_CHECKING:
    from torch import Tensor, nn

    from vitreous.model.network import Network, Role

FAMILIES: dict[str, Family] = {"vit": VIT, "bit": BIT, "efficientnet": EFFICIENTNET}
"""By the name that configurations and bundles have."""


def family_of(config: ModelConfig) -> Family:
    """The family that a configuration belongs to."""
    return _named(config.family, "model")


def _named(name: str, where: object) -> Family:
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
    family = _named(name if isinstance(name, str) else shown(name), where)
    config: ModelConfig = from_fields(
        family.config, {name: value for name, value in fields.items() if name != "family"}, where
    )
    return config


def named_config(name: str, **changes: Any) -> ModelConfig:
    """The preset of any family that has this name, such as "B/16" or "L/16@384"; `changes` set fields."""
    base, _, side = name.partition("@")
    for key, family in FAMILIES.items():
        if key == "vit" or family.preset is None or base not in family.names:
            continue  # a ViT's sizes and patches go beyond those that are listed
        config: ModelConfig = family.preset(base, **changes)
        if not side:
            return config
        if not side.isdigit():
            raise UserError(f"model {name!r}: write the side of the image after the @, in pixels.")
        return for_size(config, (int(side), int(side)))
    others = [other for key, family in FAMILIES.items() if key != "vit" for other in family.names]
    if "/" not in base and (near := get_close_matches(base.lower(), others, n=1, cutoff=0.6)):
        raise UserError(f"model {name!r}: there is none of this name; did you mean {near[0]!r}?")
    return preset(name, **changes)


def check_one_size(name: str | None, image_size: int | None) -> None:
    """Refuse two sizes for one model: after the @ of its name, and as an argument."""
    if name is not None and "@" in name and image_size is not None:
        raise UserError(f"image_size={image_size}: model {name!r} says its size after the @; give one of the two.")


def build_network(config: ModelConfig, seed: int | None = 0) -> Network:
    """The network, its weights drawn from the seed alone; None: left undefined, to be loaded."""
    check_weights_fit(config)
    return family_of(config).build(config, seed)


def check_weights_fit(config: ModelConfig, copies: int = 1) -> None:
    """Refuse a network whose weights need more memory than there is, before any of it is taken.

    copies: how often they are kept; training with AdamW keeps four: weights, gradients and two averages.
    """
    check_memory(
        4 * copies * count_parameters(config),
        f"{describe(config)}, {input_text(config)}, {config.classes:,} classes",
        "choose a smaller model, smaller images or fewer classes",
    )


def count_parameters(config: ModelConfig) -> int:
    """Learned numbers, all of them."""
    family = family_of(config)
    if family.parameters is not None:
        return family.parameters(config)
    from vitreous.model.measure import measure_parameters

    return measure_parameters(family.build, config)


def count_flops(config: ModelConfig, keep: float = 1.0) -> int:
    """Floating-point operations that one image's forward pass takes; a multiplication and an addition are two.

    keep: the share of its patches that are looked at.
    """
    family = family_of(config)
    if family.flops is not None:
        return family.flops(config, keep)
    check_whole(config, keep)
    from vitreous.model.measure import measure_flops

    return measure_flops(family.build, config)


def count_activation_bytes(config: ModelConfig) -> int:
    """Bytes of one image that a float32 training step keeps from the forward pass for the backward pass."""
    family = family_of(config)
    if family.activation_bytes is not None:
        return family.activation_bytes(config)
    from vitreous.model.measure import measure_activation_bytes

    return measure_activation_bytes(family.build, config)


def count_forward_bytes(config: ModelConfig) -> int:
    """Bytes of one image that a forward pass needs at once where no gradient is wanted."""
    family = family_of(config)
    if family.forward_bytes is not None:
        return family.forward_bytes(config)
    from vitreous.model.measure import largest_activation

    return 2 * largest_activation(family.build, config)  # a layer's input and its output


def inference_batch(config: ModelConfig) -> int:
    """How many images to look at at once where no gradient is needed."""
    family = family_of(config)
    if family.inference_batch is not None:
        return family.inference_batch(config)
    from vitreous.model.measure import largest_activation

    return max(FEWEST, min(MOST, CACHED // max(1, largest_activation(family.build, config))))


def for_size(config: ModelConfig, size: Size) -> ModelConfig:
    """The configuration of the same network for images (height, width) of another size."""
    changed: ModelConfig = family_of(config).for_size(config, size)
    return changed


def resize(state: dict[str, Tensor], config: ModelConfig, size: Size) -> dict[str, Tensor]:
    """A network's tensors for images (height, width) of another size; `for_size` is its configuration then."""
    return family_of(config).resize(state, config, size)


def for_classes(config: ModelConfig, classes: int) -> ModelConfig:
    """The configuration with a new classifier of so many outputs, or with 0 none."""
    changed: ModelConfig = family_of(config).for_classes(config, classes)
    return changed


def check_size(config: ModelConfig, size: Size) -> None:
    """Refuse images (height, width) of a size that the network cannot look at."""
    family_of(config).check_size(config, size)


def parameter_roles(network: Network) -> dict[str, Role]:
    """What each parameter is, by name, those of a low-rank change included."""
    return family_of(network.config).roles(network)


def classifiers(network: Network) -> list[nn.Linear]:
    """The last layer; where there are several, their mean is the score; none without a classifier."""
    return list(family_of(network.config).classifiers(network))


def lora_targets(network: Network) -> list[nn.Linear]:
    """The layers that a low-rank change is learned for; none if the family has no such."""
    return list(family_of(network.config).lora_targets(network))


def first_convolution(network: Network) -> tuple[str, nn.Conv2d] | None:
    """The layer that looks at the pixels, with its name; None if it is no convolution."""
    from torch import nn

    for name, module in network.named_modules():
        if isinstance(module, nn.Conv2d) and module.in_channels == network.config.channels:
            return name, module
    return None


def without_classifier(network: Network, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a network's state that do not belong to its classifier."""
    own = {name for name, role in parameter_roles(network).items() if role.kind == "classifier"}
    return {name: tensor for name, tensor in state.items() if name not in own}


def describe(config: ModelConfig) -> str:
    """ "ViT of width 192, depth 12, patch 16"."""
    family = family_of(config)
    return family.describe(config) if family.describe is not None else plain_description(family, config)


def facts(config: ModelConfig) -> dict[str, str]:
    """What a network is made of, for reports."""
    family = family_of(config)
    return family.facts(config) if family.facts is not None else plain_facts(config)


def called(config: ModelConfig) -> str:
    """One of the family, as the start of a sentence: "A Vision Transformer", "A hybrid R26+S/32", "An EfficientNet"."""
    family = family_of(config)
    return _with_article(family.name if family.title is None else family.title(config))


def described(config: ModelConfig) -> str:
    """The same with its size: "A ViT of width 192, depth 12, patch 16"."""
    return _with_article(describe(config))


def _with_article(text: str) -> str:
    return f"{'An' if text[0] in 'AEIOU' else 'A'} {text}"
