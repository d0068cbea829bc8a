"""What an EfficientNet is made of (Tan and Le, 2019)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

from vitreous.arguments import Count, Pixels, check_fields
from vitreous.config.model import as_size
from vitreous.config.stem import Factor
from vitreous.errors import UserError
from vitreous.wording import Range

Padding = Literal["same", "symmetric"]


class Stage(NamedTuple):
    """Blocks of one width; the first of them takes every `stride`-th place."""

    blocks: int
    kernel: int
    stride: int
    expansion: int
    """Inside a block there are so many times its input's channels."""
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


@dataclass(frozen=True)
class EfficientNetConfig:
    """Everything that fixes an EfficientNet's shape and function: B0, made wider and deeper by two factors."""

    family: ClassVar[str] = "efficientnet"

    width: Factor = 1.0
    """Factor of every layer's channels, which are then rounded to a multiple of 8."""
    depth: Factor = 1.0
    """Factor of every stage's blocks, rounded up."""
    image_size: tuple[Pixels, Pixels] = (224, 224)
    channels: Count = 3
    classes: Annotated[int, Range(0)] = 1000
    """The classifier's outputs; 0 for no classifier: the model then returns the representation."""
    padding: Padding = "same"
    """TensorFlow's, as in all of Google's weights; or alike on both sides, as in those that timm trained."""
    norm_eps: Annotated[float, Range(1e-30, 1)] = 1e-3
    """Of every batch norm: 1e-3 in Google's weights, 1e-5 in timm's."""
    dropout: float = 0.2
    """Before the classifier."""
    drop_path: float = 0.2
    """Stochastic depth: block i of n is skipped with this probability times i/n."""

    @property
    def stem_width(self) -> int:
        """Channels of the first convolution."""
        return self._channels(32)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The scaled stages, from pixels to features."""
        found, inputs = [], self.stem_width
        for blocks, kernel, stride, expansion, outputs in _BASE:
            wide = self._channels(outputs)
            found.append(Stage(math.ceil(self.depth * blocks), kernel, stride, expansion, inputs, wide))
            inputs = wide
        return tuple(found)

    @property
    def features(self) -> int:
        """The length of the representation."""
        return self._channels(1280)

    @property
    def layers(self) -> int:
        """How many layers can be frozen one by one: the blocks."""
        return sum(stage.blocks for stage in self.stages)

    def _channels(self, base: int) -> int:
        """The nearest multiple of 8, unless that is more than a tenth too few."""
        wanted = base * self.width
        rounded = max(8, int(wanted + 4) // 8 * 8)
        return rounded + 8 if rounded < 0.9 * wanted else rounded

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", as_size(self.image_size))
        check_fields(self)
        for name in ("dropout", "drop_path"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"{name}={getattr(self, name)}: must be at least 0 and below 1.")
