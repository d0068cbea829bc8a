"""Google's .npz of the paper and of "How to train your ViT?" (AugReg), both ways.

Their names and shapes are of JAX: a path with slashes, matrices as (inputs, outputs), heads in an axis of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, cat

from vitreous.config.data import Preprocess
from vitreous.config.model import ViTConfig
from vitreous.config.stem import ConvStem, ResNetStem
from vitreous.errors import UserError
from vitreous.model.vit import ViT
from vitreous.storage.files import new_file
from vitreous.storage.overwrite import check_file, sign_zip
from vitreous.weights.foreign import (
    Foreign,
    Raw,
    Shapes,
    augreg_default,
    blocks_of,
    grid_for_count,
    no_grid,
    other_epsilon,
    shape_of,
)
from vitreous.weights.hybrid import google_stem_rules, read_google_stem
from vitreous.weights.mapping import Rule, same, to_theirs

_PREFIXES = ("", "opt/target/")
_QUERY = "Transformer/encoderblock_0/MultiHeadDotProductAttention_1/query/kernel"
_MLP = "Transformer/encoderblock_0/MlpBlock_3/Dense_0/kernel"
_POSITIONS = "Transformer/posembed_input/pos_embedding"


def read_google(raw: Raw) -> Foreign | None:
    """The paper's models by their names; the tanh layer of pre-training is kept where there is one."""
    shapes = raw.shapes
    prefix = next((p for p in _PREFIXES if {p + _QUERY, p + _MLP, p + "embedding/kernel"} <= set(shapes)), None)
    if prefix is None or prefix + _POSITIONS not in shapes:
        return None
    patch, _, channels, width = shape_of(shapes, prefix + "embedding/kernel", 4, raw.where)
    stem = None
    if f"{prefix}conv_root/kernel" in shapes:
        stem, channels = read_google_stem(shapes, prefix, raw.where)
        patch *= stem.stride
    count = shape_of(shapes, prefix + _POSITIONS, 3, raw.where)[1]
    class_token = prefix + "cls" in shapes
    grid = grid_for_count(count - class_token, patch, raw.size)
    if grid is None:
        raise no_grid(raw.where, count)
    head = prefix + "head/bias"
    classes = shape_of(shapes, head, 1, raw.where)[0] if head in shapes else 0
    tanh = classes and prefix + "pre_logits/bias" in shapes
    config = ViTConfig(
        width=width,
        depth=blocks_of(shapes, prefix + "Transformer/encoderblock_", "/"),
        heads=shape_of(shapes, prefix + _QUERY, 3, raw.where)[1],
        mlp_width=shape_of(shapes, prefix + _MLP, 2, raw.where)[1],
        patch=patch,
        image_size=(grid[0] * patch, grid[1] * patch),
        channels=channels,
        classes=classes,
        stem=stem,
        class_token=class_token,
        pool="class" if class_token else "mean",
        classifier="mlp" if tanh else "linear",
    )
    spare = {} if classes else {"the pre-training layer": [n for n in shapes if n.startswith(f"{prefix}pre_logits/")]}
    return Foreign("Google", config, _rules(config, prefix, shapes), augreg_default(config), assumed=True, aside=spare)


def write_google(out: str | Path, model: ViT, preprocess: Preprocess, labels: Sequence[str], info: Any) -> Path:
    """An .npz as Google publishes them. It holds tensors alone: labels and preprocessing are not in it."""
    out = Path(out)
    if reason := _why_not(model.config):
        raise UserError(f"{out}: Google's .npz has no word for {reason}; export to another format.")
    return write_npz(out, to_theirs(model.state_dict(), _rules(model.config, "")))


def write_npz(out: Path, tensors: Mapping[str, Tensor]) -> Path:
    """One file with these arrays, new or in the place of an earlier export."""
    if out.suffix != ".npz":
        raise UserError(f"{out}: Google's format is one file; give a name that ends in .npz.")
    arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in tensors.items()}
    with new_file(check_file(out)) as file:
        np.savez(file, **arrays)
        sign_zip(file)
    return out


