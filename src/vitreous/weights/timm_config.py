"""timm's config.json: how each family is described in it, and what the name of an architecture says.

Tests hold the names against timm itself: every architecture of its `vision_transformer`, its hybrids and `deit`.
"""

from __future__ import annotations

import re
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
from vitreous.weights.checkpoint import BACKBONE, first_true, large_epsilon
from vitreous.weights.mapping import POINTWISE, Rule
from vitreous.weights.timm_encoders import HEAD_IS_PROJECTION, act_layer, eva_arguments, is_eva, mlp_ratio, not_eva

UNKNOWN_ARCHITECTURE = "vitreous"  # of a model that timm cannot express: timm refuses this name

_TIMM_SIZES = {"Ti": "tiny", "S": "small", "B": "base", "L": "large", "H": "huge", "g": "giant"}
# By size the patch and image side of timm's plain ViTs.
_VIT_VARIANTS = {
    "Ti": ("16_224", "16_384"),
    "S": ("32_224", "32_384", "16_224", "16_384", "8_224"),
    "B": ("32_224", "32_384", "16_224", "16_384", "8_224"),
    "L": ("32_224", "32_384", "16_224", "16_384", "14_224"),
    "H": ("14_224",),
    "g": ("14_224",),
}
# The same for DeiT with a distillation token.
_DISTILLED_VARIANTS = {"Ti": ("16_224",), "S": ("16_224",), "B": ("16_224", "16_384")}
_HYBRIDS: dict[tuple[int, tuple[int, ...]], tuple[str, tuple[int, ...]]] = {
    (192, ()): ("vit_tiny_r_s16_p8", (224, 384)),
    (384, (2, 2, 2, 2)): ("vit_small_r26_s32", (224, 384)),
    (768, (2, 2, 2, 2)): ("vit_base_r26_s32", (224,)),
    (768, (3, 4, 9)): ("vit_base_r50_s16", (224, 384)),
    (1024, (3, 4, 6, 3)): ("vit_large_r50_s32", (224, 384)),
}
"""timm's hybrids, by width and blocks per stage of the stem: their name, and the image sides that end it."""
_POOLS: dict[Pool, str] = {"class": "token", "mean": "avg", "class+mean": "", "attention": "map"}
_CROPS = {"cover": "center", "cover-floor": "center", "stretch": "squash", "stretch-floor": "squash"}
EFFICIENTNET_PADDINGS: dict[str, tuple[Padding, float]] = {
    "tf_efficientnet_": ("same", 1e-3),
    "efficientnet_": ("symmetric", 1e-5),
}
"""By the start of timm's name: the padding of convolutions, and the epsilon of batch norm."""
BIT_RULES = (Rule("head.fc.weight", ("head.fc.weight",), POINTWISE),)


@dataclass(frozen=True)
class TimmModel:
    """How timm describes a model."""

    features: int
    architecture: str = UNKNOWN_ARCHITECTURE
    arguments: Mapping[str, Any] = field(default_factory=dict)  # that differ from those of the architecture
    unsupported: str | None = None  # the feature that timm cannot express, if there is one
    global_pool: str | None = None
    first_conv: str | None = None
    classifier: str | list[str] | None = None
    rules: Sequence[Rule] = ()  # for tensors that timm stores in another shape


def timm_config(config: ModelConfig, preprocess: Preprocess, labels: Sequence[str]) -> dict[str, Any]:
    """timm's config.json, with which `timm.create_model("local-dir:FOLDER", pretrained=True)` opens the folder.

    A model that timm cannot express has an `architecture` that timm refuses, and its field `timm` says why.
    """
    model = to_timm(config)
    described: dict[str, Any] = {"architecture": model.architecture}
    arguments = dict(model.arguments)
    fixed = isinstance(config, ViTConfig) and preprocess.size == config.image_size
    if model.unsupported:
        described["timm"] = f"timm has no word for {model.unsupported}; open this model with vitreous."
    elif isinstance(config, ViTConfig) and not fixed:  # else timm would build it for 224, and resample twice
        arguments |= {"img_size": list(config.image_size), "dynamic_img_size": True}
    if arguments:
        described["model_args"] = arguments
    outputs = config.projection if isinstance(config, ViTConfig) and config.projection else config.classes
    described |= {"num_classes": outputs, "num_features": model.features}
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
        "num_classes": outputs,
        "label_names": list(labels),
        "pool_size": None,
    }
    # timm assumes three channels in the file's first layer, and would convert other numbers once more
    named = {"first_conv": model.first_conv if config.channels == 3 else None, "classifier": model.classifier}
    described["pretrained_cfg"] |= {name: value for name, value in named.items() if value is not None}
    return described


