"""Corruptions of what a model sees at five strengths: 14 kinds of ImageNet-C (Hendrycks and Dietterich 2019) with the
published settings, and a frost of our own.

Each is a pure function of the view, the strength and a random stream, and that is one of the seed, the kind and the
image's key. All strengths of a kind start from the same seed, so that most differ in strength and in little else;
shot noise and snow draw other numbers at each. Pixels are (H, W, C) float32 from 0 to 1. Lengths are in pixels of an
image of 224, and scaled to the one given.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.config.data import Preprocess
from vitreous.data.corrupt_filters import (
    FROST_TEXTURES,
    Field,
    Pixels,
    convolve,
    enlarge,
    from_image,
    frost_texture,
    gaussian_blur,
    motion_blur,
    plasma,
    sample_bilinear,
    scale_of,
    to_image,
    to_levels,
)
from vitreous.data.decode import ImageError
from vitreous.data.source import Source
from vitreous.data.view import Sample, make_view

Group = Literal["noise", "blur", "weather", "digital"]
Levels = NDArray[np.uint8]
STRENGTHS = (1, 2, 3, 4, 5)
AS_PUBLISHED = "as published"

# Settings for each strength: those of the published code, but for FROST.
DEVIATION = (0.08, 0.12, 0.18, 0.26, 0.38)  # Of Gaussian noise
PHOTONS = (60, 25, 12, 5, 3)  # That a white pixel counts
BROKEN = (0.03, 0.06, 0.09, 0.17, 0.27)  # The share of values that are replaced
# Radius of the disk of confusion, and the deviation of the Gaussian that smooths its rim.
DISK = ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5))
# Deviation of the Gaussian blur before and after, how far pixels come from at most, and how often all are moved.
GLASS = ((0.7, 1, 2), (0.9, 2, 1), (1.0, 2, 3), (1.1, 3, 2), (1.5, 4, 2))
MOTION = ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15))  # Radius and deviation of the kernel
TILT = 45.0  # The camera moves at most so many degrees off the horizontal
# Up to which zoom (exclusive), and by which steps from 1.
ZOOM = ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03))
# Mean and deviation of the noise that becomes flakes, how large its points are, below what nothing falls, radius and
# deviation of the blur by which flakes fall, and how much of the image's colour is left.
SNOW = (
    (0.1, 0.3, 3.0, 0.5, 10, 4, 0.8),
    (0.2, 0.3, 2.0, 0.5, 12, 4, 0.7),
    (0.55, 0.3, 4.0, 0.9, 12, 8, 0.7),
    (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
    (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
)
# How much of the image and of the frost there is. ImageNet-C's fractions rise more slowly and suit its photographs.
FROST = ((1.0, 0.4), (0.85, 0.55), (0.75, 0.7), (0.7, 0.8), (0.65, 0.9))
# How much fog there is, and how much smoother it is than its finer grain.
FOG = ((1.5, 2.0), (2.0, 2.0), (2.5, 1.7), (2.5, 1.5), (3.0, 1.4))
LIGHT = (0.1, 0.2, 0.3, 0.4, 0.5)  # Added to the lightness
LUMA_WEIGHTS = (0.299, 0.587, 0.114)
CONTRAST = (0.4, 0.3, 0.2, 0.1, 0.05)  # What is left of every difference from the mean
# How far pixels are displaced before that is smoothed, the deviation of the Gaussian that smooths it, and how far each
# of three points of an affine map is moved at most.
ELASTIC = ((488.0, 170.8, 24.4), (488.0, 19.52, 48.8), (12.2, 2.44, 4.88), (17.08, 2.44, 4.88), (29.28, 2.44, 4.88))
PIXELS = (0.6, 0.5, 0.4, 0.3, 0.25)  # The share of pixels that is left along each side
QUALITY = (25, 18, 15, 10, 7)  # Of JPEG


def gaussian_noise(pixels: Pixels, strength: int, rng: np.random.Generator) -> Pixels:
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


def defocus_blur(pixels: Pixels, strength: int, rng: np.random.Generator) -> Pixels:
    """Every point becomes a disk."""
    radius, rim = DISK[strength - 1]
    return convolve(pixels, disk(radius * scale_of(pixels), rim))


@lru_cache(maxsize=32)
def disk(radius: float, rim: float) -> NDArray[np.float64]:
    """(2 r + 1, 2 r + 1) kernel: the pixels whose centres lie within the radius, smoothed by a small Gaussian."""
    extent, smoothing = math.floor(radius), 1 if radius <= 8 else 2
    far = extent + smoothing
    at = np.arange(-far, far + 1)
    inside = (at[:, None] ** 2 + at[None, :] ** 2 <= radius**2).astype(np.float64)
    row = np.exp(-0.5 * (np.arange(-smoothing, smoothing + 1) / rim) ** 2)
    for axis in (0, 1):
        inside = np.apply_along_axis(np.convolve, axis, inside, row / row.sum(), mode="same")
    return np.asarray(inside / inside.sum(), dtype=np.float64)


def glass_blur(pixels: Pixels, strength: int, rng: np.random.Generator) -> Pixels:
    """Pixels are replaced by others nearby, one after another, between two small Gaussian blurs."""
    sigma, distance, times = GLASS[strength - 1]
    scale = scale_of(pixels)
    blurred = gaussian_blur(pixels, sigma * scale, "edge")
    moved = copy_nearby(pixels.shape[:2], max(1, round(distance * scale)), times, rng)
    return gaussian_blur(blurred.reshape(-1, pixels.shape[2])[moved].reshape(pixels.shape), sigma * scale, "edge")


def copy_nearby(size: tuple[int, int], distance: int, times: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """(H W,) which pixel comes to each place when each in turn, from the last to the first, is replaced by one that is
    at most `distance` rows and columns away. (The paper swaps the two; its code, which made ImageNet-C, copies one.)"""
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
            order[a] = order[b]
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


def synthetic_frost(pixels: Pixels, strength: int, rng: np.random.Generator) -> Pixels:
    """A window with ice on it: a random cut of one of a few textures is added to the darkened image."""
    clear, ice = FROST[strength - 1]
    height, width, channels = pixels.shape
    texture = frost_texture(max(height, width), int(rng.integers(FROST_TEXTURES)))
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
    return np.dot(pixels, np.array(LUMA_WEIGHTS, np.float32)) if pixels.shape[2] == 3 else pixels[:, :, 0]


def contrast(pixels: Pixels, strength: int, rng: np.random.Generator) -> Pixels:
    """Everything comes nearer to the mean colour."""
    mean: Pixels = pixels.mean(axis=(0, 1), keepdims=True)
    return (pixels - mean) * np.float32(CONTRAST[strength - 1]) + mean


def elastic(pixels: Pixels, strength: int, rng: np.random.Generator) -> Pixels:
    """The image is stretched as a whole (an affine map) and in small places (smoothed random displacements)."""
    far, smoothing, corner = ELASTIC[strength - 1]
    scale, (height, width) = scale_of(pixels), pixels.shape[:2]
    back = affine_back((height, width), corner * scale, rng)
    rows, columns = np.indices((height, width), dtype=np.float32)
    noise = rng.uniform(-1, 1, (height, width, 2)).astype(np.float32)
    # Smoothing over twice the distance leaves half the noise: the square makes the displacements scale as lengths do.
    moves = gaussian_blur(noise, smoothing * scale, "symmetric", truncate=3) * np.float32(far * scale * scale)
    rows, columns = rows + moves[..., 0], columns + moves[..., 1]
    return sample_bilinear(
        pixels,
        back[0, 0] * rows + back[0, 1] * columns + back[0, 2],
        back[1, 0] * rows + back[1, 1] * columns + back[1, 2],
    )


def affine_back(size: tuple[int, int], far: float, rng: np.random.Generator) -> NDArray[np.float32]:
    """(2, 3): from a place (row, column, 1) of the distorted image to its place in the image. Three points around the
    middle are each moved by up to `far` pixels along both sides."""
    middle, third = np.array(size) // 2, min(size) // 3
    points = np.stack([middle + third, middle + np.array([-third, third]), middle - third]).astype(np.float64)
    moved = points + rng.uniform(-far, far, points.shape)
    return np.linalg.solve(np.column_stack([moved, np.ones(3)]), points).T.astype(np.float32)


def pixelate(pixels: Pixels, strength: int, rng: np.random.Generator) -> Pixels:
    """Downscaled by box averages, then upscaled by repeating pixels."""
    height, width = pixels.shape[:2]
    few = [max(1, int(side * PIXELS[strength - 1])) for side in (width, height)]
    small = to_image(pixels).resize((few[0], few[1]), Image.Resampling.BOX)
    return from_image(small.resize((width, height), Image.Resampling.BOX))


def jpeg(pixels: Pixels, strength: int, rng: np.random.Generator) -> Pixels:
    buffer = io.BytesIO()
    to_image(pixels).save(buffer, "JPEG", quality=QUALITY[strength - 1])
    return from_image(Image.open(buffer))


@dataclass(frozen=True)
class Corruption:
    """A kind of corruption."""

    group: Group
    # From pixels (H, W, C) float32 from 0 to 1, the strength from 1 to 5, and a random stream, to such pixels, which
    # may run beyond 0 and 1.
    apply: Callable[[Pixels, int, np.random.Generator], Pixels]
    differs: str = AS_PUBLISHED  # From ImageNet-C, for people


CORRUPTIONS: dict[str, Corruption] = {
    "gaussian noise": Corruption("noise", gaussian_noise),
    "shot noise": Corruption("noise", shot_noise),
    "impulse noise": Corruption("noise", impulse_noise),
    "defocus blur": Corruption("blur", defocus_blur),
    "glass blur": Corruption("blur", glass_blur, "not rounded to 8 bits between its steps"),
    "motion blur": Corruption("blur", camera_motion, "a half-Gaussian line in NumPy, like ImageMagick's"),
    "zoom blur": Corruption("blur", zoom_blur, "cuts are not rounded to whole pixels"),
    "snow": Corruption(
        "weather",
        snow,
        "flakes are drawn coarse and enlarged, not cut out of a fine drawing; blurred as by motion blur",
    ),
    "synthetic frost": Corruption(
        "weather",
        synthetic_frost,
        "not ImageNet-C's: drawn crystals in place of its photographs, with fractions to suit",
    ),
    "fog": Corruption("weather", fog),
    "brightness": Corruption("weather", brightness),
    "contrast": Corruption("digital", contrast),
    "elastic": Corruption("digital", elastic, "one interpolation for both distortions"),
    "pixelate": Corruption("digital", pixelate),
    "jpeg": Corruption("digital", jpeg),
}  # by name, in the paper's order


def corrupt(view: Levels, kind: str, strength: int, rng: np.random.Generator) -> Levels:
    """(C, H, W) uint8: the view (C, H, W) uint8 with one corruption at a strength from 1 to 5."""
    pixels = np.ascontiguousarray(view.transpose(1, 2, 0), dtype=np.float32) / np.float32(255)
    made = to_levels(CORRUPTIONS[kind].apply(pixels, strength, rng))
    return np.ascontiguousarray(made.transpose(2, 0, 1))


def stream(seed: int, kind: str, key: str) -> np.random.Generator:
    """The random numbers of one kind for the image of this key, the same wherever and in whatever order it is met."""
    text = f"{seed}\0{kind}\0".encode() + key.encode("utf-8", "surrogateescape")
    return np.random.Generator(np.random.Philox(key=int.from_bytes(blake2b(text, digest_size=16).digest(), "little")))


class CorruptedViews(NamedTuple):
    """The views of one image: as it is, and in all corruptions."""

    views: Levels | None
    """(1 + kinds x strengths, C, H, W); the first is the image as it is. None if it cannot be read."""
    reason: str = ""  # Why it cannot


@dataclass(frozen=True)
class CorruptionMaker:
    """Makes the views of single images, in whichever process."""

    source: Source
    preprocess: Preprocess
    kinds: Sequence[str]
    strengths: Sequence[int]
    seed: int

    def make(self, index: int) -> CorruptedViews:
        try:
            view = make_view(Sample(self.source, index), self.preprocess).numpy()
        except ImageError as error:
            return CorruptedViews(None, error.reason)
        key = self.source.key(index)
        made = [corrupt(view, kind, k, stream(self.seed, kind, key)) for kind in self.kinds for k in self.strengths]
        return CorruptedViews(np.stack([view, *made]))
