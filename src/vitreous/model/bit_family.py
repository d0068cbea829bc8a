"""BiT's row in the table of families, and its sizes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from vitreous.config.bit import BiTConfig
from vitreous.model import convolution_cost as cost
from vitreous.model.table import Family, classes_text, input_text, preset_of

if TYPE_CHECKING:
    from torch import nn

    from vitreous.model.network import Role
    from vitreous.model.resnet import BiT

# Those that the paper trains and publishes. The last is ours, for images of 32 pixels on two cores: a root that keeps
# every pixel, then three stages of 32, 16 and 8 pixels' side, as ResNets for CIFAR have them; one block each, and half
# the width, which is the least that 32 groups allow.
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "bit-r50x1": {"depths": (3, 4, 6, 3), "width": 1.0},
    "bit-r50x3": {"depths": (3, 4, 6, 3), "width": 3.0},
    "bit-r101x1": {"depths": (3, 4, 23, 3), "width": 1.0},
    "bit-r101x3": {"depths": (3, 4, 23, 3), "width": 3.0},
    "bit-r152x2": {"depths": (3, 8, 36, 3), "width": 2.0},
    "bit-r152x4": {"depths": (3, 8, 36, 3), "width": 4.0},
    "bit-r11x0.5": {"depths": (1, 1, 1), "width": 0.5, "root": "3x3", "image_size": (32, 32)},
}
_BLOCK = re.compile(r"stages\.(\d+)\.blocks\.(\d+)\.")


def _build(config: BiTConfig, seed: int | None) -> BiT:
    from vitreous.model.resnet import BiT

    return BiT(config, seed=seed)


def _classifiers(network: BiT) -> list[nn.Linear]:
    from torch import nn

    return [network.head.fc] if isinstance(network.head.fc, nn.Linear) else []


def _roles(network: BiT) -> dict[str, Role]:
    from vitreous.model.roles import module_roles

    before = list(accumulate(network.config.depths, initial=0))

    def layer_of(name: str) -> int:
        if match := _BLOCK.match(name):
            return before[int(match[1])] + int(match[2])
        return -1 if name.startswith("stem.") else network.config.layers

    return module_roles(network, layer_of, [network.head])


def _describe(c: BiTConfig) -> str:
    return f"BiT ResNet-{c.depth}x{c.width:g}"


def _facts(c: BiTConfig) -> dict[str, str]:
    return {
        "Model": _describe(c),
        "Input": input_text(c),
        "Root": "7×7 convolution and pooling" if c.root == "7x7" else "3×3 convolution, no pooling",
        "Blocks": f"{c.layers}, in stages of {', '.join(map(str, c.depths))}",
        "Channels": ", ".join(f"{width:,}" for width in c.stage_widths),
        "Norm": "group norm, kernels standardised",
        "Answer is read from": "the mean over all places",
        "Classes": classes_text(c),
    }


BIT = Family(
    name="BiT ResNet",
    config=BiTConfig,
    build=_build,
    classifiers=_classifiers,
    roles=_roles,
    preset=preset_of(BiTConfig, PRESETS),
    names=tuple(PRESETS),
    parameters=partial(cost.count_parameters, cost.bit_layers),
    flops=partial(cost.count_flops, cost.bit_layers),
    activation_bytes=partial(cost.count_activation_bytes, cost.bit_layers),
    forward_bytes=partial(cost.count_forward_bytes, cost.bit_layers),
    inference_batch=partial(cost.inference_batch, cost.bit_layers),
    describe=_describe,
    facts=_facts,
)
