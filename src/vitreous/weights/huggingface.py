"""Folders of Hugging Face `transformers`, both ways: ViT, DeiT, ViTMAE, and DINOv2 with and without registers.

The names are those of every published file; newer releases of `transformers` rename them while they load and save.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous.arguments import check_value
from vitreous.config.data import Preprocess
from vitreous.config.model import ViTConfig
from vitreous.errors import UserError
from vitreous.model.vit import ViT
from vitreous.storage.files import new_folder, write_tensors
from vitreous.weights.foreign import (
    Foreign,
    Raw,
    Shapes,
    blocks_of,
    check_agreement,
    grid_for_count,
    heads_for,
    no_grid,
    other_count,
    shape_of,
    sides,
    stated,
)
from vitreous.weights.mapping import Rule, same, thirds, to_theirs
from vitreous.weights.processor import default_processor, from_processor, to_processor
from vitreous.wording import shown

FAMILIES = {
    "vit": "Hugging Face",
    "deit": "Hugging Face DeiT",
    "vit_mae": "Hugging Face ViTMAE",
    "dinov2": "Hugging Face DINOv2",
    "dinov2_with_registers": "Hugging Face DINOv2",
}
_PROJECTION = "embeddings.patch_embeddings.projection.weight"
_ASIDE = {"the pooler": "pooler.", "the decoder": "decoder.", "the mask token": "embeddings.mask_token"}


def read_huggingface(raw: Raw) -> Foreign | None:
    """A model of one of the families, by its names; config.json says what they do not."""
    found = next((name for name in raw.tensors if name.endswith(_PROJECTION)), None)
    if found is None:
        return None
    prefix, said, shapes = found.removesuffix(_PROJECTION), raw.config or {}, raw.shapes
    kind = said.get("model_type") or _kind(shapes, prefix)
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise UserError(
            f"{raw.where}: a model of type {shown(kind)} cannot be opened; those that can are {', '.join(FAMILIES)}."
        )
    if said.get("hidden_act", "gelu") not in ("gelu", "relu") or said.get("qkv_bias") is False:
        raise UserError(f"{raw.where}: only models with GELU or ReLU, and with biases of q, k and v, can be opened.")
    aside = {
        what: [name for name in shapes if name.startswith((start, prefix + start))] for what, start in _ASIDE.items()
    }
    config = _config(kind, shapes, prefix, said, raw)
    check_agreement(raw.where, _stated(said, config, raw.size))
    return stated_by_huggingface(
        raw,
        Foreign(
            family=FAMILIES[kind],
            config=config,
            rules=_rules(kind, config, prefix),
            preprocess=from_processor(default_processor(kind, config), config, raw.where),
            assumed=True,
            aside={what: names for what, names in aside.items() if names},
            heads_assumed=raw.heads is None and not said.get("num_attention_heads"),
        ),
    )


def stated_by_huggingface(raw: Raw, found: Foreign) -> Foreign:
    """What the tensors tell, with what the files beside them state: preprocessing in place of the usual, and labels."""
    preprocess, problem = found.preprocess, None
    if raw.processor is not None:
        read = partial(from_processor, raw.processor, found.config, raw.where)
        preprocess, problem = stated(read, lambda: found.preprocess, raw.where, "preprocessor_config.json")
    names, classes = read_labels(raw.config or {}), found.config.classes
    return replace(
        found,
        preprocess=preprocess,
        assumed=raw.processor is None,
        labels=names if len(names) == classes else (),
        problem=problem,
        notes=other_count(len(names), classes, "id2label of config.json"),
    )


def _stated(said: dict[str, Any], c: ViTConfig, size: tuple[int, int] | None) -> dict[str, tuple[Any, Any]]:
    """What config.json says and the tensors show too: both, by the name of the field."""
    facts: dict[str, Any] = {
        "hidden_size": c.width,
        "num_hidden_layers": c.depth,
        "patch_size": c.patch,
        "num_channels": c.channels,
    }
    if c.layer_scale is None:
        facts["intermediate_size"] = c.mlp_width
    if size is None and (stated_size := sides(said.get("image_size"))):
        said = {**said, "image_size": stated_size}
        facts["image_size"] = c.image_size
    return {name: (said[name], fact) for name, fact in facts.items() if name in said}


def _kind(shapes: Shapes, prefix: str) -> str:
    if f"{prefix}embeddings.register_tokens" in shapes:
        return "dinov2_with_registers"
    if f"{prefix}encoder.layer.0.layer_scale1.lambda1" in shapes:
        return "dinov2"
    if f"{prefix}embeddings.distillation_token" in shapes:
        return "deit"
    return "vit_mae" if any(name.startswith("decoder.") for name in shapes) else "vit"


def _config(kind: str, shapes: Shapes, prefix: str, said: dict[str, Any], raw: Raw) -> ViTConfig:
    def shape(name: str, axes: int) -> tuple[int, ...]:
        return shape_of(shapes, name, axes, raw.where)

    width, channels, patch, _ = shape(prefix + _PROJECTION, 4)
    dinov2 = kind.startswith("dinov2")
    positions = shape(f"{prefix}embeddings.position_embeddings", 3)[1]
    tokens = 2 if kind == "deit" else 1
    grid = grid_for_count(positions - tokens, patch, raw.size or sides(said.get("image_size")))
    if grid is None:
        raise no_grid(raw.where, positions)
    swiglu = f"{prefix}encoder.layer.0.mlp.weights_out.weight" in shapes
    mlp = {True: "mlp.weights_out.weight" if swiglu else "mlp.fc2.weight", False: "output.dense.weight"}[dinov2]
    distilled = "cls_classifier.weight" in shapes
    classifier = "cls_classifier.bias" if distilled else "classifier.bias"
    classes = shape(classifier, 1)[0] if classifier in shapes else 0
    extra = f"{prefix}embeddings.register_tokens"
    registers = shape(extra, 3)[1] if extra in shapes else 0
    return ViTConfig(
        width=width,
        depth=blocks_of(shapes, f"{prefix}encoder.layer.", "."),
        heads=raw.heads or said.get("num_attention_heads") or heads_for(width, raw.where),
        mlp_width=shape(f"{prefix}encoder.layer.0.{mlp}", 2)[1],
        patch=patch,
        image_size=(grid[0] * patch, grid[1] * patch),
        channels=channels,
        classes=classes,
        position_scope="class" if dinov2 else "all",
        position_resampling="bicubic" if kind == "dinov2_with_registers" else "bicubic-plain",
        norm_eps=said.get("layer_norm_eps", 1e-6 if dinov2 else 1e-12),
        mlp="swiglu" if swiglu else said.get("hidden_act", "gelu"),
        distilled=distilled,
        registers=registers + int(kind == "deit" and not distilled),  # unread, DeiT's second token is a register
        pool="class+mean" if dinov2 and classes else "class",
        layer_scale=said.get("layerscale_value", 1.0) if dinov2 else None,
    )


def _rules(kind: str, c: ViTConfig, prefix: str) -> list[Rule]:
    """Each of our tensors with theirs."""
    dinov2 = kind.startswith("dinov2")
    names = {
        "cls_token": "embeddings.cls_token",
        "dist_token": "embeddings.distillation_token",
        "reg_token": "embeddings.distillation_token" if kind == "deit" else "embeddings.register_tokens",
        "pos_embed": "embeddings.position_embeddings",
    }
    both = {"patch_embed.proj": "embeddings.patch_embeddings.projection", "norm": "layernorm"}
    rules = [same(ours, prefix + theirs) for ours, theirs in names.items()]
    inside = {"attn.proj": "attention.output.dense"}
    if dinov2:
        inside |= {"norm1": "norm1", "norm2": "norm2"}
        swiglu = c.mlp == "swiglu"
        inside |= {"mlp.fc1": "mlp.weights_in" if swiglu else "mlp.fc1"}
        inside |= {"mlp.fc2": "mlp.weights_out" if swiglu else "mlp.fc2"}
    else:
        inside |= {"norm1": "layernorm_before", "norm2": "layernorm_after"}
        inside |= {"mlp.fc1": "intermediate.dense", "mlp.fc2": "output.dense"}
    for layer in range(c.depth):
        ours, theirs = f"blocks.{layer}", f"{prefix}encoder.layer.{layer}"
        both |= {f"{ours}.{one}": f"encoder.layer.{layer}.{other}" for one, other in inside.items()}
        for part in ("weight", "bias"):
            apart = (f"{theirs}.attention.attention.{name}.{part}" for name in ("query", "key", "value"))
            rules.append(thirds(f"{ours}.attn.qkv.{part}", apart))
        rules += [same(f"{ours}.ls{i}.gamma", f"{theirs}.layer_scale{i}.lambda1") for i in (1, 2)]
    heads = {"head": "cls_classifier" if c.distilled else "classifier", "head_dist": "distillation_classifier"}
    for part in ("weight", "bias"):
        rules += [same(f"{ours}.{part}", f"{prefix}{theirs}.{part}") for ours, theirs in both.items()]
        rules += [same(f"{ours}.{part}", f"{theirs}.{part}") for ours, theirs in heads.items()]
    return rules


def write_huggingface(
    out: str | Path, model: ViT, preprocess: Preprocess, labels: Sequence[str], info: dict[str, Any]
) -> Path:
    """A folder that `from_pretrained` opens, model and image processor."""
    out, c = Path(out), model.config
    kind = _kind_for(c, info, str(out))
    processor = to_processor(preprocess, str(out))
    base = kind.removesuffix("_mae") + "."
    prefix = base if c.classes else ""
    tensors: dict[str, Tensor] = to_theirs(model.state_dict(), _rules(kind, c, prefix))
    if kind == "dinov2_with_registers":  # theirs always has one, which nothing reads but masked training
        tensors[f"{prefix}embeddings.mask_token"] = torch.zeros(1, c.width)
    return write_folder(out, _describe(kind, c) | label_maps(labels), processor, tensors)


def write_folder(out: Path, described: dict[str, Any], processor: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    """A folder of theirs: config.json, preprocessor_config.json and the tensors."""
    with new_folder(out) as folder:
        (folder / "config.json").write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
        (folder / "preprocessor_config.json").write_text(json.dumps(processor, indent=2) + "\n", encoding="utf-8")
        write_tensors(folder / "model.safetensors", tensors)
    return out


def _kind_for(c: ViTConfig, info: dict[str, Any], where: str) -> str:
    """The family that can say what this model is."""
    odd = {
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
        gated = (c.width * 8 // 3 + 7) // 8 * 8  # theirs: two thirds of four times the width, in eights
        fits = c.mlp_width == gated if c.mlp == "swiglu" else c.mlp_width % c.width == 0
        odd |= {
            "a classifier on the class token alone, with LayerScale": c.pool == "class" and c.classes > 0,
            "class and mean without a classifier": c.pool == "class+mean" and not c.classes,
            "a distillation token with LayerScale": c.distilled,
            "positions of registers": c.prefix_positions != 1,
            f"an MLP of {c.mlp_width}": not fits,
        }
    else:
        second = c.registers + int(c.distilled)
        kind = "deit" if second else "vit_mae" if info.get("family") == FAMILIES["vit_mae"] and not c.classes else "vit"
        odd |= {
            f"{c.registers} registers without LayerScale": second > 1,
            "positions of patches alone": c.prefix_positions != c.prefix,
            f"{c.mlp} without LayerScale": c.mlp == "swiglu",
            "class and mean without LayerScale": c.pool == "class+mean",
        }
    if reason := next((name for name, holds in odd.items() if holds), None):
        raise UserError(f"{where}: Hugging Face's models have no word for {reason}; export to another format.")
    return kind


def _describe(kind: str, c: ViTConfig) -> dict[str, Any]:
    """Their config.json."""
    names = {"vit": "ViT", "deit": "DeiT", "vit_mae": "ViTMAE", "dinov2": "Dinov2"}
    name = names.get(kind, "Dinov2WithRegisters")
    task = ("ForImageClassificationWithTeacher" if c.distilled else "ForImageClassification") if c.classes else "Model"
    height, width = c.image_size
    described: dict[str, Any] = {
        "architectures": [name + task],
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
        described["intermediate_size"] = c.mlp_width
    else:
        described["mlp_ratio"] = 4 if c.mlp == "swiglu" else c.mlp_width // c.width
        described["use_swiglu_ffn"] = c.mlp == "swiglu"
        described["layerscale_value"] = c.layer_scale
        described |= {"num_register_tokens": c.registers} if c.registers else {"use_mask_token": False}
    return described


def label_maps(labels: Sequence[str]) -> dict[str, Any]:
    """The classes' names in their config.json, if there are classes."""
    if not labels:
        return {}
    return {
        "id2label": {str(k): label for k, label in enumerate(labels)},
        "label2id": {name: k for k, name in enumerate(_told_apart(labels))},
    }


def read_labels(said: dict[str, Any]) -> tuple[str, ...]:
    """The classes' names that their config.json has; none if they are those that `transformers` gives by itself."""
    labels = said.get("id2label") or {}
    names: tuple[str, ...] = check_value([labels[str(k)] for k in range(len(labels))], tuple[str, ...], "id2label")
    return () if all(name == f"LABEL_{k}" for k, name in enumerate(names)) else names


def _told_apart(labels: Sequence[str]) -> list[str]:
    """The labels, but where several classes have one name, each with its number: "crane (134)", "crane (517)"."""
    counts, names = Counter(labels), []
    for k, name in enumerate(labels):
        if counts[name] > 1:
            while name in counts:  # a third class may be called so
                name = f"{name} ({k})"
        names.append(name)
    return names
