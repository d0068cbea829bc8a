"""The Vision Transformer, top to bottom as in "An Image is Worth 16x16 Words", equations 1 to 4.

Parameter names follow timm's. Letters in shapes: B images, C channels, H x W pixels, P patch side, N patches,
T tokens (class token, its like and registers, then patches), D width, h heads, d = D/h, K classes.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.arguments import Seed, checked
from vitreous.config.model import ViTConfig, grid_of, preset
from vitreous.config.vit_check import check_image_size
from vitreous.errors import UserError
from vitreous.model.attention_window import window_of
from vitreous.model.convolution import check_images
from vitreous.model.family import check_weights_fit
from vitreous.model.initialise import Linear, initialise
from vitreous.model.keyed_random import keyed_uniform
from vitreous.model.layers import MLP, QKV, AttentionPool, LayerScale, PatchProjection, PreLogits, drop_branch
from vitreous.model.merge import Merging
from vitreous.model.neighbourhood import attend_within
from vitreous.model.network import LeavesPatchesOut, Network, Outputs, require
from vitreous.model.position import (
    Grid,
    Layout,
    RelativeBias,
    draw_cells,
    learned_2d,
    resample_grid,
    resample_state,
    sincos_like,
    take_cells,
)
from vitreous.model.rope import rotation_of
from vitreous.model.trace import Trace

PATCHES, BLOCKS = 0, 1  # streams of `keyed_uniform`: patch dropout; stochastic depth of block 0, of block 1, ...


class ViT(Network):
    """A Vision Transformer: `ViT("B/16", classes=10)`, or `ViT(config)`.

    Weights are drawn as in the paper's code, from `seed` alone (None: left undefined, to be loaded). The classifier
    starts at zero.
    """

    config: ViTConfig
    embedding = ("patch_embed", "cls_token", "dist_token", "reg_token", "pos_embed", "norm_pre")
    hidden_classifier = ("pre_logits.",)
    undecayed = ("_token", "latent", "pos_embed", "pos_embed_y", "pos_embed_x", "relative_position_bias_table")

    @checked
    def __init__(self, model: str | ViTConfig = "B/16", *, seed: Seed | None = 0, **overrides: Any) -> None:
        super().__init__()
        if isinstance(model, ViTConfig) and overrides:
            raise UserError(
                f"{next(iter(overrides))}: change fields of a config with dataclasses.replace(config, ...)."
            )
        self.config = c = preset(model, **overrides) if isinstance(model, str) else model
        if torch.get_default_device().type != "meta":
            check_weights_fit(c)

        self.patch_embed = PatchProjection(c)
        self.cls_token = nn.Parameter(torch.empty(1, 1, c.width)) if c.class_token else None
        self.dist_token = nn.Parameter(torch.empty(1, 1, c.width)) if c.distilled else None
        self.reg_token = nn.Parameter(torch.empty(1, c.registers, c.width)) if c.registers else None
        if c.position == "learned-1d":
            self.pos_embed = nn.Parameter(torch.empty(1, c.prefix_positions + c.patches, c.width))
        elif c.position == "learned-2d":
            self.pos_embed_y = nn.Parameter(torch.empty(c.grid[0], c.width // 2))
            self.pos_embed_x = nn.Parameter(torch.empty(c.grid[1], c.width // 2))

        self.norm_pre = nn.LayerNorm(c.width, c.norm_eps) if c.norm_pre else nn.Identity()
        self.blocks = nn.ModuleList(Block(c, c.drop_path * i / max(1, c.depth - 1), layer=i) for i in range(c.depth))

        norm_tokens = c.norm == "before" and c.final_norm and not c.norm_after_pool
        self.norm = nn.LayerNorm(c.width, c.norm_eps) if norm_tokens else nn.Identity()
        self.attn_pool = AttentionPool(c) if c.pool == "attention" else None
        self.fc_norm = nn.LayerNorm(c.width, c.norm_eps) if c.norm_after_pool else nn.Identity()
        self.pre_logits = PreLogits(c.features) if c.classifier == "mlp" else nn.Identity()
        self.head = Linear(c.features, c.classes) if c.classes else nn.Identity()
        self.projection = Linear(c.features, c.projection, bias=False) if c.projection else None
        self.head_dist = Linear(c.width, c.classes) if c.classes and c.distilled else None
        if seed is not None:
            initialise(self, seed)

    def outputs(
        self, images: Tensor, *, keys: Tensor | None = None, keep_ids: Tensor | None = None, trace: Trace | None = None
    ) -> Outputs:
        """The representation y (B, D), and the logits (B, K); without a classifier y again, or what it is projected to.

        images: (B, C, H, W) float, normalised; any H and W that the patch divides.
        keys: (B,) int64 from which patch dropout and stochastic depth are drawn; None: torch's generator.
        keep_ids: (B, M) indices of the patches to look at; the others are never computed.
        """
        z, layout = self.embed(images, keep_ids, keys)
        z = self.encode(z, layout, trace, self.config.tokens_read, keys)
        y = self.pool(z, trace)
        if self.head_dist is not None:  # each classifier reads a token of its own
            read, second = z[:, 0], z[:, 1]
            logits = (self.head(read) + self.head_dist(second)) / 2
        else:
            read, second = self.pre_logits(y), None
            logits = self.head(read) if self.projection is None else self.projection(y)
        if trace is not None:
            trace.pre_logits, trace.pre_logits_dist = read, second
        return Outputs(y, logits)

    def embed(
        self, images: Tensor, keep_ids: Tensor | None = None, keys: Tensor | None = None
    ) -> tuple[Tensor, Layout]:
        """Equation 1: z_0 = [x_class; x_1 E; ...; x_N E] + E_pos, (B, T, D), and how the tokens lie on the image."""
        if keep_ids is not None:
            require(self, LeavesPatchesOut, "keep_ids")  # a hybrid cannot
        patches, grid = self.patchify(images)
        if keep_ids is None and self.training and (dropped := self.config.patch_dropout):
            uniform = None if keys is None else keyed_uniform(keys, PATCHES, grid[0] * grid[1])
            keep_ids = draw_cells(len(patches), grid, 1 - dropped, uniform).to(patches.device)
        if keep_ids is not None:
            patches = take_cells(patches, keep_ids)
        return self.place(self.patch_embed(patches), grid, keep_ids)

    def place(self, z: Tensor, grid: Grid, keep_ids: Tensor | None = None) -> tuple[Tensor, Layout]:
        """What is left of equation 1 after x E, (B, N, D) or of `keep_ids`: positions and the other tokens."""
        cells = self.cell_positions(grid)
        if cells is not None:
            # not cells[keep_ids]: its gradient is added up in another order each time, where there are several threads
            z = z + (cells if keep_ids is None else take_cells(cells.expand(len(keep_ids), -1, -1), keep_ids))
        if self.config.prefix:
            z = torch.cat([self.prefix_tokens().expand(z.shape[0], -1, -1), z], dim=1)
        z = self.norm_pre(F.dropout(z, self.config.dropout, self.training))
        return z, Layout(grid, self.config.prefix, keep_ids, rotation_of(self.config, grid, keep_ids, z.device))

    def encode(
        self,
        z: Tensor,
        layout: Layout,
        trace: Trace | None = None,
        read: int | None = None,
        keys: Tensor | None = None,
    ) -> Tensor:
        """Equations 2 and 3 for L blocks, then the final norm: (B, T, D).

        read: only the first so many tokens of the result are wanted. The last block then computes those alone, which
        saves most of its work and changes nothing in them. A trace sees all tokens.
        Tokens that were merged on the way are given apart again, each as what they became: so a mean counts all.
        """
        c, depth, merging = self.config, len(self.blocks), None
        if c.merge:
            counts = c.merges(z.shape[1] - layout.prefix)
            merging = Merging(
                layout.prefix, counts, tracked=read is None or trace is not None, rotation=layout.rotation
            )
        if trace is not None:
            trace.check(depth)
            trace.embedded, trace.grid, trace.prefix, trace.keep_ids = z, layout.grid, layout.prefix, layout.keep_ids
        keys = keys if self.training and c.drop_path else None  # of stochastic depth
        for layer, block in enumerate(self.blocks):
            uniform = None if keys is None else keyed_uniform(keys, BLOCKS + layer, 2)
            if trace is not None and trace.wants(layer, depth):
                record = partial(trace.record_attention, layer) if trace.explicit(layer) else None
                z = block(z if merging is None else merging.undo(z), layout, None, record, uniform, merging)
                if trace.wants_tokens:
                    trace.record_tokens(layer, z)
            else:
                z = block(z, layout, read if layer == depth - 1 else None, None, uniform, merging)
            if trace is not None and merging is not None and (groups := merging.groups()) is not None:
                trace.groups[layer] = groups
        z = self.norm(z)
        return z if merging is None or read is not None else merging.undo(z)

    def pool(self, z: Tensor, trace: Trace | None = None) -> Tensor:
        """Equation 4: y, (B, D), of the encoded tokens: the class token, or what the config's `pool` makes of them."""
        if self.config.pool == "class":
            y = z[:, :2].mean(dim=1) if self.config.distilled else z[:, 0]
        elif self.attn_pool is not None:
            y, attention = self.attn_pool(z if self.config.pool_prefix else z[:, self.config.prefix :])
            if trace is not None:
                trace.pool_attention = attention
        else:
            y = z[:, self.config.prefix :].mean(dim=1)
            if self.config.pool == "class+mean":
                y = torch.cat([z[:, 0], y], dim=1)
        return self.fc_norm(y)

    def patchify(self, images: Tensor) -> tuple[Tensor, Grid]:
        """Flattened patches (B, N, C*P*P), row by row, and their grid; of a hybrid, of the stem's feature map."""
        c, p = self.config, self.config.patch
        check_images(images, c.channels)
        check_image_size((images.shape[2], images.shape[3]), p, c.pad)
        if c.pad:
            images = F.pad(images, (0, -images.shape[3] % p, 0, -images.shape[2] % p))
        rows, columns = images.shape[2] // p, images.shape[3] // p
        seen = images if self.patch_embed.backbone is None else self.patch_embed.backbone(images)
        channels, side = c.kernel
        patches = seen.reshape(-1, channels, rows, side, columns, side)
        patches = patches.permute(0, 2, 4, 1, 3, 5)  # (B, rows, columns, C, P, P)
        return patches.reshape(-1, rows * columns, channels * side * side), (rows, columns)

    def cell_positions(self, grid: Grid) -> Tensor | None:
        """E_pos of the patches, (N, D), for a grid of any shape; None where positions are not added to the tokens."""
        c = self.config
        if c.position == "learned-1d":
            return resample_grid(self.pos_embed[0, c.prefix_positions :], c.grid, grid, c.position_resampling)
        if c.position == "learned-2d":
            return learned_2d(self.pos_embed_y, self.pos_embed_x, grid, c.position_resampling)
        if c.position == "sincos-2d":
            return sincos_like(self.patch_embed.proj.weight, grid, c.width, c.sincos_grid or c.grid)
        return None

    def prefix_tokens(self) -> Tensor:
        """The class token and the others with their positions, (1, prefix, D)."""
        kinds = (self.cls_token, self.dist_token, self.reg_token)
        tokens = torch.cat([token for token in kinds if token is not None], dim=1)
        if placed := self.config.prefix_positions:
            tokens = torch.cat([tokens[:, :placed] + self.pos_embed[:, :placed], tokens[:, placed:]], dim=1)
        return tokens

    def with_merge(self, merge: int) -> ViT:
        twin = copy(self)
        twin.config = replace(self.config, merge=merge)
        return twin

    def patch_grid(self, size: tuple[int, int]) -> Grid:
        return grid_of(size, self.config.patch)

    def output_tokens(self) -> slice:
        """The class token (and DeiT's second), if the representation is read from it; else all patches."""
        c = self.config
        return slice(0, 1 + int(c.distilled)) if c.pool.startswith("class") else slice(c.prefix, None)

    def layers(self) -> list[nn.Module]:
        return list(self.blocks)

    transformer_blocks = layers

    def classifiers(self) -> list[nn.Linear]:
        return [layer for layer in (self.head, self.head_dist, self.projection) if isinstance(layer, nn.Linear)]

    def lora_targets(self) -> list[nn.Linear]:
        """q, k and v of each block, one above the other."""
        return [block.attn.qkv for block in self.blocks if isinstance(block, Block)]

    @classmethod
    def resize(cls, state: dict[str, Tensor], config: ViTConfig, size: tuple[int, int]) -> dict[str, Tensor]:
        return resample_state(state, config, size)[0]


