"""timm's models, both ways: a hub `config.json`, and tensors whose names and shapes tell.

The names of the tensors are ours too, so only the description has to be translated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from vitreous.arguments import Count, check_value, shown
from vitreous.config.data import Interpolation, Preprocess
from vitreous.config.efficientnet import SIZES, EfficientNetConfig
from vitreous.config.model import ModelConfig, ViTConfig
from vitreous.errors import UserError
from vitreous.model.network import Network
from vitreous.storage.files import new_folder, write_tensors
from vitreous.weights.checkpoint import (
    CLIP_MEAN,
    CLIP_STD,
    IMAGENET_MEAN,
    IMAGENET_STD,
    ParsedCheckpoint,
    RawCheckpoint,
    augreg_preprocess,
    bit_config,
    check_agreement,
    height_and_width,
    imagenet_preprocess,
    without_placeholders,
)
from vitreous.weights.infer import TIMM_ACTIVATIONS, VIT_TENSORS, has_backbone, infer_vit_config, parse_stem
from vitreous.weights.mapping import export_state, under_our_names
from vitreous.weights.timm_config import BIT_RULES, EFFICIENTNET_PADDINGS, architecture_heads, timm_config, to_timm
from vitreous.weights.timm_encoders import (
    EVA_ARGUMENTS,
    HEAD_IS_PROJECTION,
    QUICK_GELU_TAGS,
    known_arguments,
    rules_for,
    to_infer,
)

# Known arguments of timm and their types: read here, visible in the tensors too, or only for training.
_VIT_ARGUMENTS: dict[str, Any] = {
    **dict.fromkeys(("patch_size", "embed_dim", "depth", "num_heads", "in_chans", "num_classes", "reg_tokens"), int),
    **dict.fromkeys(("drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate"), float),
    **dict.fromkeys(("class_token", "no_embed_class", "qk_norm", "qkv_bias", "dynamic_img_size", "fix_init"), bool),
    **dict.fromkeys(("act_layer", "global_pool", "pos_embed", "weight_init"), str),
    **dict.fromkeys(("mlp_ratio", "init_values", "drop_path_rate"), float),
    "img_size": int | tuple[int, int],
    "fc_norm": bool,
}
_BIT_ARGUMENTS: dict[str, Any] = {
    **dict.fromkeys(("in_chans", "num_classes"), int),
    **dict.fromkeys(("drop_rate", "drop_path_rate"), float),
    "global_pool": Literal["avg"],
}
_EFFICIENTNET_ARGUMENTS = _BIT_ARGUMENTS | {"bn_eps": float, "bn_momentum": float, "pad_type": Literal["same", ""]}
_BIT_BLOCK = ("norm1", "norm2", "norm3", "conv1", "conv2", "conv3")
"""Modules of a BiT block, which tell it from timm's other ResNets: those with two convolutions have no third norm."""


def write_timm(
    out: str | Path, model: Network, preprocess: Preprocess, labels: Sequence[str], info: dict[str, Any]
) -> Path:
    """A folder that `timm.create_model("local-dir:OUT", pretrained=True)` opens."""
    out, theirs = Path(out), to_timm(model.config)
    if theirs.unsupported:
        raise UserError(
            f"{out}: timm has no word for {theirs.unsupported}; export to another format, or use the bundle as it is."
        )
    with new_folder(out) as folder:
        config = timm_config(model.config, preprocess, labels)
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        write_tensors(folder / "model.safetensors", export_state(model.state_dict(), theirs.rules))
    return out


def is_timm(config: dict[str, Any] | None) -> bool:
    return config is not None and ("architecture" in config or "pretrained_cfg" in config)


def architecture_of(config: dict[str, Any] | None) -> str:
    """The architecture in timm's config.json, or ""."""
    config = config or {}
    pretrained = config.get("pretrained_cfg")
    inside = pretrained.get("architecture") if isinstance(pretrained, dict) else None
    return str(config.get("architecture") or inside or "")


def _pretrained(raw: RawCheckpoint) -> dict[str, Any]:
    """timm's `pretrained_cfg`, whose fields older folders have at the top level."""
    config = raw.config or {}
    return config.get("pretrained_cfg") or config


def _input_size(raw: RawCheckpoint) -> tuple[int, int] | None:
    """(height, width) in config.json, for a network whose tensors do not tell the image size."""
    pretrained = _pretrained(raw)
    if pretrained.get("input_size") is None:
        return None
    _, height, width = check_value(pretrained["input_size"], tuple[Count, Count, Count], "input_size")
    return height, width


def _arguments(raw: RawCheckpoint, known: Mapping[str, Any]) -> dict[str, Any]:
    """timm's `model_args` that are not None; an unknown argument is refused."""
    arguments = {}
    for name, value in ((raw.config or {}).get("model_args") or {}).items():
        if name not in known:
            asked = f"asks for {shown(name)[1:-1]}, which is not known here"
            raise UserError(f"{raw.where}: config.json beside it {asked}; give another model.")
        if value is not None:
            arguments[name] = check_value(value, known[name], name)
    return arguments


