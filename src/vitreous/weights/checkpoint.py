"""A checkpoint as it was read and as a format understood it, and what all formats use."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isqrt
from typing import Any, Literal

from torch import Tensor

from vitreous.arguments import shown
from vitreous.config.bit import BiTConfig, Root
from vitreous.config.data import Preprocess
from vitreous.config.efficientnet import EfficientNetConfig
from vitreous.config.model import ModelConfig, ViTConfig
from vitreous.config.presets import SIZES, hybrid_name
from vitreous.config.stem import MAX_STAGES
from vitreous.errors import UserError
from vitreous.inputs import counted
from vitreous.weights.mapping import Rule

CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BACKBONE = "patch_embed.backbone."  # where a hybrid's stem is, by our names and timm's
MALFORMED_ERRORS = (TypeError, LookupError, ValueError, AttributeError, ArithmeticError)  # of a description
_NUMBER = re.compile("[0-9]{1,9}")
_HEADS_BY_WIDTH = {1152: 16, 1664: 16}  # of timm models that are no preset: So400m and gigantic


@dataclass(frozen=True)
class RawCheckpoint:
    """The tensors of a file and the descriptions beside it, before the format is recognised."""

    where: str  # the file's name, for messages
    kind: Literal["safetensors", "torch", "npz"]
    tensors: dict[str, Tensor]
    entry: str | None = None
    """The entry of a training file that they were in, such as "model" or "teacher"; None if the file has no entries."""
    ignored: dict[str, int] = field(default_factory=dict)
    """Other entries of the file, and how many tensors each has: an optimizer's state, the student."""
    other_models: tuple[str, ...] = ()  # the ignored entries that hold a model too
    config: dict[str, Any] | None = None  # config.json beside the file
    processor: dict[str, Any] | None = None  # preprocessor_config.json beside the file
    image_size: tuple[int, int] | None = None  # (height, width), if given: it tells a grid that is not square
    heads: int | None = None  # the number of attention heads, if given: no tensor tells it

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in self.tensors.items()}

    def shape(self, name: str, axes: int) -> tuple[int, ...]:
        """The shape of a tensor that must exist with this number of axes, none of them empty."""
        if name not in self.shapes:
            raise UserError(f"{self.where}: {name} is missing; the file is not whole, or not of a known model.")
        if len(self.shapes[name]) != axes or 0 in self.shapes[name]:
            raise UserError(
                f"{self.where}: {name} has shape {self.shapes[name]}, and a Vision Transformer's has {axes} "
                f"ax{'es' if axes > 1 else 'is'}; the file is damaged, or not of a known model."
            )
        return self.shapes[name]

    def outputs(self, bias: str) -> int:
        """Outputs of the classifier with this bias, 0 if there is none."""
        return self.shape(bias, 1)[0] if bias in self.shapes else 0

    def blocks(self, before: str, after: str = ".") -> int:
        """One more than the highest number between these two parts of a tensor's name."""
        numbers = [
            int(digits)
            for name in self.tensors
            if name.startswith(before) and _NUMBER.fullmatch(digits := name[len(before) :].split(after)[0])
        ]
        return max(numbers, default=-1) + 1

    def stages(self, before: str, after: str = ".") -> int:
        """The same for the stages of a convolutional network, of which there are at most `MAX_STAGES`."""
        if (stages := self.blocks(before, after)) > MAX_STAGES + 1:  # Google counts from 1
            raise UserError(
                f"{self.where}: {before}{stages - 1} would be one of {stages:,} stages; give a file of a real model."
            )
        return stages

    def depths(self, stages: str, blocks: str) -> tuple[int, ...]:
        """Blocks per stage. stages, blocks: what comes before the number of a stage and of a block in a name."""
        return tuple(self.blocks(f"{stages}{stage}.{blocks}") for stage in range(self.stages(stages)))

    def unknown_grid(self, positions: int) -> UserError:
        return UserError(
            f"{self.where}: its {positions} positions make no square of patches; say the image's size too, "
            "for example preprocess='size=224x160'."
        )


