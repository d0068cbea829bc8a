"""How the views of a batch are made: image by image in worker processes, or all at once of small images.

A training image is first shrunk to at most `stored_side` pixels on its short side and may stay in a shared cache, so
that later epochs need not decode it. Views are always cut from that smaller image: the cache changes no result.
"""

from __future__ import annotations

import math
import mmap
import os
import sys
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from vitreous.config.data import Augment, Preprocess, View
from vitreous.data.augment import BoxFractions, Cut, Pixels, cut_views, eval_view, seen_fractions, shrink
from vitreous.data.batch_augment import Cuts, cut_batch, eval_batch, stack_cuts
from vitreous.data.decode import ImageError, original_size
from vitreous.data.rng import Index
from vitreous.data.source import Source
from vitreous.data.view import Sample, read_for_view
from vitreous.memory import available_memory

MAX_BATCH_SIDE = 64  # inputs up to this many pixels a side are made a batch at a time
FULL_BOX = (0.0, 0.0, 1.0, 1.0)
MAX_CACHE_BYTES = 2**30

# `vitreous.data.batch.ViewBatch` as arrays: images (B, V, C, H, W) uint8 or floats from 0 to 255, boxes, flips.
ViewArrays = tuple[NDArray[Any], NDArray[np.float32], NDArray[np.bool_]]


class BatchTask(NamedTuple):
    """The images of one batch that a worker is asked for."""

    epoch: int | None  # None: the images as evaluation sees them
    indices: Index


class Collated(NamedTuple):
    """One batch, as arrays that can travel between processes."""

    views: dict[str, ViewArrays]
    indices: Index  # of the images that are in it
    unreadable: dict[int, str]  # index to reason


@dataclass(frozen=True)
class Transforms:
    """How a loader turns images into views."""

    preprocess: Preprocess
    augment: Augment | None  # None: the view of evaluation
    views: Mapping[str, View]
    seed: int


def choose_maker(
    source: Source, transforms: Transforms, cache_bytes: int | None, max_unreadable: int, replace: bool
) -> BatchMaker | ImageMaker:
    """`BatchMaker` where it can make these views, for it is faster, else `ImageMaker`."""
    if source.shape is not None and (transforms.augment is None or transforms.augment.policy == "none"):
        sides, size = source.shape[1:], transforms.preprocess.size
        # A bilinear lookup skips pixels of an image that is more than twice as large.
        if max(size) <= MAX_BATCH_SIDE and all(a <= 2 * b for a, b in zip(sides, size, strict=True)):
            return BatchMaker(source, transforms)
    cache = ImageCache(len(source), default_cache_bytes() if cache_bytes is None else cache_bytes)
    return ImageMaker(source, transforms, cache, max_unreadable, replace)


@dataclass(frozen=True)
class BatchMaker:
    """Batches of images in memory, by tensor operations."""

    source: Source
    transforms: Transforms

    def make(self, task: BatchTask) -> Collated:
        t = self.transforms
        images = self.source.gather(task.indices)
        if t.augment is None or task.epoch is None:
            seen = seen_fractions(images.shape[2], images.shape[3], t.preprocess)
            box, flipped = torch.tensor(seen).expand(len(images), 4), torch.zeros(len(images), dtype=torch.bool)
            found = {"image": stack_cuts([Cuts(eval_batch(images, t.preprocess), box, flipped)])}
        else:
            found = cut_batch(images, task.indices, t.preprocess, t.augment, t.views, seed=t.seed, epoch=task.epoch)
        views = {name: (cuts.images.numpy(), cuts.box.numpy(), cuts.flipped.numpy()) for name, cuts in found.items()}
        return Collated(views, task.indices, {})


