"""Corruptions of what a model sees: the 15 kinds of ImageNet-C (Hendrycks and Dietterich 2019), at five strengths.

Each is a pure function of the view, the strength and a random stream, and that is one of the seed, the kind and the
image's key. All strengths of a kind start from the same seed, so that most differ in strength and in little else;
shot noise and snow draw other numbers at each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitreous.config.data import Preprocess
from vitreous.data.corruption.blur import camera_motion, defocus_blur, glass_blur, zoom_blur
from vitreous.data.corruption.digital import contrast, elastic, jpeg, pixelate
from vitreous.data.corruption.filters import Pixels, to_levels
from vitreous.data.corruption.noise import gaussian_noise, impulse_noise, shot_noise
from vitreous.data.corruption.weather import brightness, fog, frost, snow
from vitreous.data.decode import ImageError
from vitreous.data.source import Source
from vitreous.data.view import Sample, make_view

Group = Literal["noise", "blur", "weather", "digital"]
Levels = NDArray[np.uint8]
STRENGTHS = (1, 2, 3, 4, 5)
AS_PUBLISHED = "as published"


@dataclass(frozen=True)
class Corruption:
    """One kind."""

    group: Group
    apply: Callable[[Pixels, int, np.random.Generator], Pixels]
    """From pixels (H, W, C) float32 from 0 to 1, the strength from 1 to 5, and a random stream, to such pixels, which
    may run beyond 0 and 1."""
    differs: str = AS_PUBLISHED
    """From ImageNet-C, for people."""


CORRUPTIONS: dict[str, Corruption] = {
    "gaussian noise": Corruption("noise", gaussian_noise),
    "shot noise": Corruption("noise", shot_noise),
    "impulse noise": Corruption("noise", impulse_noise),
    "defocus blur": Corruption("blur", defocus_blur),
    "glass blur": Corruption("blur", glass_blur, "pixels are swapped; the published code copies one over the other"),
    "motion blur": Corruption("blur", camera_motion, "a half-Gaussian line in NumPy, like ImageMagick's"),
    "zoom blur": Corruption("blur", zoom_blur, "cuts are not rounded to whole pixels"),
    "snow": Corruption(
        "weather",
        snow,
        "flakes are drawn coarse and enlarged, not cut out of a fine drawing; blurred as by motion blur",
    ),
    "frost": Corruption(
        "weather", frost, "procedural frost: drawn crystals in place of photographs, with shares to suit"
    ),
    "fog": Corruption("weather", fog, "more fog at strengths 4 and 5, so that strength 4 changes an image more than 3"),
    "brightness": Corruption("weather", brightness),
    "contrast": Corruption("digital", contrast),
    "elastic": Corruption(
        "digital",
        elastic,
        "large and small distortions grow together, for at the published settings strength 3 changes an image less "
        "than 1; one interpolation for both",
    ),
    "pixelate": Corruption("digital", pixelate),
    "jpeg": Corruption("digital", jpeg),
}
"""By name, in the paper's order."""


def corrupt(view: Levels, kind: str, strength: int, rng: np.random.Generator) -> Levels:
    """(C, H, W) uint8: the view (C, H, W) uint8 with one corruption at a strength from 1 to 5."""
    pixels = np.ascontiguousarray(view.transpose(1, 2, 0), dtype=np.float32) / np.float32(255)
    made = to_levels(CORRUPTIONS[kind].apply(pixels, strength, rng))
    return np.ascontiguousarray(made.transpose(2, 0, 1))


def stream(seed: int, kind: str, key: str) -> np.random.Generator:
    """The random numbers of one kind for the image of this key, the same wherever and in whatever order it is met."""
    text = f"{seed}\0{kind}\0".encode() + key.encode("utf-8", "surrogateescape")
    return np.random.Generator(np.random.Philox(key=int.from_bytes(blake2b(text, digest_size=16).digest(), "little")))


class Corrupted(NamedTuple):
    """One image, as it is and in all corruptions."""

    views: Levels | None
    """(1 + kinds x strengths, C, H, W); the first is the image as it is. None if it cannot be read."""
    reason: str = ""
    """Why it cannot."""


@dataclass(frozen=True)
class Corrupting:
    """Makes the views of single images, in whichever process."""

    source: Source
    preprocess: Preprocess
    kinds: Sequence[str]
    strengths: Sequence[int]
    seed: int

    def make(self, index: int) -> Corrupted:
        """All views of one image, kind by kind."""
        try:
            view = make_view(Sample(self.source, index), self.preprocess).numpy()
        except ImageError as error:
            return Corrupted(None, error.reason)
        key = self.source.key(index)
        made = [corrupt(view, kind, k, stream(self.seed, kind, key)) for kind in self.kinds for k in self.strengths]
        return Corrupted(np.stack([view, *made]))
