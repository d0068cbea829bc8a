"""timm's way of saying what a model is, both ways: a hub `config.json`, and tensors whose names and shapes tell.

The names of the tensors are ours too, so only the description has to be translated.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

from vitreous.arguments import check_value, shown
from vitreous.config.data import Interpolation, Preprocess
from vitreous.config.model import ModelConfig, Pool, PositionScope, ViTConfig
from vitreous.errors import UserError
from vitreous.model.network import Network
from vitreous.model.presets import SIZES
from vitreous.weights.files import new_folder, write_tensors
from vitreous.weights.foreign import (
    Foreign,
    Raw,
    Shapes,
    augreg_default,
    blocks_of,
    check_agreement,
    grid_for_count,
    heads_for,
    imagenet_default,
    is_hybrid,
    no_grid,
    other_count,
    other_epsilon,
    shape_of,
    sides,
    stated,
)
from vitreous.weights.mapping import same, to_theirs
from vitreous.weights.timm_architectures import heads_of, why_not

UNKNOWN_TO_TIMM = "vitreous"
"""The architecture of a model that timm has no word for: timm then refuses it by this name."""

_WORDS = {"Ti": "tiny", "S": "small", "B": "base", "L": "large", "H": "huge", "g": "giant"}
# The plain models that timm has.
_ENTRIES = {
    "Ti": ("16_224", "16_384"),
    "S": ("32_224", "32_384", "16_224", "16_384", "8_224"),
    "B": ("32_224", "32_384", "16_224", "16_384", "8_224"),
    "L": ("32_224", "32_384", "16_224", "16_384", "14_224"),
    "H": ("14_224",),
    "g": ("14_224",),
}
# DeiT's with the distillation token.
_DISTILLED = {"Ti": ("16_224",), "S": ("16_224",), "B": ("16_224", "16_384")}
_POOLS: dict[Pool, str] = {"class": "token", "mean": "avg", "class+mean": "", "attention": "map"}
_CROPS = {"cover": "center", "cover-floor": "center", "stretch": "squash", "stretch-floor": "squash"}
# Arguments of timm's that the tensors tell too, that are read here, or that matter in training alone; and their types.
_UNDERSTOOD: dict[str, Any] = {
    **dict.fromkeys(("patch_size", "embed_dim", "depth", "num_heads", "in_chans", "num_classes", "reg_tokens"), int),
    **dict.fromkeys(("drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate"), float),
    **dict.fromkeys(("class_token", "no_embed_class", "qk_norm", "qkv_bias", "dynamic_img_size", "fix_init"), bool),
    **dict.fromkeys(("act_layer", "global_pool", "pos_embed", "weight_init"), str),
    **dict.fromkeys(("mlp_ratio", "init_values", "drop_path_rate"), float),
    "img_size": int | tuple[int, int],
    "fc_norm": bool,
}
CORE = ("patch_embed.proj.weight", "blocks.0.attn.qkv.weight", "blocks.0.mlp.fc1.weight", "blocks.0.mlp.fc2.weight")
"""What every such model has."""


def timm_config(config: ModelConfig, preprocess: Preprocess, labels: Sequence[str]) -> dict[str, Any]:
    """What timm's hub keeps in config.json, so that `timm.create_model("local-dir:FOLDER", pretrained=True)` opens it.

    For a model that timm has no word for, `architecture` is one that it does not know, and `timm` says why.
    """
    described: dict[str, Any] = {"architecture": UNKNOWN_TO_TIMM}
    if reason := why_not_timm(config):
        described["timm"] = f"timm has no word for {reason}; open this model with vitreous."
    elif isinstance(config, ViTConfig):
        described["architecture"], arguments = _architecture(config)
        if preprocess.size != config.image_size:  # without img_size timm would build it for 224, and resample twice
            arguments |= {"img_size": list(config.image_size), "dynamic_img_size": True}
        if arguments:
            described["model_args"] = arguments
    described["num_classes"] = config.classes
    if isinstance(config, ViTConfig):
        described |= {"num_features": config.width, "global_pool": _POOLS[config.pool]}
    else:
        described["num_features"] = config.features
    described["label_names"] = list(labels)
    described["pretrained_cfg"] = {
        "input_size": [config.channels, *preprocess.size],
        "fixed_input_size": preprocess.size == config.image_size,
        "interpolation": preprocess.interpolation,
        "crop_pct": preprocess.crop,
        "crop_mode": _CROPS[preprocess.resize],
        "mean": list(preprocess.mean),
        "std": list(preprocess.std),
        "num_classes": config.classes,
        "label_names": list(labels),
        "pool_size": None,
    }
    if isinstance(config, ViTConfig):
        described["pretrained_cfg"] |= {
            "first_conv": "patch_embed.proj",
            "classifier": ["head", "head_dist"] if config.distilled else "head",
        }
    return described


def why_not_timm(c: ModelConfig) -> str | None:
    """What timm's VisionTransformer cannot be told by a config.json, or None if it can be told all."""
    if not isinstance(c, ViTConfig):
        return f"the family {c.family!r}"
    odd = {
        "LayerNorm after the branches": c.norm == "after",
        f"{c.position} positions": c.position not in ("learned-1d", "none"),
        "positions for the class token but not for registers": c.registers > 0
        and c.prefix_positions not in (0, c.prefix),
        "a tanh layer before the classifier": c.classifier == "mlp",
        "the class token beside the mean": c.pool == "class+mean",
        "registers after a distillation token": c.distilled and (c.registers > 0 or c.prefix_positions != c.prefix),
        "SwiGLU as a plain argument": c.mlp == "swiglu",
        other_epsilon(c): c.norm_eps != 1e-6,
        "a table of positions for padded pictures": any(side % c.patch for side in c.image_size),
    }
    return next((name for name, holds in odd.items() if holds), None)


