"""What is done to an image before the model sees it: always (`Preprocess`), and while training (`Augment`)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from vitreous.arguments import Count, Fraction, NonNegative, Range, check_fields, shown
from vitreous.config.model import as_size
from vitreous.errors import UserError

Interpolation = Literal["bicubic", "bilinear", "nearest", "lanczos"]
Resize = Literal["cover", "cover-floor", "stretch", "stretch-floor"]
Policy = Literal["none", "randaugment", "trivial"]

LEAST_CROP = 0.05  # of a smaller share the resized image would be enormous, and next to nothing of it seen


@dataclass(frozen=True)
class Preprocess:
    """How an image becomes the model's input. It belongs to the weights: a model is only right with its own.

    The image is resized to `resized`, the centre is cut to `size`, and each channel becomes (x/255 - mean) / std.
    """

    size: tuple[int, int] = (224, 224)  # height and width of the model's input, in pixels
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    crop: Annotated[float, Range(LEAST_CROP, 1)] = (
        1.0  # the share of the resized image's side that the centre crop keeps; 1 keeps the whole short side
    )
    interpolation: Interpolation = "bicubic"
    resize: Resize = "cover"
    """cover: in its proportions, as tightly as it can (timm, torchvision). stretch: to the very size, whatever its
    proportions. cover-floor, stretch-floor: the same, but of two pixels in the middle the upper left one is the centre
    (`transformers`).
    """

    @property
    def channels(self) -> int:
        """1 for grey, 3 for colour; models of other numbers take tensors, for no image file is read as such."""
        return len(self.mean)

    @property
    def resized(self) -> tuple[int, int]:
        """Height and width that the resized image covers, before the centre crop: rounded down, as timm does."""
        return math.floor(self.size[0] / self.crop), math.floor(self.size[1] / self.crop)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", as_size(self.size))
        check_fields(self)
        if min(self.size) < 1:
            raise UserError(f"size={self.size}: must be one side or (height, width), in pixels.")
        if not self.mean:
            raise UserError("mean=(): give a number for each channel: 1 for grey images, 3 for colour.")
        if len(self.std) != len(self.mean):
            raise UserError(f"std={shown(self.std)}: give as many numbers as mean has, {len(self.mean)}.")
        if not all(abs(value) <= 1e6 for value in self.mean):
            raise UserError(f"mean={shown(self.mean)}: must be between -1e6 and 1e6, for pixels between 0 and 1.")
        if not all(1e-6 <= value <= 1e6 for value in self.std):
            raise UserError(f"std={shown(self.std)}: must be above 0 (1e-6 to 1e6), for pixels between 0 and 1.")


@dataclass(frozen=True)
class Augment:
    """How training images are varied. The default is light: a random crop and a mirror image."""

    crop_scale: tuple[float, float] | None = (0.25, 1.0)
    """A random crop's least and greatest share of the area; None: the whole image, shifted by up to `pad` pixels."""
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """A random crop's least and greatest width for a height of 1, before it is resized to the input's shape."""
    pad: Annotated[int, Range(0)] = (
        4  # without `crop_scale`: pixels, reflected at the border, by which an image may shift
    )
    flip: bool = True  # mirror left to right, every second time
    policy: Policy = "none"
    """Further changes of an image: RandAugment, or TrivialAugment (one change of any strength, nothing to tune)."""
    layers: Annotated[int, Range(0)] = 2  # RandAugment: changes in a row
    magnitude: Annotated[float, Range(0, 10)] = 9.0  # RandAugment: how strong they are, 0 to 10
    jitter: Fraction = 0.0
    """Colour jitter: brightness, contrast and saturation are each multiplied by 1 - jitter to 1 + jitter."""
    tint: Fraction = 0.0  # another light: each colour by itself is multiplied by 1 - tint to 1 + tint
    grey: Fraction = 0.0  # probability that an image loses its colours
    erase: Fraction = 0.0  # probability that a random rectangle is replaced by the mean colour
    mixup: NonNegative = 0.0
    """Mixup's alpha; 0 for none. With others of these three, each pair of images takes one of them at random."""
    cutmix: NonNegative = 0.0  # CutMix's alpha; 0 for none
    mixtoken: NonNegative = (
        0.0  # MixToken's alpha; 0 for none: a CutMix of whole patches, so that no patch shows both images
    )

    @property
    def mixes(self) -> bool:
        return max(self.mixup, self.cutmix, self.mixtoken) > 0

    def __post_init__(self) -> None:
        check_fields(self)
        if self.crop_scale is not None:
            low, high = self.crop_scale
            if not 0 < low <= high <= 1:
                raise UserError(
                    f"crop_scale={self.crop_scale}: give two shares of the area, 0 < least <= greatest <= 1."
                )
        low, high = self.crop_ratio
        if not 0 < low <= high:
            raise UserError(f"crop_ratio={self.crop_ratio}: give two ratios of width to height, 0 < least <= greatest.")


@dataclass(frozen=True)
class View:
    """One kind of views: how many crops of an image, of which share of its area, at which size."""

    count: int = 1
    scale: tuple[float, float] | None = None  # least and greatest share of the area; None: as `Augment` has it
    size: tuple[int, int] | None = None  # height and width, in pixels; None: the model's input size


@dataclass(frozen=True)
class MultiCrop:
    """The views of self-distillation (DINO): a few large crops and many small ones."""

    global_views: Count = 2
    global_scale: tuple[float, float] = (0.4, 1.0)
    global_size: tuple[int, int] | None = None  # height and width of a large view; None: the model's input size
    local_views: Annotated[int, Range(0)] = 8
    local_scale: tuple[float, float] = (0.05, 0.4)
    local_size: tuple[int, int] = (96, 96)

    def __post_init__(self) -> None:
        for name in ("global_size", "local_size"):
            object.__setattr__(self, name, as_size(getattr(self, name)))
        check_fields(self)
        for name in ("global_scale", "local_scale"):
            low, high = getattr(self, name)
            if not 0 < low <= high <= 1:
                raise UserError(f"{name}={(low, high)}: give two shares of the area, 0 < least <= greatest <= 1.")
        for name in ("global_size", "local_size"):
            size = getattr(self, name)
            if size is not None and min(size) < 1:
                raise UserError(f"{name}={size}: must be one side or (height, width), in pixels.")
