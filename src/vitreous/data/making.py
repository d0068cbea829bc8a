"""How the views of a batch are made: image by image in worker processes, or all at once of small images.

A training image is first shrunk to at most `keep` pixels on its short side and may stay in a shared cache, so that
later epochs need not decode it. Views are always cut from that smaller image: the cache changes no result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitreous.config.data import Augment, Preprocess, View
from vitreous.data.augment import Cut, Pixels, cut_views, eval_view, seen_shares, shrink
from vitreous.data.batch_augment import Cuts, cut_batch, eval_batch, stack_cuts
from vitreous.data.chance import Index
from vitreous.data.decode import ImageError, extent
from vitreous.data.image_cache import ImageCache, default_cache_bytes
from vitreous.data.source import Source
from vitreous.data.view import Sample, read_for_view

SMALL = 64
"""Inputs up to this many pixels a side are made a whole batch at a time."""
WHOLE = (0.0, 0.0, 1.0, 1.0)


class BatchTask(NamedTuple):
    """A batch to make."""

    epoch: int | None
    """None: the images as evaluation sees them."""
    indices: Index


class MadeViews(NamedTuple):
    """`vitreous.data.batch.ViewBatch` as arrays, not normalised yet."""

    images: NDArray[Any]
    """(B, V, C, H, W), uint8 or floats from 0 to 255."""
    box: NDArray[np.float32]
    flipped: NDArray[np.bool_]


class Made(NamedTuple):
    """What was made of a task."""

    views: dict[str, MadeViews]
    taken: Index
    unreadable: dict[int, str]
    """Index to reason."""


@dataclass(frozen=True)
class Transforms:
    """What a loader makes of its images."""

    preprocess: Preprocess
    augment: Augment | None
    """None: the view of evaluation."""
    views: Mapping[str, View]
    seed: int


@runtime_checkable
class Gathers(Protocol):
    """A source whose images are all of one size and in memory."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of each image."""

    def gather(self, indices: Index) -> Tensor:
        """(B, C, H, W) uint8: these images as they are."""


def choose_maker(
    source: Source, wanted: Transforms, cache_bytes: int | None, allowed: int, replace: bool
) -> BatchMaker | ImageMaker:
    """The faster of the two that can do it."""
    if isinstance(source, Gathers) and (wanted.augment is None or wanted.augment.policy == "none"):
        sides, size = source.shape[1:], wanted.preprocess.size
        # A bilinear lookup skips pixels of an image that is more than twice as large.
        if max(size) <= SMALL and all(a <= 2 * b for a, b in zip(sides, size, strict=True)):
            return BatchMaker(source, wanted)
    cache = ImageCache(len(source), default_cache_bytes() if cache_bytes is None else cache_bytes)
    return ImageMaker(source, wanted, cache, allowed, replace)


@dataclass(frozen=True)
class BatchMaker:
    """Whole batches of images in memory."""

    source: Gathers
    wanted: Transforms

    def make(self, task: BatchTask) -> Made:
        """All views of the batch, by tensor operations."""
        w = self.wanted
        images = self.source.gather(task.indices)
        if w.augment is None or task.epoch is None:
            box = torch.tensor(seen_shares(images.shape[2], images.shape[3], w.preprocess)).expand(len(images), 4)
            whole = Cuts(eval_batch(images, w.preprocess), box, torch.zeros(len(images), dtype=torch.bool))
            found = {"image": stack_cuts([whole])}
        else:
            found = cut_batch(images, task.indices, w.preprocess, w.augment, w.views, seed=w.seed, epoch=task.epoch)
        views = {name: MadeViews(*(tensor.numpy() for tensor in cuts)) for name, cuts in found.items()}
        return Made(views, task.indices, {})


@dataclass(frozen=True)
class ImageMaker:
    """Image by image: decode or remember, then cut a view."""

    source: Source
    wanted: Transforms
    cache: ImageCache
    allowed: int
    replace: bool
    """In training, an image that cannot be read is replaced by the next one that can."""

    def make(self, task: BatchTask) -> Made:
        """The views of all images of the batch that can be read."""
        cuts: list[dict[str, list[Cut]]] = []
        taken: list[int] = []
        unreadable: dict[int, str] = {}
        self.source.expect(np.array([i for i in task.indices.tolist() if self.cache.get(i) is None], dtype=np.int64))
        for wanted in task.indices.tolist():
            found = self._readable(wanted, task.epoch, unreadable)
            if found is not None:
                taken.append(found[0])
                cuts.append(found[1])
        views = {name: _stacked([one[name] for one in cuts]) for name in (cuts[0] if cuts else ())}
        return Made(views, np.array(taken, dtype=np.int64), unreadable)

    def _readable(
        self, index: int, epoch: int | None, unreadable: dict[int, str]
    ) -> tuple[int, dict[str, list[Cut]]] | None:
        """The views of this image, or in training of the next that can be read; None if none is within the limit."""
        replace = self.replace and epoch is not None
        for at in chain(range(index, len(self.source)), range(index)) if replace else (index,):
            try:
                return at, self._plain(at) if self.wanted.augment is None or epoch is None else self._varied(at, epoch)
            except ImageError as error:
                unreadable[at] = error.reason
            if len(unreadable) > self.allowed:
                break
        return None

    def _varied(self, index: int, epoch: int) -> dict[str, list[Cut]]:
        """The random views that are trained on."""
        w = self.wanted
        assert w.augment is not None
        known = self.cache.get(index)
        pixels = self._kept(index) if known is None else known[0]
        return cut_views(pixels, w.preprocess, w.augment, w.views, seed=w.seed, epoch=epoch, index=index)

    def _plain(self, index: int) -> dict[str, list[Cut]]:
        """The view of evaluation, which its cache keeps; a training's cache keeps the image that it was cut from."""
        p = self.wanted.preprocess
        known = self.cache.get(index) if self.wanted.augment is None else None
        if known is not None:
            return {"image": [Cut(torch.from_numpy(known[0]), known[1])]}
        image = read_for_view(Sample(self.source, index), p)
        height, width, _ = extent(image)
        cut = Cut(eval_view(image, p), seen_shares(height, width, p))
        if self.wanted.augment is None:
            self.cache.put(index, cut.pixels.numpy(), cut.box)
        elif self.cache.get(index) is None:
            self._kept(index, image if image.size == (width, height) else None)
        return {"image": [cut]}

    def _kept(self, index: int, decoded: Image.Image | None = None) -> Pixels:
        """The image (h, w, C) as training keeps it: whole, but not larger than crops need, and quickly decoded.

        decoded: it was decoded in full for another purpose, which serves where no decoder would make it any smaller.
        """
        image = decoded
        if image is None or min(image.size) >= 2 * self.keep:
            image = self.source.read(index, channels=self.wanted.preprocess.channels, at_least=self.keep)
        pixels = shrink(image, self.keep)
        self.cache.put(index, pixels, WHOLE)
        return pixels

    @property
    def keep(self) -> int:
        """The short side of a training image: somewhat more than evaluation sees, for crops that are not blurred."""
        return math.ceil(1.15 * max(self.wanted.preprocess.resized))


def _stacked(images: list[list[Cut]]) -> MadeViews:
    """The views of several images, of each as many."""
    return MadeViews(
        torch.stack([torch.stack([cut.pixels for cut in cuts]) for cuts in images]).numpy(),
        np.array([[cut.box for cut in cuts] for cuts in images], np.float32),
        np.array([[cut.flipped for cut in cuts] for cuts in images], np.bool_),
    )
