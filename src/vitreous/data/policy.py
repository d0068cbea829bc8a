"""RandAugment, TrivialAugment and colour jitter, on one image of Pillow's.

A change takes a strength from 0 (nothing, or least) to 1 (the most its policy allows). Those with a direction go either
way. The fourteen changes and the ranges are the papers': Cubuk et al. 2020, and Müller and Hutter 2021 ("wide").
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from vitreous.config.data import Augment, Preprocess

Fill = tuple[int, ...] | int
Change = Callable[[Image.Image, float, Fill], Image.Image]


def apply_policy(image: Image.Image, preprocess: Preprocess, augment: Augment, rng: np.random.Generator) -> Image.Image:
    """The image after RandAugment's `layers` changes, or TrivialAugment's one."""
    colour = tuple(min(max(round(255 * value), 0), 255) for value in preprocess.mean)
    fill: Fill = colour if len(colour) == 3 else colour[0]
    trivial = augment.policy == "trivial"
    for _ in range(1 if trivial else augment.layers):
        kind = _KINDS[int(rng.random() * len(_KINDS))]
        strength = int(rng.random() * 31) / 30 if trivial else augment.magnitude / 10
        sign = -1 if kind.signed and rng.random() < 0.5 else 1
        image = kind.change(image, sign * strength * (kind.wide if trivial else kind.usual), fill)
    return image


def jitter(image: Image.Image, strength: float, rng: np.random.Generator) -> Image.Image:
    """Brightness, contrast and saturation, each multiplied by 1 - strength to 1 + strength, in this order."""
    for enhance in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
        image = enhance(image).enhance(1 + strength * (2 * rng.random() - 1))
    return image


def _moved(image: Image.Image, matrix: tuple[float, ...], fill: Fill) -> Image.Image:
    return image.transform(
        image.size, Image.Transform.AFFINE, matrix, resample=Image.Resampling.BILINEAR, fillcolor=fill
    )


def _shear_x(image: Image.Image, slope: float, fill: Fill) -> Image.Image:
    return _moved(image, (1, slope, -slope * image.height / 2, 0, 1, 0), fill)


def _shear_y(image: Image.Image, slope: float, fill: Fill) -> Image.Image:
    return _moved(image, (1, 0, 0, slope, 1, -slope * image.width / 2), fill)


def _translate_x(image: Image.Image, share: float, fill: Fill) -> Image.Image:
    return _moved(image, (1, 0, share * image.width, 0, 1, 0), fill)


def _translate_y(image: Image.Image, share: float, fill: Fill) -> Image.Image:
    return _moved(image, (1, 0, 0, 0, 1, share * image.height), fill)


def _rotate(image: Image.Image, degrees: float, fill: Fill) -> Image.Image:
    return image.rotate(degrees, resample=Image.Resampling.BILINEAR, fillcolor=fill)


def _posterize(image: Image.Image, bits_lost: float, fill: Fill) -> Image.Image:
    return ImageOps.posterize(image, 8 - round(bits_lost))


def _solarize(image: Image.Image, share: float, fill: Fill) -> Image.Image:
    return ImageOps.solarize(image, round(256 * (1 - share)))


def _enhanced(kind: Callable[[Image.Image], ImageEnhance._Enhance]) -> Change:
    def change(image: Image.Image, by: float, fill: Fill) -> Image.Image:
        return kind(image).enhance(1 + by)

    return change


class _Kind(NamedTuple):
    change: Change
    usual: float
    """RandAugment's greatest value."""
    wide: float
    """TrivialAugment's."""
    signed: bool


_KINDS = (
    _Kind(lambda image, by, fill: image, 0.0, 0.0, False),
    _Kind(lambda image, by, fill: ImageOps.autocontrast(image), 0.0, 0.0, False),
    _Kind(lambda image, by, fill: ImageOps.equalize(image), 0.0, 0.0, False),
    _Kind(_rotate, 30.0, 135.0, True),
    _Kind(_shear_x, 0.3, 0.99, True),
    _Kind(_shear_y, 0.3, 0.99, True),
    _Kind(_translate_x, 0.45, 0.14, True),  # of the side: 150 of 331 pixels, and 32 of 224
    _Kind(_translate_y, 0.45, 0.14, True),
    _Kind(_posterize, 4.0, 6.0, False),
    _Kind(_solarize, 1.0, 1.0, False),
    _Kind(_enhanced(ImageEnhance.Brightness), 0.9, 0.99, True),
    _Kind(_enhanced(ImageEnhance.Color), 0.9, 0.99, True),
    _Kind(_enhanced(ImageEnhance.Contrast), 0.9, 0.99, True),
    _Kind(_enhanced(ImageEnhance.Sharpness), 0.9, 0.99, True),
)
