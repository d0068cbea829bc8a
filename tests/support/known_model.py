"""A model whose attention is known: all tokens attend to bright patches, to each alike, and to no others."""

import torch

from vitreous import ViT, ViTConfig


def bright_model(image_size, patch=4, **changes):
    """One layer; a token's first channel says whether its patch is brighter than middle grey."""
    config = ViTConfig(
        **{
            "width": 8,
            "depth": 1,
            "heads": 2,
            "mlp_width": 8,
            "patch": patch,
            "image_size": image_size,
            "classes": 2,
            "position": "none",
            **changes,
        }
    )
    model = ViT(config, seed=None).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        for name, parameter in model.named_parameters():
            if "norm" in name and name.endswith("weight"):
                parameter.fill_(1)
        for channel, sign in ((0, 1), (1, -1), (4, 1), (5, -1)):
            model.patch_embed.proj.weight[channel] = sign / model.patch_embed.proj.weight[channel].numel()
        attention = model.blocks[0].attn
        for head in (0, 1):
            attention.qkv.bias[4 * head] = 100  # every query asks, in each head, for what
            attention.qkv.weight[8 + 4 * head, 4 * head] = 1  # bright patches have in its first channel
    return model
