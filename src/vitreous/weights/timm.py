"""timm's way of saying what a model is, both ways: a hub `config.json`, and tensors whose names and shapes tell.

The names of the tensors are ours too, so only the description has to be translated.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitreous.config.data import Preprocess
from vitreous.config.model import ModelConfig, Pool, PositionScope, ViTConfig
from vitreous.errors import UserError
from vitreous.model.network import Network
from vitreous.model.presets import SIZES
from vitreous.storage.files import new_folder, write_tensors
from vitreous.weights.bit import bit_in_timm
from vitreous.weights.efficientnet import efficientnet_in_timm
from vitreous.weights.foreign import (
    Foreign,
    Raw,
    Shapes,
    augreg_default,
    blocks_of,
    grid_for_count,
    heads_for,
    imagenet_default,
    no_grid,
    other_epsilon,
    shape_of,
    sides,
)
from vitreous.weights.hybrid import first_convolution_name, has_backbone, read_stem, timm_architecture
from vitreous.weights.mapping import relaid
from vitreous.weights.timm_architectures import heads_of
from vitreous.weights.timm_layout import (
    UNKNOWN_TO_TIMM,
    TimmModel,
    architecture_of,
    arguments_of,
    check_stated,
    pretrained_of,
    stated_by_timm,
)
from vitreous.wording import shown

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
    model = in_timm(config)
    described: dict[str, Any] = {"architecture": model.architecture}
    arguments = dict(model.arguments)
    fixed = isinstance(config, ViTConfig) and preprocess.size == config.image_size
    if model.missing:
        described["timm"] = f"timm has no word for {model.missing}; open this model with vitreous."
    elif isinstance(config, ViTConfig) and not fixed:  # else timm would build it for 224, and resample twice
        arguments |= {"img_size": list(config.image_size), "dynamic_img_size": True}
    if arguments:
        described["model_args"] = arguments
    described |= {"num_classes": config.classes, "num_features": model.features}
    if model.global_pool is not None:
        described["global_pool"] = model.global_pool
    described["label_names"] = list(labels)
    described["pretrained_cfg"] = {
        "input_size": [config.channels, *preprocess.size],
        "fixed_input_size": fixed,
        "interpolation": preprocess.interpolation,
        "crop_pct": preprocess.crop,
        "crop_mode": _CROPS[preprocess.resize],
        "mean": list(preprocess.mean),
        "std": list(preprocess.std),
        "num_classes": config.classes,
        "label_names": list(labels),
        "pool_size": None,
    }
    # timm takes the first layer of every file for one of three channels, and would convert it once more
    named = {"first_conv": model.first_conv if config.channels == 3 else None, "classifier": model.classifier}
    described["pretrained_cfg"] |= {name: value for name, value in named.items() if value is not None}
    return described


def in_timm(config: ModelConfig) -> TimmModel:
    """A model in timm's words."""
    if config.family not in IN_TIMM:
        return TimmModel(config.features, missing=f"the family {config.family!r}")
    return IN_TIMM[config.family](config)


def _vit_in_timm(c: ViTConfig) -> TimmModel:
    missing = _why_not(c)
    architecture, arguments = (UNKNOWN_TO_TIMM, {}) if missing else _architecture(c)
    return TimmModel(
        features=c.width,
        architecture=architecture,
        arguments=arguments,
        missing=missing,
        global_pool=_POOLS[c.pool],
        first_conv=first_convolution_name(c),
        classifier=["head", "head_dist"] if c.distilled else "head",
    )


IN_TIMM: dict[str, Callable[[Any], TimmModel]] = {
    "vit": _vit_in_timm,
    "bit": bit_in_timm,
    "efficientnet": efficientnet_in_timm,
}
"""What each family is called there, by the name of the family."""


def why_not_timm(c: ModelConfig) -> str | None:
    """What timm cannot be told by a config.json, or None if it can be told all."""
    return in_timm(c).missing


def _why_not(c: ViTConfig) -> str | None:
    odd = {
        "LayerNorm after the branches": c.norm == "after",
        f"{c.attention} attention": c.attention != "full",
        "this convolutional stem": c.stem is not None and timm_architecture(c) is None,
        "a hybrid with a distillation token": c.stem is not None and c.distilled,
        f"{c.position} positions": c.position not in ("learned-1d", "none"),
        "positions for the class token but not for registers": c.registers > 0
        and c.prefix_positions not in (0, c.prefix),
        "a tanh layer before the classifier": c.classifier == "mlp",
        "the class token beside the mean": c.pool == "class+mean",
        "registers after a distillation token": c.distilled and (c.registers > 0 or c.prefix_positions != c.prefix),
        "SwiGLU as a plain argument": c.mlp == "swiglu",
        other_epsilon(c): c.norm_eps != 1e-6,
        "a table of positions for padded images": any(side % c.patch for side in c.image_size),
    }
    return next((name for name, holds in odd.items() if holds), None)


