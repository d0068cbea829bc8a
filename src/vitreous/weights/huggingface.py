"""Folders of Hugging Face `transformers`, both ways: ViT, DeiT, ViTMAE, and DINOv2 with and without registers.

The names are those of every published file; newer releases of `transformers` rename them while they load and save.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from vitreous.arguments import shown
from vitreous.config.data import Preprocess
from vitreous.config.model import ViTConfig
from vitreous.errors import UserError
from vitreous.weights.checkpoint import (
    ParsedCheckpoint,
    RawCheckpoint,
    check_agreement,
    find_grid,
    first_true,
    fold_class_position,
    heads_for_width,
    height_and_width,
    later_parts,
)
from vitreous.weights.encoders import encoder_for
from vitreous.weights.huggingface_folder import with_description, write_folder
from vitreous.weights.layout import write_layout
from vitreous.weights.mapping import SPLIT_QKV, Rule, export_state, rename
from vitreous.weights.processor import default_processor, from_processor

if TYPE_CHECKING:
    from vitreous.model.vit import ViT

VIT_TYPES = {  # model_type: (family, for messages; prefix of the class names)
    "vit": ("Hugging Face", "ViT"),
    "deit": ("Hugging Face DeiT", "DeiT"),
    "vit_mae": ("Hugging Face ViTMAE", "ViTMAE"),
    "dinov2": ("Hugging Face DINOv2", "Dinov2"),
    "dinov2_with_registers": ("Hugging Face DINOv2", "Dinov2WithRegisters"),
}
_PROJECTION = "embeddings.patch_embeddings.projection.weight"
_IGNORED = {"the pooler": "pooler.", "the decoder": "decoder.", "the mask token": "embeddings.mask_token"}


def read_huggingface(raw: RawCheckpoint) -> ParsedCheckpoint | None:
    found = next((name for name in raw.tensors if name.endswith(_PROJECTION)), None)
    if found is None:
        return None
    prefix, described, names = found.removesuffix(_PROJECTION), raw.config or {}, raw.tensors
    kind = described.get("model_type") or _kind(raw, prefix)
    if not isinstance(kind, str) or kind not in VIT_TYPES:
        raise UserError(
            f"{raw.where}: a model of type {shown(kind)} cannot be opened; those that can are {', '.join(VIT_TYPES)}."
        )
    if described.get("hidden_act", "gelu") not in ("gelu", "relu") or described.get("qkv_bias") is False:
        raise UserError(f"{raw.where}: only models with GELU or ReLU, and with biases of q, k and v, can be opened.")
    ignored = {
        what: [name for name in names if name.startswith((start, prefix + start))] for what, start in _IGNORED.items()
    }
    config = _parse(kind, prefix, described, raw)
    _check_description(described, config, raw)
    tokens = f"{prefix}embeddings.cls_token", f"{prefix}embeddings.position_embeddings"
    parsed = ParsedCheckpoint(
        VIT_TYPES[kind][0],
        config,
        _rules(kind, config, prefix),
        from_processor(default_processor(kind, config), config, raw.where),
        ignored_keys={what: names for what, names in ignored.items() if names},
        heads_assumed=raw.heads is None and not described.get("num_attention_heads"),
        tensors=fold_class_position(raw, *tokens) if config.position_scope == "patches" else {},
    )
    return with_description(raw, parsed)


def _check_description(described: dict[str, Any], c: ViTConfig, raw: RawCheckpoint) -> None:
    sizes: dict[str, Any] = {
        "hidden_size": c.width,
        "num_hidden_layers": c.depth,
        "patch_size": c.patch,
        "num_channels": c.channels,
    }
    if c.layer_scale is None:
        sizes["intermediate_size"] = c.mlp_width
    if raw.image_size is None and (image_size := height_and_width(described.get("image_size"))):
        described = {**described, "image_size": image_size}
        sizes["image_size"] = c.image_size
    check_agreement(raw.where, {name: (described[name], size) for name, size in sizes.items() if name in described})


def _kind(raw: RawCheckpoint, prefix: str) -> str:
    marks = {
        "embeddings.register_tokens": "dinov2_with_registers",
        "encoder.layer.0.layer_scale1.lambda1": "dinov2",
        "embeddings.distillation_token": "deit",
    }
    mae = "vit_mae" if any(name.startswith("decoder.") for name in raw.tensors) else "vit"
    return next((kind for name, kind in marks.items() if prefix + name in raw.tensors), mae)


def _parse(kind: str, prefix: str, described: dict[str, Any], raw: RawCheckpoint) -> ViTConfig:
    width, channels, patch, _ = raw.shape(prefix + _PROJECTION, 4)
    dinov2 = kind.startswith("dinov2")
    positions = raw.shape(f"{prefix}embeddings.position_embeddings", 3)[1]
    prefix_tokens = 2 if kind == "deit" else 1
    grid = find_grid(positions - prefix_tokens, patch, raw.image_size or height_and_width(described.get("image_size")))
    if grid is None:
        raise raw.unknown_grid(positions)
    swiglu = f"{prefix}encoder.layer.0.mlp.weights_out.weight" in raw.tensors
    mlp = _mlp_modules(dinov2, swiglu)["mlp.fc2"]
    distilled = "cls_classifier.weight" in raw.tensors
    classes = raw.outputs("cls_classifier.bias" if distilled else "classifier.bias")
    extra = f"{prefix}embeddings.register_tokens"
    registers = raw.shape(extra, 3)[1] if extra in raw.tensors else 0
    return ViTConfig(
        width=width,
        depth=raw.blocks(f"{prefix}encoder.layer."),
        heads=raw.heads or described.get("num_attention_heads") or heads_for_width(width, raw.where),
        mlp_width=raw.shape(f"{prefix}encoder.layer.0.{mlp}.weight", 2)[1],
        patch=patch,
        image_size=(grid[0] * patch, grid[1] * patch),
        channels=channels,
        classes=classes,
        position_scope="patches" if registers else "all",
        position_resampling="bicubic" if kind == "dinov2_with_registers" else "bicubic-plain",
        norm_eps=described.get("layer_norm_eps", 1e-6 if dinov2 else 1e-12),
        mlp="swiglu" if swiglu else described.get("hidden_act", "gelu"),
        distilled=distilled,
        registers=registers + int(kind == "deit" and not distilled),  # unread, DeiT's second token is a register
        pool="class+mean" if dinov2 and classes else "class",
        layer_scale=described.get("layerscale_value", 1.0) if dinov2 else None,
    )


def _mlp_modules(dinov2: bool, swiglu: bool) -> dict[str, str]:
    theirs = ("mlp.weights_in", "mlp.weights_out") if swiglu else ("mlp.fc1", "mlp.fc2")
    return dict(zip(("mlp.fc1", "mlp.fc2"), theirs if dinov2 else ("intermediate.dense", "output.dense"), strict=True))


def _rules(kind: str, c: ViTConfig, prefix: str) -> list[Rule]:
    dinov2 = kind.startswith("dinov2")
    norms = ("norm1", "norm2") if dinov2 else ("layernorm_before", "layernorm_after")
    modules = {"attn.proj": "attention.output.dense", "norm1": norms[0], "norm2": norms[1]}
    modules |= _mlp_modules(dinov2, c.mlp == "swiglu")
    modules |= {f"ls{i}.gamma": f"layer_scale{i}.lambda1" for i in (1, 2)}
    layer = "encoder.layer.{0}."
    names = {
        "cls_token": "embeddings.cls_token",
        "dist_token": "embeddings.distillation_token",
        "reg_token": "embeddings.distillation_token" if kind == "deit" else "embeddings.register_tokens",
        "pos_embed": "embeddings.position_embeddings",
        "patch_embed.proj": "embeddings.patch_embeddings.projection",
        "norm": "layernorm",
        **{f"blocks.*.{module}": layer + theirs for module, theirs in modules.items()},
    }
    qkv = tuple(f"{layer}attention.attention.{name}" for name in ("query", "key", "value"))
    heads = {"head": "cls_classifier" if c.distilled else "classifier", "head_dist": "distillation_classifier"}
    return [*rename(names, prefix), Rule("blocks.*.attn.qkv", qkv, SPLIT_QKV, prefix), *rename(heads)]


def write_huggingface(
    out: str | Path, model: ViT, preprocess: Preprocess, labels: Sequence[str], info: dict[str, Any]
) -> Path:
    """A folder that `from_pretrained` opens, model and image processor."""
    c = model.config
    if (encoder := encoder_for(c)) is not None:
        return write_layout(Path(out), encoder, model, preprocess, labels)
    kind = _model_type_for(c, info, str(out))
    prefix = kind.removesuffix("_mae") + "." if c.classes else ""
    tensors = export_state(model.state_dict(), _rules(kind, c, prefix))
    if c.layer_scale is not None and not c.prefix_positions:
        name = f"{prefix}embeddings.position_embeddings"
        tensors[name] = torch.cat([torch.zeros(1, 1, c.width), tensors[name]], dim=1)
    if kind == "dinov2_with_registers":  # theirs always has one, which nothing reads but masked training
        tensors[f"{prefix}embeddings.mask_token"] = torch.zeros(1, c.width)
    return write_folder(Path(out), _config(kind, c), labels, preprocess, tensors)


def _model_type_for(c: ViTConfig, info: dict[str, Any], where: str) -> str:
    """The model type that can express this model."""
    unsupported = {
        **later_parts(c),
        "no class token": not c.class_token,
        "a convolutional stem": c.stem is not None,
        f"{c.attention} attention": c.attention != "full",
        f"{c.position} positions": c.position != "learned-1d",
        "LayerNorm after the branches": c.norm == "after",
        f"pooling {c.pool!r}": c.pool in ("mean", "attention") or c.norm_after_pool,
        "a tanh layer before the classifier": c.classifier == "mlp",
        "normalised queries and keys": c.qk_norm,
        "padded images": any(side % c.patch for side in c.image_size),
    }
    if c.layer_scale is not None:
        kind = "dinov2_with_registers" if c.registers else "dinov2"
        unsupported |= {
            "a classifier on the class token alone, with LayerScale": c.pool == "class" and c.classes > 0,
            "class and mean without a classifier": c.pool == "class+mean" and not c.classes,
            "a distillation token with LayerScale": c.distilled,
            "positions of registers": c.prefix_positions > 1,
            f"an MLP of {c.mlp_width}": _mlp_ratio(c) is None,
        }
    else:
        second = c.registers + int(c.distilled)
        mae = info.get("family") == VIT_TYPES["vit_mae"][0] and not c.classes
        kind = "deit" if second else "vit_mae" if mae else "vit"
        unsupported |= {
            f"{c.registers} registers without LayerScale": second > 1,
            "positions of patches alone": c.prefix_positions != c.prefix,
            f"{c.mlp} without LayerScale": c.mlp == "swiglu",
            "class and mean without LayerScale": c.pool == "class+mean",
        }
    if missing := first_true(unsupported):
        raise UserError(f"{where}: Hugging Face's models have no word for {missing}; export to another format.")
    return kind


def _config(kind: str, c: ViTConfig) -> dict[str, Any]:
    task = ("ForImageClassificationWithTeacher" if c.distilled else "ForImageClassification") if c.classes else "Model"
    height, width = c.image_size
    config: dict[str, Any] = {
        "architectures": [VIT_TYPES[kind][1] + task],
        "model_type": kind,
        "hidden_size": c.width,
        "num_hidden_layers": c.depth,
        "num_attention_heads": c.heads,
        "hidden_act": "gelu" if c.mlp == "swiglu" else c.mlp,
        "layer_norm_eps": c.norm_eps,
        "image_size": height if height == width else [height, width],
        "patch_size": c.patch,
        "num_channels": c.channels,
        "qkv_bias": True,
        "dtype": "float32",
    }
    if c.layer_scale is None:
        return config | {"intermediate_size": c.mlp_width}
    swiglu = c.mlp == "swiglu"
    config |= {"mlp_ratio": _mlp_ratio(c), "use_swiglu_ffn": swiglu, "layerscale_value": c.layer_scale}
    return config | ({"num_register_tokens": c.registers} if c.registers else {"use_mask_token": False})


def _mlp_ratio(c: ViTConfig) -> int | None:
    """The whole number from which DINOv2's MLP gets its width; None if there is none."""

    def units(ratio: int) -> int:  # gated ones: two thirds, in eights
        return (int(c.width * ratio * 2 / 3) + 7) // 8 * 8 if c.mlp == "swiglu" else c.width * ratio

    return next((ratio for ratio in range(1, 33) if units(ratio) == c.mlp_width), None)
