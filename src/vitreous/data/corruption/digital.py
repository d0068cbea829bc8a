"""Digital: contrast, elastic distortion, pixels that are too large, JPEG. Pixels are (H, W, C) float32 from 0 to 1."""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.data.corruption.filters import Pixels, from_image, gaussian_blur, look_up, scale_of, to_image

CONTRAST = (0.4, 0.3, 0.2, 0.1, 0.05)
"""What is left of every difference from the mean."""
ELASTIC = ((12.2, 4.88), (15.0, 8.0), (18.0, 12.0), (23.0, 17.0), (29.28, 24.4))
"""How far pixels are displaced before that is smoothed, and how far each of three points of an affine map is moved at
most. ImageNet-C's settings trade one for the other, so that the third changes an image less than the first; these grow
together, between its smallest and its largest small-scale distortion."""
SMOOTHING = 2.44
"""The deviation of the Gaussian that smooths displacements."""
PIXELS = (0.6, 0.5, 0.4, 0.3, 0.25)
"""The share of pixels that is left along each side."""
QUALITY = (25, 18, 15, 10, 7)
"""Of JPEG."""


def contrast(pixels: Pixels, strength: int, rng: np.random.Generator) -> Pixels:
    """Everything comes nearer to the mean colour."""
    mean: Pixels = pixels.mean(axis=(0, 1), keepdims=True)
    return (pixels - mean) * np.float32(CONTRAST[strength - 1]) + mean


def elastic(pixels: Pixels, strength: int, rng: np.random.Generator) -> Pixels:
    """The image is stretched as a whole (an affine map) and in small places (smoothed random displacements)."""
    far, corner = ELASTIC[strength - 1]
    scale, (height, width) = scale_of(pixels), pixels.shape[:2]
    back = affine_back((height, width), corner * scale, rng)
    rows, columns = np.indices((height, width), dtype=np.float32)
    noise = rng.uniform(-1, 1, (height, width, 2)).astype(np.float32)
    # Smoothing over twice the distance leaves half the noise: the square makes the displacements scale as lengths do.
    moves = gaussian_blur(noise, SMOOTHING * scale, "symmetric", truncate=3) * np.float32(far * scale * scale)
    rows, columns = rows + moves[..., 0], columns + moves[..., 1]
    return look_up(
        pixels,
        back[0, 0] * rows + back[0, 1] * columns + back[0, 2],
        back[1, 0] * rows + back[1, 1] * columns + back[1, 2],
    )


def affine_back(size: tuple[int, int], far: float, rng: np.random.Generator) -> NDArray[np.float32]:
    """(2, 3): from a place (row, column, 1) of the distorted image to its place in the image.

    Three points around the middle are each moved by up to `far` pixels along both sides.
    """
    middle, third = np.array(size) // 2, min(size) // 3
    points = np.stack([middle + third, middle + np.array([-third, third]), middle - third]).astype(np.float64)
    moved = points + rng.uniform(-far, far, points.shape)
    return np.linalg.solve(np.column_stack([moved, np.ones(3)]), points).T.astype(np.float32)


def pixelate(pixels: Pixels, strength: int, rng: np.random.Generator) -> Pixels:
    """Made small by means over boxes, and large again by repeating pixels."""
    height, width = pixels.shape[:2]
    few = [max(1, int(side * PIXELS[strength - 1])) for side in (width, height)]
    small = to_image(pixels).resize((few[0], few[1]), Image.Resampling.BOX)
    return from_image(small.resize((width, height), Image.Resampling.BOX))


def jpeg(pixels: Pixels, strength: int, rng: np.random.Generator) -> Pixels:
    """Saved as a JPEG of low quality and read again."""
    buffer = io.BytesIO()
    to_image(pixels).save(buffer, "JPEG", quality=QUALITY[strength - 1])
    return from_image(Image.open(buffer))