def to_timm(config: ModelConfig) -> TimmModel:
    if config.family not in _TO_TIMM:
        return TimmModel(config.features, unsupported=f"the family {config.family!r}")
    return _TO_TIMM[config.family](config)


def _vit_to_timm(c: ViTConfig) -> TimmModel:
    eva, rules = is_eva(c) or (c.position == "relative" and c.class_token), []
    if c.projection:
        rules = [HEAD_IS_PROJECTION]
    unsupported = first_true(
        {
            "norms within a branch, or keys without biases, in such a model": eva and not_eva(c) is not None,
            "a patch projection without bias but no norm after it, or with both": c.patch_bias == c.norm_pre,
            "attention pooling that reads class and register tokens": c.pool_prefix and not eva,
            "attention pooling with a gated or normed MLP": c.pool == "attention" and (c.mlp == "swiglu" or c.mlp_norm),
            "LayerNorm after the branches": c.norm == "after",
            f"{c.attention} attention": c.attention != "full",
            "this convolutional stem": c.stem is not None and _hybrid(c) is None,
            "a hybrid with a distillation token": c.stem is not None and c.distilled,
            "SwiGLU in a hybrid or beside a distillation token": c.mlp == "swiglu"
            and (c.stem is not None or c.distilled),
            f"{c.position} positions": c.position not in ("learned-1d", "none") and not eva,
            "positions for the class token but not for registers": c.registers > 0
            and c.prefix_positions not in (0, c.prefix),
            "a tanh layer before the classifier": c.classifier == "mlp",
            "the class token beside the mean": c.pool == "class+mean",
            "registers after a distillation token": c.distilled and (c.registers > 0 or c.prefix_positions != c.prefix),
            **({} if eva or _is_clip(c) else large_epsilon(c)),
            "a table of positions for padded images": any(side % c.patch for side in c.image_size),
        }
    )
    unsupported = (not_eva(c) if eva else None) or unsupported
    if eva and not unsupported:
        architecture, arguments, more = eva_arguments(c, _POOLS[c.pool])
        rules = [*rules, *more]
    else:
        architecture, arguments = (UNKNOWN_ARCHITECTURE, {}) if unsupported else _architecture(c)
    first_conv = "patch_embed.proj" if c.stem is None else f"{BACKBONE}convs.0"
    if isinstance(c.stem, ResNetStem):
        first_conv = f"{BACKBONE}stem.conv" if c.stem.depths else f"{BACKBONE}conv"
    return TimmModel(
        features=c.width,
        architecture=architecture,
        arguments=arguments,
        unsupported=unsupported,
        global_pool=_POOLS[c.pool],
        first_conv=first_conv,
        classifier=["head", "head_dist"] if c.distilled else "head",
        rules=rules,
    )


def _is_clip(c: ViTConfig) -> bool:
    """Whether it has the epsilon of timm's CLIP; no argument gives one."""
    return c.norm_eps == 1e-5 and c.mlp != "swiglu" and c.stem is None and not c.distilled


def _hybrid(c: ViTConfig) -> tuple[str, int] | None:
    """timm's name of the hybrid with this stem and width, and its image side; None if there is none."""
    if not isinstance(c.stem, ResNetStem) or c.stem.width != 1 or (c.width, c.stem.depths) not in _HYBRIDS:
        return None
    name, sides = _HYBRIDS[c.width, c.stem.depths]
    side = c.image_size[0] if c.image_size[0] in sides else sides[0]
    return f"{name}_{side}", side


