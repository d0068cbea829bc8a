"""timm's CLIP, SigLIP, EVA, DINOv3, Perception Encoder and BEiT: what names fix, and what tensors are called.

Facts are timm's own arguments, read from an architecture's name and config.json, and written in the other direction.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from vitreous.config.model import ViTConfig
from vitreous.config.rope import Rope
from vitreous.weights.checkpoint import RawCheckpoint, first_true
from vitreous.weights.infer import TIMM_ACTIVATIONS
from vitreous.weights.mapping import JOINED, PROJECTION_AS_HEAD, Q_AND_V, SPLIT_QKV, Rule

QUICK_GELU_TAGS = ("openai", "dfn2b", "dfn5b", "metaclip_2pt5b", "metaclip_400m", "metaclip2_worldwide")
"""Weights that were trained with QuickGELU: timm names their architecture both with and without it."""
_CELLS = {"use_rot_pos_emb": True, "rope_type": "cat", "rope_temperature": 10000.0}
_PERCEPTION = _CELLS | {"attn_type": "rope", "rope_grid_indexing": "xy", "norm_eps": 1e-5}
ARCHITECTURES: tuple[tuple[str, dict[str, Any]], ...] = (
    (r"^vit_\w*_clip_", {"norm_eps": 1e-5, "pre_norm": True}),
    (r"_intern300m_", {"final_norm": False}),
    (r"^vit_pe_(lang|spatial)_", {"use_post_transformer_norm": False, "use_fc_norm": False}),
    (r"_clip_quickgelu_", {"act_layer": "quick_gelu"}),
    (
        r"^vit_((giantopt|so400m_patch16|base_patch32)_(\w+_)?siglip|large_patch16_siglip_(gap_)?512)",
        {"act_layer": "gelu_tanh"},
    ),
    (
        r"dinov3|_lingbot",
        {"use_rot_pos_emb": True, "rope_type": "dinov3", "rope_temperature": 100.0, "rope_rotate_half": True}
        | {"norm_eps": 1e-5, "use_abs_pos_emb": False},
    ),
    (r"^eva02_", _CELLS | {"ref_feat_shape": (16, 16), "use_abs_pos_emb": True}),
    (r"_rope_reg\d_gap_", _CELLS | {"ref_feat_shape": (16, 16), "use_abs_pos_emb": False}),
    (r"^beit(v2)?_", {"use_rel_pos_bias": True, "use_abs_pos_emb": False}),
    (
        r"^vit_\w+_patch16_rope_(ape_)?\d",
        _CELLS | {"attn_type": "rope", "rope_grid_indexing": "xy", "rope_temperature": 100.0},
    ),
    (r"^vit_pe_", _PERCEPTION | {"rope_grid_offset": 1.0, "use_abs_pos_emb": True}),
    (r"^vit_pe_\w+_gigantic", {"rope_grid_offset": 0.0}),
    (r"^vit_pe_core_", {"attn_pool_num_heads": 8}),
    (r"^vit_pe_core_(tiny|small|large)", {"ref_feat_shape": (24, 24)}),
    (r"^vit_pe_core_base", {"ref_feat_shape": (14, 14)}),
    (r"^vit_pe_(core_gigantic|lang|spatial)", {"ref_feat_shape": (32, 32)}),
)
"""Arguments of architectures, by a pattern of their names, that are not timm's defaults and that no tensor tells."""

EVA_ARGUMENTS: dict[str, Any] = {
    **dict.fromkeys(("qkv_fused", "swiglu_mlp", "scale_mlp", "scale_attn_inner", "use_abs_pos_emb"), bool),
    **dict.fromkeys(("use_rot_pos_emb", "rope_rotate_half", "use_pre_transformer_norm", "use_fc_norm"), bool),
    **dict.fromkeys(("use_post_transformer_norm", "pre_norm", "final_norm", "pool_include_prefix"), bool),
    **dict.fromkeys(("use_rel_pos_bias", "dynamic_img_pad"), bool),
    **dict.fromkeys(("num_reg_tokens", "swiglu_align_to", "attn_pool_num_heads"), int),
    **dict.fromkeys(("rope_grid_offset", "rope_temperature", "attn_pool_mlp_ratio", "head_init_scale"), float),
    **dict.fromkeys(("rope_shift_coords", "rope_jitter_coords", "rope_rescale_coords"), float),
    **dict.fromkeys(("attn_type", "rope_type", "rope_grid_indexing"), str),
    "ref_feat_shape": int | tuple[int, int],
}
"""Known ones of its classes Eva and Beit, and their types."""

