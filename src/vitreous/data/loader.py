"""From a source to batches, in an order and with views that are a pure function of (seed, epoch, index).

Single pictures are decoded by worker processes; small pictures in memory are varied a batch at a time, without workers.
A training picture is first shrunk to at most `keep` pixels on its short side and may stay in a shared cache, so that
later epochs need not decode it. Views are always cut from that smaller picture: the cache changes no result.
"""

from __future__ import annotations

import math
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Sampler

from vitreous.config.data import Augment, MultiCrop, Preprocess
from vitreous.data.augment import Pixels, multi_crop, normalise, shrink, train_view
from vitreous.data.batch_augment import eval_batch, multi_crop_batch, train_batch
from vitreous.data.cache import PictureCache, default_limit
from vitreous.data.chance import Index, generator, permutation
from vitreous.data.decode import PictureError, check_channels
from vitreous.data.mix import mix
from vitreous.data.packed import ArraySource
from vitreous.data.source import Source
from vitreous.data.view import Sample, make_view
from vitreous.errors import UserError

SMALL = 64
"""Inputs up to this many pixels a side are made a whole batch at a time."""


@dataclass(frozen=True)
class Batch:
    """What the model is given."""

    images: Tensor
    """(B, C, H, W) float32, normalised, or uint8 for an engine; with several views of each (B, views, C, H, W)."""
    targets: Tensor
    """(B,) int64, or (B, K) float32 that sum to 1 where pictures were mixed."""
    index: Tensor
    """(B,) int64: which pictures of the source these are."""
    small: Tensor | None = None
    """(B, views, C, h, w): the small views of each picture, where they were asked for."""


class _Task(NamedTuple):
    epoch: int
    indices: Index


class _Made(NamedTuple):
    images: NDArray[Any]
    """(B, C, H, W) or (B, views, C, H, W), uint8 or floats from 0 to 255."""
    taken: Index
    unreadable: dict[int, str]
    """Index to reason."""
    small: NDArray[Any] | None = None


