"""From a file's bytes to an image in the model's channels.

Whatever the file holds, the result is an upright 8-bit image, "RGB" or "L":

- the camera's orientation is applied;
- of an animation, the first frame is taken;
- transparency is laid on white, as a page would show it;
- 16 and 32 bits become 8 by scale, never by cutting off: white is what a TIFF's tags say (SMaxSampleValue,
  MaxSampleValue, BitsPerSample), else 65535 for 16 bits and 1 for floats, which are refused beyond 0 to 1;
- CMYK and palettes become RGB, and RGB becomes grey by ITU-R 601 luma.

Colour profiles are not applied: models were trained without.
"""

from __future__ import annotations

import errno
import io
import math
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError, features

from vitreous.data.complete import JPEGS, NO_END, load_complete
from vitreous.data.levels import (
    declared_range,
    has_16_bit_colours,
    join_bytes,
    load_low_bytes,
    log_if_dark,
    log_once,
    to_channels,
)
from vitreous.errors import UserError
from vitreous.inputs import file_kind, format_bytes, reason
from vitreous.memory import available_memory

try:
    from pillow_heif import register_heif_opener
except ImportError:
    HAS_HEIC = False
else:
    HAS_HEIC = True
    register_heif_opener()

# What is opened, by content and not by name. Pillow's rarer decoders are never tried on a stranger's bytes.
_AVIF, _JPEG_2000 = (bool(features.check(name)) for name in ("avif", "jpg_2000"))  # Pillow may be built without
FORMATS = (
    *("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM"),
    *(["AVIF"] * _AVIF + ["JPEG2000"] * _JPEG_2000 + ["HEIF"] * HAS_HEIC),
)

HEIC_SUFFIXES = (".heic", ".heif")
HEIC_ADVICE = "pip install 'vitreous[heic]' to read HEIC"
# Which names in a folder are taken for images, in lower case.
IMAGE_SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm")
).union([".avif"] * _AVIF, [".jp2", ".j2k"] * _JPEG_2000, HEIC_SUFFIXES if HAS_HEIC else ())
# 67 megapixels, some 270 MB when decoded: above every common camera, below what fills a small machine's memory.
MAX_PIXELS = 2**26
# Of a file: eight for each pixel, as 16 bits of four channels take. Some decoders read all of a file at once.
MAX_BYTES = 8 * MAX_PIXELS
# A PNG of 67 bytes may say that it has 33 million rows; of a strip longer than that, a model sees next to nothing.
MAX_SIDE, MAX_RATIO = 2**16 - 1, 1000
# What the largest image of any kind takes at most when it is decoded and converted: 4 bytes a pixel as decoded, and two
# copies. What would take more, such as numbers in double precision, is converted a strip after the other.
DECODING_BYTES = 12 * MAX_PIXELS
SHORTAGES = (errno.ENOMEM, errno.EMFILE, errno.ENFILE)
OUT_OF_MEMORY = "out of memory"  # how Pillow begins the error of a decoder that got none, which has no class of its own
_ORIGINAL_SIZE = "original size"  # in the `info` of an image that was decoded at a smaller scale

_ORIENTATION = 0x0112


class _Turn(NamedTuple):
    how: Image.Transpose
    mirror_x: bool  # what was on the right is then on the left, or at the top where width becomes height
    mirror_y: bool
    swap: bool  # width becomes height


_UPRIGHT = {
    2: _Turn(Image.Transpose.FLIP_LEFT_RIGHT, True, False, False),
    3: _Turn(Image.Transpose.ROTATE_180, True, True, False),
    4: _Turn(Image.Transpose.FLIP_TOP_BOTTOM, False, True, False),
    5: _Turn(Image.Transpose.TRANSPOSE, False, False, True),
    6: _Turn(Image.Transpose.ROTATE_270, False, True, True),
    7: _Turn(Image.Transpose.TRANSVERSE, True, True, True),
    8: _Turn(Image.Transpose.ROTATE_90, True, False, True),
}
_ORIENTATION_NOTES = ("exif", "Raw profile type exif", "XML:com.adobe.xmp", "xmp")


class ImageError(UserError):
    """An image that cannot be read: `name` says which, `reason` why and what to do.

    temporary: the system refused, such as for want of permission: what may pass is no property of the image.
    """

    def __init__(self, name: str, reason: str, temporary: bool = False) -> None:
        super().__init__(f"{name}: {reason}")
        self.name, self.reason, self.temporary = name, reason, temporary

    def __reduce__(self) -> tuple[type[ImageError], tuple[str, str, bool]]:
        return type(self), (self.name, self.reason, self.temporary)


class OriginalSize(NamedTuple):
    """How large an image is in full, and where the whole of it lies in the pixels that were decoded."""

    height: int
    width: int
    # Left, top, right and bottom. At a half, seven pixels become four, of which the last is half beyond the border.
    box: tuple[float, float, float, float]


