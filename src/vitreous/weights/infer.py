"""What the tensors of a Vision Transformer, by our names and timm's, say of its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt
from typing import Any

from vitreous.config.model import Mlp, Pool, Position, PositionScope, ViTConfig
from vitreous.config.stem import ConvStem, ResNetStem, Stem
from vitreous.errors import UserError
from vitreous.model.position import offsets
from vitreous.weights.checkpoint import BACKBONE, RawCheckpoint, find_grid, heads_for_width, height_and_width

_RELATIVE = "blocks.0.attn.rel_pos.relative_position_bias_table"
_POSITIONS: dict[str, Position] = {"pos_embed": "learned-1d", "pos_embed_y": "learned-2d", _RELATIVE: "relative"}
TIMM_ACTIVATIONS: dict[str, Mlp] = {
    "gelu": "gelu",
    "gelu_tanh": "gelu-tanh",
    "quick_gelu": "quick-gelu",
    "relu": "relu",
}
VIT_TENSORS = (
    "patch_embed.proj.weight",
    "blocks.0.attn.qkv.weight",
    "blocks.0.mlp.fc1.weight",
    "blocks.0.mlp.fc2.weight",
)


def infer_vit_config(raw: RawCheckpoint, arguments: Mapping[str, Any] | None = None) -> tuple[ViTConfig, bool]:
    """The configuration of the ViT with these tensors, and whether its number of heads is assumed.

    Tensors do not tell the activation (assumed: GELU), the epsilon (1e-6), the heads (64 wide, unless the width is a
    preset's) and a grid that is not square (from the image size, if given). arguments: timm's, if known.
    """
    arguments, names = arguments or {}, raw.tensors
    width, channels, patch, _ = raw.shape("patch_embed.proj.weight", 4)
    stem = None
    if (found := parse_stem(raw)) is not None:
        stem, channels = found
        patch *= stem.stride
    class_token = "cls_token" in names
    registers = raw.shape("reg_token", 3)[1] if "reg_token" in names else 0
    inner, outer = raw.shape("blocks.0.mlp.fc1.weight", 2)[0], raw.shape("blocks.0.mlp.fc2.weight", 2)[1]
    pool: Pool = "attention" if "attn_pool.latent" in names else "class"
    if pool == "class" and ("fc_norm.weight" in names or not class_token):
        pool = "mean"
    class_tokens = int(class_token) + int("dist_token" in names)
    scope, grid = _grid(
        raw,
        class_tokens,
        registers,
        patch,
        raw.image_size or height_and_width(arguments.get("img_size")),
        arguments.get("rope") is not None,
    )
    heads = raw.heads or arguments.get("num_heads")
    if heads is None and "blocks.0.attn.q_norm.weight" in names:
        heads = width // raw.shape("blocks.0.attn.q_norm.weight", 1)[0]
    block = "blocks.0."

    pooled = raw.shapes.get("attn_pool.mlp.fc1.weight", (outer,))[0]
    config = ViTConfig(
        width=width,
        depth=raw.blocks("blocks."),
        heads=heads or heads_for_width(width, raw.where),
        mlp_width=outer,
        patch=patch,
        image_size=(grid[0] * patch, grid[1] * patch),
        channels=channels,
        stem=stem,
        classes=raw.shape("head.weight", 2)[0] if "head.weight" in names else 0,
        position=next((kind for name, kind in _POSITIONS.items() if name in names), "none"),
        position_scope=scope,
        rope=arguments.get("rope"),
        norm_eps=arguments.get("norm_eps", 1e-6),
        norm_pre="norm_pre.weight" in names,
        patch_bias="patch_embed.proj.bias" in names,
        qkv_bias=arguments.get("biases", "all") if f"{block}attn.qkv.bias" in names else "none",
        mlp="swiglu" if inner == 2 * outer else TIMM_ACTIVATIONS[arguments.get("act_layer") or "gelu"],
        mlp_norm=f"{block}mlp.norm.weight" in names,
        attention_norm=f"{block}attn.norm.weight" in names,
        class_token=class_token,
        distilled="dist_token" in names,
        registers=registers,
        pool=pool,
        pool_prefix=pool == "attention" and arguments.get("pool_prefix", False),
        pool_heads=arguments.get("pool_heads") if pool == "attention" else None,
        pool_mlp_width=pooled if pooled != outer and pool == "attention" else None,
        final_norm=arguments.get("final_norm", True),
        norm_after_pool="fc_norm.weight" in names,
        projection=raw.shape("projection.weight", 2)[0] if "projection.weight" in names else 0,
        classifier="mlp" if "pre_logits.fc.weight" in names else "linear",
        layer_scale=arguments.get("init_values") or 1e-5 if "blocks.0.ls1.gamma" in names else None,
        qk_norm="blocks.0.attn.q_norm.weight" in names,
    )
    return config, heads is None


def _grid(
    raw: RawCheckpoint, class_tokens: int, registers: int, patch: int, size: tuple[int, int] | None, rotary: bool
) -> tuple[PositionScope, tuple[int, int]]:
    """Which tokens have positions, and the rows and columns of the patches."""
    if "pos_embed_y" in raw.tensors:
        return "all", (raw.shape("pos_embed_y", 2)[0], raw.shape("pos_embed_x", 2)[0])
    if _RELATIVE in raw.tensors:
        count = raw.shape(_RELATIVE, 2)[0] - 3
        side = (isqrt(max(count, 0)) + 1) // 2
        possible = [(size[0] // patch, size[1] // patch)] if size else []
        found = next((cells for cells in (*possible, (side, side)) if offsets(cells) == count), None)
        if found is None:
            raise raw.unknown_grid(count)
        return "all", found
    if "pos_embed" not in raw.tensors and rotary:
        height, width = size or (224, 224)
        return "all", (height // patch, width // patch)
    if "pos_embed" not in raw.tensors:
        raise UserError(f"{raw.where}: it holds no positions (pos_embed), so they cannot be told; give a bundle.")
    count = raw.shape("pos_embed", 3)[1]
    scopes: dict[int, PositionScope] = {0: "patches", class_tokens: "class", class_tokens + registers: "all"}
    for known in (size, None) if size else (None,):
        for skipped, scope in reversed(scopes.items()):
            grid = find_grid(count - skipped, patch, known)
            if grid and (known is None or grid == (known[0] // patch, known[1] // patch)):
                return scope, grid
    raise raw.unknown_grid(count)


def has_backbone(raw: RawCheckpoint) -> bool:
    """Whether a backbone comes before the patch embedding."""
    return any(name.startswith(BACKBONE) for name in raw.tensors)


def parse_stem(raw: RawCheckpoint) -> tuple[Stem, int] | None:
    """A hybrid's stem and its input channels; None if it is one of timm's other stems."""
    if f"{BACKBONE}convs.0.weight" in raw.tensors:
        layers = range(raw.blocks(f"{BACKBONE}convs."))
        kernels = [raw.shape(f"{BACKBONE}convs.{layer}.weight", 4) for layer in layers]
        return ConvStem(tuple(kernel[0] for kernel in kernels)), kernels[0][1]
    for root in ("conv", "stem.conv"):
        if {f"{BACKBONE}{root}.weight", f"{BACKBONE}{root.replace('conv', 'norm')}.weight"} <= set(raw.tensors):
            width, channels, *_ = raw.shape(f"{BACKBONE}{root}.weight", 4)
            return ResNetStem(raw.depths(f"{BACKBONE}stages.", "blocks."), width / 64), channels
    return None
