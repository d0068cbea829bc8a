"""Small pieces of the Vision Transformer: what its equations take for granted, and what later papers added.

Letters in shapes: B images, N patches, T tokens, D width, h heads, d = D/h.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.config.model import ViTConfig
from vitreous.model.initialise import Convolution, Linear
from vitreous.model.resnet import build_stem


class PatchProjection(nn.Module):
    """E of equation 1, after a hybrid's stem. The weight has a convolution's shape, (D, C, P, P), as in every file."""

    def __init__(self, c: ViTConfig) -> None:
        super().__init__()
        channels, side = c.kernel
        self.backbone = None if c.stem is None else build_stem(c.stem, c.channels)
        self.proj = Convolution(channels, c.width, side, stride=side, bias=c.patch_bias)

    def forward(self, patches: Tensor) -> Tensor:
        """(B, N, C*P*P) to (B, N, D)."""
        return F.linear(patches, self.proj.weight.flatten(1), self.proj.bias)


class QKV(Linear):
    """Queries, keys and values, one above the other in one matrix."""

    def __init__(self, c: ViTConfig) -> None:
        super().__init__(c.width, 3 * c.width, bias=c.qkv_bias != "none")
        self.key_bias = c.qkv_bias != "q+v"

    def used_bias(self) -> Tensor | None:
        """(3 D,), with zeros for keys that have none."""
        if self.bias is None or self.key_bias:
            return self.bias
        q, k, v = self.bias.chunk(3)
        return torch.cat([q, torch.zeros_like(k), v])

    def forward(self, input: Tensor) -> Tensor:
        """(B, T, D) to (B, T, 3 D)."""
        return F.linear(input, self.weight, self.used_bias())

    def split(self, x: Tensor, read: int | None) -> tuple[Tensor, ...]:
        """(B, T, D) to q (B, read, D), k and v (B, T, D). read: queries of only the first so many tokens are wanted."""
        if read is None:
            return self(x).chunk(3, dim=2)
        width, w, b = x.shape[2], self.weight, self.used_bias()
        first, rest = (None, None) if b is None else (b[:width], b[width:])
        return F.linear(x[:, :read], w[:width], first), *F.linear(x, w[width:], rest).chunk(2, dim=2)

    def values(self, x: Tensor) -> Tensor:
        """v alone, (B, T, D)."""
        last = slice(-x.shape[2], None)
        return F.linear(x, self.weight[last], None if self.bias is None else self.bias[last])


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu-tanh": partial(F.gelu, approximate="tanh"),
    "quick-gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": F.relu,
}


class MLP(nn.Module):
    """Two layers with GELU (the paper's) or another activation between, or SwiGLU: the SiLU of one half gates the
    other."""

    def __init__(self, c: ViTConfig, hidden: int | None = None) -> None:
        """hidden: units, if other than the configuration's."""
        super().__init__()
        self.kind, self.dropout, hidden = c.mlp, c.dropout, hidden or c.mlp_width
        self.fc1 = Linear(c.width, hidden * (2 if c.mlp == "swiglu" else 1))
        self.norm = nn.LayerNorm(hidden, c.norm_eps) if c.mlp_norm else nn.Identity()
        self.fc2 = Linear(hidden, c.width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x)
        if self.kind == "swiglu":
            gate, value = x.chunk(2, dim=-1)
            x = F.silu(gate) * value
        else:
            x = ACTIVATIONS[self.kind](x)
        x = F.dropout(x, self.dropout, self.training)
        return F.dropout(self.fc2(self.norm(x)), self.dropout, self.training)


class PreLogits(nn.Module):
    """The tanh hidden layer of the classifier in pre-training."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc = Linear(width, width)

    def forward(self, y: Tensor) -> Tensor:
        return torch.tanh(self.fc(y))


class LayerScale(nn.Module):
    """A learned scale for each channel of a branch."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


def drop_branch(x: Tensor, rate: float, uniform: Tensor | None) -> Tensor:
    """Stochastic depth: the branch (B, ...), or nothing for a fraction `rate` of the images; the mean stays.

    uniform: (B,) in [0, 1) that decides; None: torch's generator.
    """
    if not rate:
        return x
    uniform = torch.rand(x.shape[0], device=x.device) if uniform is None else uniform
    kept = uniform.view(-1, *[1] * (x.ndim - 1)) >= rate
    return x * (kept / (1 - rate)).to(x.dtype)


class AttentionPool(nn.Module):
    """One learned query attends to all tokens, then an MLP branch (the MAP head of "Scaling Vision Transformers")."""

    def __init__(self, c: ViTConfig) -> None:
        super().__init__()
        self.heads = c.pool_heads or c.heads
        self.latent = nn.Parameter(torch.empty(1, 1, c.width))
        self.q = Linear(c.width, c.width)
        self.kv = Linear(c.width, 2 * c.width)
        self.proj = Linear(c.width, c.width)
        self.norm = nn.LayerNorm(c.width, c.norm_eps)
        self.mlp = MLP(c, c.pool_mlp_width)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
        """(B, N, D) to (B, D), and the attention (B, h, 1, N): of one query, so cheap enough to be always explicit."""
        q = split_heads(self.q(self.latent).expand(tokens.shape[0], -1, -1), self.heads)
        k, v = (split_heads(part, self.heads) for part in self.kv(tokens).chunk(2, dim=2))
        out, attention = attend(q, k, v, None, explicit=True)
        y = self.proj(out)
        return (y + self.mlp(self.norm(y)))[:, 0], attention


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, explicit: bool) -> tuple[Tensor, Tensor | None]:
    """What each query reads, heads joined, (B, queries, D); and, if explicit, the attention (B, h, queries, keys)."""
    if explicit:
        logits = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        attention = (logits if bias is None else logits + bias).softmax(dim=-1)
        return (attention @ v).transpose(1, 2).flatten(2), attention
    if bias is not None:
        bias = bias.expand(-1, -1, q.shape[2], -1)  # which costs nothing, and ONNX Runtime wants it so
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).flatten(2), None


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(B, T, D) to (B, h, T, d), without a copy."""
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)
