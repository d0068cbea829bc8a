"""What a BiT is made of ("Big Transfer", Kolesnikov et al. 2020)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from vitreous.arguments import Count, Range, SideLength, check_fields
from vitreous.config.model import ModelConfig, as_size
from vitreous.config.stem import Depth, Factor, check_groups, check_stages
from vitreous.errors import UserError

Root = Literal["7x7", "3x3"]
"""How pixels enter: a 7x7 convolution and a pooling, a quarter of the side is left; or a 3x3 one that keeps it all, for
small images."""


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


@dataclass(frozen=True, repr=False)
class BiTConfig(ModelConfig):
    """Everything that fixes a BiT's shape: ResNet-v2 with group norm and standardised kernels."""

    family: ClassVar[str] = "bit"
    family_title: ClassVar[str] = "BiT ResNet"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = PRESETS

    depths: tuple[Depth, ...] = (3, 4, 6, 3)
    """Blocks of each stage. Each stage is twice as wide as the one before it and half as fine."""
    width: Factor = 1.0  # factor of every layer's channels; of 1, the stages have 256, 512, 1024 and 2048
    root: Root = "7x7"
    image_size: tuple[SideLength, SideLength] = (224, 224)
    channels: Count = 3
    classes: Annotated[int, Range(0)] = 1000
    """The classifier's outputs; 0 for no classifier: the model then returns the representation."""

    @property
    def root_width(self) -> int:
        return round(64 * self.width)

    @property
    def stage_widths(self) -> tuple[int, ...]:
        return tuple(4 * self.root_width * 2**stage for stage in range(len(self.depths)))

    @property
    def features(self) -> int:
        return self.stage_widths[-1]

    @property
    def layers(self) -> int:
        return sum(self.depths)

    @property
    def depth(self) -> int:
        """As the name counts it: three convolutions per block, the root and the classifier."""
        return 3 * self.layers + 2

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", as_size(self.image_size))
        check_stages("depths", self.depths, "(3, 4, 6, 3)")
        check_fields(self)
        if not self.depths:
            raise UserError("depths=(): give the number of blocks of each stage, for example (3, 4, 6, 3).")
        check_groups("width", self.width)

    def describe(self) -> str:
        return f"BiT ResNet-{self.depth}x{self.width:g}"

    def architecture(self) -> dict[str, str]:
        rows = {
            "Root": "7×7 convolution and pooling" if self.root == "7x7" else "3×3 convolution, no pooling",
            "Blocks": f"{self.layers}, in stages of {', '.join(map(str, self.depths))}",
            "Channels": ", ".join(f"{width:,}" for width in self.stage_widths),
            "Norm": "group norm, kernels standardised",
            "Answer is read from": "the mean over all places",
        }
        return {"Model": self.describe(), **self._with_ends(rows)}