def _why_not(c: ViTConfig) -> str | None:
    odd = {
        f"{c.position} positions": c.position != "learned-1d" or c.prefix_positions != c.prefix,
        "LayerNorm after the branches": c.norm == "after",
        f"{c.attention} attention": c.attention != "full",
        "a light convolutional stem": isinstance(c.stem, ConvStem),
        f"{c.mlp} in the MLP": c.mlp != "gelu",
        "registers or a distillation token": c.registers > 0 or c.distilled,
        f"pooling {c.pool!r}": c.pool != ("class" if c.class_token else "mean") or c.norm_after_pool,
        "LayerScale": c.layer_scale is not None,
        "normalised queries and keys": c.qk_norm,
        other_epsilon(c): c.norm_eps != 1e-6,
    }
    return next((name for name, holds in odd.items() if holds), None)


def _rules(c: ViTConfig, prefix: str, shapes: Shapes | None = None) -> list[Rule]:
    """Each of our tensors with theirs. shapes: of the file that is read."""
    d = c.width // c.heads

    def kernel(ours: str, theirs: str) -> list[Rule]:
        turned = Rule(f"{ours}.weight", (f"{theirs}/kernel",), lambda w: (w.T,), lambda parts: parts[0].T)
        return [turned, same(f"{ours}.bias", f"{theirs}/bias")]

    def norm(ours: str, theirs: str) -> list[Rule]:
        return [same(f"{ours}.weight", f"{theirs}/scale"), same(f"{ours}.bias", f"{theirs}/bias")]

    def qkv(ours: str, theirs: str) -> list[Rule]:
        names = [f"{theirs}/{name}" for name in ("query", "key", "value")]
        weight = Rule(
            f"{ours}.weight",
            tuple(f"{name}/kernel" for name in names),  # (D, h, d) each
            lambda w: [part.T.reshape(c.width, c.heads, d) for part in w.chunk(3)],
            lambda parts: cat([part.flatten(1).T for part in parts]),
        )
        bias = Rule(
            f"{ours}.bias",
            tuple(f"{name}/bias" for name in names),  # (h, d) each
            lambda b: [part.reshape(c.heads, d) for part in b.chunk(3)],
            lambda parts: cat([part.flatten() for part in parts]),
        )
        return [weight, bias]

    def proj(ours: str, theirs: str) -> list[Rule]:
        weight = Rule(
            f"{ours}.weight",
            (f"{theirs}/kernel",),  # (h, d, D)
            lambda w: (w.T.reshape(c.heads, d, c.width),),
            lambda parts: parts[0].flatten(0, 1).T,
        )
        return [weight, same(f"{ours}.bias", f"{theirs}/bias")]

    rules = [
        kernels("patch_embed.proj.weight", f"{prefix}embedding/kernel"),
        same("patch_embed.proj.bias", f"{prefix}embedding/bias"),
        same("cls_token", f"{prefix}cls"),
        same("pos_embed", prefix + _POSITIONS),
        *norm("norm", f"{prefix}Transformer/encoder_norm"),
        *kernel("pre_logits.fc", f"{prefix}pre_logits"),
        *kernel("head", f"{prefix}head"),
    ]
    if isinstance(c.stem, ResNetStem):
        rules += google_stem_rules(c.stem, prefix, shapes)
    for layer in range(c.depth):
        ours, theirs = f"blocks.{layer}", f"{prefix}Transformer/encoderblock_{layer}"
        rules += norm(f"{ours}.norm1", f"{theirs}/LayerNorm_0")
        rules += qkv(f"{ours}.attn.qkv", f"{theirs}/MultiHeadDotProductAttention_1")
        rules += proj(f"{ours}.attn.proj", f"{theirs}/MultiHeadDotProductAttention_1/out")
        rules += norm(f"{ours}.norm2", f"{theirs}/LayerNorm_2")
        rules += kernel(f"{ours}.mlp.fc1", f"{theirs}/MlpBlock_3/Dense_0")
        rules += kernel(f"{ours}.mlp.fc2", f"{theirs}/MlpBlock_3/Dense_1")
    return rules


def kernels(ours: str, theirs: str) -> Rule:
    """A convolution's: (D, C, P, P), and theirs (P, P, C, D)."""
    return Rule(ours, (theirs,), lambda w: (w.permute(2, 3, 1, 0),), lambda parts: parts[0].permute(3, 2, 0, 1))