class Loader:
    """Batches of a source: `for batch in loader.batches(epoch)`.

    Without `augment`, unless `shuffle` says otherwise, pictures come in their order and the last batch may be short.
    Shuffled epochs leave out what does not fill a batch, other pictures each time.

    A picture that cannot be read is noted in `unreadable` and, in training, replaced by the next one that can; in
    evaluation it is left out. More than `unreadable_limit` of all pictures, and more than one, is an error.

    With `crops`, each picture gives several large views and several small ones; `augment` says all but their area.
    Without `normalised`, pictures of an evaluation are uint8, as an engine takes them.
    """

    def __init__(
        self,
        source: Source,
        preprocess: Preprocess,
        augment: Augment | None = None,
        *,
        batch_size: int,
        seed: int = 0,
        workers: int = 0,
        shuffle: bool | None = None,
        crops: MultiCrop | None = None,
        cache_bytes: int | None = None,
        unreadable_limit: float = 0.01,
        normalised: bool = True,
    ) -> None:
        if len(source) == 0:
            raise UserError("there are no pictures to load; check the data.")
        if batch_size < 1 or workers < 0:
            raise UserError(f"batch_size={batch_size}, workers={workers}: must be at least 1 and at least 0.")
        check_channels(preprocess.channels)
        assert normalised or augment is None
        self.source, self.preprocess, self.augment, self.seed = source, preprocess, augment, seed
        self.shuffle = augment is not None if shuffle is None else shuffle
        self.batch_size = min(batch_size, len(source))
        self.normalised = normalised
        self.unreadable: dict[str, str] = {}
        self._allowed = max(1 if unreadable_limit else 0, math.floor(unreadable_limit * len(source)))
        self._limit = unreadable_limit
        self._labels = torch.from_numpy(source.labels)
        self._maker = _maker(source, preprocess, augment, crops, seed, cache_bytes, self._allowed, self.shuffle)
        self.workers = 0 if isinstance(self._maker, _BatchMaker) else workers
        self._plan = _Plan()
        self._processes = _start(self._maker, self._plan, self.workers) if self.workers else None

    @property
    def steps_per_epoch(self) -> int:
        """Batches in an epoch."""
        if self.shuffle:
            return len(self.source) // self.batch_size
        return math.ceil(len(self.source) / self.batch_size)

    def order(self, epoch: int) -> Index:
        """The indices of all pictures in the order of this epoch."""
        if self.shuffle:
            return permutation(self.seed, epoch, len(self.source))
        return np.arange(len(self.source), dtype=np.int64)

    def batches(self, epoch: int = 0, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from its step `start` on."""
        order = self.order(epoch)
        steps = range(start, self.steps_per_epoch)
        tasks = [_Task(epoch, order[step * self.batch_size : (step + 1) * self.batch_size]) for step in steps]
        self._plan.tasks = tasks
        made = map(self._make_here, tasks) if self._processes is None else _begin(self._processes)
        for step, found in zip(steps, made, strict=True):
            self._note(found.unreadable)
            if len(found.taken):
                yield self._batch(found, epoch, step)

    def close(self) -> None:
        """Stop the worker processes; a next epoch would start new ones.

        Leaving it to the garbage collector can take seconds: after an exception, it may take the queues away first, and
        then workers are only ended after a time-out.
        """
        if self._processes is not None and self._processes._iterator is not None:
            self._processes._iterator._shutdown_workers()  # type: ignore[attr-defined]
            self._processes._iterator = None

    def _make_here(self, task: _Task) -> _Made:
        """A batch made in this process, by one thread: waiting for a second one costs more than it gives to a view."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return self._maker.make(task)
        finally:
            torch.set_num_threads(threads)

    def _batch(self, made: _Made, epoch: int, step: int) -> Batch:
        index = torch.from_numpy(made.taken)
        images, targets = torch.from_numpy(made.images), self._labels[index]
        if self.normalised:
            images = normalise(images, self.preprocess)
        if self.augment is not None and self.augment.mixes:
            images, targets = mix(
                images, targets, len(self.source.classes), self.augment, seed=self.seed, epoch=epoch, step=step
            )
        small = None if made.small is None else normalise(torch.from_numpy(made.small), self.preprocess)
        return Batch(images, targets, index, small)

    def _note(self, unreadable: dict[int, str]) -> None:
        """Remember pictures that could not be read; stop when they are too many."""
        for index, reason in sorted(unreadable.items()):
            self.unreadable[self.source.name(index)] = reason
        if len(self.unreadable) > min(self._allowed, len(self.source) - 1):
            shown = "; ".join(f"{name}: {reason.rstrip('.')}" for name, reason in list(self.unreadable.items())[:3])
            self.close()
            raise UserError(
                f"{len(self.unreadable)} of {len(self.source)} pictures cannot be read, more than the limit of "
                f"{self._limit:.0%} ({shown}); mend or delete them."
            )


def _maker(
    source: Source,
    preprocess: Preprocess,
    augment: Augment | None,
    crops: MultiCrop | None,
    seed: int,
    cache_bytes: int | None,
    allowed: int,
    replace: bool,
) -> _BatchMaker | _PictureMaker:
    if isinstance(source, ArraySource) and (augment is None or augment.policy == "none"):
        sides = source.images.shape[2:]
        # A bilinear lookup skips pixels of a picture that is more than twice as large.
        if max(preprocess.size) <= SMALL and all(a <= 2 * b for a, b in zip(sides, preprocess.size, strict=True)):
            return _BatchMaker(source, preprocess, augment, crops, seed)
    cache = PictureCache(len(source), default_limit() if cache_bytes is None else cache_bytes)
    return _PictureMaker(source, preprocess, augment, crops, seed, cache, allowed, replace)


@dataclass(frozen=True)
class _BatchMaker:
    """Whole batches of pictures in memory."""

    source: ArraySource
    preprocess: Preprocess
    augment: Augment | None
    crops: MultiCrop | None
    seed: int

    def make(self, task: _Task) -> _Made:
        images = self.source.gather(task.indices)
        if self.augment is None:
            images = eval_batch(images, self.preprocess)
        elif self.crops is not None:
            images, small = multi_crop_batch(
                images, task.indices, self.preprocess, self.augment, self.crops, seed=self.seed, epoch=task.epoch
            )
            return _Made(images.numpy(), task.indices, {}, small.numpy())
        else:
            images = train_batch(images, task.indices, self.preprocess, self.augment, seed=self.seed, epoch=task.epoch)
        return _Made(images.numpy(), task.indices, {})


@dataclass(frozen=True)
class _PictureMaker:
    """Picture by picture: decode or remember, then cut a view."""

    source: Source
    preprocess: Preprocess
    augment: Augment | None
    crops: MultiCrop | None
    seed: int
    cache: PictureCache
    allowed: int
    replace: bool

    @property
    def keep(self) -> int:
        """The short side of a training picture: somewhat more than evaluation sees, for crops that are not blurred."""
        return math.ceil(1.15 * max(self.preprocess.resized))

    def make(self, task: _Task) -> _Made:
        views: list[tuple[Tensor, ...]] = []
        taken: list[int] = []
        unreadable: dict[int, str] = {}
        for wanted in task.indices.tolist():
            found = self._readable(wanted, unreadable)
            if found is not None:
                at, pixels = found
                taken.append(at)
                views.append(self._views(at, pixels, task.epoch))
        images, *small = [torch.stack(part).numpy() for part in zip(*views, strict=True)] or [np.empty(0, np.uint8)]
        return _Made(images, np.array(taken, dtype=np.int64), unreadable, *small)

    def __getitem__(self, task: _Task) -> _Made:
        return self.make(task)

    def _readable(self, index: int, unreadable: dict[int, str]) -> tuple[int, Pixels] | None:
        """This picture, or in training the next one that can be read; None if there is none within the limit."""
        for at in chain(range(index, len(self.source)), range(index)) if self.replace else (index,):
            pixels = self.cache.get(at)
            try:
                return at, self._decode(at) if pixels is None else pixels
            except PictureError as error:
                unreadable[at] = error.reason
            if len(unreadable) > self.allowed:
                break
        return None

    def _decode(self, index: int) -> Pixels:
        """What is kept of a picture: in training (h, w, C), smaller but whole; in evaluation the view (C, H, W)."""
        if self.augment is None:
            pixels = make_view(Sample(self.source, index), self.preprocess).numpy()
        else:
            picture = self.source.read(index, channels=self.preprocess.channels, at_least=self.keep)
            pixels = shrink(picture, self.keep)
        self.cache.put(index, pixels)
        return pixels

    def _views(self, index: int, pixels: Pixels, epoch: int) -> tuple[Tensor, ...]:
        """The view of a picture, or with `crops` its large views and its small ones."""
        if self.augment is None:
            return (torch.from_numpy(pixels),)
        if self.crops is not None:
            return multi_crop(
                pixels, self.preprocess, self.augment, self.crops, seed=self.seed, epoch=epoch, index=index
            )
        return (train_view(pixels, self.preprocess, self.augment, generator(self.seed, epoch, index)),)


class _Plan(Sampler[_Task]):
    """The batches to make next; it is refilled for each epoch while the workers live on."""

    def __init__(self) -> None:
        self.tasks: list[_Task] = []

    def __iter__(self) -> Iterator[_Task]:
        return iter(self.tasks)

    def __len__(self) -> int:
        return len(self.tasks)


def _start(maker: Any, plan: _Plan, workers: int) -> DataLoader[Any]:
    """Worker processes that make the planned batches, in order.

    Results travel as NumPy arrays, through pipes: tensors would need /dev/shm, which containers keep small.
    """
    with _any_number():
        return DataLoader(
            maker,
            batch_size=None,
            sampler=plan,
            num_workers=workers,
            persistent_workers=True,
            prefetch_factor=2,
            collate_fn=_unchanged,
            worker_init_fn=_be_modest,
            generator=torch.Generator(),  # else each epoch would draw from the global state that dropout uses
            multiprocessing_context="fork" if sys.platform == "linux" else None,
        )


def _begin(processes: DataLoader[Any]) -> Iterator[_Made]:
    """The planned batches; the first time, the processes are started."""
    with _any_number():
        return iter(processes)


@contextmanager
def _any_number() -> Iterator[None]:
    """Who asks for more workers than there are cores gets them without a warning."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield


def _unchanged(made: Any) -> Any:
    return made


def _be_modest(_: int) -> None:
    """One thread, and the processor only when training leaves it."""
    torch.set_num_threads(1)
    os.nice(5)