def _architecture(c: ViTConfig) -> tuple[str, dict[str, Any]]:
    """timm's name of the nearest model it has, and the arguments in which this one differs."""
    shape = (c.width, c.depth, c.heads, c.mlp_width)
    known = _DISTILLED if c.distilled else _ENTRIES
    hybrid = timm_architecture(c)
    size = next((name for name in known if SIZES[name] == shape), None)
    size = size or next((name for name in known if SIZES[name][0] == c.width), "B")
    entries = known[size]
    wanted = f"{c.patch}_{c.image_size[0]}"
    entry = wanted if wanted in entries else "16_224" if "16_224" in entries else "14_224"
    patch, side = (int(part) for part in entry.split("_"))
    if hybrid is not None:
        patch, side = (1 if c.stem is not None and c.stem.stride > 4 else 8), hybrid[1]
    width, depth, heads, mlp_width = SIZES[size]
    said: dict[str, tuple[Any, Any]] = {  # timm's argument: (what the name says, what is)
        "img_size": ((side, side), c.image_size),
        "patch_size": (patch, c.kernel[1]),
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
    if hybrid is not None:
        return hybrid[0], arguments
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
    state = relaid(model.state_dict(), in_timm(model.config).rules)
    with new_folder(out) as folder:
        described = timm_config(model.config, preprocess, labels)
        (folder / "config.json").write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
        write_tensors(folder / "model.safetensors", state)
    return out


def read_timm(raw: Raw) -> Foreign | None:
    """timm's models by the tensors that they have, and what a hub config.json says beside."""
    if not raw.tensors.keys() >= set(CORE):
        return None
    if has_backbone(raw.shapes) and read_stem(raw.shapes, raw.where) is None:
        return None
    said, pretrained = raw.config or {}, pretrained_of(raw)
    arguments = _arguments(raw)
    defined = heads_of(architecture_of(raw.config))
    arguments = ({} if defined is None else {"num_heads": defined}) | arguments
    config, heads_assumed = recognise(raw.shapes, raw.where, raw.size, arguments, heads=raw.heads)
    if (arguments.get("global_pool") or said.get("global_pool") or pretrained.get("global_pool")) == "avg":
        config = replace(config, pool="mean")
    _check_stated(raw, arguments, config)
    usual = augreg_default if config.classes else imagenet_default
    found = Foreign("timm", config, (), usual(config), assumed=True, heads_assumed=heads_assumed)
    return stated_by_timm(raw, found)


def _check_stated(raw: Raw, arguments: dict[str, Any], c: ViTConfig) -> None:
    facts: dict[str, Any] = {
        "embed_dim": c.width,
        "depth": c.depth,
        "patch_size": c.kernel[1],
        "class_token": c.class_token,
        "reg_tokens": c.registers,
        "qk_norm": c.qk_norm,
    }
    if raw.size is None and (stated_size := sides(arguments.get("img_size"))):
        arguments = {**arguments, "img_size": stated_size}
        facts["img_size"] = c.image_size
    check_stated(raw, arguments, c, c.width, facts)


def _arguments(raw: Raw) -> dict[str, Any]:
    arguments = arguments_of(raw, _UNDERSTOOD)
    if (act := arguments.get("act_layer", "gelu")) not in ("gelu", "relu"):
        asked = f"asks for act_layer {shown(act)}, which is not known here"
        raise UserError(f"{raw.where}: config.json beside it {asked}; give another model.")
    return arguments


def recognise(
    shapes: Shapes,
    where: str,
    size: tuple[int, int] | None = None,
    said: dict[str, Any] | None = None,
    heads: int | None = None,
) -> tuple[ViTConfig, bool]:
    """The configuration of the model whose tensors have these names and shapes, and whether its heads are a guess.

    What tensors cannot tell is taken to be usual: GELU, epsilon 1e-6, and heads 64 wide where the width is no preset's.
    size: height and width of the images, if known; it tells the grid where the patches do not make a square.
    said: timm's arguments of the model, if known. heads: their number, if the person said it.
    """
    said = said or {}

    def shape(name: str, axes: int) -> tuple[int, ...]:
        return shape_of(shapes, name, axes, where)

    width, channels, patch, _ = shape("patch_embed.proj.weight", 4)
    stem = None
    if (found := read_stem(shapes, where)) is not None:
        stem, channels = found
        patch *= stem.stride
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
        stem=stem,
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