def _architecture(c: ViTConfig) -> tuple[str, dict[str, Any]]:
    """timm's name of the nearest model it has, and the arguments in which this one differs."""
    shape = (c.width, c.depth, c.heads, c.mlp_width)
    known = _DISTILLED if c.distilled else _ENTRIES
    size = next((name for name in known if SIZES[name] == shape), None)
    size = size or next((name for name in known if SIZES[name][0] == c.width), "B")
    entries = known[size]
    wanted = f"{c.patch}_{c.image_size[0]}"
    entry = wanted if wanted in entries else "16_224" if "16_224" in entries else "14_224"
    patch, side = (int(part) for part in entry.split("_"))
    width, depth, heads, mlp_width = SIZES[size]
    said: dict[str, tuple[Any, Any]] = {  # timm's argument: (what the name says, what is)
        "img_size": ((side, side), c.image_size),
        "patch_size": (patch, c.patch),
        "embed_dim": (width, c.width),
        "depth": (depth, c.depth),
        "num_heads": (heads, c.heads),
        "mlp_ratio": (mlp_width / width, _mlp_ratio(c)),
        "in_chans": (3, c.channels),
        "act_layer": ("gelu", c.mlp),
        "global_pool": ("token", _POOLS[c.pool]),
        "fc_norm": (c.pool == "mean", c.norm_after_pool),
        "class_token": (True, c.class_token),
        "reg_tokens": (0, c.registers),
        "pos_embed": ("learn", "none" if c.position == "none" else "learn"),
        "no_embed_class": (False, c.position == "learned-1d" and c.prefix > 0 and c.prefix_positions == 0),
        "init_values": (None, c.layer_scale),
        "qk_norm": (False, c.qk_norm),
    }
    arguments = {name: value for name, (usual, value) in said.items() if value != usual}
    if "img_size" in arguments:
        arguments["img_size"] = list(c.image_size)
    kind = f"deit_{_WORDS[size]}_distilled" if c.distilled else f"vit_{_WORDS[size]}"
    return f"{kind}_patch{entry}", arguments


def _mlp_ratio(c: ViTConfig) -> float:
    """A ratio of which timm, which cuts off fractions, makes the MLP's width again."""
    ratio = c.mlp_width / c.width
    return ratio if int(c.width * ratio) == c.mlp_width else math.nextafter(ratio, math.inf)


def write_timm(
    out: str | Path, model: Network, preprocess: Preprocess, labels: Sequence[str], info: dict[str, Any]
) -> Path:
    """A folder that `timm.create_model("local-dir:OUT", pretrained=True)` opens."""
    out = Path(out)
    if reason := why_not_timm(model.config):
        raise UserError(f"{out}: timm has no word for {reason}; export to another format, or use the bundle as it is.")
    state = to_theirs(model.state_dict(), [same(name, name) for name in model.state_dict()])
    with new_folder(out) as folder:
        described = timm_config(model.config, preprocess, labels)
        (folder / "config.json").write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
        write_tensors(folder / "model.safetensors", state)
    return out


