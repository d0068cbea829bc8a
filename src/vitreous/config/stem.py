"""What may look at the pixels before a Vision Transformer does: the stems of hybrids."""

from __future__ import annotations

from dataclasses import dataclass

from vitreous.config.bit import GROUPS
from vitreous.errors import UserError


@dataclass(frozen=True)
class ResNetStem:
    """The paper's: a ResNet with group norm and standardised kernels, whose last feature map is cut into patches."""

    depths: tuple[int, ...] = ()
    """Blocks of each stage; without any, the root alone: a 7x7 convolution and a pooling."""
    width: float = 1.0
    """Factor of every layer's channels; of 1, the root has 64 and the stages 256, 512, 1024 and 2048."""

    @property
    def stride(self) -> int:
        """Pixels along a place of the feature map."""
        return int(4 * 2 ** max(0, len(self.depths) - 1))

    @property
    def root_width(self) -> int:
        """Channels of the root."""
        return round(64 * self.width)

    @property
    def features(self) -> int:
        """Channels of the feature map."""
        return 4 * self.root_width * 2 ** (len(self.depths) - 1) if self.depths else self.root_width

    def __post_init__(self) -> None:
        object.__setattr__(self, "depths", tuple(self.depths))
        if not all(isinstance(depth, int) and depth >= 1 for depth in self.depths):
            raise UserError(f"stem.depths={self.depths}: give the blocks of each stage, for example (3, 4, 9).")
        if not 0 < self.width < 1000 or 64 * self.width % GROUPS:
            raise UserError(f"stem.width={self.width}: must be a multiple of 0.5, for channels make {GROUPS} groups.")


@dataclass(frozen=True)
class ConvStem:
    """A light one for small pictures, as CCT has: 3x3 convolutions, each with ReLU and a pooling to half the side."""

    widths: tuple[int, ...] = (64, 128)
    """Channels of each."""

    @property
    def stride(self) -> int:
        """Pixels along a place of the feature map."""
        return int(2 ** len(self.widths))

    @property
    def features(self) -> int:
        """Channels of the feature map."""
        return self.widths[-1]

    def __post_init__(self) -> None:
        object.__setattr__(self, "widths", tuple(self.widths))
        if not self.widths or not all(isinstance(width, int) and width >= 1 for width in self.widths):
            raise UserError(f"stem.widths={self.widths}: give each convolution's channels, for example (64, 128).")


Stem = ResNetStem | ConvStem