class Header(NamedTuple):
    """What a file says about its image before any pixel is decoded."""

    width: int
    height: int
    mode: str
    format: str


def open_image(
    source: Path | bytes, *, channels: int = 3, at_least: int | None = None, name: str | None = None
) -> Image.Image:
    """The image in a file, or in its bytes, as upright 8-bit "RGB" (3 channels) or "L" (1 channel).

    at_least: a JPEG may be decoded at a half, quarter or eighth, as long as its short side keeps this many pixels.
    name: what errors call it, if not its path.
    """
    check_channels(channels)
    called = name or _name_of(source)
    with _opened(source, name) as image:
        width, height = image.size
        if at_least is not None and image.format in JPEGS:  # of a HEIC, it would take the thumbnail in it
            image.draft(None, (at_least, at_least))
        kind, scale = image.format, round(width / image.width)
        has_low_bytes, declared = has_16_bit_colours(image), declared_range(image)
        loaded = load_complete(image, source, at_least)
        if has_low_bytes and declared is not None and declared[1] < 65535:
            with _opened(source, name) as twin:
                loaded = join_bytes(loaded, load_low_bytes(twin), declared[1])
        elif has_low_bytes and declared is None:
            log_if_dark(256.0 * np.max(loaded.getextrema()) + 255, called)
        if scale > 1:
            loaded.info[_ORIGINAL_SIZE] = OriginalSize(height, width, (0.0, 0.0, width / scale, height / scale))
        if NO_END in loaded.info:
            log_once(
                f"{called}: a JPEG without its end marker; it lacks nothing else, so it is read, as "
                "others like it will be."
            )
        return to_channels(_upright(loaded), channels, kind, declared, called)


def original_size(image: Image.Image) -> OriginalSize:
    """How large the image is in its file; one that was not decoded at a smaller scale is as large as it is."""
    known = image.info.get(_ORIGINAL_SIZE)
    if isinstance(known, OriginalSize) and image.size == (math.ceil(known.box[2]), math.ceil(known.box[3])):
        return known
    return OriginalSize(image.height, image.width, (0.0, 0.0, image.width, image.height))


def prepare_image(image: Image.Image, *, channels: int = 3) -> Image.Image:
    """An image that Pillow has opened or made, as `open_image` would give it; the given one stays as it is."""
    check_channels(channels)
    with _readable("the image"):
        image.load()
        prepared = to_channels(_upright(image), channels, image.format, declared_range(image), "the image")
    prepared = prepared.copy() if prepared is image else prepared
    prepared.info.pop(_ORIGINAL_SIZE, None)  # what somebody made of an image is an image of its own
    return prepared


def check_channels(channels: int) -> None:
    """Refuse a model of images that no file is read as."""
    if channels not in (1, 3):
        raise UserError(
            f"the model takes images of {channels} channels, and image files are read as grey (1) or colour (3); "
            "give its network tensors instead: vitreous.load(MODEL).network(images)."
        )


def open_values(path: Path) -> NDArray[np.uint8]:
    """(height, width): the numbers in a file such as a mask, not the colours that they may stand for."""
    with _opened(path, None) as image:
        image.load()
        return np.asarray(image if image.mode in ("L", "P") else image.convert("L"), np.uint8)


def read_content(path: Path) -> bytes:
    _check_size(path, str(path))
    with _readable(str(path)):
        return path.read_bytes()


def read_header(source: Path | bytes, *, name: str | None = None) -> Header:
    """Size and kind of an image, without decoding it. The size is as stored, before the camera's orientation."""
    with _opened(source, name) as image:
        kind = "JPEG" if image.format in JPEGS else image.format or ""
        return Header(image.width, image.height, image.mode, kind)


def _name_of(source: Path | bytes) -> str:
    return "the image" if isinstance(source, bytes) else str(source)