@dataclass(frozen=True)
class ImageMaker:
    """Image by image: decode or remember, then cut a view."""

    source: Source
    transforms: Transforms
    cache: ImageCache
    max_unreadable: int
    replace: bool  # in training, an image that cannot be read is replaced by the next one that can

    def make(self, task: BatchTask) -> Collated:
        """The views of all images of the batch that can be read."""
        cuts: list[dict[str, list[Cut]]] = []
        taken: list[int] = []
        unreadable: dict[int, str] = {}
        self.source.expect(np.array([i for i in task.indices.tolist() if self.cache.get(i) is None], dtype=np.int64))
        for index in task.indices.tolist():
            found = self._readable(index, task.epoch, unreadable)
            if found is not None:
                taken.append(found[0])
                cuts.append(found[1])
        views = {name: _stacked([one[name] for one in cuts]) for name in (cuts[0] if cuts else ())}
        return Collated(views, np.array(taken, dtype=np.int64), unreadable)

    def _readable(
        self, index: int, epoch: int | None, unreadable: dict[int, str]
    ) -> tuple[int, dict[str, list[Cut]]] | None:
        """The views of this image, or in training of the next that can be read; None if none is within the limit."""
        replace = self.replace and epoch is not None
        for at in chain(range(index, len(self.source)), range(index)) if replace else (index,):
            try:
                if self.transforms.augment is None or epoch is None:
                    return at, self._eval_views(at)
                return at, self._train_views(at, epoch)
            except ImageError as error:
                unreadable[at] = error.reason
            if len(unreadable) > self.max_unreadable:
                break
        return None

    def _train_views(self, index: int, epoch: int) -> dict[str, list[Cut]]:
        t = self.transforms
        assert t.augment is not None
        known = self.cache.get(index)
        pixels = self._shrunk(index) if known is None else known[0]
        return cut_views(pixels, t.preprocess, t.augment, t.views, seed=t.seed, epoch=epoch, index=index)

    def _eval_views(self, index: int) -> dict[str, list[Cut]]:
        """The view of evaluation, which its cache keeps; a training's cache keeps the image that it was cut from."""
        p = self.transforms.preprocess
        known = self.cache.get(index) if self.transforms.augment is None else None
        if known is not None:
            return {"image": [Cut(torch.from_numpy(known[0]), known[1])]}
        image = read_for_view(Sample(self.source, index), p)
        height, width, _ = original_size(image)
        cut = Cut(eval_view(image, p), seen_fractions(height, width, p))
        if self.transforms.augment is None:
            self.cache.put(index, cut.pixels.numpy(), cut.box)
        elif self.cache.get(index) is None:
            self._shrunk(index, image if image.size == (width, height) else None)
        return {"image": [cut]}

    def _shrunk(self, index: int, decoded: Image.Image | None = None) -> Pixels:
        """The image (h, w, C) as training keeps it: uncut, but not larger than crops need, and quickly decoded.

        decoded: it was decoded in full for another purpose, which serves where no decoder would make it any smaller.
        """
        image = decoded
        if image is None or min(image.size) >= 2 * self.stored_side:
            channels = self.transforms.preprocess.channels
            image = self.source.read(index, channels=channels, at_least=self.stored_side)
        pixels = shrink(image, self.stored_side)
        self.cache.put(index, pixels, FULL_BOX)
        return pixels

    @property
    def stored_side(self) -> int:
        """The short side of a training image: somewhat more than evaluation sees, for crops that are not blurred."""
        return math.ceil(1.15 * max(self.transforms.preprocess.resized))


def _stacked(images: list[list[Cut]]) -> ViewArrays:
    return (
        torch.stack([torch.stack([cut.pixels for cut in cuts]) for cuts in images]).numpy(),
        np.array([[cut.box for cut in cuts] for cuts in images], np.float32),
        np.array([[cut.flipped for cut in cuts] for cuts in images], np.bool_),
    )


class ImageCache:
    """At most `limit` bytes of uint8 arrays of three axes, by their index from 0 to count - 1.

    Nothing is ever thrown out: an epoch reads every image once, so the oldest would always be the next one needed.
    The memory is anonymous and shared, so that processes forked later see what any of them wrote; the system gives
    pages only where something was written. A process that was started afresh (not forked) begins without.
    """

    def __init__(self, count: int, limit: int) -> None:
        self._limit = limit
        self._memory = mmap.mmap(-1, limit) if limit > 0 else None
        # (offset + 1, and three sides) for each index; 0 where there is nothing
        table = mmap.mmap(-1, max(count * 4 * 8, 1))
        self._table: NDArray[np.int64] = np.frombuffer(table, dtype=np.int64, count=count * 4).reshape(count, 4)
        boxes = mmap.mmap(-1, max(count * 4 * 8, 1))
        self._boxes: NDArray[np.float64] = np.frombuffer(boxes, dtype=np.float64, count=count * 4).reshape(count, 4)
        self._used: NDArray[np.int64] = np.frombuffer(mmap.mmap(-1, 8), dtype=np.int64)
        self._file = os.memfd_create("vitreous-cache") if limit > 0 and sys.platform == "linux" else None
        if self._file is not None:
            weakref.finalize(self, os.close, self._file)

    def get(self, index: int) -> tuple[NDArray[np.uint8], BoxFractions] | None:
        """The array cached for this index, without a copy, and its box; or None."""
        offset, *shape = (int(x) for x in self._table[index])
        if offset == 0 or self._memory is None:
            return None
        size = shape[0] * shape[1] * shape[2]
        array = np.frombuffer(self._memory, dtype=np.uint8, count=size, offset=offset - 1).reshape(shape)
        y, x, h, w = self._boxes[index].tolist()
        return array, (y, x, h, w)

    def put(self, index: int, array: NDArray[np.uint8], box: BoxFractions) -> None:
        """Keep a copy, if there is room, and which box of its image it shows."""
        if self._memory is None or self._table[index, 0]:
            return
        with self._locked():
            start = self.used
            if start + array.size > self._limit:
                return
            self._used[0] = start + array.size
        self._memory[start : start + array.size] = array.tobytes()
        self._table[index, 1:] = array.shape
        self._boxes[index] = box
        self._table[index, 0] = start + 1  # last: from here on the others find it

    @property
    def used(self) -> int:
        return int(self._used[0])

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Alone among the processes that share it. The system takes the lock from one that is killed."""
        if self._file is None or sys.platform != "linux":  # then there are no others
            yield
            return
        import fcntl

        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)

    def __getstate__(self) -> dict[str, Any]:
        return {"count": len(self._table)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        ImageCache.__init__(self, state["count"], 0)


def default_cache_bytes(root: Path = Path("/")) -> int:
    """1 GiB, but no more than a quarter of `available_memory`."""
    available = available_memory(root)
    return MAX_CACHE_BYTES // 4 if available is None else min(MAX_CACHE_BYTES, available // 4)
