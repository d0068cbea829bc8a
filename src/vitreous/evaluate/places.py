"""What a classifier says of the places of a picture, where it was trained to say one thing of the whole.

Letters: B pictures, h x w places, D width, K classes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vitreous.errors import UserError
from vitreous.model.network import HasFeatureMap, Network
from vitreous.model.trace import Trace
from vitreous.model.vit import ViT


@torch.inference_mode()
def place_scores(network: Network, images: Tensor) -> Tensor:
    """(B, h, w, K): the classifier applied to each patch token, or to each cell of a feature map, by itself.

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
    """Each patch token takes the place of what the classifier reads: of the class token, or of all patches."""
    c, trace = network.config, Trace(layers=[-1], attention=False)
    network(images, trace=trace)
    (last,) = trace.tokens.values()
    tokens = network.norm(last)
    prefix, patches = tokens[:, : c.prefix], tokens[:, c.prefix :]
    batch, count = patches.shape[:2]
    if c.pool == "class":
        y = network.fc_norm(patches)
    else:
        others = prefix[:, None].expand(-1, count, -1, -1).flatten(0, 1)  # "class+mean" reads the class token too
        y = network.pool(torch.cat([others, patches.reshape(batch * count, 1, -1)], dim=1)).view(batch, count, -1)
    if network.head_dist is not None:
        scores: Tensor = (network.head(y) + network.head_dist(y)) / 2
    else:
        scores = network.head(network.pre_logits(y))
    return scores.view(batch, *trace.grid, -1)