def _check_description(
    raw: RawCheckpoint, arguments: dict[str, Any], c: ModelConfig, sizes: Mapping[str, Any] | None = None
) -> None:
    """Refuse a config.json that contradicts the tensors. sizes: further arguments, with the tensors' values."""
    outputs = c.projection if isinstance(c, ViTConfig) and c.projection else c.classes
    sizes = {"in_chans": c.channels, "num_classes": outputs, **(sizes or {})}
    pairs = {name: (arguments[name], size) for name, size in sizes.items() if name in arguments}
    features = c.width if isinstance(c, ViTConfig) else c.features
    config = raw.config or {}
    wrapper = config.get("model_type") == "timm_wrapper"  # it says two classes where there is no classifier
    for name, size in (("num_classes", outputs), ("num_features", features)):
        if (described := config.get(name)) is not None and not (wrapper and not size):
            pairs[name] = (described, size)
    check_agreement(raw.where, pairs)


def _with_description(raw: RawCheckpoint, found: ParsedCheckpoint) -> ParsedCheckpoint:
    pretrained = _pretrained(raw)
    read = partial(_preprocess, pretrained, found.config.image_size, raw.where) if "mean" in pretrained else None
    names = (raw.config or {}).get("label_names") or pretrained.get("label_names") or ()
    labels: tuple[str, ...] = without_placeholders(check_value(names, tuple[str, ...], "label_names"))
    return found.apply_description(raw, "config.json", read, labels, "label_names")


def _preprocess(pretrained: dict[str, Any], size: tuple[int, int], where: str) -> Preprocess:
    """The preprocessing in timm's `pretrained_cfg`. size: of the model, if that says none."""
    how, mode = pretrained.get("interpolation", "bicubic"), pretrained.get("crop_mode", "center")
    modes: dict[str, Literal["cover", "stretch"]] = {"center": "cover", "squash": "stretch"}
    if how not in get_args(Interpolation) or mode not in modes:
        raise UserError(
            f"{where}: config.json asks for interpolation {how!r} and crop mode {mode!r}, which are not known"
        )
    return Preprocess(
        size=tuple(pretrained["input_size"][1:]) if "input_size" in pretrained else size,
        mean=tuple(pretrained["mean"]),
        std=tuple(pretrained["std"]),
        crop=1.0 if pretrained.get("crop_pct") is None else pretrained["crop_pct"],
        interpolation=how,
        resize=modes[mode],
    )


def read_timm(raw: RawCheckpoint) -> ParsedCheckpoint | None:
    file, rules = raw, rules_for(raw.tensors)
    if rules:
        raw = replace(raw, tensors=under_our_names(raw.tensors, rules))
    if not raw.tensors.keys() >= set(VIT_TENSORS) or (has_backbone(raw) and parse_stem(raw) is None):
        return None
    given = _arguments(raw, _VIT_ARGUMENTS | EVA_ARGUMENTS)
    unset = {name for name, value in ((raw.config or {}).get("model_args") or {}).items() if value is None}
    usual_arguments = known_arguments(architecture_of(raw.config), file.tensors)
    arguments = {name: value for name, value in usual_arguments.items() if name not in unset} | given
    if _pretrained(raw).get("tag") in QUICK_GELU_TAGS and "_clip_" in architecture_of(raw.config):
        arguments.setdefault("act_layer", "quick_gelu")
    if "head.bias" in raw.tensors and "norm_pre.weight" in raw.tensors and not raw.tensors["head.bias"].any():
        rules = [*rules, HEAD_IS_PROJECTION]
        raw = replace(raw, tensors=under_our_names(file.tensors, rules))
    if (act := arguments.get("act_layer", "gelu")) not in TIMM_ACTIVATIONS:
        asked = f"asks for act_layer {shown(act)}, which is not known here"
        raise UserError(f"{raw.where}: config.json beside it {asked}; give another model.")
    if (heads := architecture_heads(architecture_of(raw.config))) is not None:
        arguments = {"num_heads": heads} | arguments
    unbiased = not any(name.endswith(".attn.qkv.bias") for name in raw.tensors)
    own = {"cls_token", "blocks.0.ls1.gamma", "reg_token"}
    if unbiased and not is_timm(raw.config) and not raw.tensors.keys() & own:
        raise UserError(
            f"{raw.where}: its tensors are those of two models that compute differently; give the folder of its hub, "
            "whose config.json says which."
        )
    config, heads_assumed = infer_vit_config(raw, to_infer(arguments, raw, rules))
    pools = [described.get("global_pool") for described in (arguments, raw.config or {}, _pretrained(raw))]
    if next((pool for pool in pools if pool), None) == "avg" and config.pool == "class":
        config = replace(config, pool="mean")
    sizes: dict[str, Any] = {
        "embed_dim": config.width,
        "depth": config.depth,
        "patch_size": config.kernel[1],
        "class_token": config.class_token,
        "reg_tokens": config.registers,
        "num_reg_tokens": config.registers,
        "qk_norm": config.qk_norm,
        "pre_norm": config.norm_pre,
        "use_abs_pos_emb": config.position == "learned-1d",
        "use_rel_pos_bias": config.position == "relative",
    }
    if raw.image_size is None and (image_size := height_and_width(arguments.get("img_size"))):
        arguments = {**arguments, "img_size": image_size}
        sizes["img_size"] = config.image_size
    _check_description(raw, arguments, config, sizes)
    usual = _usual_preprocess(config)
    return _with_description(file, ParsedCheckpoint("timm", config, rules, usual, heads_assumed=heads_assumed))