def _architecture(c: ViTConfig) -> tuple[str, dict[str, Any]]:
    """timm's name of the nearest architecture, and the arguments in which this model differs."""
    shape = (c.width, c.depth, c.heads, c.mlp_width)
    known = _DISTILLED_VARIANTS if c.distilled else _VIT_VARIANTS
    hybrid = _hybrid(c)
    size = next((name for name in known if SIZES[name] == shape), None)
    size = size or next((name for name in known if SIZES[name][0] == c.width), "B")
    variants = known[size]
    exact = f"{c.patch}_{c.image_size[0]}"
    variant = exact if exact in variants else "16_224" if "16_224" in variants else "14_224"
    patch, side = (int(part) for part in variant.split("_"))
    if hybrid is not None:
        patch, side = (1 if c.stem is not None and c.stem.stride > 4 else 8), hybrid[1]
    width, depth, heads, mlp_width = SIZES[size]
    if c.mlp == "swiglu" or _is_clip(c):  # no argument asks for these, so the architecture must have them
        width, depth, heads, patch, side = 0, 0, 0, 0, 0
    values: dict[str, tuple[Any, Any]] = {  # timm's argument: (what the name says, what is)
        "img_size": ((side, side), c.image_size),
        "patch_size": (patch, c.kernel[1]),
        "embed_dim": (width, c.width),
        "depth": (depth, c.depth),
        "num_heads": (heads, c.heads),
        "mlp_ratio": (mlp_width / width if width else 0.0, mlp_ratio(c.mlp_width * (1 + (c.mlp == "swiglu")), c.width)),
        "in_chans": (3, c.channels),
        "act_layer": ("gelu", act_layer(c)),
        "qkv_bias": (True, c.qkv_bias != "none"),
        "pre_norm": (_is_clip(c), c.norm_pre),
        "final_norm": (True, c.final_norm),
        "global_pool": ("token", _POOLS[c.pool]),
        "fc_norm": (c.pool == "mean", c.norm_after_pool),
        "class_token": (True, c.class_token),
        "reg_tokens": (0, c.registers),
        "pos_embed": ("learn", "none" if c.position == "none" else "learn"),
        "no_embed_class": (False, c.position == "learned-1d" and c.prefix > 0 and c.prefix_positions == 0),
        "init_values": (1e-5 if c.mlp == "swiglu" else None, c.layer_scale),
        "qk_norm": (False, c.qk_norm),
    }
    arguments = {name: value for name, (usual, value) in values.items() if value != usual}
    if "img_size" in arguments:
        arguments["img_size"] = list(c.image_size)
    if hybrid is not None:
        return hybrid[0], arguments
    if c.mlp == "swiglu":
        return "vit_giant_patch14_dinov2", arguments
    if _is_clip(c):
        return "vit_base_patch16_clip_224", arguments
    kind = f"deit_{_TIMM_SIZES[size]}_distilled" if c.distilled else f"vit_{_TIMM_SIZES[size]}"
    return f"{kind}_patch{variant}", arguments


def _bit_to_timm(c: BiTConfig) -> TimmModel:
    preset = any((size["depths"], size["width"]) == (c.depths, c.width) for size in BIT_PRESETS.values())
    blocks = ", ".join(map(str, c.depths))
    unsupported = first_true(
        {
            "a 3x3 root block without pooling": c.root != "7x7",
            f"a BiT ResNet with stages of {blocks} blocks at {c.width:g} times the width": not preset,
        }
    )
    return TimmModel(
        features=c.features,
        architecture=UNKNOWN_ARCHITECTURE if unsupported else f"resnetv2_{c.depth}x{c.width:g}_bit",
        arguments={"in_chans": c.channels} if c.channels != 3 and not unsupported else {},
        unsupported=unsupported,
        global_pool="avg",
        first_conv="stem.conv",
        classifier="head.fc",
        rules=BIT_RULES,
    )


def _efficientnet_to_timm(c: EfficientNetConfig) -> TimmModel:
    size = c.size_name
    start = next(start for start, (padding, _) in EFFICIENTNET_PADDINGS.items() if padding == c.padding)
    usual = {"in_chans": (3, c.channels), "bn_eps": (EFFICIENTNET_PADDINGS[start][1], c.norm_eps)}
    return TimmModel(
        features=c.features,
        architecture=f"{start}{size.lower()}" if size else UNKNOWN_ARCHITECTURE,
        arguments={name: value for name, (default, value) in usual.items() if value != default} if size else {},
        unsupported=None if size else f"an EfficientNet {c.width:g} times as wide and {c.depth:g} times as deep as B0",
        global_pool="avg",
        first_conv="conv_stem",
        classifier="classifier",
    )


