"""What config.json says of an encoder, both ways: what the tensors do not tell, as `infer_vit_config` takes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitreous.arguments import shown
from vitreous.config.model import Mlp, ViTConfig
from vitreous.config.rope import Rope
from vitreous.errors import UserError
from vitreous.weights.checkpoint import RawCheckpoint

_ACTIVATIONS: dict[str, Mlp] = {
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu-tanh",
    "quick_gelu": "quick-gelu",
    "relu": "relu",
}
_ACTIVATION_NAMES = {name: theirs for theirs, name in _ACTIVATIONS.items()}
_DINOV3_HEADS = {1280: 20, 4096: 32}  # H+ and 7B, which have other heads than such widths elsewhere


def _activation(described: Mapping[str, Any], usual: str, raw: RawCheckpoint) -> Mlp:
    act = described.get("hidden_act") or usual
    if act not in _ACTIVATIONS:
        raise UserError(f"{raw.where}: config.json asks for hidden_act {shown(act)}, which is not known here.")
    return _ACTIVATIONS[act]


def clip_arguments(described: Mapping[str, Any], raw: RawCheckpoint) -> dict[str, Any]:
    # OpenAI's own files have these three numbers beside the weights, and QuickGELU
    usual = "quick_gelu" if described or "input_resolution" in raw.tensors else "gelu"
    return {
        "num_heads": described.get("num_attention_heads"),
        "img_size": described.get("image_size"),
        "norm_eps": described.get("layer_norm_eps", 1e-5),
        "mlp": _activation(described, usual, raw),
    }


def siglip_arguments(described: Mapping[str, Any], raw: RawCheckpoint) -> dict[str, Any]:
    if "classifier.weight" in raw.tensors:
        raise UserError(
            f"{raw.where}: a SiglipForImageClassification, whose classifier reads the mean of the patches beside an "
            "attention pooling, and cannot be opened; give the encoder that it was made from, or timm's siglip_gap_*."
        )
    return clip_arguments(described, raw) | {
        "norm_eps": described.get("layer_norm_eps", 1e-6),
        "mlp": _activation(described, "gelu_pytorch_tanh", raw),
    }


def dinov3_arguments(described: Mapping[str, Any], raw: RawCheckpoint) -> dict[str, Any]:
    periods = next((shape for name, shape in raw.shapes.items() if name.endswith("rope_embed.periods")), None)
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


def describe_clip(c: ViTConfig) -> dict[str, Any]:
    kind = "CLIPVisionModelWithProjection" if c.projection else "CLIPVisionModel"
    act = _ACTIVATION_NAMES.get(c.mlp)
    extra = {"architectures": [kind], "model_type": "clip_vision_model", "hidden_act": act}
    return {**_sizes(c), **extra, **({"projection_dim": c.projection} if c.projection else {})}


def describe_siglip(c: ViTConfig) -> dict[str, Any]:
    kind = {"architectures": ["SiglipVisionModel"], "model_type": "siglip_vision_model"}
    return {**_sizes(c), **kind, "hidden_act": _ACTIVATION_NAMES.get(c.mlp)}


def describe_dinov3(c: ViTConfig) -> dict[str, Any]:
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


def plain_arguments(described: Mapping[str, Any], raw: RawCheckpoint) -> dict[str, Any]:
    """Of Hugging Face's ViT and what has its names."""
    norms = ("layernorm.weight", "pooler.layernorm.weight")
    return {
        "num_heads": described.get("num_attention_heads"),
        "img_size": described.get("image_size"),
        "norm_eps": described.get("layer_norm_eps", 1e-12),
        "mlp": _activation(described, "gelu", raw),
        "init_values": described.get("layer_scale_init_value"),
        "final_norm": any(name.endswith(norms) for name in raw.tensors),
        "biases": "all" if any(name.endswith("key.bias") for name in raw.tensors) else "q+v",
    }