class Block(nn.Module):
    """Equations 2 and 3: attention, then MLP, each in a residual branch with its LayerNorm."""

    def __init__(self, c: ViTConfig, drop_path: float, layer: int = 0) -> None:
        super().__init__()
        self.norm_first = c.norm == "before"
        self.drop_path = drop_path
        self.norm1 = nn.LayerNorm(c.width, c.norm_eps)
        self.attn = Attention(c, layer)
        self.ls1 = LayerScale(c.width) if c.layer_scale is not None else nn.Identity()
        self.norm2 = nn.LayerNorm(c.width, c.norm_eps)
        self.mlp = MLP(c)
        self.ls2 = LayerScale(c.width) if c.layer_scale is not None else nn.Identity()

    def forward(
        self,
        z: Tensor,
        layout: Layout,
        read: int | None = None,
        record: Callable[[Tensor], None] | None = None,
        uniform: Tensor | None = None,
        merging: Merging | None = None,
    ) -> Tensor:
        """(B, T, D) to (B, T, D), or to (B, read, D); to fewer tokens where `merging` merges some.

        uniform: (B, 2) in [0, 1) that decides on stochastic depth of the two branches; None: torch's generator.
        """
        first, rate = self.norm_first, self.drop_path if self.training else 0.0
        one, two = (None, None) if uniform is None else uniform.unbind(dim=1)
        attended = self.attn(self.norm1(z) if first else z, layout, read, record, merging)
        z = z[:, :read] + drop_branch(self.ls1(attended), rate, one)
        z = z if first else self.norm1(z)
        z = z if merging is None else merging.merge(z)
        z = z + drop_branch(self.ls2(self.mlp(self.norm2(z) if first else z)), rate, two)
        return z if first else self.norm2(z)


