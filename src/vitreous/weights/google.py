"""Google's .npz, both ways: the paper's ViT, "How to train your ViT?" (AugReg) with its hybrids, and BiT.

Their names and shapes are of JAX: a path with slashes, matrices as (inputs, outputs), heads in an axis of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, cat

from vitreous.config.data import Preprocess
from vitreous.config.model import ViTConfig
from vitreous.config.stem import ConvStem, ResNetStem
from vitreous.errors import UserError
from vitreous.storage.files import new_file
from vitreous.storage.overwrite import check_file, sign_zip
from vitreous.weights.checkpoint import (
    BACKBONE,
    ParsedCheckpoint,
    RawCheckpoint,
    augreg_preprocess,
    bit_config,
    find_grid,
    first_true,
    large_epsilon,
    later_parts,
)
from vitreous.weights.mapping import Rule, TensorLayout, export_state, rename

if TYPE_CHECKING:
    from vitreous.model.resnet import BiT
    from vitreous.model.vit import ViT

_LAYER = "Transformer/encoderblock_{0}/"
_ATTENTION = _LAYER + "MultiHeadDotProductAttention_1/"
_QUERY = _ATTENTION.format(0) + "query/kernel"
_MLP = _LAYER.format(0) + "MlpBlock_3/Dense_0/kernel"
_POSITIONS = "Transformer/posembed_input/pos_embedding"
_BIT_ROOT = "resnet/root_block/standardized_conv2d/kernel"

# (D, C, P, P), and theirs (P, P, C, D)
_CONVOLUTION = TensorLayout(lambda w: (w.permute(2, 3, 1, 0),), lambda parts: parts[0].permute(3, 2, 0, 1))
_MATRIX = TensorLayout(lambda w: (w.T,), lambda parts: parts[0].T)
_MATRIX_1X1 = TensorLayout(lambda w: (w.T[None, None],), lambda parts: parts[0][0, 0].T)
_VECTOR_4D = TensorLayout(lambda w: (w[None, None, None],), lambda parts: parts[0].flatten())


def _one_based(*numbers: int) -> list[int]:
    return [number + 1 for number in numbers]


def read_google(raw: RawCheckpoint) -> ParsedCheckpoint | None:
    needed = ("embedding/kernel", _QUERY, _MLP, _POSITIONS)
    prefix = next((p for p in ("", "opt/target/") if {p + name for name in needed} <= set(raw.tensors)), None)
    if prefix is None:
        return None
    patch, _, channels, width = raw.shape(prefix + "embedding/kernel", 4)
    stem = None
    if f"{prefix}conv_root/kernel" in raw.tensors:
        *_, channels, root_width = raw.shape(f"{prefix}conv_root/kernel", 4)
        stem = ResNetStem(_depths(raw, f"{prefix}block"), root_width / 64)
        patch *= stem.stride
    count = raw.shape(prefix + _POSITIONS, 3)[1]
    class_token = prefix + "cls" in raw.tensors
    grid = find_grid(count - class_token, patch, raw.image_size)
    if grid is None:
        raise raw.unknown_grid(count)
    classes = raw.outputs(prefix + "head/bias")
    config = ViTConfig(
        width=width,
        depth=raw.blocks(prefix + "Transformer/encoderblock_", "/"),
        heads=raw.shape(prefix + _QUERY, 3)[1],
        mlp_width=raw.shape(prefix + _MLP, 2)[1],
        patch=patch,
        image_size=(grid[0] * patch, grid[1] * patch),
        channels=channels,
        classes=classes,
        stem=stem,
        class_token=class_token,
        pool="class" if class_token else "mean",
        classifier="mlp" if classes and prefix + "pre_logits/bias" in raw.tensors else "linear",
    )
    unused = [] if classes else [name for name in raw.tensors if name.startswith(f"{prefix}pre_logits/")]
    rules = _vit_rules(config, prefix, raw.shapes)
    ignored = {"the pre-training layer": unused} if not classes else {}
    return ParsedCheckpoint("Google", config, rules, augreg_preprocess(config), ignored_keys=ignored)


def _depths(raw: RawCheckpoint, stage: str) -> tuple[int, ...]:
    """Blocks per stage; stages and blocks count from 1."""
    return tuple(raw.blocks(f"{stage}{number}/unit", "/") - 1 for number in range(1, raw.stages(stage, "/")))


def write_google(out: str | Path, model: ViT, preprocess: Preprocess, labels: Sequence[str], info: Any) -> Path:
    """An .npz as Google publishes them. It holds tensors alone: labels and preprocessing are not in it."""
    c = model.config
    missing = first_true(
        {
            **later_parts(c),
            f"{c.position} positions": c.position != "learned-1d" or c.prefix_positions != c.prefix,
            "LayerNorm after the branches": c.norm == "after",
            f"{c.attention} attention": c.attention != "full",
            "a light convolutional stem": isinstance(c.stem, ConvStem),
            f"{c.mlp} in the MLP": c.mlp != "gelu",
            "registers or a distillation token": c.registers > 0 or c.distilled,
            f"pooling {c.pool!r}": c.pool != ("class" if c.class_token else "mean") or c.norm_after_pool,
            "LayerScale": c.layer_scale is not None,
            "normalised queries and keys": c.qk_norm,
            **large_epsilon(c),
        }
    )
    if missing:
        raise UserError(f"{out}: Google's .npz has no word for {missing}; export to another format.")
    return _write_npz(Path(out), export_state(model.state_dict(), _vit_rules(c)))


def _write_npz(out: Path, tensors: Mapping[str, Tensor]) -> Path:
    """Write one file with these arrays, which may replace an earlier export."""
    if out.suffix != ".npz":
        raise UserError(f"{out}: Google's format is one file; give a name that ends in .npz.")
    arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in tensors.items()}
    with new_file(check_file(out)) as file:
        np.savez(file, **arrays)
        sign_zip(file)
    return out


def _vit_rules(c: ViTConfig, prefix: str = "", shapes: Mapping[str, tuple[int, ...]] | None = None) -> list[Rule]:
    """shapes: of the tensors in the file that is read, if one is read."""
    d = c.width // c.heads
    heads_weight = TensorLayout(  # (D, h, d) each
        lambda w: [part.T.reshape(c.width, c.heads, d) for part in w.chunk(3)],
        lambda parts: cat([part.flatten(1).T for part in parts]),
    )
    heads_bias = TensorLayout(  # (h, d) each
        lambda b: [part.reshape(c.heads, d) for part in b.chunk(3)],
        lambda parts: cat([part.flatten() for part in parts]),
    )
    projection = TensorLayout(  # (h, d, D)
        lambda w: (w.T.reshape(c.heads, d, c.width),), lambda parts: parts[0].flatten(0, 1).T
    )
    qkv = [_ATTENTION + name for name in ("query", "key", "value")]
    rules = [
        Rule("patch_embed.proj.weight", ("embedding/kernel",), _CONVOLUTION),
        *rename({"patch_embed.proj.bias": "embedding/bias", "cls_token": "cls", "pos_embed": _POSITIONS}),
        *_layer("norm", "Transformer/encoder_norm", "scale"),
        *_layer("pre_logits.fc", "pre_logits", "kernel", _MATRIX),
        *_layer("head", "head", "kernel", _MATRIX),
        *_layer("blocks.*.norm1", _LAYER + "LayerNorm_0", "scale"),
        Rule("blocks.*.attn.qkv.weight", tuple(f"{name}/kernel" for name in qkv), heads_weight),
        Rule("blocks.*.attn.qkv.bias", tuple(f"{name}/bias" for name in qkv), heads_bias),
        *_layer("blocks.*.attn.proj", _ATTENTION + "out", "kernel", projection),
        *_layer("blocks.*.norm2", _LAYER + "LayerNorm_2", "scale"),
        *_layer("blocks.*.mlp.fc1", _LAYER + "MlpBlock_3/Dense_0", "kernel", _MATRIX),
        *_layer("blocks.*.mlp.fc2", _LAYER + "MlpBlock_3/Dense_1", "kernel", _MATRIX),
    ]
    if isinstance(c.stem, ResNetStem):
        rules += _stem_rules(c.stem, prefix, shapes or {})
    return [replace(rule, prefix=prefix) for rule in rules]


def _layer(
    name: str,
    theirs: str,
    weight: str,
    layout: TensorLayout | None = None,
    *,
    bias_layout: TensorLayout | None = None,
    renumber: Callable[..., list[int]] | None = None,
) -> list[Rule]:
    bias = "beta" if weight == "gamma" else "bias"
    return [
        Rule(f"{name}.weight", (f"{theirs}/{weight}",), layout, renumber=renumber),
        Rule(f"{name}.bias", (f"{theirs}/{bias}",), bias_layout, renumber=renumber),
    ]


def _stem_rules(stem: ResNetStem, prefix: str, shapes: Mapping[str, tuple[int, ...]]) -> list[Rule]:
    root = f"{BACKBONE}stem." if stem.depths else BACKBONE
    block, unit = f"{BACKBONE}stages.*.blocks.*.", "block{0}/unit{1}/"
    convolutions = {f"{root}conv": "conv_root", f"{block}downsample.conv": f"{unit}conv_proj"}
    norms = {f"{root}norm": "gn_root", f"{block}downsample.norm": f"{unit}gn_proj"}
    for layer in (1, 2, 3):
        convolutions[f"{block}conv{layer}"] = f"{unit}conv{layer}"
        norms[f"{block}norm{layer}"] = f"{unit}gn{layer}"
    rules = [
        Rule(f"{name}.weight", (f"{theirs}/kernel",), _CONVOLUTION, renumber=_one_based)
        for name, theirs in convolutions.items()
    ]
    for name, theirs in norms.items():  # some files keep them as (1, 1, 1, C)
        layout = _VECTOR_4D if len(shapes.get(f"{prefix}{theirs.format(1, 1)}/scale", ())) == 4 else None
        rules += _layer(name, theirs, "scale", layout, bias_layout=layout, renumber=_one_based)
    return rules


def read_google_bit(raw: RawCheckpoint) -> ParsedCheckpoint | None:
    if _BIT_ROOT not in raw.tensors:
        return None
    height, width, inputs, outputs = raw.shape(_BIT_ROOT, 4)
    classes = raw.outputs("resnet/head/conv2d/bias")
    config = bit_config(raw, (outputs, inputs, height, width), _depths(raw, "resnet/block"), classes, raw.image_size)
    return ParsedCheckpoint("Google", config, _bit_rules(), augreg_preprocess(config))


def write_google_bit(out: str | Path, model: BiT, preprocess: Preprocess, labels: Sequence[str], info: Any) -> Path:
    """An .npz as Google publishes them. It holds tensors alone: labels and preprocessing are not in it."""
    return _write_npz(Path(out), export_state(model.state_dict(), _bit_rules()))


def _bit_rules() -> list[Rule]:
    block, unit = "stages.*.blocks.*.", "resnet/block{0}/unit{1:02d}/"
    convolutions = {f"{block}downsample.conv": f"{unit}a/proj/"}
    norms: list[Rule] = []
    for layer, letter in enumerate("abc", start=1):
        convolutions[f"{block}conv{layer}"] = f"{unit}{letter}/"
        norms += _layer(f"{block}norm{layer}", f"{unit}{letter}/group_norm", "gamma", renumber=_one_based)
    return [
        Rule("stem.conv.weight", (_BIT_ROOT,), _CONVOLUTION),
        *_layer("norm", "resnet/group_norm", "gamma"),
        *_layer("head.fc", "resnet/head/conv2d", "kernel", _MATRIX_1X1),
        *norms,
        *(
            Rule(f"{name}.weight", (f"{theirs}standardized_conv2d/kernel",), _CONVOLUTION, renumber=_one_based)
            for name, theirs in convolutions.items()
        ),
    ]
