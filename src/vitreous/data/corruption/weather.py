"""Weather: snow, frost, fog and glaring light.

Pixels are (H, W, C) float32 from 0 to 1. Lengths are in pixels of an image of 224, and scaled to the one given.
"""

from __future__ import annotations

import math

import numpy as np

from vitreous.data.corruption.filters import Field, Pixels, enlarge, motion_blur, plasma, scale_of
from vitreous.data.corruption.frost import TEXTURES, frost_texture

SNOW = (
    (0.1, 0.3, 3.0, 0.5, 10, 4, 0.8),
    (0.2, 0.3, 2.0, 0.5, 12, 4, 0.7),
    (0.55, 0.3, 4.0, 0.9, 12, 8, 0.7),
    (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
    (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
)
"""Mean and deviation of the noise that becomes flakes, how large its points are, below what nothing falls, radius and
deviation of the blur by which flakes fall, and how much of the image's colour is left."""
FROST = ((1.0, 0.4), (0.85, 0.55), (0.75, 0.7), (0.7, 0.8), (0.65, 0.9))
"""How much of the image and of the frost there is. ImageNet-C's shares rise more slowly and suit its photographs."""
FOG = ((1.5, 2.0), (2.0, 2.0), (2.5, 1.7), (2.8, 1.5), (3.4, 1.4))
"""How much fog there is, and how much smoother it is than its finer grain. ImageNet-C has 2.5 and 3 of it at the last
two strengths, of which the fourth then changes an image less than the third, for rougher fog is thinner on average."""
LIGHT = (0.1, 0.2, 0.3, 0.4, 0.5)
"""Added to the lightness."""
LUMA = (0.299, 0.587, 0.114)


def snow(pixels: Pixels, strength: int, rng: np.random.Generator) -> Pixels:
    """The image pales, and flakes fall in two directions, opposite to each other."""
    mean, deviation, size, least, radius, sigma, colour = SNOW[strength - 1]
    scale, (height, width) = scale_of(pixels), pixels.shape[:2]
    grain = max(1.0, size * scale)
    small = rng.normal(mean, deviation, (math.ceil(height / grain), math.ceil(width / grain)))
    flakes = enlarge(small.astype(np.float32), height, width)
    flakes = np.clip(np.where(flakes < least, 0, flakes), 0, 1).astype(np.float32)[:, :, None]
    flakes = motion_blur(flakes, radius * scale, sigma * scale, rng.uniform(-135, -45))
    pale: Pixels = np.maximum(pixels, np.float32(1.5) * grey(pixels)[:, :, None] + np.float32(0.5))
    return np.float32(colour) * pixels + np.float32(1 - colour) * pale + flakes + flakes[::-1, ::-1]


def frost(pixels: Pixels, strength: int, rng: np.random.Generator) -> Pixels:
    """A window with ice on it: a random cut of one of a few textures is added to the darkened image."""
    clear, ice = FROST[strength - 1]
    height, width, channels = pixels.shape
    texture = frost_texture(max(height, width), int(rng.integers(TEXTURES)))
    top, left = (int(rng.integers(texture.shape[0] - side + 1)) for side in (height, width))
    cut = texture[top : top + height, left : left + width]
    return clear * pixels + np.float32(ice) * (cut if channels == 3 else grey(cut)[:, :, None])


def fog(pixels: Pixels, strength: int, rng: np.random.Generator) -> Pixels:
    """A cloud is added, and all is darkened so that the brightest place stays as bright."""
    amount, smooth = FOG[strength - 1]
    height, width = pixels.shape[:2]
    brightest = float(pixels.max())
    cloud = plasma(max(height, width), smooth**2, rng)[:height, :width, None]
    return (pixels + np.float32(amount) * cloud) * np.float32(brightest / (brightest + amount))


def brightness(pixels: Pixels, strength: int, rng: np.random.Generator) -> Pixels:
    """More lightness (the V of HSV), with hue and saturation as they were."""
    value = pixels.max(axis=2, keepdims=True)
    lighter = np.minimum(value + np.float32(LIGHT[strength - 1]), 1)
    scaled = pixels * (lighter / np.maximum(value, np.float32(1e-6)))
    return np.asarray(np.where(value > 0, scaled, lighter), dtype=np.float32)


def grey(pixels: Pixels) -> Field:
    """(H, W) the luma of an image in colours; one without is grey already."""
    return np.dot(pixels, np.array(LUMA, np.float32)) if pixels.shape[2] == 3 else pixels[:, :, 0]
