"""What a BiT is made of ("Big Transfer", Kolesnikov et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from vitreous.arguments import Count, Pixels, check_fields
from vitreous.config.model import as_size
from vitreous.config.stem import Depth, Factor, check_groups, check_stages
from vitreous.errors import UserError
from vitreous.wording import Range

Root = Literal["7x7", "3x3"]
"""How pixels enter: a 7x7 convolution and a pooling, a quarter of the side is left; or a 3x3 one that keeps it all, for
small images."""


@dataclass(frozen=True)
class BiTConfig:
    """Everything that fixes a BiT's shape: ResNet-v2 with group norm and standardised kernels."""

    family: ClassVar[str] = "bit"

    depths: tuple[Depth, ...] = (3, 4, 6, 3)
    """Blocks of each stage. Each stage is twice as wide as the one before it and half as fine."""
    width: Factor = 1.0
    """Factor of every layer's channels; of 1, the stages have 256, 512, 1024 and 2048."""
    root: Root = "7x7"
    image_size: tuple[Pixels, Pixels] = (224, 224)
    channels: Count = 3
    classes: Annotated[int, Range(0)] = 1000
    """The classifier's outputs; 0 for no classifier: the model then returns the representation."""

    @property
    def root_width(self) -> int:
        """Channels of the root block."""
        return round(64 * self.width)

    @property
    def stage_widths(self) -> tuple[int, ...]:
        """Channels that each stage gives."""
        return tuple(4 * self.root_width * 2**stage for stage in range(len(self.depths)))

    @property
    def features(self) -> int:
        """The length of the representation."""
        return self.stage_widths[-1]

    @property
    def layers(self) -> int:
        """How many layers can be frozen one by one: the blocks."""
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
