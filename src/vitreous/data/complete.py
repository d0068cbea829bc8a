"""The pixels of an opened image, if its file holds all of them."""

from __future__ import annotations

import io
import math
import os
from pathlib import Path

import numpy as np
from PIL import Image

from vitreous.data.levels import strips

JPEGS = ("JPEG", "MPO")  # phones put a second image behind the first, which Pillow then calls MPO
NO_END = "no end marker"  # in the `info` of an image whose file lacks nothing but that
_END, _FILLINGS = b"\xff\xd9", (b"\x55" * 64, b"\xaa" * 64)


def load_complete(image: Image.Image, source: Path | bytes, at_least: int | None) -> Image.Image:
    """The image with its pixels, all of which its file must hold: Pillow leaves it unsaid where a PNG has fewer rows,
    an uncompressed TIFF fewer strips, or a JPEG its end marker too early. A progressive JPEG without its last scans is
    coarse, but whole.

    A JPEG that lacks its end marker and nothing else is taken, as every viewer does. Nothing else is lacking if what
    follows does not matter: with the marker at once, or with other bytes before it, which a decoder in want of data
    would take for pixels, the same pixels come out. Zeros at the end, as half a download leaves them, are no data."""
    if image.format == "TIFF":
        boxes = [tile[1] for tile in getattr(image, "tile", ())]
        if sum((right - left) * (low - top) for left, top, right, low in boxes) < math.prod(image.size):
            raise OSError("strips are missing")
    lacks_end = False
    try:
        image.load()
        if not (_may_lack_data(image) or (image.format in JPEGS and _ends_in_zeros(source))):
            return image
    except OSError:
        if image.format not in JPEGS:
            raise
        lacks_end = True
    content = source if isinstance(source, bytes) else source.read_bytes()
    if image.format == "PNG":
        twins = [_decode(content, None, background=255)]
    else:
        stripped = content.rstrip(b"\0")
        if lacks_end or len(stripped) < len(content):
            content = stripped.removesuffix(_END).removesuffix(_END[:1])
        else:
            content = content.rpartition(_END)[0]
        image = _decode(content + _END, at_least)
        twins = [_decode(content + filling + _END, at_least) for filling in _FILLINGS]
    for twin in twins:
        pairs = zip(strips(image), strips(twin), strict=True)
        if any(one.tobytes() != other.tobytes() for (_, one), (_, other) in pairs):
            raise OSError("its data end early")
    if lacks_end:
        image.info[NO_END] = True
    return image


def _may_lack_data(image: Image.Image) -> bool:
    """Whether the end of an image looks as a decoder leaves pixels that it was given no data for."""
    if image.format == "PNG":  # black; of an interlaced one, any place
        last = image.crop((0, image.height - 1, image.width, image.height))
        return "interlace" in image.info or not any(last.tobytes())
    if image.format in JPEGS:  # grey
        corner = np.asarray(image.crop((max(image.width - 8, 0), max(image.height - 8, 0), *image.size)))
        return bool(np.abs(corner.astype(int) - 128).max() <= 2)
    return False


def _ends_in_zeros(source: Path | bytes) -> bool:
    if isinstance(source, bytes):
        return not any(source[-64:])
    with source.open("rb") as file:
        file.seek(-min(64, source.stat().st_size), os.SEEK_END)
        return not any(file.read())


def _decode(content: bytes, at_least: int | None, background: int | None = None) -> Image.Image:
    image = Image.open(io.BytesIO(content), formats=("JPEG", "PNG"))
    if at_least is not None:
        image.draft(None, (at_least, at_least))
    if background is not None:
        image.im = Image.new(image.mode, image.size, background).im
    image.load()
    return image
