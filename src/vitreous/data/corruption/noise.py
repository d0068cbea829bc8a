"""Noise: what a sensor adds in bad light, and broken pixels. Pixels are (H, W, C) float32 from 0 to 1."""

from __future__ import annotations

import numpy as np

from vitreous.data.corruption.filters import Pixels

DEVIATION = (0.08, 0.12, 0.18, 0.26, 0.38)
"""Of Gaussian noise."""
PHOTONS = (60, 25, 12, 5, 3)
"""That a white pixel counts."""
BROKEN = (0.03, 0.06, 0.09, 0.17, 0.27)
"""The share of values that are replaced."""


def gaussian_noise(pixels: Pixels, strength: int, rng: np.random.Generator) -> Pixels:
    """Normal noise, independent in each value."""
    return pixels + np.float32(DEVIATION[strength - 1]) * rng.standard_normal(pixels.shape, dtype=np.float32)


def shot_noise(pixels: Pixels, strength: int, rng: np.random.Generator) -> Pixels:
    """Poisson noise: each value is a count of photons, so bright places are noisier."""
    photons = PHOTONS[strength - 1]
    return (rng.poisson(pixels * photons) / photons).astype(np.float32)


def impulse_noise(pixels: Pixels, strength: int, rng: np.random.Generator) -> Pixels:
    """Some values become 0 or 1 ("salt and pepper"), either with probability one half."""
    broken = rng.random(pixels.shape, dtype=np.float32) < BROKEN[strength - 1]
    white = rng.random(pixels.shape, dtype=np.float32) < 0.5
    return np.where(broken, white, pixels).astype(np.float32)
