"""The other Vision Transformers that ours is measured against, each built for its best speed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import torchvision_on_cpu  # noqa: F401  (before transformers)
from vitreous import ViT, ViTConfig


def ours(c: ViTConfig) -> nn.Module:
    return ViT(c)


def ours_half_the_patches(c: ViTConfig) -> nn.Module:
    return ViT(replace(c, patch_dropout=0.5))


def transformers_vit(c: ViTConfig) -> nn.Module:
    """`transformers`' ViT with fused attention."""
    import transformers

    fields: dict[str, Any] = {
        "hidden_size": c.width,
        "num_hidden_layers": c.depth,
        "num_attention_heads": c.heads,
        "intermediate_size": c.mlp_width,
        "image_size": c.image_size,
        "patch_size": c.patch,
        "num_channels": c.channels,
        "layer_norm_eps": c.norm_eps,
        "num_labels": c.classes,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "attn_implementation": "sdpa",
    }
    return _Logits(transformers.ViTForImageClassification(transformers.ViTConfig(**fields)))


class _Logits(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(images).logits
        return logits


class TorchEncoderViT(nn.Module):
    """A ViT around PyTorch's own `nn.TransformerEncoder`, which has a fused path of its own for inference."""

    def __init__(self, c: ViTConfig) -> None:
        super().__init__()
        self.proj = nn.Conv2d(c.channels, c.width, c.patch, c.patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, c.width))
        self.pos_embed = nn.Parameter(torch.randn(1, 1 + c.patches, c.width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            c.width, c.heads, c.mlp_width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, c.depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(c.width, c.norm_eps)
        self.head = nn.Linear(c.width, c.classes)

    def forward(self, images: Tensor) -> Tensor:
        z = self.proj(images).flatten(2).transpose(1, 2)
        z = torch.cat([self.cls_token.expand(len(z), -1, -1), z], dim=1) + self.pos_embed
        scores: Tensor = self.head(self.norm(self.encoder(z)[:, 0]))
        return scores


CONTENDERS = {
    "vitreous": ours,
    "transformers": transformers_vit,
    "nn.TransformerEncoder": TorchEncoderViT,
}
