"""The one way from an image to what a model sees of it.

Prediction, evaluation and explanation all call this, so they see the same pixels, to the bit, and those that timm and
`transformers` see. A file is decoded in full for it, except a JPEG that is far larger than what it is resized to: read
at a half, a quarter or an eighth, as long as that is still `MIN_DRAFT_SCALE` times as large, its view differs from
theirs by a few levels at most, in a fraction of the time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitreous.config.data import Preprocess
from vitreous.data.augment import eval_view, seen_box
from vitreous.data.decode import ImageError, open_image, original_size, prepare_image
from vitreous.data.source import Source
from vitreous.errors import UserError
from vitreous.threads import usable_cores

MIN_DRAFT_SCALE = 3  # a JPEG decoded at a smaller scale is still this many times as large as what it is resized to


@dataclass(frozen=True)
class Sample:
    """One image of a dataset."""

    source: Source
    index: int


# A file, a file's bytes, an image of Pillow's, an array (H, W) or (H, W, C) or a tensor (H, W) or (C, H, W), uint8,
# each as its library has it, or one image of a dataset.
ImageInput = str | Path | bytes | Image.Image | NDArray[Any] | Tensor | Sample
IMAGE_TYPES = (str, Path, bytes, Image.Image, np.ndarray, Tensor, Sample)  # the same for `isinstance`
ViewOrError = Tensor | ImageError  # (C, H, W) uint8, what a model sees of an image, or why it cannot be read


@dataclass(frozen=True)
class ImageView:
    """An image, and the model's view of it."""

    image: Image.Image  # upright and complete, in full size, as a person sees it
    view: Tensor  # (C, H, W) uint8, what the model sees
    box: tuple[float, float, float, float]  # left, top, right and bottom of what it sees, in pixels of the image


def make_view(image: ImageInput, preprocess: Preprocess) -> Tensor:
    """(C, H, W) uint8: what a model with this preprocessing sees of the image. Raises `ImageError` if the image cannot
    be read, and `UserError` if what is given is no image."""
    return eval_view(read_for_view(image, preprocess), preprocess)


def image_and_view(image: ImageInput, preprocess: Preprocess) -> ImageView:
    """The view that `make_view` makes, with the image in full and the part of it that is seen."""
    decoded = read_for_view(image, preprocess)
    height, width, _ = original_size(decoded)
    full = decoded if decoded.size == (width, height) else _read(image, preprocess.channels)
    return ImageView(full, eval_view(decoded, preprocess), seen_box(height, width, preprocess))


def read_for_view(image: ImageInput, preprocess: Preprocess) -> Image.Image:
    """The image that the view is cut from: upright and whole, "RGB" or "L", of a large JPEG at a smaller scale.
    `vitreous.data.decode.original_size` tells how large it is in full."""
    check_image(image)
    # Of the nearest pixel alone, other pixels may be anything.
    smallest = None if preprocess.interpolation == "nearest" else MIN_DRAFT_SCALE * max(preprocess.resized)
    return _read(image, preprocess.channels, smallest)


def _read(image: ImageInput, channels: int, at_least: int | None = None) -> Image.Image:
    if isinstance(image, Sample):
        return image.source.read(image.index, channels=channels, at_least=at_least)
    if isinstance(image, Tensor):
        pixels = image.detach().cpu()
        image = np.ascontiguousarray(pixels.movedim(0, -1) if pixels.ndim == 3 else pixels)
    if isinstance(image, np.ndarray):
        grey = image.ndim == 3 and image.shape[2] == 1
        return prepare_image(Image.fromarray(image[:, :, 0] if grey else image), channels=channels)
    if isinstance(image, Image.Image):
        if 0 in image.size:
            raise ImageError("the image", f"{image.width}x{image.height}: it has no pixels; give another.")
        return prepare_image(image, channels=channels)
    return open_image(image if isinstance(image, bytes) else Path(image), channels=channels, at_least=at_least)


