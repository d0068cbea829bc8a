"""What a classifier says of the places of a picture, where it was trained to say one thing of the whole.

Letters: B pictures, h x w = N places, T tokens, D width, K classes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vitreous.errors import UserError
from vitreous.model.network import HasFeatureMap, Network
from vitreous.model.position import Layout
from vitreous.model.trace import Trace
from vitreous.model.vit import ViT


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
    49 in 100 where it looks at them one by one (docs/log.md).
    """
    c, before = network.config, network.config.depth - 2
    trace = Trace(layers=[-1, -2][: c.depth], attention=False)
    network(images, trace=trace)
    if c.pool == "class":
        tokens = trace.embedded if before < 0 else trace.tokens[before]
        assert tokens is not None
        places = torch.arange(tokens.shape[1] - c.prefix, device=tokens.device).repeat(len(tokens))
        layout = Layout(trace.grid, c.prefix, places[:, None])
        seen: Tensor = network.norm(network.blocks[-1](_one_by_one(tokens, c.prefix), layout, read=c.tokens_read))
    else:
        seen = _one_by_one(network.norm(trace.tokens[c.depth - 1]), c.prefix)
    if network.head_dist is not None:
        scores: Tensor = (network.head(seen[:, 0]) + network.head_dist(seen[:, 1])) / 2
    else:
        scores = network.head(network.pre_logits(network.pool(seen)))
    return scores.view(len(images), *trace.grid, -1)


def _one_by_one(tokens: Tensor, prefix: int) -> Tensor:
    """(B*N, prefix + 1, D): class token and its like with each patch of tokens (B, T, D) alone."""
    first, patches = tokens[:, :prefix], tokens[:, prefix:]
    first = first[:, None].expand(-1, patches.shape[1], -1, -1)
    return torch.cat([first, patches[:, :, None]], dim=2).flatten(0, 1)