class _WithoutWarnings:
    """Within, no warnings: Pillow's are of large images, which are refused, and of odd metadata, which do no harm.
    Filters are the process's: if each of several threads restored those that it had found, they would stay changed. So
    the first thread sets them and the last restores them."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._lock, self._depth = Lock(), 0

    def __enter__(self) -> None:
        with self._lock:
            self._depth += 1
            if self._depth == 1:
                self._filters = warnings.catch_warnings(action="ignore")
                self._filters.__enter__()

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth == 0:
                self._filters.__exit__(None, None, None)


_without_warnings = _WithoutWarnings()
if hasattr(os, "register_at_fork"):  # another thread may be within when a worker is forked
    os.register_at_fork(after_in_child=_without_warnings.reset)


@contextmanager
def _opened(source: Path | bytes, name: str | None) -> Iterator[Image.Image]:
    """A Pillow image with its header read and its size accepted; whatever then goes wrong becomes a `ImageError`."""
    name = name or _name_of(source)
    _check_size(source, name)
    content = io.BytesIO(source) if isinstance(source, bytes) else source
    with _readable(name), _without_warnings, Image.open(content, formats=FORMATS) as image:
        short, long = sorted(image.size)
        if short * long > MAX_PIXELS:
            raise ImageError(name, _too_large(f"{image.width}x{image.height}"))
        if long > min(MAX_SIDE, MAX_RATIO * short):
            limits = f"{MAX_SIDE:,} pixels, or {MAX_RATIO:,} times the shorter one"
            raise ImageError(name, f"{image.width}x{image.height}: a side is longer than {limits}; cut the image up.")
        yield image


@contextmanager
def _readable(name: str) -> Iterator[None]:
    """Within, whatever is wrong with an image becomes a `ImageError`; what the machine lacks does not."""
    try:
        yield
    except ImageError:
        raise
    except UserError as error:
        raise ImageError(name, f"{error}") from None
    except Image.DecompressionBombError:
        raise ImageError(name, _too_large("it")) from None
    except UnidentifiedImageError:
        kinds = ", ".join(FORMATS) + ("" if HAS_HEIC else f"; {HEIC_ADVICE}")
        raise ImageError(name, f"not an image of a known kind ({kinds}); convert or delete it.") from None
    except PermissionError:
        raise ImageError(name, "no permission to read it; change the file's mode or owner.", temporary=True) from None
    except Exception as error:  # decoders of damaged files raise anything from SyntaxError to struct.error
        _check_shortage(error)
        reason, left = f"{error}".rstrip(".") or type(error).__name__, available_memory()
        short = left is not None and left < DECODING_BYTES  # some decoders then fail in other words
        or_short = f", or memory is short: {format_bytes(left)} are left" if short and left is not None else ""
        refused = short or getattr(error, "errno", None) is not None
        why = f"damaged or cut short ({reason}{or_short}); restore or delete it."
        raise ImageError(name, why, temporary=refused) from error


def _check_shortage(error: Exception) -> None:
    """Raise the error again if it says what the machine lacks, and nothing of the image. A damaged file, too, may ask
    for more memory than there is: it is no shortage if there is enough for any image."""
    if getattr(error, "errno", None) in SHORTAGES:
        raise error
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and str(error).startswith(OUT_OF_MEMORY)):
        left = available_memory()
        if left is None or left < DECODING_BYTES:
            raise MemoryError(str(error)) from error


def _too_large(what: str) -> str:
    return f"{what} has more pixels than the limit of {MAX_PIXELS / 1e6:.0f} million; make it smaller."


def _check_size(source: Path | bytes, name: str) -> None:
    """Refuse what is no regular file, for opening a pipe would wait for ever, and what has no bytes or too many."""
    try:
        status = None if isinstance(source, bytes) else source.stat()
    except FileNotFoundError:
        raise ImageError(name, "there is no such file; check the path.") from None
    except PermissionError:
        why = "no permission to read it; change the mode or owner of its folder."
        raise ImageError(name, why, temporary=True) from None
    except (OSError, ValueError) as error:
        _check_shortage(error)
        raise ImageError(name, f"cannot be opened ({reason(error)}); check the path.", temporary=True) from None
    if status is not None and (kind := file_kind(status.st_mode)) != "file":
        raise ImageError(name, f"this is a {kind}, not an image; give a file.")
    size = len(source) if isinstance(source, bytes) else status.st_size if status is not None else 0
    if size == 0:
        raise ImageError(name, "the file is empty (0 bytes); restore or delete it.")
    if size > MAX_BYTES:
        raise ImageError(
            name, f"{format_bytes(size)}, more than the limit of {format_bytes(MAX_BYTES)}; make it smaller."
        )


def _upright(image: Image.Image) -> Image.Image:
    """Turned as the camera was held. For TIFF, Pillow has done it while loading."""
    try:
        orientation = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # broken metadata says nothing about the pixels, which are fine
        return image
    if (turn := _UPRIGHT.get(orientation)) is None:
        return image
    turned = image.transpose(turn.how)
    if _ORIGINAL_SIZE in image.info:
        height, width, (left, top, right, bottom) = original_size(image)
        if turn.mirror_x:
            left, right = image.width - right, image.width - left
        if turn.mirror_y:
            top, bottom = image.height - bottom, image.height - top
        size = (width, height, (top, left, bottom, right)) if turn.swap else (height, width, (left, top, right, bottom))
        turned.info[_ORIGINAL_SIZE] = OriginalSize(*size)
    for note in _ORIENTATION_NOTES:
        turned.info.pop(note, None)  # else whoever is given this image would turn it once more
    return turned
