"""What tokens and representations are like: their frequencies, their dimensions, and how alike two models are.

Letters in shapes: B or n images, N patches on a grid of rows x columns, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor

FLOOR = 1e-6
"""Singular values below this share of the largest are rounding."""


def diagonal(grid: tuple[int, int]) -> list[tuple[int, int]]:
    """The frequencies (rows, columns) from none to the highest in both directions, along the diagonal."""
    steps = max(grid) // 2
    return [(round(i / steps * (grid[0] // 2)), round(i / steps * (grid[1] // 2))) for i in range(steps + 1)]


def log_amplitude(tokens: Tensor, grid: tuple[int, int]) -> Tensor:
    """(B, F): log amplitude of patch tokens (B, N, D) at the frequencies of `diagonal`, relative to frequency 0.

    As in Park and Kim, "How Do Vision Transformers Work?": natural logarithm of the 2-D Fourier transform's modulus,
    the mean over channels. Its last value is their delta log amplitude: the higher, the more a token differs from its
    neighbours.
    """
    image = tokens.transpose(1, 2).reshape(len(tokens), -1, *grid)  # (B, D, rows, columns)
    amplitude: Tensor = torch.fft.fft2(image).abs().clamp_min(torch.finfo(tokens.dtype).tiny).log().mean(dim=1)
    rows, columns = zip(*diagonal(grid), strict=True)
    found = amplitude[:, list(rows), list(columns)]
    return found - found[:, :1]


def singular_values(vectors: Tensor) -> Tensor:
    """(..., R) singular values, largest first, of rows (..., N, D) less their mean; R = min(N - 1, D)."""
    centred = vectors.double() - vectors.double().mean(dim=-2, keepdim=True)
    if centred.shape[-2] > centred.shape[-1]:
        gram = centred.transpose(-2, -1) @ centred
    else:
        gram = centred @ centred.transpose(-2, -1)
    rank = min(vectors.shape[-2] - 1, vectors.shape[-1])
    squares: Tensor = torch.linalg.eigvalsh(gram)
    return squares.flip(-1)[..., :rank].clamp_min(0).sqrt()


def log_spectrum(values: Tensor) -> Tensor:
    """(..., R): natural logarithm of singular values relative to the largest, not below that of FLOOR."""
    return (values / values[..., :1].clamp_min(1e-300)).clamp_min(FLOOR).log()


def effective_rank(values: Tensor) -> Tensor:
    """(...): exp of the entropy of the singular values' shares (Roy and Vetterli): how many dimensions are in use."""
    shares = values / values.sum(dim=-1, keepdim=True).clamp_min(1e-300)
    entropy: Tensor = torch.special.entr(shares).sum(dim=-1)
    return entropy.exp()


def linear_cka(one: Tensor, other: Tensor) -> float:
    """Centred kernel alignment of representations (n, D1) and (n, D2) of the same n > 3 images, at most 1.

    1: the same up to rotation and scale; 0: nothing in common. With linear kernels (Kornblith et al.), and estimated
    without bias (HSIC_1 of Song et al.), since else a few images with many features look alike whatever they are.
    """
    x, y = one.double() - one.double().mean(dim=0), other.double() - other.double().mean(dim=0)
    own = _hsic(x, x), _hsic(y, y)
    return _hsic(x, y) / (own[0] * own[1]) ** 0.5 if min(own) > 0 else 0.0


def _hsic(x: Tensor, y: Tensor) -> float:
    """HSIC_1 of the kernels x x^T and y y^T of centred rows, with their diagonals set to 0; neither is ever formed.

    A row of a centred kernel sums to 0, and without its diagonal to what that was, negated.
    """
    n = len(x)
    k, m = x.square().sum(dim=1), y.square().sum(dim=1)  # the diagonals
    trace = (x.T @ y).square().sum() - k @ m
    found = trace + k.sum() * m.sum() / ((n - 1) * (n - 2)) - 2 / (n - 2) * (k @ m)
    return float(found) / (n * (n - 3))