def _usual_preprocess(c: ViTConfig) -> Preprocess:
    """How timm prepares images for the published models with such tensors; other models may have the same."""
    usual = augreg_preprocess(c)
    if c.channels == 3 and (c.rope is not None or c.norm_pre or c.qkv_bias == "q+v"):
        half = c.pool == "attention" or c.position == "relative" or (c.rope is not None and c.position == "none")
        mean, std = ((0.5,) * 3, (0.5,) * 3) if half else (CLIP_MEAN, CLIP_STD)  # EVA is of CLIP's images
        if c.rope is not None and c.rope.coordinates == "centres":
            mean, std = IMAGENET_MEAN, IMAGENET_STD
        return Preprocess(c.image_size, mean, std, crop=1.0)
    by_mean = c.pool == "mean" and not (c.class_token or c.norm_after_pool)
    if c.distilled or (c.layer_scale is not None and c.pool == "class" and c.classes):  # DeiT, DeiT III
        return replace(imagenet_preprocess(c), crop=usual.crop if c.distilled else 1.0)
    if c.classes or c.pool == "attention" or (by_mean and c.width not in (1280, 1408)):  # AugReg, SigLIP; not I-JEPA
        return usual
    return imagenet_preprocess(c)


def read_timm_bit(raw: RawCheckpoint) -> ParsedCheckpoint | None:
    needed = {"stem.conv.weight", "norm.weight", *(f"stages.0.blocks.0.{part}.weight" for part in _BIT_BLOCK)}
    if not needed <= set(raw.tensors) or any(name.endswith(".running_mean") for name in raw.tensors):
        return None  # another ResNet: of two convolutions, with batch norm, or a hybrid's
    root, classes = raw.shape("stem.conv.weight", 4), raw.outputs("head.fc.bias")
    config = bit_config(raw, root, raw.depths("stages.", "blocks."), classes, raw.image_size or _input_size(raw))
    _check_description(raw, _arguments(raw, _BIT_ARGUMENTS), config)
    return _with_description(raw, ParsedCheckpoint("timm", config, BIT_RULES, augreg_preprocess(config)))


def read_timm_efficientnet(raw: RawCheckpoint) -> ParsedCheckpoint | None:
    if "conv_stem.weight" not in raw.tensors:
        return None
    size = next((name for name, (width, depth, *_) in SIZES.items() if _is_size(raw, width, depth)), None)
    if size is None:
        return None
    architecture, arguments = architecture_of(raw.config), _arguments(raw, _EFFICIENTNET_ARGUMENTS)
    start = next((start for start in EFFICIENTNET_PADDINGS if architecture.startswith(start)), None)
    padding, epsilon = EFFICIENTNET_PADDINGS[start or "tf_efficientnet_"]
    if "pad_type" in arguments:
        padding = "same" if arguments["pad_type"] == "same" else "symmetric"
    width, depth, side, dropout = SIZES[size]
    config = EfficientNetConfig(
        width=width,
        depth=depth,
        image_size=raw.image_size or _input_size(raw) or (side, side),
        channels=raw.shape("conv_stem.weight", 4)[1],
        classes=raw.outputs("classifier.bias"),
        padding=padding,
        norm_eps=arguments.get("bn_eps", epsilon),
        dropout=dropout,
    )
    _check_description(raw, arguments, config)
    notes = () if start else (f"taken for tf_efficientnet_{size.lower()}, for its tensors do not tell how it pads",)
    return _with_description(raw, ParsedCheckpoint("timm", config, (), imagenet_preprocess(config), notes=notes))


def _is_size(raw: RawCheckpoint, width: float, depth: float) -> bool:
    """Whether stages, blocks and squeeze-and-excitation are those of an EfficientNet of this size."""
    stages = EfficientNetConfig(width=width, depth=depth).stages
    for number, stage in enumerate(stages):
        last = "conv_pw" if stage.expansion == 1 else "conv_pwl"
        outputs = raw.shapes.get(f"blocks.{number}.{stage.blocks - 1}.{last}.weight", ())[:1]
        squeezed = raw.shapes.get(f"blocks.{number}.0.se.conv_reduce.weight")
        if raw.blocks(f"blocks.{number}.") != stage.blocks or outputs != (stage.outputs,):
            return False
        if squeezed != (stage.inputs // 4, stage.inputs * stage.expansion, 1, 1):
            return False
    return raw.blocks("blocks.") == len(stages)
