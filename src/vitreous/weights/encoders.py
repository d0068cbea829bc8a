"""Encoders with names of their own: one row each, read in both directions.

CLIP (OpenAI's, OpenCLIP's and Hugging Face's names), SigLIP and SigLIP2, DINOv3 (Meta's and Hugging Face's), and BEiT.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from vitreous.arguments import shown
from vitreous.config.model import Mlp, ViTConfig
from vitreous.config.rope import Rope
from vitreous.errors import UserError
from vitreous.weights.checkpoint import ParsedCheckpoint, RawCheckpoint
from vitreous.weights.layout import Encoder, parse_layout
from vitreous.weights.mapping import JOINED, Q_AND_V, SPLIT_QKV, TABLE, TRANSPOSED, VECTOR, Rule, rename

CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
HALF = (0.5, 0.5, 0.5)
_ACTIVATIONS: dict[str, Mlp] = {
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu-tanh",
    "quick_gelu": "quick-gelu",
    "relu": "relu",
}
_ACTIVATION_NAMES = {name: theirs for theirs, name in _ACTIVATIONS.items()}


def _activation(described: Mapping[str, Any], usual: str, raw: RawCheckpoint) -> Mlp:
    act = described.get("hidden_act") or usual
    if act not in _ACTIVATIONS:
        raise UserError(f"{raw.where}: config.json asks for hidden_act {shown(act)}, which is not known here.")
    return _ACTIVATIONS[act]


def _clip_arguments(described: Mapping[str, Any], raw: RawCheckpoint) -> dict[str, Any]:
    # OpenAI's own files have these three numbers beside the weights, and QuickGELU
    usual = "quick_gelu" if described or "input_resolution" in raw.tensors else "gelu"
    return {
        "num_heads": described.get("num_attention_heads"),
        "img_size": described.get("image_size"),
        "norm_eps": described.get("layer_norm_eps", 1e-5),
        "mlp": _activation(described, usual, raw),
    }


def _siglip_arguments(described: Mapping[str, Any], raw: RawCheckpoint) -> dict[str, Any]:
    return _clip_arguments(described, raw) | {
        "norm_eps": described.get("layer_norm_eps", 1e-6),
        "mlp": _activation(described, "gelu_pytorch_tanh", raw),
    }


_DINOV3_HEADS = {1280: 20, 4096: 32}  # H+ and 7B, which have other heads than such widths elsewhere


def _dinov3_arguments(described: Mapping[str, Any], raw: RawCheckpoint) -> dict[str, Any]:
    periods = raw.shapes.get("rope_embed.periods") or raw.shapes.get("backbone.rope_embed.periods")
    width = next((shape[-1] for name, shape in raw.shapes.items() if name.endswith("cls_token") and shape), 0)
    heads = described.get("num_attention_heads") or (width // (4 * periods[0]) if periods else _DINOV3_HEADS.get(width))
    gated, act = described.get("use_gated_mlp"), described.get("hidden_act")
    if gated and act != "silu":
        raise UserError(f"{raw.where}: config.json asks for a gated MLP with hidden_act {shown(act)}, not known here.")
    return {
        "num_heads": heads,
        "img_size": described.get("image_size"),
        "norm_eps": described.get("layer_norm_eps", 1e-5),
        "mlp": None if gated else _activation(described, "gelu", raw),
        "init_values": described.get("layerscale_value"),
        "biases": "all" if described.get("key_bias") else "q+v",
        "rope": Rope(float(described.get("rope_theta", 100.0)), bfloat16=periods is not None),
    }


def _sizes(c: ViTConfig) -> dict[str, Any]:
    """What Hugging Face's descriptions of all encoders say."""
    height, width = c.image_size
    return {
        "hidden_size": c.width,
        "intermediate_size": c.mlp_width,
        "num_hidden_layers": c.depth,
        "num_attention_heads": c.heads,
        "num_channels": c.channels,
        "image_size": height if height == width else [height, width],
        "patch_size": c.patch,
        "layer_norm_eps": c.norm_eps,
        "dtype": "float32",
    }


def _describe_clip(c: ViTConfig) -> dict[str, Any]:
    kind = "CLIPVisionModelWithProjection" if c.projection else "CLIPVisionModel"
    act = _ACTIVATION_NAMES.get(c.mlp)
    extra = {"architectures": [kind], "model_type": "clip_vision_model", "hidden_act": act}
    return {**_sizes(c), **extra, **({"projection_dim": c.projection} if c.projection else {})}


def _describe_siglip(c: ViTConfig) -> dict[str, Any]:
    kind = {"architectures": ["SiglipVisionModel"], "model_type": "siglip_vision_model"}
    return {**_sizes(c), **kind, "hidden_act": _ACTIVATION_NAMES.get(c.mlp)}


