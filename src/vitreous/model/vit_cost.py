"""What a Vision Transformer costs: parameters, operations and activation memory, counted from its configuration.

Counted part by part in the order of the paper's equations, without torch, so that asking is instant; the tests hold
the counts against real models, torch's own FLOP counter, and what autograd really keeps.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from vitreous.config.model import ViTConfig
from vitreous.config.stem import ResNetStem
from vitreous.model.attention_window import count_logits, tiles_of, window_of
from vitreous.model.conv_cost import ConvLayer, stem_layers
from vitreous.model.cost import NetworkCost


def vit_cost(c: ViTConfig, patch_fraction: float) -> NetworkCost:
    """patch_fraction: of the patches that are looked at, which `flops` follows."""
    T = c.prefix + c.patches - c.merges(c.patches)[0]
    forward = 2 * T * c.width + 2 * T * _mlp_hidden(c, c.mlp_width) + c.patches * c.channels * c.patch**2  # of an MLP
    if c.position == "relative":
        forward += 2 * c.heads * T * T
    largest = max(T * _mlp_hidden(c, c.mlp_width), *(layer.outputs * layer.positions for layer in _stem(c)), 0)
    return NetworkCost(_parameters(c), _flops(c, patch_fraction), _activation_bytes(c), 4 * forward, 4 * largest)


def _parameters(c: ViTConfig) -> int:
    D, rows, columns = c.width, *c.grid
    embedding = _dense(_patch_numbers(c), D) - (not c.patch_bias) * D + c.prefix * D
    embedding += sum(layer.kernels + layer.others for layer in _stem(c))
    positions = {
        "learned-1d": (c.prefix_positions + c.patches) * D,
        "learned-2d": (rows + columns) * (D // 2),
        "relative": c.depth * c.heads * ((2 * rows - 1) * (2 * columns - 1) + 3),
    }
    block = _dense(D, 3 * D) + _dense(D, D) + _mlp_parameters(c) + 4 * D
    if c.qkv_bias == "none":
        block -= 3 * D
    if c.attention_norm:
        block += 2 * D
    if c.layer_scale is not None:
        block += 2 * D
    if c.qk_norm:
        block += 4 * (D // c.heads)
    final = (
        (2 * D if c.norm == "before" and c.final_norm else 0) + (2 * D if c.norm_pre else 0) + c.features * c.projection
    )
    if c.pool == "attention":
        final += D + _dense(D, D) + _dense(D, 2 * D) + _dense(D, D) + 2 * D + _mlp_parameters(c, c.pool_mlp_width)
    if c.classifier == "mlp":
        final += _dense(c.features, c.features)
    if c.classes:
        final += _dense(c.features, c.classes) * (2 if c.distilled else 1)
    return embedding + positions.get(c.position, 0) + c.depth * block + final


def _flops(c: ViTConfig, patch_fraction: float) -> int:
    """Of the matrix products. The last block computes only what is read of it."""
    D, N = c.width, max(1, round(patch_fraction * c.patches))
    total = _product(N, _patch_numbers(c), D)
    total += sum(2 * layer.kernels * layer.positions for layer in _stem(c))
    for layer, (T, Q, M) in enumerate(_tokens(c, N)):
        total += _product(Q, D, D) + _product(T, D, 2 * D)  # q; k and v
        total += 4 * D * _logits(c, layer, Q, T - c.prefix)  # q k^T, and attention times v, over all heads
        total += _product(Q, D, D) + _mlp_flops(c, M)
        if M < Q:
            odd, even = (T - c.prefix) // 2, (T - c.prefix + 1) // 2
            total += _product(odd, D // c.heads, even) + _product(even, Q - M, D)  # which are alike; their means
            total += _product(even, Q - M, D // c.heads // 2) if c.rope is not None else 0  # where these are
    if c.pool == "attention":
        read = N + c.prefix * c.pool_prefix
        total += 2 * _product(1, D, D) + _product(read, D, 2 * D) + 2 * _product(1, D, read)
        total += _mlp_flops(c, 1, c.pool_mlp_width)
    if c.classifier == "mlp":
        total += _product(1, c.features, c.features)
    return total + _product(1, c.features, c.classes or c.projection) * (2 if c.distilled else 1)


def _activation_bytes(c: ViTConfig) -> int:
    """Within 2 % of what autograd keeps; with a relative bias, for want of fused attention, up to a quarter less."""
    D, h = c.width, c.heads
    saved = _saved_of_patches(c)
    for layer, (T, Q, M) in enumerate(_tokens(c, c.patches)):
        saved += 2 * T * D + _saved_of_attention(c, layer, Q, T)  # before and after norm 1
        saved += 2 * M * D + _MLP_SAVED[c.mlp] * M * c.mlp_width  # around norm 2; in the MLP
        saved += 2 * (M + T)  # mean and standard deviation of the norms
        if M < Q:
            saved += (T - c.prefix + 1) // 2 * (Q - M)  # which token takes in which
        if c.layer_scale is not None:
            saved += (Q + M) * D
        if c.qk_norm:
            saved += (Q + T) * D + 2 * h * (Q + T)
        elif c.rope is not None:  # turned queries and keys, beside the tensor that the values are part of
            saved += (Q + T if Q == T else T) * D
        if c.mlp_norm:
            saved += M * (c.mlp_width + 2)
        if c.attention_norm:
            saved += Q * (D + 2)
        if c.position == "relative":
            saved += h * Q * T
    saved += M * D  # of the last block
    if c.norm_pre:
        saved += (c.prefix + c.patches) * (D + 2)
    if c.pool == "attention":
        saved += 3 * c.patches * D
    return 4 * saved


def count_checkpointed_bytes(c: ViTConfig) -> int:
    """Bytes of one image that a training step keeps with activation checkpointing: the inputs of the blocks."""
    return 4 * (_saved_of_patches(c) + sum(tokens.entering for tokens in _tokens(c, c.patches)) * c.width)


_MLP_SAVED = {"gelu": 2, "gelu-tanh": 2, "quick-gelu": 3, "relu": 1, "swiglu": 4}
"""Numbers that are kept for each hidden unit: what goes into the activation, and what comes out."""


class _Tokens(NamedTuple):
    """How many tokens a block has."""

    entering: int
    queries: int  # that have a query: all, but in the last block only those that are read
    in_mlp: int  # that its MLP sees: those that have a query, less those that are merged


def _tokens(c: ViTConfig, patches: int) -> list[_Tokens]:
    """Of each block, for an image with so many patches."""
    found, left = [], c.prefix + patches
    for count in c.merges(patches):
        found.append(_Tokens(left, left, left - count))
        left -= count
    if c.tokens_read is not None:
        found[-1] = _Tokens(left, c.tokens_read, c.tokens_read)
    return found


def _patch_numbers(c: ViTConfig) -> int:
    channels, side = c.kernel
    return channels * side**2


def _padded_size(c: ViTConfig) -> tuple[int, int]:
    return c.grid[0] * c.patch, c.grid[1] * c.patch


def _logits(c: ViTConfig, layer: int, queries: int, patches: int) -> int:
    """Pairs of a query and a key that a block computes for one head.

    A bias, or patches left out, need the full matrix whatever the attention window.
    """
    if queries <= c.prefix or c.position == "relative" or patches < c.patches:
        return queries * (c.prefix + patches)
    return count_logits(window_of(c, layer), c.grid, c.prefix)


def _saved_of_patches(c: ViTConfig) -> int:
    """Numbers that are kept of one image before the first block: its patches, and what a stem keeps."""
    saved = c.patches * _patch_numbers(c) + sum(layer.saved for layer in _stem(c))
    if isinstance(c.stem, ResNetStem) and c.stem.depths:  # its last ReLU keeps the map itself too
        height, width = _padded_size(c)
        saved += c.stem.features * (height // c.stem.stride) * (width // c.stem.stride)
    return saved


def _stem(c: ViTConfig) -> list[ConvLayer]:
    return [] if c.stem is None else list(stem_layers(c.stem, c.channels, _padded_size(c)))


def _saved_of_attention(c: ViTConfig, layer: int, queries: int, tokens: int) -> int:
    """Numbers that a block's attention keeps of one image: q, k, v, what was read, and a sum for each query."""
    D, T, h = c.width, tokens, c.heads
    tiles = None if queries <= c.prefix or c.position == "relative" else tiles_of(window_of(c, layer), c.grid)
    full = (queries + 2 * T) * D
    if tiles is None:
        return full + queries * D + h * queries
    cut = math.prod(tiles.count) * (2 * tiles.queries * D + 2 * (tiles.keys + c.prefix) * D + h * tiles.queries)
    of_prefix = full + c.prefix * (D + h) if c.prefix else 0
    return cut + of_prefix + T * D


def _dense(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs


def _mlp_parameters(c: ViTConfig, hidden: int | None = None) -> int:
    units = hidden or c.mlp_width
    return _dense(c.width, _mlp_hidden(c, units)) + _dense(units, c.width) + (2 * units if c.mlp_norm else 0)


def _mlp_flops(c: ViTConfig, tokens: int, hidden: int | None = None) -> int:
    units = hidden or c.mlp_width
    return _product(tokens, c.width, _mlp_hidden(c, units)) + _product(tokens, units, c.width)


def _mlp_hidden(c: ViTConfig, units: int) -> int:
    return units * (2 if c.mlp == "swiglu" else 1)


def _product(rows: int, inner: int, columns: int) -> int:
    return 2 * rows * inner * columns