_BLOCK, _THEIRS = "blocks.*.", "blocks.{0}."
TIMM_RULES = (
    Rule(_BLOCK + "attn.qkv.weight", tuple(f"{_THEIRS}attn.{x}_proj.weight" for x in "qkv"), SPLIT_QKV),
    Rule(_BLOCK + "attn.qkv.bias", tuple(f"{_THEIRS}attn.{x}_proj.bias" for x in "qv"), Q_AND_V),
    Rule(_BLOCK + "attn.qkv.bias", tuple(f"{_THEIRS}attn.{x}_bias" for x in "qv"), Q_AND_V),
    Rule(_BLOCK + "attn.rel_pos.relative_position_bias_table", (_THEIRS + "attn.relative_position_bias_table",)),
    Rule(_BLOCK + "mlp.fc1", (_THEIRS + "mlp.fc1_g", _THEIRS + "mlp.fc1_x"), JOINED),
    Rule(_BLOCK + "ls1.gamma", (_THEIRS + "gamma_1",)),
    Rule(_BLOCK + "ls2.gamma", (_THEIRS + "gamma_2",)),
)
"""Of classes other than VisionTransformer, whose names are ours; those whose tensors a file has are for it."""
HEAD_IS_PROJECTION = Rule("projection.weight", ("head.weight", "head.bias"), PROJECTION_AS_HEAD)


def rules_for(names: Iterable[str]) -> list[Rule]:
    """Those of the rules that a file with these names needs."""
    known = set(names)
    return [
        rule
        for rule in TIMM_RULES
        if any(full in known for name in rule.theirs for full in (name.format(0), f"{name.format(0)}.weight"))
    ]