class Attention(nn.Module):
    """Multi-head self-attention, MSA of equation 2: softmax(q k^T / sqrt(d)) v for each head."""

    def __init__(self, c: ViTConfig, layer: int = 0) -> None:
        super().__init__()
        self.heads, self.dropout, self.window = c.heads, c.dropout, window_of(c, layer)
        self.qkv = QKV(c)
        self.q_norm = nn.LayerNorm(c.width // c.heads, c.norm_eps) if c.qk_norm else nn.Identity()
        self.k_norm = nn.LayerNorm(c.width // c.heads, c.norm_eps) if c.qk_norm else nn.Identity()
        self.rel_pos = RelativeBias(c.heads, c.grid, c.position_resampling) if c.position == "relative" else None
        self.norm = nn.LayerNorm(c.width, c.norm_eps) if c.attention_norm else nn.Identity()
        self.proj = Linear(c.width, c.width)

    def forward(
        self,
        x: Tensor,
        layout: Layout,
        read: int | None = None,
        record: Callable[[Tensor], None] | None = None,
        merging: Merging | None = None,
    ) -> Tensor:
        """(B, T, D) to (B, T, D) or (B, read, D). `record` receives the attention (B, h, T, T), `merging` the keys."""
        q, k, v = (part.view(*part.shape[:2], self.heads, -1) for part in self.qkv.split(x, read))  # each (B, T, h, d)
        q, k = self.q_norm(q), self.k_norm(k)
        bias = None if self.rel_pos is None else self.rel_pos(layout)[:, :, :read].to(q.dtype)
        rotation = layout.rotation
        if merging is not None:
            merging.watch(k)
            bias, rotation = merging.bias(q.dtype), merging.current_rotation()
        if rotation is not None:
            q, k = rotation.turn(q, read), rotation.turn(k)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        out, attention = attend_within(self.window, layout, q, k, v, bias, explicit=record is not None)
        if record is not None and attention is not None:
            record(attention)
        return F.dropout(self.proj(self.norm(out)), self.dropout, self.training)