def _describe_dinov3(c: ViTConfig) -> dict[str, Any]:
    return {
        **_sizes(c),
        "architectures": ["DINOv3ViTModel"],
        "model_type": "dinov3_vit",
        "hidden_act": "silu" if c.mlp == "swiglu" else _ACTIVATION_NAMES.get(c.mlp),
        "use_gated_mlp": c.mlp == "swiglu",
        "layerscale_value": c.layer_scale,
        "num_register_tokens": c.registers,
        "rope_theta": 100.0 if c.rope is None else c.rope.base,
        "query_bias": c.qkv_bias != "none",
        "key_bias": c.qkv_bias == "all",
        "value_bias": c.qkv_bias != "none",
    }


_TRANSFORMER = {  # of Hugging Face's CLIP and SigLIP
    "patch_embed.proj": "embeddings.patch_embedding",
    "blocks.*.norm1": "encoder.layers.{0}.layer_norm1",
    "blocks.*.norm2": "encoder.layers.{0}.layer_norm2",
    "blocks.*.attn.proj": "encoder.layers.{0}.self_attn.out_proj",
    "blocks.*.mlp.fc1": "encoder.layers.{0}.mlp.fc1",
    "blocks.*.mlp.fc2": "encoder.layers.{0}.mlp.fc2",
    "norm": "post_layernorm",
}
_TOWERS = {
    "the text tower": r"text_model\..*|text_projection\.weight|text_embeds.*|logit_(scale|bias)",
    "the numbers of the positions": r".*\.position_ids",
}
_HF_TOWER = (
    *rename(_TRANSFORMER),
    Rule("pos_embed", ("embeddings.position_embedding.weight",), TABLE),
    Rule("blocks.*.attn.qkv", tuple(f"encoder.layers.{{0}}.self_attn.{x}_proj" for x in "qkv"), SPLIT_QKV),
)


def _same_in_blocks(*modules: str) -> dict[str, str]:
    return {f"blocks.*.{name}": f"blocks.{{0}}.{name}" for name in modules}


_OPENCLIP_LAYER = "transformer.resblocks.{0}."