@dataclass(frozen=True)
class ParsedCheckpoint:
    """A checkpoint of a known format: the configuration, and how its tensors become ours."""

    family: str  # for messages: "timm", "Google", "DINOv2"
    config: ModelConfig
    rules: Sequence[Rule]  # for tensors whose name or shape is not ours
    preprocess: Preprocess
    preprocess_assumed: bool = True  # the source says nothing about it, so it is the usual one of the family
    labels: tuple[str, ...] = ()  # one for each class, or none if the source does not say
    ignored_keys: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Known tensors that do not belong to the model: what they are, and their names."""
    preprocess_error: UserError | None = None
    """Why the source's own preprocessing cannot be followed; `preprocess` is then the usual one of the family."""
    heads_assumed: bool = False  # the number of heads is the usual one for the width
    notes: tuple[str, ...] = ()  # further remarks for the user
    tensors: Mapping[str, Tensor] = field(default_factory=dict)  # made from the file's, in their place or beside them
    replaced: tuple[
        str, ...
    ] = ()  # names of the file's that `tensors` were made from, and that are not used themselves

    def apply_description(
        self, raw: RawCheckpoint, file: str, read: Callable[[], Preprocess] | None, names: Sequence[str], key: str
    ) -> ParsedCheckpoint:
        """The same, with the preprocessing and labels of the files beside the tensors.

        file, read: the file that describes the preprocessing, and a function that parses it; None if there is none.
        names, key: the classes' names, and the key of config.json that holds them.
        """
        preprocess, problem, notes, classes = self.preprocess, None, self.notes, self.config.classes
        try:
            preprocess = self.preprocess if read is None else read()
        except UserError as error:
            problem = error
            if not str(error).startswith(raw.where):
                problem = UserError(f"{raw.where}: {file} beside it is malformed ({str(error).rstrip('.')})")
        except MALFORMED_ERRORS as error:
            problem = UserError(f"{raw.where}: {file} beside it is malformed ({type(error).__name__}: {shown(error)})")
        if classes and len(names) not in (0, classes):
            outputs = f"the classifier {classes} outputs, so the classes are numbered"
            notes = (*notes, f"{key} of config.json has {len(names)} names and {outputs}")
        return replace(
            self,
            preprocess=preprocess,
            preprocess_assumed=read is None,
            labels=tuple(names) if len(names) == classes else (),
            preprocess_error=problem,
            notes=notes,
        )


def without_placeholders(names: Sequence[str]) -> tuple[str, ...]:
    """Names of classes; none where they are LABEL_0, LABEL_1, ..., which transformers writes for unknown ones."""
    return () if all(name == f"LABEL_{k}" for k, name in enumerate(names)) else tuple(names)


def first_true(odd: Mapping[str, bool]) -> str | None:
    """The first feature that holds, among those that a format cannot express; None if it can express all."""
    return next((what for what, holds in odd.items() if holds), None)


def check_agreement(where: str, pairs: Mapping[str, tuple[Any, Any]]) -> None:
    """Refuse a config.json that contradicts the tensors. pairs: by field, its value and that of the tensors."""
    for name, (described, actual) in pairs.items():
        if described is not None and described != actual:
            raise UserError(
                f"{where}: config.json beside it says {name} {shown(described)}, and the tensors are of a model with "
                f"{actual}; give the two that belong together."
            )


def describe(source: str, c: ModelConfig, *, heads_assumed: bool = False) -> str:
    """ "timm ViT-Ti/16, 224, 1000 classes"; of a size without a name also the heads, if they were assumed."""
    height, width = c.image_size
    size = f"{height}" if height == width else f"{height}x{width}"
    channels = [counted(c.channels, "channel")] if c.channels != 3 else []
    classes = counted(c.classes, "class") if c.classes else "no classifier"
    if not isinstance(c, ViTConfig):
        return ", ".join([f"{source} {c.describe()}", size, *channels, classes])
    shape = (c.width, c.depth, c.heads, c.mlp_width)
    known = next((f"-{name}" for name, sizes in SIZES.items() if sizes == shape), None)
    name = f"ViT{known or f'({c.width} wide, {c.depth} deep)'}/{c.patch}"
    if c.stem is not None:
        name = f"hybrid {hybrid_name(c) or name}"
    registers = [counted(c.registers, "register")] if c.registers else []
    parts = [f"{source} {name}", size, *registers, *channels, classes]
    if heads_assumed and known is None:
        parts.append(f"{counted(c.heads, 'head')} (assumed; vitreous import --heads N sets another number)")
    return ", ".join(parts)


def augreg_preprocess(c: ModelConfig) -> Preprocess:
    """Google's ViT, AugReg and BiT as timm evaluates them: values from -1 to 1, no crop above 224 pixels."""
    is_bit, half = isinstance(c, BiTConfig), (0.5,) * c.channels
    crop = 1.0 if max(c.image_size) > 224 else 0.875 if is_bit else 0.9
    return Preprocess(
        size=c.image_size, mean=half, std=half, crop=crop, interpolation="bilinear" if is_bit else "bicubic"
    )


