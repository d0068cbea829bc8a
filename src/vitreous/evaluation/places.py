"""What a classifier says of the places of an image, where it was trained to say one thing of the whole.

Letters: B images, h x w = N places, T tokens, D width, K classes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.errors import UserError
from vitreous.model.network import HasFeatureMap, Network
from vitreous.model.trace import Trace
from vitreous.model.vit import Block, ViT


@torch.inference_mode()
def place_scores(network: Network, images: Tensor) -> Tensor:
    """(B, h, w, K): what the classifier says where it reads one patch, or one cell of a feature map, instead of all.

    images: (B, C, H, W) float, normalised. The network should be in evaluation mode.
    """
    if isinstance(network, ViT):
        return _of_patches(network, images)
    if isinstance(network, HasFeatureMap):
        cells = network.feature_map(images)  # (B, D, h, w)
        batch, _, rows, columns = cells.shape
        alone = cells.permute(0, 2, 3, 1).flatten(0, 2)[:, :, None, None]  # each a map of one cell, which pools to it
        return network.classify(alone).view(batch, rows, columns, -1)
    raise UserError(
        f"token labels: need a teacher with patches or a feature map; a network of the family "
        f"{network.config.family!r} has neither. Use a Vision Transformer or a convolutional network."
    )


def _of_patches(network: ViT, images: Tensor) -> Tensor:
    """Of patches that are pooled in the end: each by itself. Else the class token attends to each in the last block.

    A classifier of class tokens cannot read patch tokens: of ViT-Ti/16's, 6 in 100 say what the class token says, and
    35 in 100 where it attends to them one by one, more of those in the middle (docs/teachers.md).
    """
    c, trace = network.config, Trace(layers=[-1, -2][: network.config.depth], attention=False)
    network(images, trace=trace)
    if c.pool == "class":
        before = trace.embedded if c.depth == 1 else trace.tokens[c.depth - 2]
        assert before is not None
        block = network.blocks[-1]
        assert isinstance(block, Block)
        first = before[:, : 2 if c.distilled else 1]  # registers say nothing of their own
        seen = network.norm(_attend_alone(block, first, before[:, c.prefix :]).flatten(0, 1))
    else:
        tokens = network.norm(trace.tokens[c.depth - 1])
        first, patches = tokens[:, None, : c.prefix], tokens[:, c.prefix :, None]
        seen = torch.cat([first.expand(-1, patches.shape[1], -1, -1), patches], dim=2).flatten(0, 1)
    if network.head_dist is not None:
        scores: Tensor = (network.head(seen[:, 0]) + network.head_dist(seen[:, 1])) / 2
    else:
        scores = network.head(network.pre_logits(network.pool(seen)))
    return scores.view(len(images), *trace.grid, -1)


def _attend_alone(block: Block, first: Tensor, patches: Tensor) -> Tensor:
    """(B, N, T, D): tokens (B, T, D) after a block in which each attends to one of the patches (B, N, D), for each.

    Equations 2 and 3; attention to a single token is its value, whatever queries and keys say.
    """
    read, width = block.norm1(patches) if block.norm_first else patches, patches.shape[2]
    value = F.linear(read, block.attn.qkv.weight[2 * width :], block.attn.qkv.bias[2 * width :])
    z = first[:, None] + block.ls1(block.attn.proj(value))[:, :, None]
    if block.norm_first:
        return z + block.ls2(block.mlp(block.norm2(z)))  # type: ignore[no-any-return]
    z = block.norm1(z)
    return block.norm2(z + block.ls2(block.mlp(z)))  # type: ignore[no-any-return]
