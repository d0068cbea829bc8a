"""What an adapter is given and what it gives, and the words in which it is said."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from torch import Tensor

from vitreous.config.data import Preprocess
from vitreous.config.model import ModelConfig, ViTConfig
from vitreous.config.stem import MOST_STAGES
from vitreous.errors import UserError
from vitreous.model import family as families
from vitreous.model.presets import SIZES, hybrid_name
from vitreous.weights.mapping import Rule
from vitreous.wording import shown

Shapes = Mapping[str, tuple[int, ...]]

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
MALFORMED = (TypeError, LookupError, ValueError, AttributeError, ArithmeticError)
"""What reading a description raises that is not as it should be."""
_NUMBER = re.compile("[0-9]{1,9}")
_HEADS = {1152: 16, 1664: 16}
"""By width, for models of timm's that are no preset: So400m and gigantic."""


@dataclass(frozen=True)
class Raw:
    """What was read, before anybody knows what it is."""

    where: str
    """The file's name, for messages."""
    kind: Literal["safetensors", "torch", "npz"]
    tensors: dict[str, Tensor]
    entry: str | None = None
    """The entry of the file that they were in: "model", "teacher"; None if they are all there is."""
    aside: dict[str, int] = field(default_factory=dict)
    """Other entries of the file, and how many tensors each has: an optimizer's state, the student."""
    models: tuple[str, ...] = ()
    """Those of them that hold a model too."""
    config: dict[str, Any] | None = None
    """config.json beside the file."""
    processor: dict[str, Any] | None = None
    """preprocessor_config.json beside the file."""
    size: tuple[int, int] | None = None
    """Height and width of the images, if the person said it: it tells a grid that is not square."""
    heads: int | None = None
    """The number of heads, if the person said it: no tensor tells it."""

    @cached_property
    def shapes(self) -> Shapes:
        """The tensors' shapes by name."""
        return {name: tuple(tensor.shape) for name, tensor in self.tensors.items()}


@dataclass(frozen=True)
class Foreign:
    """What an adapter made of it."""

    family: str
    """Whose it is, as a person would say: "timm", "Google", "DINOv2"."""
    config: ModelConfig
    rules: Sequence[Rule]
    """For tensors that do not go by our own names."""
    preprocess: Preprocess
    assumed: bool
    """The preprocessing is the family's usual one, for the source says nothing."""
    labels: tuple[str, ...] = ()
    """One for each class, or none if the source does not say."""
    aside: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Tensors that are known and not of the model: what they are, and their names."""
    problem: UserError | None = None
    """Why the source's own preprocessing cannot be followed; `preprocess` is then the family's usual one."""
    heads_assumed: bool = False
    """The number of heads is the usual one for the width."""
    notes: tuple[str, ...] = ()
    """What else a person should know."""


def describe(source: str, c: ModelConfig, *, heads_assumed: bool = False) -> str:
    """ "timm ViT-Ti/16, 224, 1000 classes"; of a size without a name also the heads, if they were assumed."""
    known = None
    if isinstance(c, ViTConfig):
        shape = (c.width, c.depth, c.heads, c.mlp_width)
        known = next((f"-{name}" for name, size in SIZES.items() if size == shape), None)
        name = f"ViT{known or f'({c.width} wide, {c.depth} deep)'}/{c.patch}"
        if c.stem is not None:
            name = f"hybrid {hybrid_name(c) or name}"
    else:
        name = families.describe(c)
    height, width = c.image_size
    said = [f"{source} {name}", f"{height}" if height == width else f"{height}x{width}"]
    if isinstance(c, ViTConfig) and c.registers:
        said.append(f"{c.registers} register{'s' * (c.registers > 1)}")
    if c.channels != 3:
        said.append(f"{c.channels} channel{'s' * (c.channels > 1)}")
    said.append(f"{c.classes} class{'es' * (c.classes > 1)}" if c.classes else "no classifier")
    if isinstance(c, ViTConfig) and heads_assumed and known is None:
        said.append(f"{c.heads} head{'s' * (c.heads > 1)} (assumed; vitreous import --heads N sets another number)")
    return ", ".join(said)


def augreg_default(c: ViTConfig) -> Preprocess:
    """Google's ViT and AugReg as timm measures them: values from -1 to 1, a crop of 0.9 up to 224 pixels, else all."""
    flat = (0.5,) * c.channels
    return Preprocess(size=c.image_size, mean=flat, std=flat, crop=0.9 if max(c.image_size) <= 224 else 1.0)


def imagenet_default(c: ViTConfig, family: str = "") -> Preprocess:
    """DeiT, DINO, DINOv2 and MAE: ImageNet's mean and standard deviation, short side to 256 of which 224 are seen.

    DeiT III sees the whole short side, and so does MAE above 224 pixels.
    """
    size = (224, 224) if c.image_size == (518, 518) else c.image_size  # DINOv2's positions are of its last resolution
    whole = family == "DeiT III" or (family == "MAE" and max(size) > 224)
    mean, std = (IMAGENET_MEAN, IMAGENET_STD) if c.channels == 3 else ((0.45,) * c.channels, (0.225,) * c.channels)
    return Preprocess(size=size, mean=mean, std=std, crop=1.0 if whole else 0.875)


