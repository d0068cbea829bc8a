"""timm's way of saying what a model is, both ways: a hub `config.json`, and tensors whose names and shapes tell.

The names of the tensors are ours too, so only the description has to be translated.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from vitreous.config.data import Preprocess
from vitreous.config.model import Pool, PositionScope, ViTConfig
from vitreous.errors import UserError
from vitreous.model.presets import SIZES

Shapes = Mapping[str, tuple[int, ...]]

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
_POOLS: dict[Pool, str] = {"class": "token", "mean": "avg", "attention": "map"}


def timm_config(config: ViTConfig, preprocess: Preprocess, labels: Sequence[str]) -> dict[str, Any]:
    """What timm's hub keeps in config.json, so that `timm.create_model("local-dir:FOLDER", pretrained=True)` opens it.

    For a model that timm has no word for, `architecture` is one that it does not know, and `timm` says why.
    """
    described: dict[str, Any] = {"architecture": UNKNOWN_TO_TIMM}
    if reason := why_not_timm(config):
        described["timm"] = f"timm has no word for {reason}; open this model with vitreous."
    else:
        described["architecture"], arguments = _architecture(config)
        if preprocess.size != config.image_size:
            arguments["dynamic_img_size"] = True
        if arguments:
            described["model_args"] = arguments
    described |= {"num_classes": config.classes, "num_features": config.width, "global_pool": _POOLS[config.pool]}
    described["label_names"] = list(labels)
    described["pretrained_cfg"] = {
        "input_size": [config.channels, *preprocess.size],
        "fixed_input_size": preprocess.size == config.image_size,
        "interpolation": preprocess.interpolation,
        "crop_pct": preprocess.crop,
        "crop_mode": "center",
        "mean": list(preprocess.mean),
        "std": list(preprocess.std),
        "num_classes": config.classes,
        "label_names": list(labels),
        "pool_size": None,
        "first_conv": "patch_embed.proj",
        "classifier": "head",
    }
    return described


def why_not_timm(c: ViTConfig) -> str | None:
    """What timm's VisionTransformer cannot be told by a config.json, or None if it can be told all."""
    odd = {
        "LayerNorm after the branches": c.norm == "after",
        f"{c.position} positions": c.position not in ("learned-1d", "none"),
        "positions for the class token but not for registers": c.registers > 0
        and c.prefix_positions not in (0, c.prefix),
        "a tanh layer before the classifier": c.classifier == "mlp",
        "SwiGLU as a plain argument": c.mlp == "swiglu",
        f"LayerNorm with epsilon {c.norm_eps:g}": c.norm_eps != 1e-6,
        "a table of positions for padded pictures": any(side % c.patch for side in c.image_size),
    }
    return next((name for name, holds in odd.items() if holds), None)


def _architecture(c: ViTConfig) -> tuple[str, dict[str, Any]]:
    """timm's name of the nearest model it has, and the arguments in which this one differs."""
    shape = (c.width, c.depth, c.heads, c.mlp_width)
    size = next((name for name in _WORDS if SIZES[name] == shape), None)
    size = size or next((name for name in _WORDS if SIZES[name][0] == c.width), "B")
    entries = _ENTRIES[size]
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
    return f"vit_{_WORDS[size]}_patch{entry}", arguments


def _mlp_ratio(c: ViTConfig) -> float:
    """A ratio of which timm, which cuts off fractions, makes the MLP's width again."""
    ratio = c.mlp_width / c.width
    return ratio if int(c.width * ratio) == c.mlp_width else math.nextafter(ratio, math.inf)