_TO_TIMM: dict[str, Callable[[Any], TimmModel]] = {
    "vit": _vit_to_timm,
    "bit": _bit_to_timm,
    "efficientnet": _efficientnet_to_timm,
}

SUPPORTED = (
    *("vit_*", "deit_*", "deit3_*", "flexivit_*", "eva_*", "eva02_*", "beit_*", "beitv2_*"),
    *("resnetv2_*_bit", "tf_efficientnet_*", "efficientnet_b*"),
)
"""Architectures that can be opened, with the exceptions below."""

_HEADS_BY_SIZE = {
    "tiny": 3,
    "xsmall": 4,
    "wee": 4,
    "little": 5,
    "small": 6,
    "medium": 8,
    "mediumd": 8,
    "betwixt": 10,
    "base": 12,
    "so150m": 14,
    "so150m2": 13,
    "so400m": 16,
    "large": 16,
    "huge": 16,
    "giant": 16,
    "giantopt": 16,
    "intern300m": 16,
    "gigantic": 16,
}
_HEADS_BY_NAME = {  # architectures that have other heads than their size suggests
    r"vit_base_patch\d+_plus_": 14,
    r"vit_base_patch16_gap_224": 16,
    r"vit_giant_patch14_(reg\d_)?(dinov2|tipsv2)": 24,
    r"vit_pe_core_gigantic|vit_pe_(lang|spatial)_gigantic|eva_giant": 16,
    r"vit_giant_patch16_lingbot": 24,
    r"vit_huge_plus_": 20,
    r"vit_7b_": 32,
    r"test_vit2?$": 2,
}
_SIZE = re.compile(
    r"(?:vit(?:_pe_(?:core|lang|spatial))?|deit3?|flexivit|eva(?:02)?|beit(?:v2)?)_(?P<size>[a-z]+[0-9a-z]*)(?:_|$)"
)

_UNSUPPORTED = {
    r"_rpn_": "has its LayerNorms after the branches and before the sums, and cannot be opened",
    r"relpos|rope_mixed": "has positions that are not known here, and cannot be opened",
    r"_sapiens2": "has fewer heads of keys than of queries, and cannot be opened; DINOv3 is the nearest that can",
    r"^eva02_enormous": "has its LayerNorms after the branches, and cannot be opened; eva02_large_* can",
    r"^vit_\w+_resnet(26|50)d|_mci_": "is a hybrid with a stem that is not known here, and cannot be opened",
    r"^resnetv2_(?!\d+x\d+_bit)": "is a ResNet of another kind than BiT, and cannot be opened",
    r"efficientnetv2_|efficientnet_(?!(b[0-7]|l2)(\.|$))": "is an EfficientNet of another kind than B0 to B7 and L2, "
    "and cannot be opened",
    r"_(18x2|xp|dlittle|dwee|dpwee|pwee)_|^test_vit4|^aimv2_": "has blocks of another kind, and cannot be opened",
    r"^test_vit3": "pools over registers too, and cannot be opened",
    r"^(beit3|samvit|naflexvit|vitamin|cait|convit|volo|xcit|tnt)_": (
        f"cannot be opened; those that can are {', '.join(SUPPORTED)}"
    ),
}
"""Architectures whose tensors look much like those of a supported one."""


def architecture_heads(name: str) -> int | None:
    """The number of attention heads of an architecture; None if unknown."""
    heads = next((heads for pattern, heads in _HEADS_BY_NAME.items() if re.match(pattern, name)), None)
    if heads is None and (size := _SIZE.match(name)):
        heads = _HEADS_BY_SIZE.get(size["size"])
    return heads


def unsupported_reason(name: str) -> str | None:
    """Why an architecture cannot be opened; None if it can, or if its name is unknown."""
    return next((reason for pattern, reason in _UNSUPPORTED.items() if re.search(pattern, name)), None)
