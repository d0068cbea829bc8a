"""timm's config.json: how each family is described in it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vitreous.config.bit import PRESETS as BIT_PRESETS
from vitreous.config.bit import BiTConfig
from vitreous.config.data import Preprocess
from vitreous.config.efficientnet import EfficientNetConfig, Padding
from vitreous.config.model import ModelConfig, Pool, ViTConfig
from vitreous.config.presets import SIZES
from vitreous.config.stem import ResNetStem
from vitreous.weights.checkpoint import BACKBONE, first_true, other_epsilon
from vitreous.weights.mapping import POINTWISE, Rule

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
_HYBRIDS: dict[tuple[int, tuple[int, ...]], tuple[str, tuple[int, ...]]] = {
    (192, ()): ("vit_tiny_r_s16_p8", (224, 384)),
    (384, (2, 2, 2, 2)): ("vit_small_r26_s32", (224, 384)),
    (768, (2, 2, 2, 2)): ("vit_base_r26_s32", (224,)),
    (768, (3, 4, 9)): ("vit_base_r50_s16", (224, 384)),
    (1024, (3, 4, 6, 3)): ("vit_large_r50_s32", (224, 384)),
}
"""timm's hybrids, by width and the blocks of the stem's stages, and the sides of images that each is named for."""
_POOLS: dict[Pool, str] = {"class": "token", "mean": "avg", "class+mean": "", "attention": "map"}
_CROPS = {"cover": "center", "cover-floor": "center", "stretch": "squash", "stretch-floor": "squash"}
EFFICIENTNET_PADDINGS: dict[str, tuple[Padding, float]] = {
    "tf_efficientnet_": ("same", 1e-3),
    "efficientnet_": ("symmetric", 1e-5),
}
"""What the start of timm's name says: how images are padded, and batch norm's epsilon."""
BIT_RULES = (Rule("head.fc.weight", ("head.fc.weight",), POINTWISE),)


@dataclass(frozen=True)
class TimmModel:
    """A model in timm's words."""

    features: int
    architecture: str = UNKNOWN_TO_TIMM
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """In which it differs from what the architecture's name says."""
    missing: str | None = None  # what timm has no word for; None if it can be told all
    global_pool: str | None = None
    first_conv: str | None = None
    classifier: str | list[str] | None = None
    rules: Sequence[Rule] = ()  # for tensors that timm keeps in another shape


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
    if config.family not in _IN_TIMM:
        return TimmModel(config.features, missing=f"the family {config.family!r}")
    return _IN_TIMM[config.family](config)


def _vit_in_timm(c: ViTConfig) -> TimmModel:
    missing = first_true(
        {
            "LayerNorm after the branches": c.norm == "after",
            f"{c.attention} attention": c.attention != "full",
            "this convolutional stem": c.stem is not None and _hybrid(c) is None,
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
    )
    architecture, arguments = (UNKNOWN_TO_TIMM, {}) if missing else _architecture(c)
    first_conv = "patch_embed.proj" if c.stem is None else f"{BACKBONE}convs.0"
    if isinstance(c.stem, ResNetStem):
        first_conv = f"{BACKBONE}stem.conv" if c.stem.depths else f"{BACKBONE}conv"
    return TimmModel(
        features=c.width,
        architecture=architecture,
        arguments=arguments,
        missing=missing,
        global_pool=_POOLS[c.pool],
        first_conv=first_conv,
        classifier=["head", "head_dist"] if c.distilled else "head",
    )


def _hybrid(c: ViTConfig) -> tuple[str, int] | None:
    """timm's name of the hybrid with this stem and width, and the side of its images; None if it has none."""
    if not isinstance(c.stem, ResNetStem) or c.stem.width != 1 or (c.width, c.stem.depths) not in _HYBRIDS:
        return None
    name, sides = _HYBRIDS[c.width, c.stem.depths]
    side = c.image_size[0] if c.image_size[0] in sides else sides[0]
    return f"{name}_{side}", side


def _architecture(c: ViTConfig) -> tuple[str, dict[str, Any]]:
    """timm's name of the nearest model it has, and the arguments in which this one differs."""
    shape = (c.width, c.depth, c.heads, c.mlp_width)
    known = _DISTILLED if c.distilled else _ENTRIES
    hybrid = _hybrid(c)
    size = next((name for name in known if SIZES[name] == shape), None)
    size = size or next((name for name in known if SIZES[name][0] == c.width), "B")
    entries = known[size]
    wanted = f"{c.patch}_{c.image_size[0]}"
    entry = wanted if wanted in entries else "16_224" if "16_224" in entries else "14_224"
    patch, side = (int(part) for part in entry.split("_"))
    if hybrid is not None:
        patch, side = (1 if c.stem is not None and c.stem.stride > 4 else 8), hybrid[1]
    width, depth, heads, mlp_width = SIZES[size]
    values: dict[str, tuple[Any, Any]] = {  # timm's argument: (what the name says, what is)
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
    arguments = {name: value for name, (usual, value) in values.items() if value != usual}
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


def _bit_in_timm(c: BiTConfig) -> TimmModel:
    """timm's names fix depth and width."""
    preset = any((size["depths"], size["width"]) == (c.depths, c.width) for size in BIT_PRESETS.values())
    blocks = ", ".join(map(str, c.depths))
    missing = first_true(
        {
            "a 3x3 root block without pooling": c.root != "7x7",
            f"a BiT ResNet with stages of {blocks} blocks at {c.width:g} times the width": not preset,
        }
    )
    return TimmModel(
        features=c.features,
        architecture=UNKNOWN_TO_TIMM if missing else f"resnetv2_{c.depth}x{c.width:g}_bit",
        arguments={"in_chans": c.channels} if c.channels != 3 and not missing else {},
        missing=missing,
        global_pool="avg",
        first_conv="stem.conv",
        classifier="head.fc",
        rules=BIT_RULES,
    )


def _efficientnet_in_timm(c: EfficientNetConfig) -> TimmModel:
    """timm's names fix width and depth, and how images are padded."""
    size = c.size_name
    start = next(start for start, (padding, _) in EFFICIENTNET_PADDINGS.items() if padding == c.padding)
    usual = {"in_chans": (3, c.channels), "bn_eps": (EFFICIENTNET_PADDINGS[start][1], c.norm_eps)}
    return TimmModel(
        features=c.features,
        architecture=f"{start}{size.lower()}" if size else UNKNOWN_TO_TIMM,
        arguments={name: value for name, (default, value) in usual.items() if value != default} if size else {},
        missing=None if size else f"an EfficientNet {c.width:g} times as wide and {c.depth:g} times as deep as B0",
        global_pool="avg",
        first_conv="conv_stem",
        classifier="classifier",
    )


_IN_TIMM: dict[str, Callable[[Any], TimmModel]] = {
    "vit": _vit_in_timm,
    "bit": _bit_in_timm,
    "efficientnet": _efficientnet_in_timm,
}
"""What each family is called there, by the name of the family."""
