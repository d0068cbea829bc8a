"""Noise of chosen frequencies, to ask which of them a model relies on.

Frequencies are shares of the highest that a row of pixels can hold (Nyquist's), in any direction.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vitreous.data.rng import generator

BANDS = ((0.0, 0.2), (0.2, 0.4), (0.4, 0.6), (0.6, 0.8), (0.8, 1.0))
"""Each without its lower and with its upper end: frequency 0, which is brightness, is in none."""


def band_noise(size: tuple[int, int, int], band: tuple[float, float], seed: int, index: int) -> NDArray[np.float32]:
    """(C, H, W) random noise of these frequencies only, root mean square 1, for one image; the same every time."""
    inside = band_mask(size[1:], band)
    if not inside.any():
        raise ValueError(f"an image of {size[1]}x{size[2]} has no frequency between {band[0]} and {band[1]}")
    white = generator(seed, 0, index).standard_normal(size)
    filtered = np.fft.irfft2(np.fft.rfft2(white) * inside[:, : size[2] // 2 + 1], size[1:])
    noise: NDArray[np.float32] = (filtered / np.sqrt(np.mean(filtered**2))).astype(np.float32)
    return noise


def band_mask(size: tuple[int, int], band: tuple[float, float]) -> NDArray[np.bool_]:
    """(H, W), in the order of `np.fft.fft2`: which frequencies are in the band."""
    radius = np.hypot(np.fft.fftfreq(size[0])[:, None], np.fft.fftfreq(size[1])[None, :]) * 2
    mask: NDArray[np.bool_] = (radius > band[0]) & (radius <= band[1])
    return mask
