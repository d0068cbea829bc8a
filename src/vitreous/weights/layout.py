"""A layout of an encoder's checkpoint: a row of facts, from which it is read and written."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vitreous.arguments import shown
from vitreous.config.data import Preprocess
from vitreous.config.model import ViTConfig
from vitreous.errors import UserError
from vitreous.weights.checkpoint import IMAGENET_MEAN, IMAGENET_STD, ParsedCheckpoint, RawCheckpoint, check_agreement
from vitreous.weights.huggingface_folder import with_description, write_folder
from vitreous.weights.infer import infer_vit_config
from vitreous.weights.mapping import Rule, export_state, under_our_names

if TYPE_CHECKING:
    from vitreous.model.vit import ViT


@dataclass(frozen=True)
class Encoder:
    """A layout: how it is recognised, what its tensors are called, and what its config.json says."""

    title: str  # "Hugging Face CLIP"
    marks: tuple[str, ...]  # names without the prefix, all of which such a file has
    rules: tuple[Rule, ...]
    prefixes: tuple[str, ...] = ("",)  # one of these comes before all names but those of `outer`
    outer: tuple[Rule, ...] = ()  # for tensors outside the prefix
    model_types: tuple[str, ...] = ()  # of Hugging Face's config.json; the first is written
    by_type: bool = False  # whether only config.json tells it from others with such names
    ignored: Mapping[str, str] = field(default_factory=dict)  # what else may be there: what it is, a regular expression
    packed: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Tensors that hold q and, below it, k and v, and the two names that the rules have for these."""
    arguments: Callable[[Mapping[str, Any], RawCheckpoint], dict[str, Any]] = lambda described, raw: {}
    """What config.json says that the tensors do not, for `infer_vit_config`."""
    fields: Mapping[str, Any] = field(default_factory=dict)  # of the configuration, whatever the tensors are
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    resize: str = "cover"
    crop: float = 1.0
    mlp: tuple[Rule, ...] = ()  # more rules: for an MLP of two layers,
    swiglu: tuple[Rule, ...] = ()  # or for one that is gated
    describe: Callable[[ViTConfig], dict[str, Any]] | None = None  # config.json of a model; None if it is not written
    unread: Callable[[ViTConfig], dict[str, Tensor]] = lambda c: {}  # what a written file has to hold besides
    note: str | None = None  # for the user, where something had to be assumed

    def all_rules(self, prefix: str, swiglu: bool) -> list[Rule]:
        below = (*self.rules, *(self.swiglu if swiglu else self.mlp))
        return [*(replace(rule, prefix=prefix) for rule in below), *self.outer]

    def is_gated(self, prefix: str, tensors: Mapping[str, Tensor]) -> bool:
        first = [prefix + name.format(0) for rule in self.swiglu[:1] for name in rule.theirs]
        return bool(first) and all(name in tensors or f"{name}.weight" in tensors for name in first)


def described_vision(raw: RawCheckpoint) -> Mapping[str, Any]:
    """config.json, or its part on the vision tower."""
    config = raw.config or {}
    vision = config.get("vision_config")
    return {**vision, "model_type": config.get("model_type")} if isinstance(vision, dict) else config


