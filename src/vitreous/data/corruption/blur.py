"""Blur: out of focus, through frosted glass, by a moving camera, by a zooming one.

Pixels are (H, W, C) float32 from 0 to 1. Lengths are in pixels of an image of 224, and scaled to the one given.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.data.corruption.filters import (
    Pixels,
    convolve,
    from_image,
    gaussian_blur,
    motion_blur,
    scale_of,
    to_image,
)

DISK = ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5))
"""Radius of the disk of confusion, and the deviation of the Gaussian that smooths its rim."""
GLASS = ((0.7, 1, 2), (0.9, 2, 1), (1.0, 2, 3), (1.1, 3, 2), (1.5, 4, 2))
"""Deviation of the Gaussian blur before and after, how far pixels are swapped at most, and how often all are."""
MOTION = ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15))
"""Radius and deviation of the kernel."""
TILT = 45.0
"""The camera moves at most so many degrees off the horizontal."""
ZOOM = ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03))
"""Up to which zoom (exclusive), and by which steps from 1."""


def defocus_blur(pixels: Pixels, strength: int, rng: np.random.Generator) -> Pixels:
    """Every point becomes a disk."""
    radius, rim = DISK[strength - 1]
    return convolve(pixels, disk(radius * scale_of(pixels), rim))


@lru_cache(maxsize=32)
def disk(radius: float, rim: float) -> NDArray[np.float64]:
    """(2 r + 1, 2 r + 1) kernel: the pixels whose centres lie within the radius, smoothed by a small Gaussian."""
    reach, smoothing = math.floor(radius), 1 if radius <= 8 else 2
    far = reach + smoothing
    place = np.arange(-far, far + 1)
    inside = (place[:, None] ** 2 + place[None, :] ** 2 <= radius**2).astype(np.float64)
    row = np.exp(-0.5 * (np.arange(-smoothing, smoothing + 1) / rim) ** 2)
    for axis in (0, 1):
        inside = np.apply_along_axis(np.convolve, axis, inside, row / row.sum(), mode="same")
    return np.asarray(inside / inside.sum(), dtype=np.float64)


def glass_blur(pixels: Pixels, strength: int, rng: np.random.Generator) -> Pixels:
    """Pixels are swapped with others nearby, one after another, between two small Gaussian blurs."""
    sigma, distance, times = GLASS[strength - 1]
    scale = scale_of(pixels)
    blurred = gaussian_blur(pixels, sigma * scale, "edge")
    shuffled = swap_nearby(pixels.shape[:2], max(1, round(distance * scale)), times, rng)
    return gaussian_blur(blurred.reshape(-1, pixels.shape[2])[shuffled].reshape(pixels.shape), sigma * scale, "edge")


def swap_nearby(size: tuple[int, int], distance: int, times: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """(H W,) which pixel comes to each place when each in turn, from the last to the first, is swapped with one that
    is at most `distance` rows and columns away."""
    height, width = size
    order = list(range(height * width))
    rows = np.arange(height - distance, distance, -1)[:, None]
    columns = np.arange(width - distance, distance, -1)[None, :]
    if not rows.size or not columns.size:  # an image smaller than the distance
        return np.array(order)
    here = (rows * width + columns).ravel().tolist()
    for _ in range(times):
        down, right = rng.integers(-distance, distance, (2, rows.size, columns.size))
        there = ((rows + down) * width + columns + right).ravel().tolist()
        for a, b in zip(here, there, strict=True):
            order[a], order[b] = order[b], order[a]
    return np.array(order)


def camera_motion(pixels: Pixels, strength: int, rng: np.random.Generator) -> Pixels:
    """The camera moves, at a random angle near the horizontal."""
    radius, sigma = MOTION[strength - 1]
    scale = scale_of(pixels)
    return motion_blur(pixels, radius * scale, sigma * scale, rng.uniform(-TILT, TILT))


def zoom_blur(pixels: Pixels, strength: int, rng: np.random.Generator) -> Pixels:
    """The camera comes nearer: the mean of the image and of ever larger cuts of its middle."""
    end, step = ZOOM[strength - 1]
    height, width = pixels.shape[:2]
    image, found, zooms = to_image(pixels), pixels.copy(), np.arange(1, end, step)
    for zoom in zooms:
        left, top = 0.5 * width * (1 - 1 / zoom), 0.5 * height * (1 - 1 / zoom)
        box = (left, top, width - left, height - top)
        found += from_image(image.resize((width, height), Image.Resampling.BILINEAR, box=box))
    return found / np.float32(len(zooms) + 1)
