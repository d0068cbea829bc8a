"""From a file's bytes to an image in the model's channels.

Whatever the file holds, the result is an upright 8-bit image, "RGB" or "L":

- the camera's orientation is applied;
- of an animation, the first frame is taken;
- transparency is laid on white, as a page would show it;
- 16 bits become 8 by scale, never by cutting off: white stays white and dark stays dark;
- CMYK and palettes become RGB, and RGB becomes grey by ITU-R 601 luma.

Colour profiles are not applied: models were trained without.
"""

from __future__ import annotations

import errno
import io
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from vitreous.data.once import say_once
from vitreous.errors import UserError
from vitreous.inputs import file_kind, reason, size_text
from vitreous.memory import available_memory

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
"""What is opened, by content and not by name. Pillow's rarer decoders are never tried on a stranger's bytes."""

IMAGE_SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm")
)
"""Which names in a folder are taken for images, in lower case."""

MAX_PIXELS = 2**26
"""67 megapixels, some 270 MB when decoded: above every common camera, below what fills a small machine's memory."""

MAX_BYTES = 8 * MAX_PIXELS
"""Of a file: eight for each pixel, as 16 bits of four channels take. Some decoders read all of a file at once."""

SHORTAGES = (errno.ENOMEM, errno.EMFILE, errno.ENFILE)
OUT_OF_MEMORY = "out of memory"
"""How Pillow begins the error of a decoder that got none, which has no class or number of its own."""
DECODING_BYTES = 12 * MAX_PIXELS
"""What the largest image takes, when it is decoded and converted."""

NO_END = "no end marker"
"""In the `info` of an image whose file lacks nothing but that."""

_ORIENTATION = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_FROM_RIGHT = {_UPRIGHT[2], _UPRIGHT[3], _UPRIGHT[7], _UPRIGHT[8]}
"""Turns after which what was on the right is on the left, or at the top where width becomes height."""
_FROM_BOTTOM = {_UPRIGHT[3], _UPRIGHT[4], _UPRIGHT[6], _UPRIGHT[7]}
_LYING = {_UPRIGHT[5], _UPRIGHT[6], _UPRIGHT[7], _UPRIGHT[8]}
_EXTENT = "extent in full"
"""In the `info` of an image that was decoded at a smaller scale."""
_END, _FILLINGS = b"\xff\xd9", (b"\x55" * 64, b"\xaa" * 64)
_SAYING_HOW_IT_LIES = ("exif", "Raw profile type exif", "XML:com.adobe.xmp", "xmp")


class ImageError(UserError):
    """An image that cannot be read: `name` says which, `reason` why and what to do.

    temporary: the system refused, such as for want of permission: what may pass is no property of the image.
    """

    def __init__(self, name: str, reason: str, temporary: bool = False) -> None:
        super().__init__(f"{name}: {reason}")
        self.name = name
        self.reason = reason
        self.temporary = temporary

    def __reduce__(self) -> tuple[type[ImageError], tuple[str, str, bool]]:
        return type(self), (self.name, self.reason, self.temporary)


class Extent(NamedTuple):
    """How large an image is in full, and where the whole of it lies in the pixels that were decoded."""

    height: int
    width: int
    box: tuple[float, float, float, float]
    """Left, top, right and bottom. At a half, seven pixels become four, of which the last is half beyond the border."""


class Header(NamedTuple):
    """What a file says about its image before any pixel is decoded."""

    width: int
    height: int
    mode: str
    format: str


def open_image(
    source: Path | bytes,
    *,
    channels: int = 3,
    at_least: int | None = None,
    max_pixels: int = MAX_PIXELS,
    name: str | None = None,
) -> Image.Image:
    """The image in a file, or in its bytes, as upright 8-bit "RGB" (3 channels) or "L" (1 channel).

    at_least: a JPEG may be decoded at a half, quarter or eighth, as long as its short side keeps this many pixels.
    max_pixels: larger images are refused before they are decoded.
    name: what errors call it, if not its path.
    """
    check_channels(channels)
    with _opened(source, max_pixels, name) as image:
        width, height = image.size
        if at_least is not None:
            image.draft(None, (at_least, at_least))
        kind, scale = image.format, round(width / image.width)
        loaded = _load(image, source, at_least)
        if scale > 1:
            loaded.info[_EXTENT] = Extent(height, width, (0.0, 0.0, width / scale, height / scale))
        if NO_END in loaded.info:
            say_once(
                f"{name or _called(source)}: a JPEG without its end marker; it lacks nothing else, so it is read, as "
                "others like it will be."
            )
        return _to_channels(_upright(loaded), channels, kind)


