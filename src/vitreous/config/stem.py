"""What may look at the pixels before a Vision Transformer does: the stems of hybrids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from vitreous.arguments import Count, Range, check_fields
from vitreous.errors import UserError

DEEPEST = 10_000  # blocks; ten times as many as anybody has trained
MAX_STAGES = 8  # of a convolutional network; each halves the image, and four are usual
GROUPS = 32  # of every group norm

Depth = Annotated[int, Range(1, DEEPEST)]
Factor = Annotated[float, Range(gt=0, le=100)]  # how many times as wide, or as deep, as the usual network


def check_stages(name: str, stages: object, example: str) -> None:
    """Refuse more stages than an image can be halved for; whether each is a number is not looked at."""
    if isinstance(stages, list | tuple) and len(stages) > MAX_STAGES:
        raise UserError(f"{name}: {len(stages):,} stages; give at most {MAX_STAGES}, for example {example}.")


def check_groups(name: str, width: float) -> None:
    if 64 * width % GROUPS:
        raise UserError(f"{name}={width}: must be a multiple of 0.5, for the channels make {GROUPS} groups.")


@dataclass(frozen=True)
class ResNetStem:
    """The paper's: a ResNet with group norm and standardised kernels, whose last feature map is cut into patches."""

    depths: tuple[Depth, ...] = ()  # blocks of each stage; without any, the root alone: a 7x7 convolution and a pooling
    width: Factor = 1.0
    """Factor of every layer's channels; of 1, the root has 64 and the stages 256, 512, 1024 and 2048."""

    @property
    def stride(self) -> int:
        """Pixels along a place of the feature map."""
        return int(4 * 2 ** max(0, len(self.depths) - 1))

    @property
    def root_width(self) -> int:
        return round(64 * self.width)

    @property
    def features(self) -> int:
        return 4 * self.root_width * 2 ** (len(self.depths) - 1) if self.depths else self.root_width

    def describe(self) -> str:
        return f"ResNet-{3 * sum(self.depths) + 2} stem" if self.depths else "stem of a ResNet's root"

    def architecture(self) -> str:
        stages = f", then stages of {', '.join(map(str, self.depths))} blocks" if self.depths else ""
        return f"7×7 convolution and pooling{stages}: {self.features:,} channels, 1/{self.stride} of the side"

    def __post_init__(self) -> None:
        check_stages("stem.depths", self.depths, "(3, 4, 9)")
        check_fields(self)
        check_groups("stem.width", self.width)


@dataclass(frozen=True)
class ConvStem:
    """A light one for small images, as CCT has: 3x3 convolutions, each with ReLU and a pooling to half the side."""

    widths: tuple[Count, ...] = (64, 128)  # channels of each

    @property
    def stride(self) -> int:
        """Pixels along a place of the feature map."""
        return int(2 ** len(self.widths))

    @property
    def features(self) -> int:
        return self.widths[-1]

    def describe(self) -> str:
        return f"stem of {len(self.widths)} convolution{'s' * (len(self.widths) > 1)}"

    def architecture(self) -> str:
        return f"3×3 convolutions of {', '.join(map(str, self.widths))} channels, each pooled to half the side"

    def __post_init__(self) -> None:
        check_stages("stem.widths", self.widths, "(64, 128)")
        check_fields(self)
        if not self.widths:
            raise UserError("stem.widths=(): give each convolution's channels, for example (64, 128).")


Stem = ResNetStem | ConvStem