def recognise(shapes: Shapes, where: str, image_size: tuple[int, int] | None = None) -> ViTConfig:
    """The configuration of the model whose tensors have these names and shapes.

    What tensors cannot tell is taken to be usual: GELU, epsilon 1e-6, and heads 64 wide where the width is no preset's.
    image_size: what the person said, if anything; it tells the grid where the patches do not make a square.
    """
    if "patch_embed.proj.weight" not in shapes or "blocks.0.attn.qkv.weight" not in shapes:
        first = next(iter(shapes), "nothing")
        raise UserError(
            f"{where}: not a Vision Transformer in timm's naming (no patch_embed.proj.weight with "
            f"blocks.0.attn.qkv.weight; its first tensor is {first}); convert it, or give a bundle."
        )
    width, channels, patch, _ = shapes["patch_embed.proj.weight"]
    blocks = {int(found[1]) for name in shapes if (found := re.match(r"blocks\.(\d+)\.", name))}
    class_token = "cls_token" in shapes
    registers = shapes["reg_token"][1] if "reg_token" in shapes else 0
    inner, outer = shapes["blocks.0.mlp.fc1.weight"][0], shapes["blocks.0.mlp.fc2.weight"][1]
    pool: Pool = "attention" if "attn_pool.latent" in shapes else "class"
    if pool == "class" and ("fc_norm.weight" in shapes or not class_token):
        pool = "mean"
    scope, grid = _grid(shapes, where, int(class_token), registers, patch, image_size)
    return ViTConfig(
        width=width,
        depth=max(blocks) + 1,
        heads=_heads(shapes, width, where),
        mlp_width=outer,
        patch=patch,
        image_size=(grid[0] * patch, grid[1] * patch),
        channels=channels,
        classes=shapes["head.weight"][0] if "head.weight" in shapes else 0,
        position="learned-1d" if "pos_embed" in shapes else "learned-2d",
        position_scope=scope,
        norm="before" if {"norm.weight", "fc_norm.weight"} & set(shapes) else "after",
        mlp="swiglu" if inner == 2 * outer else "gelu",
        class_token=class_token,
        registers=registers,
        pool=pool,
        norm_after_pool="fc_norm.weight" in shapes,
        classifier="mlp" if "pre_logits.fc.weight" in shapes else "linear",
        layer_scale=1e-5 if "blocks.0.ls1.gamma" in shapes else None,
        qk_norm="blocks.0.attn.q_norm.weight" in shapes,
    )


def _heads(shapes: Shapes, width: int, where: str) -> int:
    if "blocks.0.attn.q_norm.weight" in shapes:
        return width // shapes["blocks.0.attn.q_norm.weight"][0]
    known = {preset_width: heads for preset_width, _, heads, _ in SIZES.values()}
    if width in known:
        return known[width]
    if width % 64:
        raise UserError(f"{where}: its width {width} does not tell the number of heads; give a bundle, which says it.")
    return width // 64


def _grid(
    shapes: Shapes, where: str, class_token: int, registers: int, patch: int, image_size: tuple[int, int] | None
) -> tuple[PositionScope, tuple[int, int]]:
    """Which tokens have positions, and the rows and columns of those that patches have."""
    if "pos_embed_y" in shapes:
        return "all", (shapes["pos_embed_y"][0], shapes["pos_embed_x"][0])
    if "pos_embed" not in shapes:
        raise UserError(f"{where}: it holds no positions (pos_embed), so they cannot be told; give a bundle.")
    count = shapes["pos_embed"][1]
    prefixes: dict[int, PositionScope] = {0: "patches", class_token: "class", class_token + registers: "all"}
    for prefix, scope in reversed(prefixes.items()):
        cells = count - prefix
        if image_size and (image_size[0] // patch) * (image_size[1] // patch) == cells:
            return scope, (image_size[0] // patch, image_size[1] // patch)
    for prefix, scope in reversed(prefixes.items()):
        side = math.isqrt(max(count - prefix, 0))
        if side and side * side == count - prefix:
            return scope, (side, side)
    raise UserError(
        f"{where}: its {count} positions make no square of patches; say the picture's size too, "
        "for example --preprocess 'mean=0.5,std=0.5,size=224x160'."
    )