def stated(
    read: Callable[[], Preprocess], usual: Callable[[], Preprocess], where: str, file: str
) -> tuple[Preprocess, UserError | None]:
    """The preprocessing that a file beside the weights states; if it cannot be followed, the usual one and why."""
    try:
        return read(), None
    except UserError as error:
        if str(error).startswith(where):
            return usual(), error
        return usual(), UserError(f"{where}: {file} beside it is malformed ({str(error).rstrip('.')})")
    except MALFORMED as error:
        return usual(), UserError(f"{where}: {file} beside it is malformed ({type(error).__name__}: {shown(error)})")


def check_agreement(where: str, stated: Mapping[str, tuple[Any, Any]]) -> None:
    """Refuse a description that contradicts the tensors. stated: by field, what is said and what is there."""
    for name, (said, there) in stated.items():
        if said is not None and said != there:
            raise UserError(
                f"{where}: config.json beside it says {name} {shown(said)}, and the tensors are of a model with "
                f"{there}; give the two that belong together."
            )


def heads_for(width: int, where: str) -> int:
    """How many heads a model of this width usually has, for tensors do not tell."""
    known = _HEADS | {preset_width: heads for preset_width, _, heads, _ in SIZES.values()}
    if width in known:
        return known[width]
    if width % 64:
        raise UserError(
            f"{where}: its width {width} does not tell the number of heads; say it: "
            "vitreous import SOURCE BUNDLE --heads N."
        )
    return width // 64


def shape_of(shapes: Shapes, name: str, axes: int, where: str) -> tuple[int, ...]:
    """The shape of a tensor that must be there with so many axes, none of them empty."""
    if name not in shapes:
        raise UserError(f"{where}: {name} is missing; the file is not whole, or not of a known model.")
    if len(shapes[name]) != axes or 0 in shapes[name]:
        raise UserError(
            f"{where}: {name} has shape {shapes[name]}, and a Vision Transformer's has {axes} "
            f"ax{'es' if axes > 1 else 'is'}; the file is damaged, or not of a known model."
        )
    return shapes[name]


def sides(said: Any) -> tuple[int, int] | None:
    """Height and width from what a description calls the size: one number or two."""
    if not said:
        return None
    if isinstance(said, int):
        return said, said
    height, width = said
    if not (isinstance(height, int) and isinstance(width, int)):
        raise TypeError(f"size {said!r}")
    return height, width


def grid_for_count(cells: int, patch: int, size: tuple[int, int] | None) -> tuple[int, int] | None:
    """Rows and columns of so many patches: what the person's size makes of them, else a square, else None."""
    if size and (size[0] // patch) * (size[1] // patch) == cells:
        return size[0] // patch, size[1] // patch
    side = math.isqrt(max(cells, 0))
    return (side, side) if side and side * side == cells else None


def no_grid(where: str, count: int) -> UserError:
    """The error for positions that fit no grid."""
    return UserError(
        f"{where}: its {count} positions make no square of patches; say the image's size too, "
        "for example preprocess='size=224x160'."
    )


def blocks_of(names: Iterable[str], before: str, after: str) -> int:
    """How many blocks there are: one more than the highest number between the two texts."""
    numbers = [
        int(digits)
        for name in names
        if name.startswith(before) and _NUMBER.fullmatch(digits := name[len(before) :].split(after)[0])
    ]
    return max(numbers, default=-1) + 1


def stages_of(names: Iterable[str], before: str, after: str, where: str) -> int:
    """The same for the stages of a convolutional network, which are few."""
    if (stages := blocks_of(names, before, after)) > MOST_STAGES + 1:  # Google counts from 1
        raise UserError(
            f"{where}: {before}{stages - 1} would be one of {stages:,} stages; give a file of a real model."
        )
    return stages


def other_count(names: int, classes: int, field: str) -> tuple[str, ...]:
    """What is said of names that are not one per class."""
    if names in (0, classes) or not classes:
        return ()
    return (f"{field} has {names} names and the classifier {classes} outputs, so the classes are numbered",)


def other_epsilon(c: ViTConfig) -> str:
    """What timm's and Google's formats cannot say, and what can be done."""
    return f"LayerNorm with epsilon {c.norm_eps:g} (first vitreous import SOURCE BUNDLE --epsilon 1e-6)"


def share(seen: tuple[int, int], resized: tuple[int, int]) -> float | None:
    """The crop that makes `resized` of `seen` again, which is rounded down on either side; None if there is none."""
    pairs = list(zip(seen, resized, strict=True))
    crop = min(size / side for size, side in pairs)
    for tried in (crop, math.nextafter(crop, 0)):
        if tried <= 1 and all(math.floor(size / tried) == side for size, side in pairs):
            return tried
    return None
