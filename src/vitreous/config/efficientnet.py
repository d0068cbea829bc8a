"""What an EfficientNet is made of (Tan and Le, 2019)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from vitreous.arguments import Count, Range, Rate, SideLength, check_fields
from vitreous.config.model import ModelConfig, as_size
from vitreous.config.stem import Factor

Padding = Literal["same", "symmetric"]


class Stage(NamedTuple):
    """Blocks of one width; the first of them takes every `stride`-th place."""

    blocks: int
    kernel: int
    stride: int
    expansion: int  # inside a block there are so many times its input's channels
    inputs: int
    outputs: int


# blocks, kernel, stride, expansion, outputs of B0: the paper's table 1
_BASE = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)


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


@dataclass(frozen=True, repr=False)
class EfficientNetConfig(ModelConfig):
    """Everything that fixes an EfficientNet's shape and function: B0, made wider and deeper by two factors."""

    family: ClassVar[str] = "efficientnet"
    family_title: ClassVar[str] = "EfficientNet"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = PRESETS

    width: Factor = 1.0  # factor of every layer's channels, which are then rounded to a multiple of 8
    depth: Factor = 1.0  # factor of every stage's blocks, rounded up
    image_size: tuple[SideLength, SideLength] = (224, 224)
    channels: Count = 3
    classes: Annotated[int, Range(0)] = 1000
    """The classifier's outputs; 0 for no classifier: the model then returns the representation."""
    padding: Padding = "same"
    """TensorFlow's, as in all of Google's weights; or alike on both sides, as in those that timm trained."""
    norm_eps: Annotated[float, Range(1e-30, 1)] = 1e-3  # of every batch norm: 1e-3 in Google's weights, 1e-5 in timm's
    dropout: Rate = 0.2  # before the classifier
    drop_path: Rate = 0.2  # stochastic depth: block i of n is skipped with this probability times i/n

    @property
    def stem_width(self) -> int:
        return self._channels(32)

    @property
    def stages(self) -> tuple[Stage, ...]:
        found, inputs = [], self.stem_width
        for blocks, kernel, stride, expansion, outputs in _BASE:
            wide = self._channels(outputs)
            found.append(Stage(math.ceil(self.depth * blocks), kernel, stride, expansion, inputs, wide))
            inputs = wide
        return tuple(found)

    @property
    def features(self) -> int:
        return self._channels(1280)

    @property
    def layers(self) -> int:
        return sum(stage.blocks for stage in self.stages)

    def _channels(self, base: int) -> int:
        """The nearest multiple of 8, unless that is more than a tenth too few."""
        wanted = base * self.width
        rounded = max(8, int(wanted + 4) // 8 * 8)
        return rounded + 8 if rounded < 0.9 * wanted else rounded

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", as_size(self.image_size))
        check_fields(self)

    @property
    def size_name(self) -> str | None:
        """That of the size with this width and depth, "B0"; None if there is none."""
        return next((size for size, shape in SIZES.items() if shape[:2] == (self.width, self.depth)), None)

    def describe(self) -> str:
        name = self.size_name
        return f"EfficientNet-{name}" if name else f"EfficientNet of width {self.width:g}, depth {self.depth:g}"

    def architecture(self) -> dict[str, str]:
        rows = {
            "Scaled from B0": f"width by {self.width:g}, depth by {self.depth:g}",
            "Blocks": f"{self.layers}, in stages of {', '.join(str(stage.blocks) for stage in self.stages)}",
            "Channels": ", ".join(f"{stage.outputs:,}" for stage in self.stages) + f"; features {self.features:,}",
            "Norm": f"batch norm, epsilon {self.norm_eps:g}",
            "Padding": "as little as the size needs (TensorFlow)" if self.padding == "same" else "equal on both sides",
            "Answer is read from": "the mean over all places",
        }
        return {"Model": self.describe(), **self._with_ends(rows)}
