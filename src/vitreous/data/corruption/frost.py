"""Textures of frost, drawn by a program: crystals that branch at 60 degrees, over a haze of ice.

ImageNet-C has photographs of frost; these are not part of the package, so the texture is procedural.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from vitreous.data.corruption.filters import Pixels, plasma

TEXTURES = 5
"""How many there are to choose from, as in ImageNet-C."""
CRYSTALS = 90
SPREAD = 1.5
"""The side of a texture, in sides of an image: images see a random cut of it."""
TINT = (0.86, 0.94, 1.0)
"""Ice is a little blue."""


@lru_cache(maxsize=2 * TEXTURES)
def frost_texture(side: int, number: int) -> Pixels:
    """(S, S, 3) float32 from 0 to 1, S at least `side`: the texture of this number, always the same."""
    rng = np.random.default_rng([number, 20190327])
    size = math.ceil(SPREAD * side)
    drawn = Image.new("L", (2 * size, 2 * size))  # twice as large, for smooth lines
    pen = ImageDraw.Draw(drawn)
    for _ in range(CRYSTALS):
        start = rng.uniform(0, 2 * size, 2)
        length = side * rng.uniform(0.25, 0.9)
        _grow(pen, (start[0], start[1]), rng.uniform(0, 2 * math.pi), length, 3, rng)
    crystals = drawn.resize((size, size), Image.Resampling.BOX)
    glow = crystals.filter(ImageFilter.GaussianBlur(side / 40))
    sharp, soft = (np.asarray(image, np.float32) / 255 for image in (crystals, glow))
    haze = plasma(size, 2.2, rng)
    ice = np.clip(0.2 + 0.35 * haze + 1.1 * soft + 0.5 * sharp * (0.5 + haze), 0, 1)
    return np.asarray(ice[:, :, None] * np.array(TINT), dtype=np.float32)


def _grow(
    pen: ImageDraw.ImageDraw,
    start: tuple[float, float],
    angle: float,
    length: float,
    depth: int,
    rng: np.random.Generator,
) -> None:
    """A needle with shorter ones on both sides, which have needles of their own."""
    end = start[0] + length * math.cos(angle), start[1] + length * math.sin(angle)
    pen.line([start, end], fill=int(rng.integers(90, 256)), width=max(1, round(length / 60)))
    if depth == 0 or length < 6:
        return
    for share in np.arange(0.2, 1.0, 0.2 if depth > 1 else 0.25):
        at = start[0] + share * (end[0] - start[0]), start[1] + share * (end[1] - start[1])
        for turn in (-math.pi / 3, math.pi / 3):
            shorter = length * (1 - share) * rng.uniform(0.25, 0.55)
            _grow(pen, at, angle + turn + rng.normal(0, 0.06), shorter, depth - 1, rng)