def read_timm(raw: Raw) -> Foreign | None:
    """timm's models by the tensors that they have, and what a hub config.json says beside."""
    if not raw.tensors.keys() >= set(CORE) or is_hybrid(raw.tensors):
        return None
    said = raw.config or {}
    pretrained = said.get("pretrained_cfg") or said  # older folders have its fields one level up
    arguments = _arguments(said.get("model_args") or {}, raw.where)
    defined = heads_of(architecture_of(raw.config))
    arguments = ({} if defined is None else {"num_heads": defined}) | arguments
    config, heads_assumed = recognise(raw.shapes, raw.where, raw.size, arguments, heads=raw.heads)
    if (arguments.get("global_pool") or said.get("global_pool") or pretrained.get("global_pool")) == "avg":
        config = replace(config, pool="mean")
    check_agreement(raw.where, _stated(said, arguments, config, raw.size))
    usual = augreg_default if config.classes else imagenet_default
    preprocess, problem = usual(config), None
    if "mean" in pretrained:
        read = partial(_preprocess, pretrained, config, raw.where)
        preprocess, problem = stated(read, partial(usual, config), raw.where, "config.json")
    names = said.get("label_names") or pretrained.get("label_names") or ()
    labels: tuple[str, ...] = check_value(names, tuple[str, ...], "label_names")
    return Foreign(
        family="timm",
        config=config,
        rules=(),
        preprocess=preprocess,
        assumed="mean" not in pretrained,
        labels=labels if len(labels) == config.classes else (),
        problem=problem,
        heads_assumed=heads_assumed,
        notes=other_count(len(labels), config.classes, "label_names of config.json"),
    )


def is_timm(config: dict[str, Any] | None) -> bool:
    """Whether a config.json is of timm's hub."""
    return config is not None and ("architecture" in config or "pretrained_cfg" in config)


def architecture_of(config: dict[str, Any] | None) -> str:
    """The architecture that a config.json of timm's names; else ""."""
    said = config or {}
    pretrained = said.get("pretrained_cfg")
    inside = pretrained.get("architecture") if isinstance(pretrained, dict) else None
    return str(said.get("architecture") or inside or "")


def check_architecture(raw: Raw) -> None:
    """Refuse a type of timm's that cannot be opened, by its name, whatever its tensors look like."""
    name = architecture_of(raw.config)
    if reason := why_not(name):
        raise UserError(f"{raw.where}: a model of timm's type {name[:80]!r} {reason}; give another model.")


def _stated(
    said: dict[str, Any], arguments: dict[str, Any], c: ViTConfig, size: tuple[int, int] | None
) -> dict[str, tuple[Any, Any]]:
    """What config.json says and the tensors show too: both, by the name of the field."""
    facts: dict[str, Any] = {
        "embed_dim": c.width,
        "depth": c.depth,
        "patch_size": c.patch,
        "in_chans": c.channels,
        "num_classes": c.classes,
        "class_token": c.class_token,
        "reg_tokens": c.registers,
        "qk_norm": c.qk_norm,
    }
    if size is None and (stated_size := sides(arguments.get("img_size"))):
        arguments = {**arguments, "img_size": stated_size}
        facts["img_size"] = c.image_size
    pairs = {name: (arguments[name], fact) for name, fact in facts.items() if name in arguments}
    if "num_classes" in said:
        pairs["num_classes"] = (said["num_classes"], c.classes)
    if "num_features" in said:
        pairs["num_features"] = (said["num_features"], c.width)
    return pairs


def _arguments(said: dict[str, Any], where: str) -> dict[str, Any]:
    """timm's arguments of a model, those that are None left out; what is not known here is refused."""
    unknown = [shown(name)[1:-1] for name in sorted(said) if name not in _UNDERSTOOD]
    if said.get("act_layer", "gelu") not in ("gelu", "relu", None):
        unknown.append(f"act_layer {shown(said['act_layer'])}")
    if unknown:
        raise UserError(
            f"{where}: config.json beside it asks for {unknown[0]}, which is not known here; give another model."
        )
    return {name: check_value(value, _UNDERSTOOD[name], name) for name, value in said.items() if value is not None}