def imagenet_preprocess(c: ModelConfig, family: str = "") -> Preprocess:
    """DeiT, DINO, DINOv2 and MAE: ImageNet's mean and standard deviation, resize to 256, centre crop of 224.

    DeiT III is not cropped, nor is MAE above 224 pixels. EfficientNet's crop grows with the size, as in Google's code.
    """
    size = (224, 224) if c.image_size == (518, 518) and isinstance(c, ViTConfig) else c.image_size
    # DINOv2's positions are of its last resolution
    crop = 1.0 if family == "DeiT III" or (family == "MAE" and max(size) > 224) else 0.875
    if isinstance(c, EfficientNetConfig):
        crop = round(min(size) / (min(size) + 32), 3)
    mean, std = (IMAGENET_MEAN, IMAGENET_STD) if c.channels == 3 else ((0.45,) * c.channels, (0.225,) * c.channels)
    return Preprocess(size=size, mean=mean, std=std, crop=crop)


def bit_config(
    raw: RawCheckpoint, root: Sequence[int], depths: tuple[int, ...], classes: int, size: tuple[int, int] | None
) -> BiTConfig:
    """root: the shape (D, C, k, k) of the first convolution's kernels."""
    width, channels, kernel, _ = root
    roots: dict[int, Root] = {7: "7x7", 3: "3x3"}
    if kernel not in roots:
        raise UserError(
            f"{raw.where}: its first kernels are of {kernel} pixels, and a BiT's are of 7 or 3; give another file."
        )
    small = (32, 32) if kernel == 3 else (224, 224)
    return BiTConfig(depths, width / 64, roots[kernel], size or small, channels, classes)


def heads_for_width(width: int, where: str) -> int:
    """The usual number of heads of a model of this width, which tensors do not tell."""
    known = _HEADS_BY_WIDTH | {preset_width: heads for preset_width, _, heads, _ in SIZES.values()}
    if width in known:
        return known[width]
    if width % 64:
        raise UserError(
            f"{where}: its width {width} does not tell the number of heads; say it: "
            "vitreous import SOURCE BUNDLE --heads N."
        )
    return width // 64


def height_and_width(value: Any) -> tuple[int, int] | None:
    """(height, width) from a description's size, which is one number or two."""
    if not value:
        return None
    if isinstance(value, int):
        return value, value
    height, width = value
    if not (isinstance(height, int) and isinstance(width, int)):
        raise TypeError(f"size {value!r}")
    return height, width


def find_grid(patches: int, patch: int, size: tuple[int, int] | None) -> tuple[int, int] | None:
    """Rows and columns of this number of patches: those of the image size, else a square, else None."""
    if size and (size[0] // patch) * (size[1] // patch) == patches:
        return size[0] // patch, size[1] // patch
    side = isqrt(max(patches, 0))
    return (side, side) if side and side * side == patches else None


def large_epsilon(c: ViTConfig) -> dict[str, bool]:
    """For `first_true`: timm and Google compute with 1e-6, which differs from a smaller epsilon only in rounding."""
    return {
        f"LayerNorm with epsilon {c.norm_eps:g} (first vitreous import SOURCE BUNDLE --epsilon 1e-6)": c.norm_eps > 1e-6
    }


def later_parts(c: ViTConfig) -> dict[str, bool]:
    """For `first_true`: what encoders published since the first ones have besides."""
    return {
        "rotary positions": c.rope is not None,
        "LayerNorm before the first block": c.norm_pre,
        "a patch projection without bias": not c.patch_bias,
        "keys without biases": c.qkv_bias == "q+v",
        "queries, keys and values without biases": c.qkv_bias == "none",
        f"{c.mlp} in the MLP": c.mlp in ("gelu-tanh", "quick-gelu"),
        "no final norm": not c.final_norm,
        "LayerNorm within a branch": c.mlp_norm or c.attention_norm,
        "a projection in place of the classifier": c.projection > 0,
        "attention pooling of its own shape": bool(c.pool_prefix or c.pool_heads or c.pool_mlp_width),
    }


def fold_class_position(raw: RawCheckpoint, token: str, positions: str) -> dict[str, Tensor]:
    """The class token with its position added, and the positions of the patches alone: the same function, and how timm
    keeps DINOv2 with registers. token, positions: the names of the tensors (1, 1, D) and (1, 1 + N, D)."""
    table = raw.tensors[positions]
    return {token: raw.tensors[token] + table[:, :1], positions: table[:, 1:]}
