"""How alike the attention of different queries, heads and depths is.

As in Park et al., "What Do Self-Supervised Vision Transformers Learn?". All measures look at attention among patches:
class token and registers have no place on the image, so they are left out as queries, and what a patch gives to them
is shared among the patches in proportion. Letters in shapes: B images, h heads, T tokens, N patches, L layers.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def patch_attention(attention: Tensor, prefix: int) -> Tensor:
    """(B, h, N, N): attention (B, h, T, T) among patches, without the `prefix` tokens before them.

    Rows sum to 1; that of a patch which attends to none but those tokens is 0.
    """
    patches = attention[:, :, prefix:, prefix:]
    return patches / patches.sum(dim=-1, keepdim=True).clamp_min(torch.finfo(patches.dtype).tiny)


def mutual_information(attention: Tensor) -> Tensor:
    """(B, h): normalised mutual information I(q, k) / sqrt(H(q) H(k)) of queries and keys, 0 to 1.

    attention: (B, h, N, N), read as p(k | q), with p(q) = 1/N. 0: all queries look at the same places, wherever those
    are; 1: each looks at a place of its own.
    """
    conditional = torch.special.entr(attention).sum(dim=-1).mean(dim=-1)  # H(k | q)
    keys = torch.special.entr(attention.mean(dim=-2)).sum(dim=-1)  # H(k)
    queries = torch.tensor(attention.shape[-2], dtype=attention.dtype).log()  # H(q)
    scale = (queries * keys).sqrt()
    # One place that all look at leaves nothing to share: no information, not 0/0.
    return torch.where(scale > 0, (keys - conditional).clamp_min(0) / scale.clamp_min(1e-12), 0.0)


def mean_cosine(vectors: Tensor) -> Tensor:
    """(...): the mean cosine similarity of all pairs of different rows of (..., N, D); 1 where there is one row only.

    The rows' squared sum has every pair twice and every row with itself, so that no N x N table is needed.
    """
    count = vectors.shape[-2]
    if count == 1:
        return vectors.new_ones(vectors.shape[:-2])
    total = F.normalize(vectors, dim=-1).sum(dim=-2).square().sum(dim=-1)
    return (total - count) / (count * (count - 1))


def head_similarity(attention: Tensor) -> Tensor:
    """(B,): the mean cosine similarity of two heads' attention (B, h, N, N)."""
    return mean_cosine(attention.flatten(2))


def query_similarity(attention: Tensor) -> Tensor:
    """(B, h): the mean cosine similarity of two queries' attention, that is between places of the image."""
    return mean_cosine(attention)


def depth_similarity(attention: Tensor) -> Tensor:
    """(B, L, L): cosine similarity of the layers' attention, each the mean of its heads; attention: (B, L, N, N)."""
    unit = F.normalize(attention.flatten(2), dim=-1)
    return unit @ unit.transpose(1, 2)
