"""The way of one image through the model, every quantity of it: what the paper's equations 1 to 4 make of it.

Letters in shapes: C channels, P patch side, N patches, T tokens (class token and its like, then patches), D width,
h heads, d = D/h, L layers, K classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.config.model import ViTConfig
from vitreous.errors import UserError
from vitreous.explain.attention import attention_sinks
from vitreous.model.layers import split_heads
from vitreous.model.neighbourhood import window_mask
from vitreous.model.position import Grid, Layout
from vitreous.model.predictions import class_probabilities
from vitreous.model.trace import Trace
from vitreous.model.vit import Attention, Block, ViT

Numbers = NDArray[np.float32]


@dataclass(frozen=True)
class Steps:
    """What was computed on the way; the followed patch is one of many, the asking token and the head too."""

    config: ViTConfig
    grid: Grid
    cell: int  # the patch that is followed, counted row by row
    layer: int  # the block that is opened, from 0
    head: int
    query_token: int
    """The token whose query is shown: 0 for the class token, `prefix` + a patch's number for that patch."""

    patch: Numbers  # (C, P, P) the patch, as the model is given it
    projected: Numbers  # (D,) x E: the patch after the linear projection
    class_token: Numbers | None  # (D,) x_class, learned, before its position is added
    class_position: Numbers | None  # (D,) what is added to it, where it has a position
    position: Numbers | None  # (D,) E_pos of the followed patch; None where positions are not added to tokens
    token: Numbers  # (D,) of z_0: the patch's token
    query_embedding: Numbers  # (D,) of z_0: the query token's

    before: Numbers  # (D,) the query token as it enters the block, z of the layer before
    normed: Numbers  # (D,) after LayerNorm, or `before` itself where the norm comes after the sum
    query: Numbers  # (d,) the query token's q in this head
    keys: Numbers  # (T, d) k of all tokens
    values: Numbers  # (T, d) v of all tokens
    products: Numbers  # (T,) q k^T
    attention_logits: Numbers  # (T,) q k^T / sqrt(d), with the relative bias where the model has one
    bias: Numbers | None  # (T,) that bias
    seen: Numbers | None
    """(T,) 1 for the tokens that the query token may attend to, 0 for the others; None where it may attend to all."""
    weights: Numbers  # (T,) softmax of the logits of those
    summed: Numbers  # (d,) the values, weighted and added
    heads: Numbers  # (h, T) the weights of all heads
    attended: Numbers  # (D,) what attention adds: the heads joined, projected, and scaled where there is a LayerScale
    middle: Numbers  # (D,) z' of equation 2
    mlp: Numbers  # (D,) what the MLP adds
    after: Numbers  # (D,) z of equation 3: the query token as it leaves the block

    layers: Numbers  # (L, T) the query token's weights in every layer, the mean of the heads
    sinks: NDArray[np.bool_]  # (L, N) which patches are attention sinks in every layer
    pooled: Numbers | None  # (h, N) weights of attention pooling, where the model has it
    representation: Numbers  # (D,) y of equation 4; (2 D,) where the class token and the mean stand side by side
    logits: Numbers | None  # (K,) of the classes; None without a classifier
    probabilities: Numbers | None  # (K,) their softmax

    def name_of(self, token: int) -> str:
        """What a token is called in a sentence."""
        c = self.config
        if token >= c.prefix:
            row, column = divmod(token - c.prefix, self.grid[1])
            return f"patch {token - c.prefix + 1} (row {row + 1}, column {column + 1})"
        names = ["the class token"] * c.class_token + ["the distillation token"] * c.distilled
        return [*names, *(f"register {i + 1}" for i in range(c.registers))][token]


def follow(model: ViT, image: Tensor, *, cell: int | None = None, layer: int = -1, head: int = 0) -> Steps:
    """Everything that happens to one image (1, C, H, W), normalised.

    cell: the patch to follow, which is then also the query token; if None, the middle one is followed, and the class
        token is the query token if the prediction is read from it.
    The equations know no merging of tokens, so nothing is merged here, whatever the model does else.
    layer, head: which block is opened, and which of its heads is looked at; from the end if negative.
    """
    model = model.with_merge(0)
    c = model.config
    Trace([layer]).check(c.depth)
    if not -c.heads <= head < c.heads:
        raise UserError(f"head {head}: the model has heads 0 to {c.heads - 1}.")
    head %= c.heads
    with torch.inference_mode():
        z, layout = model.embed(image)
        rows, columns = layout.grid
        followed = rows // 2 * columns + columns // 2 if cell is None else cell
        query_token = 0 if cell is None and c.pool.startswith("class") else c.prefix + followed
        chosen, found = layer % c.depth, {}
        seen: list[Tensor] = []
        sinks: list[Tensor] = []

        def record(attention: Tensor) -> None:  # (1, h, T, T)
            seen.append(attention[0, :, query_token].mean(dim=0))
            sinks.append(attention_sinks(attention, c.prefix)[0])

        for number, block in enumerate(model.blocks):
            assert isinstance(block, Block)
            if number == chosen:
                found = _opened(block, z, layout, query_token, head)
            z = block(z, layout, record=record)
        found |= _embedding(model, image, followed, query_token)
        found |= _classification(model, image)
    numbers: dict[str, Any] = {name: None if tensor is None else tensor.cpu().numpy() for name, tensor in found.items()}
    return Steps(
        config=c,
        grid=layout.grid,
        cell=followed,
        layer=chosen,
        head=head,
        query_token=query_token,
        layers=torch.stack(seen).cpu().numpy(),
        sinks=torch.stack(sinks).cpu().numpy(),
        **numbers,
    )