def _preprocess(said: dict[str, Any], config: ViTConfig, where: str) -> Preprocess:
    """What timm calls the data config."""
    how, mode = said.get("interpolation", "bicubic"), said.get("crop_mode", "center")
    modes = {"center": "cover", "squash": "stretch"}
    if how not in get_args(Interpolation) or mode not in modes:
        raise UserError(
            f"{where}: config.json asks for interpolation {how!r} and crop mode {mode!r}, which are not known"
        )
    return Preprocess(
        size=tuple(said["input_size"][1:]) if "input_size" in said else config.image_size,
        mean=tuple(said["mean"]),
        std=tuple(said["std"]),
        crop=1.0 if said.get("crop_pct") is None else said["crop_pct"],
        interpolation=how,
        resize=modes[mode],  # type: ignore[arg-type]
    )


def recognise(
    shapes: Shapes,
    where: str,
    size: tuple[int, int] | None = None,
    said: dict[str, Any] | None = None,
    heads: int | None = None,
) -> tuple[ViTConfig, bool]:
    """The configuration of the model whose tensors have these names and shapes, and whether its heads are a guess.

    What tensors cannot tell is taken to be usual: GELU, epsilon 1e-6, and heads 64 wide where the width is no preset's.
    size: height and width of the pictures, if known; it tells the grid where the patches do not make a square.
    said: timm's arguments of the model, if known. heads: their number, if the person said it.
    """
    said = said or {}

    def shape(name: str, axes: int) -> tuple[int, ...]:
        return shape_of(shapes, name, axes, where)

    width, channels, patch, _ = shape("patch_embed.proj.weight", 4)
    class_token = "cls_token" in shapes
    registers = shape("reg_token", 3)[1] if "reg_token" in shapes else 0
    inner, outer = shape("blocks.0.mlp.fc1.weight", 2)[0], shape("blocks.0.mlp.fc2.weight", 2)[1]
    pool: Pool = "attention" if "attn_pool.latent" in shapes else "class"
    if pool == "class" and ("fc_norm.weight" in shapes or not class_token):
        pool = "mean"
    prefix = (int(class_token) + int("dist_token" in shapes), registers)
    scope, grid = _grid(shapes, where, prefix, patch, size or sides(said.get("img_size")))
    heads = heads or said.get("num_heads")
    if heads is None and "blocks.0.attn.q_norm.weight" in shapes:
        heads = width // shape("blocks.0.attn.q_norm.weight", 1)[0]
    config = ViTConfig(
        width=width,
        depth=blocks_of(shapes, "blocks.", "."),
        heads=heads or heads_for(width, where),
        mlp_width=outer,
        patch=patch,
        image_size=(grid[0] * patch, grid[1] * patch),
        channels=channels,
        classes=shape("head.weight", 2)[0] if "head.weight" in shapes else 0,
        position="learned-1d" if "pos_embed" in shapes else "learned-2d",
        position_scope=scope,
        mlp="swiglu" if inner == 2 * outer else said.get("act_layer") or "gelu",
        class_token=class_token,
        distilled="dist_token" in shapes,
        registers=registers,
        pool=pool,
        norm_after_pool="fc_norm.weight" in shapes,
        classifier="mlp" if "pre_logits.fc.weight" in shapes else "linear",
        layer_scale=said.get("init_values") or 1e-5 if "blocks.0.ls1.gamma" in shapes else None,
        qk_norm="blocks.0.attn.q_norm.weight" in shapes,
    )
    return config, heads is None


def _grid(
    shapes: Shapes, where: str, prefix: tuple[int, int], patch: int, size: tuple[int, int] | None
) -> tuple[PositionScope, tuple[int, int]]:
    """Which tokens have positions, and the rows and columns of those that patches have.

    prefix: class tokens, and registers.
    """
    if "pos_embed_y" in shapes:
        return "all", (shape_of(shapes, "pos_embed_y", 2, where)[0], shape_of(shapes, "pos_embed_x", 2, where)[0])
    if "pos_embed" not in shapes:
        raise UserError(f"{where}: it holds no positions (pos_embed), so they cannot be told; give a bundle.")
    count = shape_of(shapes, "pos_embed", 3, where)[1]
    scopes: dict[int, PositionScope] = {0: "patches", prefix[0]: "class", sum(prefix): "all"}
    for known in (size, None) if size else (None,):
        for skipped, scope in reversed(scopes.items()):
            grid = grid_for_count(count - skipped, patch, known)
            if grid and (known is None or grid == (known[0] // patch, known[1] // patch)):
                return scope, grid
    raise no_grid(where, count)
