"""What attention, tokens and representations are like: how alike, of which frequencies, of how many dimensions.

Attention is that among patches: class token and registers have no place on the image, so they are left out as queries,
and what a patch gives to them is shared among the patches in proportion (Park et al., "What Do Self-Supervised Vision
Transformers Learn?"). Frequencies are fractions of the highest that a row of pixels can hold (Nyquist's), in any
direction. Letters in shapes: B or n images, h heads, T tokens, N patches on a grid of rows x columns, D width.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitreous.data.rng import generator


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


FLOOR = 1e-6  # singular values below this share of the largest are rounding


def diagonal(grid: tuple[int, int]) -> list[tuple[int, int]]:
    """The frequencies (rows, columns) from none to the highest in both directions, along the diagonal."""
    steps = max(grid) // 2
    return [(round(i / steps * (grid[0] // 2)), round(i / steps * (grid[1] // 2))) for i in range(steps + 1)]


def diagonal_fractions(grid: tuple[int, int]) -> Tensor:
    """(F,): the frequencies of `diagonal`, as fractions of the highest."""
    steps = len(diagonal(grid)) - 1
    return torch.tensor([round(i / steps, 4) for i in range(steps + 1)], dtype=torch.float64)


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


BANDS = ((0.0, 0.2), (0.2, 0.4), (0.4, 0.6), (0.6, 0.8), (0.8, 1.0))
"""Each without its lower and with its upper end: frequency 0, which is brightness, is in none."""


def band_noise(size: tuple[int, int, int], band: tuple[float, float], seed: int, index: int) -> NDArray[np.float32]:
    """(C, H, W) random noise of these frequencies only, root mean square 1, for one image; the same every time."""
    inside = band_mask(size[1:], band)
    if not inside.any():
        raise ValueError(f"an image of {size[1]}x{size[2]} has no frequency between {band[0]} and {band[1]}")
    white = generator(seed, 0, index).standard_normal(size)
    filtered = np.fft.irfft2(np.fft.rfft2(white) * inside[:, : size[2] // 2 + 1], size[1:])
    return (filtered / np.sqrt(np.mean(filtered**2))).astype(np.float32)


def band_mask(size: tuple[int, int], band: tuple[float, float]) -> NDArray[np.bool_]:
    """(H, W), in the order of `np.fft.fft2`: which frequencies are in the band."""
    radius = np.hypot(np.fft.fftfreq(size[0])[:, None], np.fft.fftfreq(size[1])[None, :]) * 2
    return (radius > band[0]) & (radius <= band[1])