def extent(image: Image.Image) -> Extent:
    """How large the image is in its file; one that was not decoded at a smaller scale is as large as it is."""
    known = image.info.get(_EXTENT)
    if isinstance(known, Extent) and image.size == (math.ceil(known.box[2]), math.ceil(known.box[3])):
        return known
    return Extent(image.height, image.width, (0.0, 0.0, image.width, image.height))


def prepare_image(image: Image.Image, *, channels: int = 3) -> Image.Image:
    """An image that Pillow has opened or made, as `open_image` would give it; the given one stays as it is."""
    check_channels(channels)
    with _readable("the image", MAX_PIXELS):
        image.load()
        made = _to_channels(_upright(image), channels, image.format)
    made = made.copy() if made is image else made
    made.info.pop(_EXTENT, None)  # what somebody made of an image is an image of its own
    return made


def check_channels(channels: int) -> None:
    """Refuse a model of images that no file is read as."""
    if channels not in (1, 3):
        raise UserError(
            f"the model takes images of {channels} channels, and image files are read as grey (1) or colour (3); "
            "give its network tensors instead: vitreous.load(MODEL).network(images)."
        )


def open_values(path: Path, *, max_pixels: int = MAX_PIXELS) -> NDArray[np.uint8]:
    """(height, width): the numbers in a file such as a mask, not the colours that they may stand for."""
    with _opened(path, max_pixels, None) as image:
        image.load()
        return np.asarray(image if image.mode in ("L", "P") else image.convert("L"), np.uint8)


def read_content(path: Path) -> bytes:
    """All bytes of an image's file."""
    name = str(path)
    _check_size(path, name)
    with _readable(name, MAX_PIXELS):
        return path.read_bytes()


def read_header(source: Path | bytes, *, max_pixels: int = MAX_PIXELS, name: str | None = None) -> Header:
    """Size and kind of an image, without decoding it. The size is as stored, before the camera's orientation."""
    with _opened(source, max_pixels, name) as image:
        return Header(image.width, image.height, image.mode, image.format or "")


@contextmanager
def _opened(source: Path | bytes, max_pixels: int, name: str | None) -> Iterator[Image.Image]:
    """A Pillow image with its header read and its size accepted; whatever then goes wrong becomes a `ImageError`."""
    name = name or _called(source)
    _check_size(source, name)
    with _readable(name, max_pixels), warnings.catch_warnings():
        # Pillow warns about large images and odd metadata; the first are refused below, the second harmless.
        warnings.simplefilter("ignore")
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=FORMATS) as image:
            if image.width * image.height > max_pixels:
                raise ImageError(name, _too_large(f"{image.width}x{image.height}", max_pixels))
            yield image


@contextmanager
def _readable(name: str, max_pixels: int) -> Iterator[None]:
    """Within, whatever is wrong with an image becomes a `ImageError`; what the machine lacks does not."""
    try:
        yield
    except ImageError:
        raise
    except Image.DecompressionBombError:
        raise ImageError(name, _too_large("it", max_pixels)) from None
    except UnidentifiedImageError:
        kinds = ", ".join(FORMATS)
        raise ImageError(name, f"not an image of a known kind ({kinds}); convert or delete it.") from None
    except PermissionError:
        raise ImageError(name, "no permission to read it; change the file's mode or owner.", temporary=True) from None
    except Exception as error:  # decoders of damaged files raise anything from SyntaxError to struct.error
        _check_shortage(error)
        reason, left = f"{error}".rstrip(".") or type(error).__name__, available_memory()
        short = left is not None and left < DECODING_BYTES  # some decoders then fail in other words
        or_short = f", or memory is short: {size_text(left)} are left" if short and left is not None else ""
        refused = short or getattr(error, "errno", None) is not None
        why = f"damaged or cut short ({reason}{or_short}); restore or delete it."
        raise ImageError(name, why, temporary=refused) from error


def _check_shortage(error: Exception) -> None:
    """Raise the error again if it says what the machine lacks, and nothing of the image.

    A damaged file, too, may ask for more memory than there is: it is no shortage if there is enough for any image.
    """
    if getattr(error, "errno", None) in SHORTAGES:
        raise error
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and str(error).startswith(OUT_OF_MEMORY)):
        left = available_memory()
        if left is None or left < DECODING_BYTES:
            raise MemoryError(str(error)) from error


def _too_large(what: str, max_pixels: int) -> str:
    return f"{what} has more pixels than the limit of {max_pixels / 1e6:.0f} million; make it smaller."


def _called(source: Path | bytes) -> str:
    return "the image" if isinstance(source, bytes) else str(source)


