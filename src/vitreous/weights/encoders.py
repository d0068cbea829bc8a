"""Encoders with names of their own: one row each, read in both directions.

CLIP (OpenAI's, OpenCLIP's and Hugging Face's names), SigLIP and SigLIP2, DINOv3 (Meta's and Hugging Face's), and BEiT.
"""

from __future__ import annotations

import torch

from vitreous.config.model import ViTConfig
from vitreous.errors import UserError
from vitreous.weights.checkpoint import CLIP_MEAN, CLIP_STD, ParsedCheckpoint, RawCheckpoint
from vitreous.weights.encoder_configs import (
    clip_arguments,
    describe_clip,
    describe_dinov3,
    describe_siglip,
    dinov3_arguments,
    plain_arguments,
    siglip_arguments,
)
from vitreous.weights.layout import Encoder, parse_layout
from vitreous.weights.mapping import JOINED, Q_AND_V, SPLIT_QKV, TABLE, TRANSPOSED, VECTOR, Rule, rename

HALF = (0.5, 0.5, 0.5)


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


_HF_LAYER = "encoder.layer.{0}."
_HF_VIT = (
    *rename(
        {
            "cls_token": "embeddings.cls_token",
            "pos_embed": "embeddings.position_embeddings",
            "patch_embed.proj": "embeddings.patch_embeddings.projection",
            "blocks.*.norm1": _HF_LAYER + "layernorm_before",
            "blocks.*.norm2": _HF_LAYER + "layernorm_after",
            "norm": "layernorm",
        }
    ),
)
_HF_VIT_BLOCK = rename(
    {
        "blocks.*.attn.proj": _HF_LAYER + "attention.output.dense",
        "blocks.*.mlp.fc1": _HF_LAYER + "intermediate.dense",
        "blocks.*.mlp.fc2": _HF_LAYER + "output.dense",
    }
)
_HF_SCALES = rename({f"blocks.*.ls{i}.gamma": f"{_HF_LAYER}lambda_{i}" for i in (1, 2)})
_HF_QKV = tuple(f"{_HF_LAYER}attention.attention.{x}" for x in ("query", "key", "value"))
_OPENCLIP_LAYER = "transformer.resblocks.{0}."

ENCODERS = (
    *(
        Encoder(
            f"Hugging Face {title}",
            ("embeddings.patch_embeddings.projection.weight",),
            (*_HF_VIT, *_HF_VIT_BLOCK, Rule("blocks.*.attn.qkv", _HF_QKV, SPLIT_QKV)),
            prefixes=("", f"{prefix}."),
            outer=(*rename({"head": "classifier"}),),
            model_types=(kind,),
            by_type=True,
            ignored={"the pooler": r".*pooler\..*", "the mask token": r".*mask_token"},
            arguments=plain_arguments,
            fields={"position_resampling": "bicubic-plain"},
            resize="stretch",
        )
        for title, kind, prefix in (("I-JEPA", "ijepa", "ijepa"), ("ViTMSN", "vit_msn", "vit"))
    ),
    Encoder(
        "Hugging Face BEiT",
        ("encoder.layer.0.lambda_1", "encoder.layer.0.attention.attention.query.weight"),
        (
            *_HF_VIT,
            *_HF_VIT_BLOCK,
            *_HF_SCALES,
            Rule("blocks.*.attn.qkv.weight", tuple(f"{name}.weight" for name in _HF_QKV), SPLIT_QKV),
            Rule("blocks.*.attn.qkv.bias", (f"{_HF_QKV[0]}.bias", f"{_HF_QKV[2]}.bias"), Q_AND_V),
            Rule(
                "blocks.*.attn.rel_pos.relative_position_bias_table",
                (_HF_LAYER + "attention.attention.relative_position_bias.relative_position_bias_table",),
            ),
            *rename({"fc_norm": "pooler.layernorm"}),
        ),
        prefixes=("beit.", "data2vec_vision.", ""),
        outer=(*rename({"head": "classifier"}),),
        model_types=("beit", "data2vec-vision"),
        ignored={"the mask token": r".*mask_token", "the numbers of the offsets": r".*relative_position_index"},
        arguments=plain_arguments,
        mean=HALF,
        std=HALF,
        resize="stretch",
    ),
    Encoder(
        "Hugging Face InternViT",
        ("encoder.layer.0.lambda_1", "encoder.layer.0.attention.projection_layer.weight"),
        (
            *_HF_VIT,
            *_HF_SCALES,
            Rule("blocks.*.attn.qkv", tuple(f"{_HF_LAYER}attention.{x}_proj" for x in "qkv"), SPLIT_QKV),
            *rename(
                {
                    "blocks.*.attn.proj": _HF_LAYER + "attention.projection_layer",
                    "blocks.*.mlp.fc1": _HF_LAYER + "mlp.fc1",
                    "blocks.*.mlp.fc2": _HF_LAYER + "mlp.fc2",
                }
            ),
        ),
        prefixes=("", "vision_tower.", "model.vision_tower."),
        model_types=("internvl_vision", "internvl"),
        ignored={"the language model": r".*(language_model|multi_modal_projector|lm_head)\..*"},
        arguments=lambda described, raw: (
            plain_arguments(described, raw)
            | {
                "norm_eps": described.get("layer_norm_eps", 1e-6),
                "biases": "all",
            }
        ),
        fields={"position_resampling": "bicubic-plain"},
        resize="stretch",
    ),
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
        arguments=clip_arguments,
        fields={"position_resampling": "bicubic-plain"},
        mean=CLIP_MEAN,
        std=CLIP_STD,
        describe=describe_clip,
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
        model_types=("siglip_vision_model", "siglip"),
        ignored=_TOWERS,
        packed={
            f"head.attention.in_proj_{kind}": (f"head.attention.q_{kind}", f"head.attention.kv_{kind}")
            for kind in ("weight", "bias")
        },
        arguments=siglip_arguments,
        fields={"position_resampling": "bicubic-plain"},
        mean=HALF,
        std=HALF,
        resize="stretch",
        describe=describe_siglip,
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
        arguments=clip_arguments,
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
        arguments=dinov3_arguments,
        resize="stretch",
        describe=describe_dinov3,
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
        arguments=dinov3_arguments,
        resize="stretch",
    ),
)


_NOT_OPENED = {  # by Hugging Face's model_type, and what can be used instead
    "siglip2": "takes images of any shape (NaFlex) and cannot be opened; SigLIP2 of a fixed size can, such as "
    "google/siglip2-base-patch16-224",
    "aimv2": "has RMSNorm and cannot be opened; SigLIP2 or DINOv3 of the same size can",
    "radio": "has positions that are cropped from a larger table and cannot be opened; DINOv3 or SigLIP2 can",
    "sapiens2": "has fewer heads of keys than of queries and cannot be opened; DINOv3 can",
    "dinov3_convnext": "is a ConvNeXt and cannot be opened; DINOv3's Vision Transformers can",
    "tipsv2": "in Hugging Face's layout cannot be opened; timm's vit_*_tipsv2 can",
}


def read_encoder(raw: RawCheckpoint) -> ParsedCheckpoint | None:
    kind = (raw.config or {}).get("model_type")
    if isinstance(kind, str) and (instead := _NOT_OPENED.get(kind.removesuffix("_vision_model"))):
        raise UserError(f"{raw.where}: a model of type {kind!r} {instead}.")
    for encoder in ENCODERS:
        if encoder.by_type and kind not in encoder.model_types:
            continue
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