def _embedding(model: ViT, image: Tensor, cell: int, query_token: int) -> dict[str, Tensor | None]:
    """Equation 1 for one patch, and the class token."""
    c = model.config
    patches, grid = model.patchify(image)
    cells = model.cell_positions(grid)
    z, _ = model.embed(image)
    has_place = model.cls_token is not None and c.prefix_positions > 0
    return {
        "patch": patches[0, cell].view(c.channels, c.patch, c.patch),
        "projected": model.patch_embed(patches[:, cell])[0],
        "class_token": None if model.cls_token is None else model.cls_token.detach()[0, 0],
        "class_position": model.pos_embed.detach()[0, 0] if has_place else None,
        "position": None if cells is None else cells[cell].detach(),
        "token": z[0, c.prefix + cell],
        "query_embedding": z[0, query_token],
    }


def _opened(block: Block, z: Tensor, layout: Layout, query_token: int, head: int) -> dict[str, Tensor | None]:
    """Equations 2 and 3 for one token, and within them one head."""
    x = block.norm1(z) if block.norm_first else z  # (1, T, D)
    found = _attention(block.attn, x, layout, query_token, head)
    own, joined = z[0, query_token], found.pop("joined")
    attended = block.ls1(block.attn.proj(block.attn.norm(joined)))
    middle = own + attended if block.norm_first else block.norm1(own + attended)
    mlp = block.ls2(block.mlp(block.norm2(middle) if block.norm_first else middle))
    after = middle + mlp if block.norm_first else block.norm2(middle + mlp)
    return {
        "before": own,
        "normed": x[0, query_token],
        **found,
        "attended": attended,
        "middle": middle,
        "mlp": mlp,
        "after": after,
    }


def _attention(attn: Attention, x: Tensor, layout: Layout, query_token: int, head: int) -> dict[str, Tensor | None]:
    """Queries, keys and values of one head, and the weights of all."""
    q, k, v = (split_heads(part, attn.heads)[0] for part in attn.qkv(x).chunk(3, dim=2))  # each (h, T, d)
    q, k = attn.q_norm(q), attn.k_norm(k)
    if (rotation := layout.rotation) is not None:
        q, k = (rotation.turn(part.transpose(0, 1)[None])[0].transpose(0, 1) for part in (q, k))
    products = (q[:, query_token, None] @ k.transpose(1, 2))[:, 0]  # (h, T)
    bias = None if attn.rel_pos is None else attn.rel_pos(layout)[0, :, query_token]
    attention_logits = products / q.shape[2] ** 0.5
    attention_logits = attention_logits if bias is None else attention_logits + bias
    seen = None if attn.window.covers(layout.grid) else window_mask(attn.window, layout)[0, 0, query_token]
    weights = (attention_logits if seen is None else attention_logits.masked_fill(~seen, float("-inf"))).softmax(dim=1)
    summed = (weights[:, None] @ v)[:, 0]  # (h, d)
    return {
        "query": q[head, query_token],
        "keys": k[head],
        "values": v[head],
        "products": products[head],
        "bias": None if bias is None else bias[head],
        "attention_logits": attention_logits[head],
        "seen": None if seen is None else seen.float(),
        "weights": weights[head],
        "summed": summed[head],
        "heads": weights,
        "joined": summed.flatten(),
    }


def _classification(model: ViT, image: Tensor) -> dict[str, Tensor | None]:
    """Equation 4, and the classes."""
    trace = Trace((), tokens=False)
    (y,), (logits,) = model.outputs(image, trace=trace)
    pooled = None if trace.pool_rows is None else trace.pool_rows[0]
    if not model.config.classes:
        return {"pooled": pooled, "representation": y, "logits": None, "probabilities": None}
    return {"pooled": pooled, "representation": y, "logits": logits, "probabilities": class_probabilities(logits)}