def _check_size(source: Path | bytes, name: str) -> None:
    """Refuse what is no regular file, for opening a pipe would wait for ever, and what has no bytes or too many."""
    size = len(source) if isinstance(source, bytes) else _file_size(source, name)
    if size == 0:
        raise ImageError(name, "the file is empty (0 bytes); restore or delete it.")
    if size > MAX_BYTES:
        raise ImageError(name, f"{size_text(size)}, more than the limit of {size_text(MAX_BYTES)}; make it smaller.")


def _file_size(path: Path, name: str) -> int:
    try:
        status = path.stat()
    except FileNotFoundError:
        raise ImageError(name, "there is no such file; check the path.") from None
    except PermissionError:
        why = "no permission to read it; change the mode or owner of its folder."
        raise ImageError(name, why, temporary=True) from None
    except (OSError, ValueError) as error:
        _check_shortage(error)
        raise ImageError(name, f"cannot be opened ({reason(error)}); check the path.", temporary=True) from None
    if (kind := file_kind(status.st_mode)) != "file":
        raise ImageError(name, f"this is a {kind}, not an image; give a file.")
    return status.st_size


def _load(image: Image.Image, source: Path | bytes, at_least: int | None) -> Image.Image:
    """The image with its pixels. A JPEG that lacks its end marker and nothing else is taken, as every viewer does.

    Nothing else is lacking if what follows does not matter: with the marker at once, or with other bytes before it,
    which a decoder in want of data would take for pixels, the same pixels come out.
    """
    try:
        image.load()
        return image
    except OSError:
        if image.format != "JPEG":
            raise
        content = source if isinstance(source, bytes) else source.read_bytes()
        content = content.removesuffix(_END[:1])  # of the marker, only its second half may be missing
        ended, *others = (_decode_jpeg(content + filling + _END, at_least) for filling in (b"", *_FILLINGS))
        if any(ended.tobytes() != filled.tobytes() for filled in others):
            raise
        ended.info[NO_END] = True
        return ended


def _decode_jpeg(content: bytes, at_least: int | None) -> Image.Image:
    image = Image.open(io.BytesIO(content), formats=("JPEG",))
    if at_least is not None:
        image.draft(None, (at_least, at_least))
    image.load()
    return image


def _upright(image: Image.Image) -> Image.Image:
    """Turned as the camera was held. For TIFF, Pillow has done it while loading."""
    try:
        orientation = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # broken metadata says nothing about the pixels, which are fine
        return image
    turn = _UPRIGHT.get(orientation)
    if turn is None:
        return image
    turned = image.transpose(turn)
    if _EXTENT in image.info:
        turned.info[_EXTENT] = _turned(extent(image), image.size, turn)
    for note in _SAYING_HOW_IT_LIES:
        turned.info.pop(note, None)  # else whoever is given this image would turn it once more
    return turned


def _turned(whole: Extent, size: tuple[int, int], turn: Image.Transpose) -> Extent:
    """What becomes of the extent of an image of this width and height when it is turned."""
    left, top, right, bottom = whole.box
    width, height = size
    if turn in _FROM_RIGHT:
        left, right = width - right, width - left
    if turn in _FROM_BOTTOM:
        top, bottom = height - bottom, height - top
    if turn in _LYING:
        return Extent(whole.width, whole.height, (top, left, bottom, right))
    return Extent(whole.height, whole.width, (left, top, right, bottom))


def _to_channels(image: Image.Image, channels: int, kind: str | None) -> Image.Image:
    """Any of Pillow's modes as "RGB" or "L"."""
    mode = "RGB" if channels == 3 else "L"
    if image.mode.startswith("I") or image.mode == "F":
        image = Image.fromarray(_to_8_bits(np.asarray(image), image.mode, kind))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        page = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(page, image)
    if image.mode == mode and (type(image) is Image.Image or image.format == "JPEG"):
        return image  # a JPEG that is decoded has let go of its file: no copy is needed
    return image.convert(mode)


def _to_8_bits(values: np.ndarray, mode: str, kind: str | None) -> np.ndarray:
    """(H, W) uint8 of an image of 16 or 32 bits, or of floating point.

    Sixteen bits are scaled by 255/65535. The range of 32-bit integers and of floats is not written in a file: it is
    taken for the smallest of 0-1 (floats), 0-255, 0-65535 that holds all values, else for the image's own range.
    """
    if mode.startswith("I;16"):
        return ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)
    exact = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    low, high = float(exact.min(initial=0.0)), float(exact.max(initial=0.0))
    if mode == "I" and kind in ("PPM", "PNG") and high <= 65535:
        high = 65535.0  # these formats do say: Pillow gives their 16 bits in this mode
    elif low >= 0:
        steps = (1.0, 255.0, 65535.0) if mode == "F" else (255.0, 65535.0)
        high = next((step for step in steps if high <= step), high)
    return np.rint((exact - low) * (255.0 / ((high - low) or 1.0))).astype(np.uint8)