def parse_layout(encoder: Encoder, prefix: str, raw: RawCheckpoint) -> ParsedCheckpoint:
    described = described_vision(raw)
    kind = described.get("model_type")
    if encoder.model_types and kind is not None and kind not in encoder.model_types:
        known = ", ".join(encoder.model_types)
        raise UserError(f"{raw.where}: config.json says model_type {shown(kind)}, and the tensors are of {known}.")
    ignored: dict[str, list[str]] = {}
    for what, pattern in encoder.ignored.items():
        known_names = [rule.theirs[0] for rule in encoder.outer]
        if names := [n for n in raw.tensors if re.fullmatch(pattern, n) and n not in known_names]:
            ignored[what] = names
    unpacked = _unpack(encoder, prefix, raw.tensors)
    packed = [prefix + name for name in encoder.packed if prefix + name in raw.tensors]
    left_out = {*packed, *(name for names in ignored.values() for name in names)}
    rules = encoder.all_rules(prefix, encoder.is_gated(prefix, raw.tensors))
    arguments = {name: value for name, value in encoder.arguments(described, raw).items() if value is not None}
    mlp = arguments.pop("mlp", None)
    tensors = {name: tensor for name, tensor in {**raw.tensors, **unpacked}.items() if name not in left_out}
    ours = under_our_names({name: tensor for name, tensor in tensors.items() if tensor.numel()}, rules)
    config, assumed = infer_vit_config(replace(raw, tensors=ours), arguments)
    config = replace(config, **encoder.fields)
    if mlp is not None and config.mlp != "swiglu":
        config = replace(config, mlp=mlp)
    empty = [name for name, tensor in tensors.items() if not tensor.numel()]  # no registers
    if empty:
        ignored["empty tensors"] = empty
    sizes = {"hidden_size": config.width, "num_hidden_layers": config.depth, "patch_size": config.patch}
    shown_sizes = {name: described.get(name) for name in sizes}
    if isinstance(shown_sizes["patch_size"], list):
        shown_sizes["patch_size"] = shown_sizes["patch_size"][0]
    check_agreement(raw.where, {name: (shown_sizes[name], value) for name, value in sizes.items()})
    channels = config.channels
    mean, std = (values if channels == 3 else (sum(values) / 3,) * channels for values in (encoder.mean, encoder.std))
    usual = Preprocess(config.image_size, mean, std, encoder.crop, "bicubic", encoder.resize)  # type: ignore[arg-type]
    notes = (encoder.note,) if encoder.note and config.mlp == "gelu" else ()
    parsed = ParsedCheckpoint(
        encoder.title,
        config,
        rules,
        usual,
        ignored_keys=ignored,
        heads_assumed=assumed,
        tensors=unpacked,
        replaced=tuple(packed),
        notes=tuple(f"{note}; taken for {config.mlp}" for note in notes),
    )
    return with_description(raw, parsed)


def _unpack(encoder: Encoder, prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, (first, rest) in encoder.packed.items():
        if (tensor := tensors.get(prefix + name)) is not None:
            third = len(tensor) // 3
            found |= {prefix + first: tensor[:third], prefix + rest: tensor[third:]}
    return found


def write_layout(out: Path, encoder: Encoder, model: ViT, preprocess: Preprocess, labels: Sequence[str]) -> Path:
    """A folder that `from_pretrained` opens; refused if what it says is another model than this."""
    c = model.config
    assert encoder.describe is not None
    if c.classes:
        raise UserError(
            f"{out}: {encoder.title} has no word for a classifier; export to timm, or use the bundle as it is."
        )
    config = encoder.describe(c)
    prefix = encoder.prefixes[0] if c.projection else ""
    tensors = export_state(model.state_dict(), encoder.all_rules(prefix, c.mlp == "swiglu"))
    for name, (first, rest) in encoder.packed.items():
        if prefix + first in tensors:
            tensors[prefix + name] = torch.cat([tensors.pop(prefix + first), tensors.pop(prefix + rest)])
    tensors |= {prefix + name: tensor for name, tensor in encoder.unread(c).items() if prefix + name not in tensors}
    raw = RawCheckpoint(str(out), "safetensors", tensors, config=config, image_size=c.image_size)
    _check_same(parse_layout(encoder, prefix, raw).config, c, str(out), encoder.title)
    return write_folder(out, config, labels, preprocess, tensors)


_FREE = {"drop_path", "dropout", "patch_dropout", "position_resampling", "merge"}
"""Fields that no format keeps: of training, or which a person sets."""


def _check_same(found: Any, c: ViTConfig, where: str, title: str) -> None:
    for name, value in vars(c).items():
        if name not in _FREE and getattr(found, name) != value:
            raise UserError(f"{where}: {title} has no word for {name}={value!r}; export to another format.")
