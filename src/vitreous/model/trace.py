"""What a forward pass is asked to tell about itself, and what it told."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from vitreous.arguments import checked
from vitreous.errors import UserError


class Trace:
    """A record to hand to `model(images, trace=Trace(...))`: attention and tokens of chosen layers, and the pre-logits.

    Only the chosen layers compute their attention explicitly; all others stay fused. Layers count from 0, and from the
    end when negative. The recorded tensors belong to the autograd graph, so gradients with respect to them exist.

        trace = Trace(layers=[-1])
        scores = model(images, trace=trace)
        trace.attention[11]    # (B, heads, T, T), rows sum to 1
        trace.tokens[11]       # (B, T, D), the output z of that block
        trace.embedded         # (B, T, D), z_0 of equation 1
        trace.pool_attention   # (B, heads, 1, N or T), with attention pooling only: of the tokens that it reads
        trace.pool_rows        # (B, heads, N), what it gives to each patch
        trace.pre_logits       # (B, D), what the classifier's last linear layer reads; without a classifier, y
        trace.pre_logits_dist  # (B, D), what the second classifier of a distilled model reads; None for all others
        trace.prefix, trace.grid   # class and register tokens come first, then rows x columns of patches
        trace.keep_ids         # (B, M), which of those patches the tokens are; None for all
        trace.groups[11]       # (B, M), for each patch the first of those that are one token after that block

    Where tokens are merged, a trace sees them apart: all T of them, each as what it became. What is given to a merged
    token (attention, gradients) is shared equally among its patches. `groups` has all blocks, but none before the first
    that merges.

    To reduce what is kept, layer by layer, override `record_attention` or `record_tokens`.
    """

    @checked
    def __init__(self, layers: Sequence[int] | None = None, *, attention: bool = True, tokens: bool = True) -> None:
        """Record these layers (None for all), and of each its attention, its tokens, or both."""
        self.layers = None if layers is None else frozenset(layers)
        self.wants_attention = attention
        self.wants_tokens = tokens
        self.attention: dict[int, Tensor] = {}
        self.tokens: dict[int, Tensor] = {}
        self.embedded: Tensor | None = None
        self.pool_attention: Tensor | None = None
        self.pre_logits: Tensor | None = None
        self.pre_logits_dist: Tensor | None = None
        self.grid: tuple[int, int] = (0, 0)
        self.prefix: int = 0
        self.keep_ids: Tensor | None = None
        self.groups: dict[int, Tensor] = {}

    def __repr__(self) -> str:
        if self.pre_logits is None:
            return f"Trace(layers={None if self.layers is None else sorted(self.layers)}), not filled yet"
        parts = []
        for name, kept in (("attention", self.attention), ("tokens", self.tokens)):
            if kept:
                numbers, shape = sorted(kept), tuple(next(iter(kept.values())).shape)
                several = len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1))
                listed = f"{numbers[0]} to {numbers[-1]}" if several else ", ".join(map(str, numbers))
                layers = f"layer{'s' * (len(numbers) > 1)} {listed}"
                parts.append(f"{name} {shape} of {layers}")
        rows, columns = self.grid
        return f"Trace({'; '.join(parts)}; {self.prefix} + {rows}x{columns} tokens)"

    @property
    def pool_rows(self) -> Tensor | None:
        if self.pool_attention is None:
            return None
        patches = self.grid[0] * self.grid[1] if self.keep_ids is None else self.keep_ids.shape[1]
        return self.pool_attention[:, :, 0, -patches:]

    def check(self, depth: int) -> None:
        """Refuse layers that a model of this depth does not have."""
        for layer in sorted(self.layers or ()):
            if not -depth <= layer < depth:
                raise UserError(
                    f"layer {layer}: the model has layers 0 to {depth - 1}, or -{depth} to -1 from the end."
                )

    def wants(self, layer: int, depth: int) -> bool:
        return self.layers is None or layer in self.layers or layer - depth in self.layers

    def explicit(self, layer: int) -> bool:
        """Whether a layer that was asked for computes its attention explicitly."""
        return self.wants_attention

    def record_attention(self, layer: int, attention: Tensor) -> None:
        self.attention[layer] = attention

    def record_tokens(self, layer: int, tokens: Tensor) -> None:
        self.tokens[layer] = tokens
