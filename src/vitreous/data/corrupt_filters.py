"""What the corruptions are made of: blurs, displacements, random fields and frost, in NumPy and Pillow alone.

Pixels are (H, W, C) float32 from 0 to 1; H, W and C are rows, columns and channels.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

Pixels = NDArray[np.float32]
Field = NDArray[np.float32]  # (H, W)
# What lies beyond an image: its last pixel again and again, or the image mirrored; as `np.pad` has it.
Border = Literal["edge", "symmetric"]
PUBLISHED_SIDE = 224  # of ImageNet-C's images, in whose pixels its lengths are given
FROST_TEXTURES = 5  # how many there are to choose from, as in ImageNet-C
FROST_CRYSTALS = 90
FROST_SPREAD = 1.5  # the side of a texture, in sides of an image: images see a random cut of it
ICE_TINT = (0.86, 0.94, 1.0)  # ice is a little blue


def scale_of(pixels: Pixels) -> float:
    """What a length in pixels of ImageNet-C is multiplied by for this image: its short side over 224."""
    return float(min(pixels.shape[:2])) / PUBLISHED_SIDE


def gaussian_blur(pixels: Pixels, sigma: float, border: Border, truncate: float = 4.0) -> Pixels:
    """The image, or a field, blurred along both sides; beyond `truncate` standard deviations the kernel is 0."""
    height, width = pixels.shape[:2]
    rows = np.tensordot(_blur_matrix(height, sigma, border, truncate), pixels, axes=(1, 0))
    both = np.tensordot(_blur_matrix(width, sigma, border, truncate), rows, axes=(1, 1))
    return np.ascontiguousarray(both.swapaxes(0, 1))


@lru_cache(maxsize=32)
def _blur_matrix(side: int, sigma: float, border: Border, truncate: float) -> Field:
    """(side, side): what each pixel of a row takes of each pixel of it."""
    radius = max(1, int(truncate * sigma + 0.5))
    kernel = np.exp(-0.5 * (np.arange(-radius, radius + 1) / sigma) ** 2)
    taken = np.pad(np.arange(side), radius, mode=border)  # which pixel lies at each place, the border's included
    matrix = np.zeros((side, side))
    for row in range(side):
        np.add.at(matrix[row], taken[row : row + 2 * radius + 1], kernel / kernel.sum())
    return matrix.astype(np.float32)


def convolve(pixels: Pixels, kernel: NDArray[np.float64]) -> Pixels:
    """The image convolved with an odd, symmetric kernel; it is mirrored at its border, the last pixel once."""
    radius = kernel.shape[0] // 2
    height, width = pixels.shape[:2]
    padded = np.pad(pixels, ((radius, radius), (radius, radius), (0, 0)), mode="reflect")
    shape = padded.shape[:2]
    spectrum = np.fft.rfft2(padded, axes=(0, 1)) * np.fft.rfft2(kernel, s=shape)[:, :, None]
    blurred = np.fft.irfft2(spectrum, s=shape, axes=(0, 1))
    return blurred[2 * radius : 2 * radius + height, 2 * radius : 2 * radius + width].astype(np.float32)


def motion_blur(pixels: Pixels, radius: float, sigma: float, angle: float) -> Pixels:
    """The image dragged along one direction: half a Gaussian, 2 radius + 1 pixels long, at `angle` degrees."""
    length = max(1, round(2 * radius + 1))
    steps = np.arange(length)
    weights = np.exp(-0.5 * (steps / sigma) ** 2)
    weights /= weights.sum()
    down = np.rint(steps * math.sin(math.radians(angle))).astype(int)
    right = np.rint(steps * math.cos(math.radians(angle))).astype(int)
    height, width = pixels.shape[:2]
    padded = np.pad(pixels, ((length, length), (length, length), (0, 0)), mode="edge")
    found = np.zeros_like(pixels)
    for weight, y, x in zip(weights.astype(np.float32), down + length, right + length, strict=True):
        found += weight * padded[y : y + height, x : x + width]
    return found


def sample_bilinear(pixels: Pixels, rows: Field, columns: Field) -> Pixels:
    """(H, W, C) the image at these places, in pixels, between which it is linear and beyond which it is mirrored."""
    height, width, channels = pixels.shape
    rows, columns = _mirrored(rows, height), _mirrored(columns, width)
    top, left = np.floor(rows).astype(np.int64), np.floor(columns).astype(np.int64)
    down, right = (rows - top)[..., None], (columns - left)[..., None]
    below, beside = np.minimum(top + 1, height - 1), np.minimum(left + 1, width - 1)
    flat = pixels.reshape(-1, channels)
    upper = flat[top * width + left] * (1 - right) + flat[top * width + beside] * right
    lower = flat[below * width + left] * (1 - right) + flat[below * width + beside] * right
    return np.asarray(upper * (1 - down) + lower * down, dtype=np.float32)


def _mirrored(positions: Field, side: int) -> Field:
    """Positions within 0 to side - 1, mirrored at both ends as often as need be."""
    if side == 1:
        return np.zeros_like(positions)
    period = 2 * (side - 1)
    return np.asarray(side - 1 - np.abs(np.mod(positions, period) - (side - 1)), dtype=np.float32)


def enlarge(field: Field, height: int, width: int) -> Field:
    """(height, width): a small field, linear between its points."""
    large = Image.fromarray(field.astype(np.float32)).resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(large, np.float32)


def plasma(side: int, roughness: float, rng: np.random.Generator) -> Field:
    """(side, side) from 0 to 1: a cloud, by halving squares again and again (diamond-square, which wraps around).

    roughness: how much less the points of each finer grid are moved than those of the one before, as a factor.
    """
    size = 1 << max(1, math.ceil(math.log2(side)))
    field, step, amplitude = np.zeros((size, size)), size, 1.0
    while step >= 2:
        half, count = step // 2, size // step

        def jittered(mean: NDArray[np.float64], by: float = amplitude, n: int = count) -> NDArray[np.float64]:
            return mean + by * rng.uniform(-1, 1, (n, n))

        corners = field[::step, ::step]
        middles = jittered(
            _mean(corners, np.roll(corners, -1, 0), np.roll(corners, -1, 1), np.roll(corners, -1, (0, 1)))
        )
        field[half::step, half::step] = middles
        above, beside = np.roll(middles, 1, 0), np.roll(middles, 1, 1)
        field[::step, half::step] = jittered(_mean(corners, np.roll(corners, -1, 1), middles, above))
        field[half::step, ::step] = jittered(_mean(corners, np.roll(corners, -1, 0), middles, beside))
        step, amplitude = half, amplitude / roughness
    field -= field.min()
    return np.asarray((field / field.max())[:side, :side], dtype=np.float32)


def _mean(*fields: NDArray[np.float64]) -> NDArray[np.float64]:
    return sum(fields[1:], fields[0]) / len(fields)


def to_image(pixels: Pixels) -> Image.Image:
    levels = to_levels(pixels)
    return Image.fromarray(levels[:, :, 0] if levels.shape[2] == 1 else levels)


def from_image(image: Image.Image) -> Pixels:
    levels: Pixels = np.asarray(image, np.float32) / np.float32(255)
    return levels[:, :, None] if levels.ndim == 2 else levels


def to_levels(pixels: Pixels) -> NDArray[np.uint8]:
    """Numbers from 0 to 1, cut where they are beyond, as 8 bits."""
    return np.rint(255 * np.clip(pixels, 0, 1)).astype(np.uint8)


@lru_cache(maxsize=2 * FROST_TEXTURES)
def frost_texture(side: int, number: int) -> Pixels:
    """(S, S, 3) float32 from 0 to 1, S at least `side`: crystals that branch at 60 degrees, over a haze of ice.
    ImageNet-C has photographs of frost; these are not part of the package. One number always gives the same texture."""
    rng = np.random.default_rng([number, 20190327])
    size = math.ceil(FROST_SPREAD * side)
    drawn = Image.new("L", (2 * size, 2 * size))  # twice as large, for smooth lines
    canvas = ImageDraw.Draw(drawn)
    for _ in range(FROST_CRYSTALS):
        start = rng.uniform(0, 2 * size, 2)
        length = side * rng.uniform(0.25, 0.9)
        _grow(canvas, (start[0], start[1]), rng.uniform(0, 2 * math.pi), length, 3, rng)
    crystals = drawn.resize((size, size), Image.Resampling.BOX)
    glow = crystals.filter(ImageFilter.GaussianBlur(side / 40))
    sharp, soft = (np.asarray(image, np.float32) / 255 for image in (crystals, glow))
    haze = plasma(size, 2.2, rng)
    ice = np.clip(0.2 + 0.35 * haze + 1.1 * soft + 0.5 * sharp * (0.5 + haze), 0, 1)
    return np.asarray(ice[:, :, None] * np.array(ICE_TINT), dtype=np.float32)


def _grow(
    canvas: ImageDraw.ImageDraw,
    start: tuple[float, float],
    angle: float,
    length: float,
    depth: int,
    rng: np.random.Generator,
) -> None:
    """A needle with shorter ones on both sides, which have needles of their own."""
    end = start[0] + length * math.cos(angle), start[1] + length * math.sin(angle)
    canvas.line([start, end], fill=int(rng.integers(90, 256)), width=max(1, round(length / 60)))
    if depth == 0 or length < 6:
        return
    for along in np.arange(0.2, 1.0, 0.2 if depth > 1 else 0.25):
        at = start[0] + along * (end[0] - start[0]), start[1] + along * (end[1] - start[1])
        for turn in (-math.pi / 3, math.pi / 3):
            shorter = length * (1 - along) * rng.uniform(0.25, 0.55)
            _grow(canvas, at, angle + turn + rng.normal(0, 0.06), shorter, depth - 1, rng)