def known_arguments(architecture: str, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """What timm's name says; without one, what published models with such tensors have."""
    if not architecture:
        architecture = _guess(tensors)
    return {
        name: value for pattern, of in ARCHITECTURES if re.search(pattern, architecture) for name, value in of.items()
    }


def _guess(tensors: Mapping[str, Any]) -> str:
    if "pos_embed" not in tensors and {"reg_token", "blocks.0.gamma_1"} <= tensors.keys():
        return "dinov3" if "cls_token" in tensors else "_rope_reg1_gap_"
    if "blocks.0.mlp.fc1_g.weight" in tensors or "blocks.0.attn.q_proj.weight" in tensors:
        return "eva02_"
    if "norm_pre.weight" in tensors:
        return "vit_base_patch16_clip_224"
    return ""


def to_infer(arguments: Mapping[str, Any], raw: RawCheckpoint, rules: Iterable[Rule]) -> dict[str, Any]:
    """timm's arguments as `infer_vit_config` takes them."""
    found = dict(arguments)
    if arguments.get("use_rot_pos_emb"):
        found["rope"] = _rope(arguments)
    if any(rule.layout is Q_AND_V for rule in rules):
        found["biases"] = "q+v"
    without = arguments.get("use_post_transformer_norm") is False and not arguments.get("use_fc_norm")
    found["final_norm"] = arguments.get("final_norm", not without)
    own_class = bool(arguments.get("use_rot_pos_emb"))
    found["pool_prefix"] = (own_class and "cls_token" in raw.tensors) or arguments.get("pool_include_prefix", False)
    found["pool_heads"] = arguments.get("attn_pool_num_heads")
    return found


def _rope(a: Mapping[str, Any]) -> Rope:
    base, columns = float(a.get("rope_temperature", 10000.0)), a.get("rope_grid_indexing") == "xy"
    if a.get("rope_type") == "dinov3":
        return Rope(base, columns_first=columns)
    reference = a.get("ref_feat_shape")
    grid = (reference, reference) if isinstance(reference, int) else reference
    return Rope(base, "cells", grid, a.get("rope_grid_offset", 0.0), columns, interleaved=True)


def is_eva(c: ViTConfig) -> bool:
    """Whether timm has such a model as its Eva, not as its VisionTransformer."""
    own = c.rope is not None or c.mlp_norm or c.attention_norm or c.qkv_bias == "q+v"
    return own or bool(c.pool_heads or c.pool_mlp_width)


def not_eva(c: ViTConfig) -> str | None:
    """The first part that timm's Eva and Beit cannot have."""
    rope = c.rope or Rope()
    beit = c.position == "relative"
    return first_true(
        {
            "a distillation token": c.distilled,
            "a convolutional stem": c.stem is not None,
            f"{c.mlp} in the MLP": c.mlp not in ("gelu", "swiglu"),
            f"{c.position} positions beside such parts": c.position not in ("learned-1d", "none", "relative"),
            "such parts beside relative positions": beit
            and bool(c.rope or c.mlp_norm or c.attention_norm or c.registers or c.norm_pre or c.mlp == "swiglu"),
            "relative positions": beit and (c.qkv_bias == "all" or c.qk_norm or c.pool not in ("class", "mean")),
            "relative positions with such a final norm": beit and (c.pool == "mean") != c.norm_after_pool,
            "a patch projection without bias but no norm after it, or with both": c.patch_bias == c.norm_pre,
            "periods rounded to bfloat16": rope.bfloat16,
            "rotary positions of this kind": (rope.coordinates == "cells") != rope.interleaved
            or (rope.coordinates == "centres" and rope.columns_first),
            "an inner norm in an ungated MLP beside it": c.mlp_norm and c.mlp != "swiglu",
            "attention pooling that leaves class and register tokens out": c.pool == "attention"
            and c.prefix > 0
            and not c.pool_prefix,
            "such an epsilon": c.norm_eps > 1e-6 and (c.norm_eps != 1e-5 or beit),
        }
    )


def mlp_ratio(units: int, width: int) -> float:
    """A ratio whose product with the width, which timm rounds down, is the outputs of an MLP's first layer."""
    ratio = units / width
    return ratio if int(width * ratio) == units else math.nextafter(ratio, math.inf)


def eva_arguments(c: ViTConfig, pool: str) -> tuple[str, dict[str, Any], list[Rule]]:
    """timm's architecture, all arguments that differ from its defaults, and the rules for its tensors."""
    common = {
        "img_size": list(c.image_size),
        "patch_size": c.patch,
        "embed_dim": c.width,
        "depth": c.depth,
        "num_heads": c.heads,
        "mlp_ratio": mlp_ratio(c.mlp_width, c.width),
        "in_chans": c.channels,
        "init_values": c.layer_scale,
        "qkv_bias": c.qkv_bias != "none",
        "global_pool": pool,
    }
    names = {"gamma_1", "gamma_2", "q_bias", "v_bias"} - ({"q_bias", "v_bias"} if c.qkv_bias == "all" else set())
    names |= {"fc1_g", "fc1_x"} if c.mlp_norm else set()
    names |= {"relative_position_bias_table"}
    rules = [rule for rule in TIMM_RULES if all(name.rpartition(".")[2] in names for name in rule.theirs)]
    if c.position == "relative":
        return "beit_base_patch16_224", common | {"use_abs_pos_emb": False, "use_rel_pos_bias": True}, rules
    arguments = common | {
        "class_token": c.class_token,
        "num_reg_tokens": c.registers,
        "attn_type": "rope" if c.qkv_bias == "all" else "eva",
        "qk_norm": c.qk_norm,
        "swiglu_mlp": c.mlp == "swiglu",
        "swiglu_align_to": 0,
        "scale_mlp": c.mlp_norm,
        "scale_attn_inner": c.attention_norm,
        "no_embed_class": c.prefix > 0 and c.prefix_positions == 0,
        "use_abs_pos_emb": c.position == "learned-1d",
        "use_pre_transformer_norm": c.norm_pre,
        "use_fc_norm": c.norm_after_pool,
        "use_post_transformer_norm": c.final_norm and not c.norm_after_pool,
        "use_rot_pos_emb": c.rope is not None,
        "dynamic_img_size": True,
    }
    if c.pool == "attention":
        arguments |= {"attn_pool_num_heads": c.pool_heads or c.heads}
        arguments |= {"attn_pool_mlp_ratio": mlp_ratio(c.pool_mlp_width or c.mlp_width, c.width)}
    if (rope := c.rope) is not None:
        arguments |= {
            "rope_type": "dinov3" if rope.coordinates == "centres" else "cat",
            "rope_temperature": rope.base,
            "rope_rotate_half": not rope.interleaved,
            "rope_grid_offset": rope.offset,
            "rope_grid_indexing": "xy" if rope.columns_first else "ij",
            "ref_feat_shape": None if rope.reference is None else list(rope.reference),
        }
    return "vit_base_patch16_dinov3" if c.norm_eps == 1e-5 else "eva02_tiny_patch14_224", arguments, rules


def act_layer(c: ViTConfig) -> str:
    """timm's name of the activation."""
    return next((theirs for theirs, ours in TIMM_ACTIVATIONS.items() if ours == c.mlp), "gelu")
