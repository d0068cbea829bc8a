"""EfficientNet's row in the table of families, and its sizes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from vitreous.config.efficientnet import EfficientNetConfig
from vitreous.model import convolution_cost as cost
from vitreous.model.table import Family, classes_text, input_text, preset_of

if TYPE_CHECKING:
    from torch import nn

    from vitreous.model.efficientnet import EfficientNet
    from vitreous.model.network import Role

# name: (width, depth, side of an image, dropout): compound scaling as Google's code has it. L2 is of "Self-training
# with Noisy Student", which trains it at 475 pixels first.
SIZES: Mapping[str, tuple[float, float, int, float]] = {
    "B0": (1.0, 1.0, 224, 0.2),
    "B1": (1.0, 1.1, 240, 0.2),
    "B2": (1.1, 1.2, 260, 0.3),
    "B3": (1.2, 1.4, 300, 0.3),
    "B4": (1.4, 1.8, 380, 0.4),
    "B5": (1.6, 2.2, 456, 0.4),
    "B6": (1.8, 2.6, 528, 0.5),
    "B7": (2.0, 3.1, 600, 0.5),
    "L2": (4.3, 5.3, 800, 0.5),
}
PRESETS: Mapping[str, Mapping[str, Any]] = {
    f"efficientnet-{size.lower()}": {"width": width, "depth": depth, "image_size": (side, side), "dropout": dropout}
    for size, (width, depth, side, dropout) in SIZES.items()
}
_BLOCK = re.compile(r"blocks\.(\d+)\.(\d+)\.")


def size_of(c: EfficientNetConfig) -> str | None:
    """The name of the size with this width and depth, "B0"; None if there is none."""
    return next((size for size, (width, depth, *_) in SIZES.items() if (width, depth) == (c.width, c.depth)), None)


def _build(config: EfficientNetConfig, seed: int | None) -> EfficientNet:
    from vitreous.model.efficientnet import EfficientNet

    return EfficientNet(config, seed=seed)


def _classifiers(network: EfficientNet) -> list[nn.Linear]:
    from torch import nn

    return [network.classifier] if isinstance(network.classifier, nn.Linear) else []


def _roles(network: EfficientNet) -> dict[str, Role]:
    from vitreous.model.roles import module_roles

    before = list(accumulate((stage.blocks for stage in network.config.stages), initial=0))

    def layer_of(name: str) -> int:
        if match := _BLOCK.match(name):
            return before[int(match[1])] + int(match[2])
        return -1 if name.startswith(("conv_stem.", "bn1.")) else network.config.layers

    return module_roles(network, layer_of, [network.classifier])


def _describe(c: EfficientNetConfig) -> str:
    size = size_of(c)
    return f"EfficientNet-{size}" if size else f"EfficientNet of width {c.width:g}, depth {c.depth:g}"


def _facts(c: EfficientNetConfig) -> dict[str, str]:
    return {
        "Model": _describe(c),
        "Input": input_text(c),
        "Scaled from B0": f"width by {c.width:g}, depth by {c.depth:g}",
        "Blocks": f"{c.layers}, in stages of {', '.join(str(stage.blocks) for stage in c.stages)}",
        "Channels": ", ".join(f"{stage.outputs:,}" for stage in c.stages) + f"; features {c.features:,}",
        "Norm": f"batch norm, epsilon {c.norm_eps:g}",
        "Padding": "as little as the size needs (TensorFlow)" if c.padding == "same" else "alike on both sides",
        "Answer is read from": "the mean over all places",
        "Classes": classes_text(c),
    }


EFFICIENTNET = Family(
    name="EfficientNet",
    config=EfficientNetConfig,
    build=_build,
    classifiers=_classifiers,
    roles=_roles,
    preset=preset_of(EfficientNetConfig, PRESETS),
    names=tuple(PRESETS),
    parameters=partial(cost.count_parameters, cost.efficientnet_layers),
    flops=partial(cost.count_flops, cost.efficientnet_layers),
    activation_bytes=partial(cost.count_activation_bytes, cost.efficientnet_layers),
    forward_bytes=partial(cost.count_forward_bytes, cost.efficientnet_layers),
    inference_batch=partial(cost.inference_batch, cost.efficientnet_layers),
    describe=_describe,
    facts=_facts,
)