def check_image(image: object) -> None:
    """Refuse what is no image, whatever its pixels; files and bytes are not opened yet."""
    if isinstance(image, Tensor):
        scaled, axes, channels_last = "(255 * tensor).round().to(torch.uint8)", "(channels, height, width)", False
        kind, what = str(image.dtype).removeprefix("torch."), "tensor"
    elif isinstance(image, np.ndarray):
        scaled, axes, channels_last = "np.rint(255 * array).astype(np.uint8)", "(height, width, channels)", True
        kind, what = str(image.dtype), "array"
    elif isinstance(image, IMAGE_TYPES):
        return
    else:
        kind = f"{type(image).__module__}.{type(image).__qualname__}".removeprefix("builtins.")
        raise UserError(
            f"an image of type {kind}: give a path, the bytes of a file, an image of Pillow's, a NumPy array "
            "(height, width, channels) uint8, or a tensor (channels, height, width) uint8."
        )
    shape, a = tuple(image.shape), "an" if what == "array" else "a"
    if kind != "uint8":
        raise UserError(
            f"{a} {what} of {kind}: pixels are uint8, from 0 to 255; if these run from 0 to 1, give {scaled}."
        )
    if len(shape) == 4:
        raise UserError(f"{a} {what} of shape {shape}: this is several images; give them as a list: list({what}).")
    place, other = (2, 0) if channels_last else (0, 2)
    if len(shape) not in (2, 3) or 0 in shape or (len(shape) == 3 and shape[place] not in (1, 3, 4)):
        turned = f"array.transpose{(1, 2, 0)}" if channels_last else f"tensor.permute{(2, 0, 1)}"
        turn = (
            f"; of one with its channels elsewhere, {turned}" if len(shape) == 3 and shape[other] in (1, 3, 4) else ""
        )
        raise UserError(
            f"{a} {what} of shape {shape}: give (height, width) for grey, or {axes} with 1, 3 or 4 channels{turn}."
        )


@dataclass(frozen=True)
class ViewPipeline:
    """Images in, batches of views out, in order, decoded in threads while whoever asked for them works. Pillow decodes
    without Python's lock, so threads are enough."""

    preprocess: Preprocess
    batch_size: int
    # Batches that are decoded, or being decoded, while one is in use: a large image among small ones then keeps nobody
    # waiting, and memory does not grow with the number of images.
    prefetch: int = 2
    threads: int | None = None  # None: one for each core that this process may use

    def batches(self, images: Iterable[ImageInput]) -> Iterator[list[ViewOrError]]:
        """Of each image its view, or why it cannot be read; `images` is read no further than it must be. Whoever wants
        no more closes the generator, and then waits for the images that are being decoded, no others."""
        rest, waiting = iter(images), deque[list[Future[ViewOrError]]]()
        pool = ThreadPoolExecutor(self.threads or usable_cores(), thread_name_prefix="decode")
        try:
            while True:
                while len(waiting) <= self.prefetch and (chunk := list(islice(rest, self.batch_size))):
                    waiting.append([pool.submit(_view_or_error, image, self.preprocess) for image in chunk])
                if not waiting:
                    return
                yield [future.result() for future in waiting.popleft()]
        finally:
            pool.shutdown(cancel_futures=True)


Item = TypeVar("Item")
Result = TypeVar("Result")


def map_concurrently(
    function: Callable[[Item], Result], items: Iterable[Item], at_once: int
) -> Iterator[tuple[Item, Result]]:
    """Each item with what the function makes of it, in order; `at_once` calls are under way at the same time."""
    if at_once == 1:
        for item in items:
            yield item, function(item)
        return
    waiting = deque[tuple[Item, Future[Result]]]()
    with ThreadPoolExecutor(at_once, thread_name_prefix="ask") as pool:
        for item in items:
            waiting.append((item, pool.submit(function, item)))
            if len(waiting) == at_once:
                first, result = waiting.popleft()
                yield first, result.result()
        for first, result in waiting:
            yield first, result.result()


_PILLOW = Lock()  # an image of Pillow's reads its file when it is first used, and the same one may be given twice


def _view_or_error(image: ImageInput, preprocess: Preprocess) -> ViewOrError:
    try:
        if isinstance(image, Image.Image):
            with _PILLOW:
                return make_view(image, preprocess)
        return make_view(image, preprocess)
    except ImageError as error:
        return error
