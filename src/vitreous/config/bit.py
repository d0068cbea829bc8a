"""What a BiT is made of ("Big Transfer", Kolesnikov et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from vitreous.errors import UserError

Root = Literal["7x7", "3x3"]
"""How pixels enter: a 7x7 convolution and a pooling, a quarter of the side is left; or a 3x3 one that keeps it all, for
small pictures."""

GROUPS = 32
"""Of every group norm."""


@dataclass(frozen=True)
class BiTConfig:
    """Everything that fixes a BiT's shape: ResNet-v2 with group norm and standardised kernels."""

    family: ClassVar[str] = "bit"

    depths: tuple[int, ...] = (3, 4, 6, 3)
    """Blocks of each stage. Each stage is twice as wide as the one before it and half as fine."""
    width: float = 1.0
    """Factor of every layer's channels; of 1, the stages have 256, 512, 1024 and 2048."""
    root: Root = "7x7"
    image_size: tuple[int, int] = (224, 224)
    channels: int = 3
    classes: int = 1000
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
        size = (self.image_size,) * 2 if isinstance(self.image_size, int) else tuple(self.image_size)
        object.__setattr__(self, "image_size", size)
        object.__setattr__(self, "depths", tuple(self.depths))
        if not self.depths or not all(isinstance(depth, int) and depth >= 1 for depth in self.depths):
            raise UserError(f"depths={self.depths}: give the number of blocks of each stage, for example (3, 4, 6, 3).")
        if not 0 < self.width < 1000 or 64 * self.width % GROUPS:
            raise UserError(f"width={self.width}: must be a multiple of 0.5, for the channels make {GROUPS} groups.")
        if self.root not in get_args(Root):
            raise UserError(f"root={self.root!r}: choose one of {', '.join(get_args(Root))}.")
        check_ends(self.image_size, self.channels, self.classes)


def check_ends(image_size: tuple[int, ...], channels: object, classes: object) -> None:
    """Refuse what goes in, or comes out, of a network that cannot be."""
    if len(image_size) != 2 or not all(isinstance(side, int) and side >= 1 for side in image_size):
        raise UserError(f"image_size={image_size}: must be one side or (height, width), in pixels.")
    if not isinstance(channels, int) or channels < 1:
        raise UserError(f"channels={channels!r}: must be a whole number, at least 1.")
    if not isinstance(classes, int) or classes < 0:
        raise UserError(f"classes={classes!r}: must be a whole number, 0 or more.")