ENCODERS = (
    Encoder(
        "Hugging Face CLIP",
        ("pre_layrnorm.weight", "embeddings.patch_embedding.weight"),
        (
            *_HF_TOWER,
            Rule("cls_token", ("embeddings.class_embedding",), VECTOR),
            *rename({"norm_pre": "pre_layrnorm"}),
        ),
        prefixes=("vision_model.", ""),
        outer=(Rule("projection.weight", ("visual_projection.weight",)),),
        model_types=("clip_vision_model", "clip", "metaclip_2", "metaclip_2_vision_model"),
        ignored=_TOWERS,
        arguments=_clip_arguments,
        fields={"position_resampling": "bicubic-plain"},
        mean=CLIP_MEAN,
        std=CLIP_STD,
        describe=_describe_clip,
    ),
    Encoder(
        "Hugging Face SigLIP",
        ("post_layernorm.weight", "embeddings.patch_embedding.weight", "embeddings.patch_embedding.bias"),
        (
            *_HF_TOWER,
            Rule("attn_pool.latent", ("head.probe",)),
            Rule("attn_pool.q.weight", ("head.attention.q_weight",)),
            Rule("attn_pool.q.bias", ("head.attention.q_bias",)),
            Rule("attn_pool.kv.weight", ("head.attention.kv_weight",)),
            Rule("attn_pool.kv.bias", ("head.attention.kv_bias",)),
            *rename(
                {
                    "attn_pool.proj": "head.attention.out_proj",
                    "attn_pool.norm": "head.layernorm",
                    "attn_pool.mlp.fc1": "head.mlp.fc1",
                    "attn_pool.mlp.fc2": "head.mlp.fc2",
                }
            ),
        ),
        prefixes=("vision_model.", ""),
        outer=(*rename({"head": "classifier"}),),
        model_types=("siglip_vision_model", "siglip"),
        ignored=_TOWERS,
        packed={
            f"head.attention.in_proj_{kind}": (f"head.attention.q_{kind}", f"head.attention.kv_{kind}")
            for kind in ("weight", "bias")
        },
        arguments=_siglip_arguments,
        fields={"position_resampling": "bicubic-plain"},
        mean=HALF,
        std=HALF,
        resize="stretch",
        describe=_describe_siglip,
    ),
    Encoder(
        "OpenCLIP",
        ("ln_pre.weight", "conv1.weight", "class_embedding"),
        (
            Rule("cls_token", ("class_embedding",), VECTOR),
            Rule("pos_embed", ("positional_embedding",), TABLE),
            Rule("projection.weight", ("proj",), TRANSPOSED),
            *(
                Rule(f"blocks.*.attn.qkv.{kind}", (f"{_OPENCLIP_LAYER}attn.in_proj_{kind}",))
                for kind in ("weight", "bias")
            ),
            *rename(
                {
                    "patch_embed.proj": "conv1",
                    "norm_pre": "ln_pre",
                    "norm": "ln_post",
                    "blocks.*.attn.proj": f"{_OPENCLIP_LAYER}attn.out_proj",
                    "blocks.*.norm1": f"{_OPENCLIP_LAYER}ln_1",
                    "blocks.*.norm2": f"{_OPENCLIP_LAYER}ln_2",
                    "blocks.*.mlp.fc1": f"{_OPENCLIP_LAYER}mlp.c_fc",
                    "blocks.*.mlp.fc2": f"{_OPENCLIP_LAYER}mlp.c_proj",
                }
            ),
        ),
        prefixes=("visual.",),
        ignored={
            "the text tower": r"(?!visual\.).*",  # whatever is beside the vision tower
        },
        arguments=_clip_arguments,
        mean=CLIP_MEAN,
        std=CLIP_STD,
        note="its tensors do not say which GELU it has",
    ),
    Encoder(
        "Hugging Face DINOv3",
        ("embeddings.patch_embeddings.weight", "layer.0.attention.o_proj.weight"),
        (
            Rule("blocks.*.attn.qkv.weight", tuple(f"layer.{{0}}.attention.{x}_proj.weight" for x in "qkv"), SPLIT_QKV),
            Rule("blocks.*.attn.qkv.bias", tuple(f"layer.{{0}}.attention.{x}_proj.bias" for x in "qv"), Q_AND_V),
            *rename(
                {
                    "cls_token": "embeddings.cls_token",
                    "reg_token": "embeddings.register_tokens",
                    "patch_embed.proj": "embeddings.patch_embeddings",
                    "blocks.*.norm1": "layer.{0}.norm1",
                    "blocks.*.norm2": "layer.{0}.norm2",
                    "blocks.*.attn.proj": "layer.{0}.attention.o_proj",
                    "blocks.*.ls1.gamma": "layer.{0}.layer_scale1.lambda1",
                    "blocks.*.ls2.gamma": "layer.{0}.layer_scale2.lambda1",
                    "norm": "norm",
                }
            ),
        ),
        prefixes=("", "model.", "dinov3_vit."),
        mlp=(*rename({"blocks.*.mlp.fc1": "layer.{0}.mlp.up_proj", "blocks.*.mlp.fc2": "layer.{0}.mlp.down_proj"}),),
        swiglu=(
            Rule("blocks.*.mlp.fc1", tuple(f"layer.{{0}}.mlp.{x}_proj" for x in ("gate", "up")), JOINED),
            *rename({"blocks.*.mlp.fc2": "layer.{0}.mlp.down_proj"}),
        ),
        model_types=("dinov3_vit",),
        ignored={"the mask token": r".*mask_token"},
        arguments=_dinov3_arguments,
        resize="stretch",
        describe=_describe_dinov3,
        unread=lambda c: {
            "embeddings.mask_token": torch.zeros(1, 1, c.width),
            "embeddings.register_tokens": torch.zeros(1, 0, c.width),
        },
    ),
    Encoder(
        "DINOv3",
        ("storage_tokens", "blocks.0.attn.qkv.weight", "patch_embed.proj.weight"),
        (
            *rename({name: name for name in ("cls_token", "patch_embed.proj", "norm")}),
            *rename({"reg_token": "storage_tokens"}),
            *rename(_same_in_blocks("norm1", "norm2", "attn.qkv", "attn.proj", "ls1.gamma", "ls2.gamma")),
        ),
        mlp=(*rename(_same_in_blocks("mlp.fc1", "mlp.fc2")),),
        swiglu=(
            Rule("blocks.*.mlp.fc1", ("blocks.{0}.mlp.w1", "blocks.{0}.mlp.w2"), JOINED),
            *rename({"blocks.*.mlp.fc2": "blocks.{0}.mlp.w3"}),
        ),
        prefixes=("", "backbone.", "teacher.backbone."),
        ignored={
            "the mask token": r".*mask_token",
            "the periods of the rotary positions": r".*rope_embed\.periods",
            "the mask of the biases": r".*\.bias_mask",
            "what pre-training needs": r".*(local_cls_norm|projectors)\..*|(?:.*\.)?(dino_head|ibot_head)\..*",
        },
        arguments=_dinov3_arguments,
        resize="stretch",
    ),
)


def read_encoder(raw: RawCheckpoint) -> ParsedCheckpoint | None:
    for encoder in ENCODERS:
        for prefix in encoder.prefixes:
            if all(prefix + mark in raw.tensors for mark in encoder.marks):
                return parse_layout(encoder, prefix, raw)
    return None


def encoder_for(c: ViTConfig) -> Encoder | None:
    """The Hugging Face layout that may express a model; None for the plain ones."""
    kinds = {
        "dinov3_vit": c.rope is not None,
        "clip_vision_model": c.norm_pre,
        "siglip_vision_model": c.pool == "attention",
    }
    kind = next((kind for kind, holds in kinds.items() if holds), None)
    return None if kind is None else next(encoder for encoder in ENCODERS if encoder.model_types[:1] == (kind,))
