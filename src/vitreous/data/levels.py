"""From an image as Pillow decodes it to 8 bits and the model's channels: levels of 16 and 32 bits, alpha, palettes."""

from __future__ import annotations

import logging
import math
import mmap
import os
import sys
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.errors import UserError

STRIP_PIXELS = 2**20  # what is converted at once: numbers in double precision would take much of a large image
_BITS, _MAX, _SMIN, _SMAX = 258, 281, 340, 341  # BitsPerSample, MaxSampleValue, SMinSampleValue, SMaxSampleValue

log = logging.getLogger("vitreous")
_LOGGED_BY = mmap.mmap(-1, 8)  # the process group that has logged: memory that processes forked later share


def log_once(sentence: str) -> None:
    """Log the sentence, unless a process of the same group, which is that of one command, has logged one here."""
    group = (os.getpgrp() if hasattr(os, "getpgrp") else 1).to_bytes(8, "little")
    if _LOGGED_BY[:] != group:
        _LOGGED_BY[:] = group
        log.info(sentence)


def to_channels(
    image: Image.Image, channels: int, kind: str | None, declared: tuple[float, float] | None, name: str
) -> Image.Image:
    mode = "RGB" if channels == 3 else "L"
    if image.mode.startswith("I") or image.mode == "F":
        image = _to_8_bits(image, declared or _assumed_range(image, kind, name))
    if image.has_transparency_data:
        flat = Image.new(mode, image.size)
        for corner, strip in strips(image):
            page = Image.new("RGBA", strip.size, "white")
            flat.paste(Image.alpha_composite(page, strip.convert("RGBA")).convert(mode), corner)
        return flat
    if image.mode == mode and (type(image) is Image.Image or image.format == "JPEG"):
        return image  # a JPEG that is decoded has let go of its file: no copy is needed
    return image.convert(mode)


def strips(image: Image.Image) -> Iterator[tuple[tuple[int, int], Image.Image]]:
    """The image in pieces of some rows, each with the place of its left upper corner."""
    rows = max(1, STRIP_PIXELS // image.width)
    for top in range(0, image.height, rows):
        yield (0, top), image.crop((0, top, image.width, min(top + rows, image.height)))


def _to_8_bits(image: Image.Image, limits: tuple[float, float]) -> Image.Image:
    """An image of 16 or 32 bits, or of floating point, as "L": what is at the limits becomes 0 and 255."""
    low, high = limits
    transparent = image.info.get("transparency")  # of a PNG: one level of grey, which is white on a page
    found = Image.new("L", image.size)
    for corner, strip in strips(image):
        values = _finite(strip)
        levels = np.rint((np.clip(values, low, high) - low) * (255.0 / (high - low))).astype(np.uint8)
        if isinstance(transparent, int):
            levels[values == transparent] = 255
        found.paste(Image.fromarray(levels), corner)
    return found


def _finite(strip: Image.Image) -> NDArray[np.float64]:
    return np.nan_to_num(np.asarray(strip).astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)


def declared_range(image: Image.Image) -> tuple[float, float] | None:
    """Black and white of grey levels in a TIFF as its tags say them; None where they do not. Of integers, white is all
    ones in as many bits as the greatest value takes: some programs write the greatest of this very image."""
    if not (image.mode.startswith("I") or image.mode == "F" or has_16_bit_colours(image)):
        return None
    try:
        tags = dict(getattr(image, "tag_v2", {}))
    except Exception:  # broken metadata says nothing about the pixels
        return None

    def number(tag: int) -> float | None:
        value = tags.get(tag)
        value = value[0] if isinstance(value, tuple) and value else value
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None

    low, high = number(_SMIN) or 0.0, number(_SMAX)
    if image.mode != "F":
        high, bits = high or number(_MAX), number(_BITS) or 16.0
        if high is None and bits < 16:
            high = 2.0**bits - 1
        if high is not None and low >= 0:
            low, high = 0.0, 2.0 ** max(8, int(high).bit_length()) - 1
    return (low, high) if high is not None and low < high else None


def _assumed_range(image: Image.Image, kind: str | None, name: str) -> tuple[float, float]:
    """0 to 1 for floats, 0 to 65535 for 16 bits, and for integers of 32 bits 0 to 255 or to 65535, whichever holds
    them; beyond that, nobody can know what is white."""
    low, high = math.inf, -math.inf
    for _, strip in strips(image):
        values = _finite(strip)
        low, high = min(low, float(values.min())), max(high, float(values.max()))
    if image.mode.startswith("I;16"):
        log_if_dark(high, name)
        return 0.0, 65535.0
    of_16_bits = kind in ("PPM", "PNG")  # which Pillow gives as integers of 32 bits
    whites = (1.0,) if image.mode == "F" else (65535.0,) if of_16_bits else (255.0, 65535.0)
    white = next((white for white in whites if low >= 0 and high <= white), None)
    if white is None:
        what = "floating-point values" if image.mode == "F" else "32-bit values"
        raise UserError(
            f"{what} from {low:g} to {high:g}, and nothing says which is white; scale them to 0 to {whites[-1]:g}, or "
            "write a TIFF with the tags SMinSampleValue and SMaxSampleValue.",
        )
    return 0.0, white


def log_if_dark(high: float, name: str) -> None:
    if 0 < high < 4096:
        log_once(
            f"{name}: its 16-bit values reach only {high:,.0f}, so it is nearly black, as others like it will be; "
            "if they have fewer bits, a TIFF's tag MaxSampleValue must say so."
        )


def has_16_bit_colours(image: Image.Image) -> bool:
    """Whether this is a TIFF, not loaded yet, with colours of 16 bits. Pillow keeps the high bytes of them alone."""
    tiles = getattr(image, "tile", ()) if image.format == "TIFF" and image.mode in ("RGB", "RGBA") else ()
    return any(";16" in str(tile.args[0]) for tile in tiles)


def load_low_bytes(image: Any) -> Image.Image:
    """The low bytes of an opened TIFF of 16-bit colours: read in the other byte order, they are the high ones."""
    other = {"L": "B", "B": "L", "N": "B" if sys.byteorder == "little" else "L"}
    image.tile = [t._replace(args=(t.args[0][:-1] + other[t.args[0][-1]], *t.args[1:])) for t in image.tile]
    image.load()
    return cast(Image.Image, image)


def join_bytes(high: Image.Image, low: Image.Image, white: float) -> Image.Image:
    found = Image.new(high.mode, high.size)
    for (corner, strip), (_, part) in zip(strips(high), strips(low), strict=True):
        values = 256.0 * np.asarray(strip) + np.asarray(part)
        levels = np.rint(np.minimum(values * (255 / white), 255)).astype(np.uint8)
        found.paste(Image.fromarray(levels), corner)
    return found
