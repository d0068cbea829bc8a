"""What an adapter is given and what it gives, and the words in which it is said."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from torch import Tensor

from vitreous.config.data import Preprocess
from vitreous.config.model import ViTConfig
from vitreous.errors import UserError
from vitreous.model.presets import SIZES
from vitreous.weights.mapping import Rule

Shapes = Mapping[str, tuple[int, ...]]

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Raw:
    """What was read, before anybody knows what it is."""

    where: str
    """The file's name, for messages."""
    kind: Literal["safetensors", "torch", "npz"]
    tensors: dict[str, Tensor]
    entry: str | None = None
    """The part of the file that they were in: "model", "teacher"; None if they are all there is."""
    aside: dict[str, int] = field(default_factory=dict)
    """Other parts of the file, and how many tensors each has: an optimizer's state, the student."""
    config: dict[str, Any] | None = None
    """config.json beside the file."""
    processor: dict[str, Any] | None = None
    """preprocessor_config.json beside the file."""
    size: tuple[int, int] | None = None
    """Height and width of the pictures, if the person said it: it tells a grid that is not square."""

    @cached_property
    def shapes(self) -> Shapes:
        """The tensors' shapes by name."""
        return {name: tuple(tensor.shape) for name, tensor in self.tensors.items()}


@dataclass(frozen=True)
class Foreign:
    """What an adapter made of it."""

    family: str
    """Whose it is, as a person would say: "timm", "Google", "DINOv2"."""
    config: ViTConfig
    rules: Sequence[Rule]
    """For tensors that do not go by our own names."""
    preprocess: Preprocess
    assumed: bool
    """The preprocessing is the family's usual one, for the source says nothing."""
    labels: tuple[str, ...] = ()
    """One for each class, or none if the source does not say."""
    aside: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Tensors that are known and not of the model: what they are, and their names."""


def describe(family: str, c: ViTConfig) -> str:
    """ "timm ViT-Ti/16, 224, 1000 classes"."""
    shape = (c.width, c.depth, c.heads, c.mlp_width)
    name = next((f"-{name}" for name, size in SIZES.items() if size == shape), f"({c.width} wide, {c.depth} deep)")
    height, width = c.image_size
    said = [f"{family} ViT{name}/{c.patch}", f"{height}" if height == width else f"{height}x{width}"]
    if c.registers:
        said.append(f"{c.registers} register{'s' * (c.registers > 1)}")
    if c.channels != 3:
        said.append(f"{c.channels} channel{'s' * (c.channels > 1)}")
    said.append(f"{c.classes} class{'es' * (c.classes > 1)}" if c.classes else "no classifier")
    return ", ".join(said)


def augreg_default(c: ViTConfig) -> Preprocess:
    """Google's ViT and AugReg as timm measures them: values from -1 to 1, a crop of 0.9 up to 224 pixels, else all."""
    flat = (0.5,) * c.channels
    return Preprocess(size=c.image_size, mean=flat, std=flat, crop=0.9 if max(c.image_size) <= 224 else 1.0)


def imagenet_default(c: ViTConfig) -> Preprocess:
    """DeiT, DINO, DINOv2 and MAE: ImageNet's mean and spread, short side to 256 of which 224 are seen."""
    size = (224, 224) if c.image_size == (518, 518) else c.image_size  # DINOv2's positions are of its last resolution
    if c.channels != 3:
        return Preprocess(size=size, mean=(0.45,) * c.channels, std=(0.225,) * c.channels, crop=0.875)
    return Preprocess(size=size, mean=IMAGENET_MEAN, std=IMAGENET_STD, crop=0.875)


def heads_for(width: int, where: str) -> int:
    """How many heads a model of this width usually has, for tensors do not tell."""
    known = {preset_width: heads for preset_width, _, heads, _ in SIZES.values()}
    if width in known:
        return known[width]
    if width % 64:
        raise UserError(f"{where}: its width {width} does not tell the number of heads; give a bundle, which says it.")
    return width // 64


def grid_of(cells: int, patch: int, size: tuple[int, int] | None) -> tuple[int, int] | None:
    """Rows and columns of so many patches: what the person's size makes of them, else a square, else None."""
    if size and (size[0] // patch) * (size[1] // patch) == cells:
        return size[0] // patch, size[1] // patch
    side = math.isqrt(max(cells, 0))
    return (side, side) if side and side * side == cells else None


def no_grid(where: str, count: int) -> UserError:
    """The error for positions that fit no grid."""
    return UserError(
        f"{where}: its {count} positions make no square of patches; say the picture's size too, "
        "for example --preprocess 'size=224x160'."
    )


def blocks_of(names: Iterable[str], before: str, after: str) -> int:
    """How many blocks there are: one more than the highest number between the two texts."""
    numbers = [
        int(digits)
        for name in names
        if name.startswith(before) and (digits := name[len(before) :].split(after)[0]).isdigit()
    ]
    return max(numbers, default=-1) + 1


def share(size: int, resized: int) -> float:
    """The crop that makes `resized` of `size` again, whatever the rounding."""
    crop = size / resized
    return crop if math.floor(size / crop) == resized else math.nextafter(crop, 0)
