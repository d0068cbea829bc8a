"""Views of many images, decoded in threads while whoever asked for them works: predictions, or a server's answers."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from threading import Lock
from typing import TypeVar

from PIL import Image
from torch import Tensor

from vitreous.config.data import Preprocess
from vitreous.data.decode import ImageError
from vitreous.data.view import ImageInput, make_view

Viewed = Tensor | ImageError
"""(C, H, W) uint8, what a model sees of an image, or why it cannot be read."""


@dataclass(frozen=True)
class ViewPipeline:
    """Images in, batches of views out, in order. Pillow decodes without Python's lock, so threads are enough."""

    preprocess: Preprocess
    batch_size: int
    ahead: int = 2
    """Batches that are decoded, or being decoded, while one is in use: a large image among small ones then keeps
    nobody waiting, and memory does not grow with the number of images."""
    threads: int | None = None
    """None: one for each core that this process may use."""

    def batches(self, images: Iterable[ImageInput]) -> Iterator[list[Viewed]]:
        """Of each image its view, or why it cannot be read; `images` is read no further than it must be.

        Whoever wants no more closes the generator, and then waits for the images that are being decoded, no others.
        """
        rest, waiting = iter(images), deque[list[Future[Viewed]]]()
        pool = ThreadPoolExecutor(self.threads or usable_cores(), thread_name_prefix="decode")
        try:
            while True:
                while len(waiting) <= self.ahead and (chunk := list(islice(rest, self.batch_size))):
                    waiting.append([pool.submit(try_view, image, self.preprocess) for image in chunk])
                if not waiting:
                    return
                yield [future.result() for future in waiting.popleft()]
        finally:
            pool.shutdown(cancel_futures=True)


Item = TypeVar("Item")
Result = TypeVar("Result")


def map_ahead(function: Callable[[Item], Result], items: Iterable[Item], at_once: int) -> Iterator[tuple[Item, Result]]:
    """Each item with what the function makes of it, in order; so many calls are under way at the same time."""
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


_PILLOW = Lock()
"""An image of Pillow's reads its file when it is first used, and the same one may be given twice."""


def try_view(image: ImageInput, preprocess: Preprocess) -> Viewed:
    """What the model sees of the image, or why it cannot be read, from any thread."""
    try:
        if isinstance(image, Image.Image):
            with _PILLOW:
                return make_view(image, preprocess)
        return make_view(image, preprocess)
    except ImageError as error:
        return error


def usable_cores() -> int:
    """How many cores this process may use, which on a shared machine are fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
