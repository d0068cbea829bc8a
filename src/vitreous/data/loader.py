"""From a source to batches, in an order and with views that are a pure function of (seed, epoch, index).

Single images are decoded by worker processes; small images in memory are varied a batch at a time, without workers.
"""

from __future__ import annotations

import math
import os
from collections.abc import Container, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch

from vitreous.config.data import Augment, Preprocess, View
from vitreous.data.augment import normalise
from vitreous.data.batch import Batch, ViewBatch, to_device
from vitreous.data.batch_augment import mix
from vitreous.data.collate import BatchMaker, BatchTask, Collated, Transforms, choose_maker
from vitreous.data.decode import check_channels
from vitreous.data.rng import Index, sample_keys
from vitreous.data.source import Source
from vitreous.data.token_labels import TokenLabels
from vitreous.data.workers import WorkerPool, WorkersDiedError
from vitreous.distributed.world import SINGLE_PROCESS, World
from vitreous.errors import UserError
from vitreous.memory import check_memory

Item = TypeVar("Item")
_END: Any = object()
PLAIN: Mapping[str, View] = {"image": View()}
MIN_IMAGES_FOR_WORKERS = 256  # below that, starting processes takes longer than they save
WORKER_BYTES = 64 * 2**20  # what a process that decodes takes for itself: Python's and Pillow's memory, and two batches
UNREADABLE_LIMIT = 0.01  # the fraction of all images that may be unreadable; of a few images, one


def max_unreadable(images: int, limit: float = UNREADABLE_LIMIT) -> int:
    """How many images may be unreadable: one always may, unless the limit is 0."""
    return max(1 if limit else 0, math.floor(limit * images))


def check_unreadable(
    unreadable: Mapping[str, str], images: int, limit: float = UNREADABLE_LIMIT, total: int | None = None
) -> None:
    """Refuse data of which too many images, or all, cannot be read. The limit is judged on all of the data: a small
    random subset of good data may hold more than its fraction of bad files. unreadable: path to reason. total: how many
    images the data have that these are a subset of; None for these alone."""
    total = max(images, total or 0)
    if len(unreadable) <= min(max_unreadable(total, limit), images - 1):
        return
    shown = "; ".join(f"{name}: {reason.rstrip('.')}" for name, reason in list(unreadable.items())[:3])
    of = f" of all {total:,}" if total > images else ""
    raise UserError(
        f"{len(unreadable)} of {images} images cannot be read, more than the limit of {limit:.0%}{of} ({shown}); mend "
        "or delete them."
    )


def readable_names(source: Source, unreadable: Container[str]) -> list[str]:
    return [name for name in map(source.name, range(len(source))) if name not in unreadable]


def choose_workers(asked: int | None, images: int | None = None, beside: int = 1) -> int:
    """How many processes decode: as many as asked for, else one per core, four at most, and none for a few images. Many
    more than there are cores would only take memory from each other, and are refused. beside: so many trainings share
    the cores."""
    cores = max(1, (os.cpu_count() or 1) // beside)
    if asked is None:
        return 0 if images is not None and images < MIN_IMAGES_FOR_WORKERS else min(4, cores)
    most = max(16, 4 * cores)
    if not 0 <= asked <= most:
        raise UserError(f"workers={asked}: on {cores} cores give a number from 0 to {most}, or leave it out.")
    check_memory(asked * WORKER_BYTES, f"workers={asked}", "give fewer, or 0")
    return asked


class Loader:
    """Batches of a source: `for batch in loader.batches(epoch)`.

    Without `augment`, unless `shuffle` says otherwise, images come in their order and the last batch may be short.
    Shuffled epochs leave out what does not fill a batch, other images each time.

    An image that cannot be read is noted in `unreadable` and, in training, replaced by the next one that can; in
    evaluation it is left out. More than `unreadable_limit` of all images of the data that the source is a subset of,
    and more than one, is an error, and so is nothing but such; with None, in evaluation, neither is.

    views: what is cut from each image in training, by name; `augment` says all but its area and size.
    normalised: False gives images as bytes, which engines take.
    device: where images are normalised; they go there as bytes. None: that of `world`. If it is not the CPU, a thread
        prepares the next batch meanwhile.
    patch: the side of the model's patches, for a mixing that exchanges whole ones.
    token_labels: what says of each patch of a varied image what it shows; set it before the first batch.
    world: where several processes load together, each has its part: of every shuffled batch some of the images, the
        pairs that are mixed together; else some of the batches, in the order of ranks. What they could not read counts
        together after `sync_unreadable`.

    Where the source has soft targets, the batches of an epoch have them; plain batches have the labels.
    """

    token_labels: TokenLabels | None = None

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
        views: Mapping[str, View] = PLAIN,
        cache_bytes: int | None = None,
        unreadable_limit: float | None = UNREADABLE_LIMIT,
        normalised: bool = True,
        patch: int | None = None,
        world: World = SINGLE_PROCESS,
        device: torch.device | None = None,
    ) -> None:
        if len(source) == 0:
            raise UserError("there are no images to load; check the data.")
        for name, value, least in (("batch_size", batch_size, 1), ("workers", workers, 0)):
            if value < least:
                raise UserError(f"{name}={value}: give a whole number of at least {least}.")
        check_channels(preprocess.channels)
        assert normalised or augment is None
        self.source, self.preprocess, self.augment, self.seed = source, preprocess, augment, seed
        self.shuffle = augment is not None if shuffle is None else shuffle
        self.normalised, self.patch, self.world = normalised, patch, world
        self._device = world.device if device is None else device
        self._thread: ThreadPoolExecutor | None = None  # worker processes end with the thread that started them
        self.batch_size = min(batch_size, len(source))
        self._unit = 2 if augment is not None and augment.mixes else 1
        if self.shuffle and self.batch_size < self._unit * world.size:
            raise UserError(
                f"batch_size={self.batch_size}: {world.size} processes share each batch, and each needs "
                f"{'a pair of images' if self._unit == 2 else 'an image'}; set batch_size={self._unit * world.size} "
                "or more, or start fewer."
            )
        self.unreadable: dict[str, str] = {}
        self._shared = 0  # how many of these all processes know of
        assert unreadable_limit is not None or not self.shuffle
        self._limit = unreadable_limit
        self._labels = torch.from_numpy(source.labels)
        self._learned = self._labels if source.soft is None else torch.from_numpy(source.soft)
        allowed = max_unreadable(max(len(source), source.total), 1.0 if unreadable_limit is None else unreadable_limit)
        transforms = Transforms(preprocess, augment, views, seed)
        self._maker = choose_maker(source, transforms, cache_bytes, allowed, self.shuffle)
        self.workers = 0 if isinstance(self._maker, BatchMaker) else workers
        self._processes = WorkerPool(self._maker.make, self.workers) if self.workers else None

    @property
    def steps_per_epoch(self) -> int:
        if self.shuffle:
            return len(self.source) // self.batch_size
        return math.ceil(len(self.source) / self.batch_size)

    def order(self, epoch: int) -> Index:
        if self.shuffle:
            return self.source.order(self.seed, epoch)
        return np.arange(len(self.source), dtype=np.int64)

    def batches(self, epoch: int = 0, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from its step `start` on."""
        order = self.order(epoch)
        steps = range(start, self.steps_per_epoch)
        if self.shuffle:
            own = self.world.rank_slice(self.batch_size, self._unit)
        else:
            own, steps = slice(None), steps[self.world.rank_slice(len(steps))]
        tasks = [BatchTask(epoch, order[step * self.batch_size : (step + 1) * self.batch_size][own]) for step in steps]
        yield from self._prefetch(self._batch(one, epoch) for one in self._collated(tasks) if len(one.indices))

    def plain_batches(
        self, batch_size: int, order: Index | None = None, world: World = SINGLE_PROCESS
    ) -> Iterator[Batch]:
        """Images as evaluation sees them, all in their order if None is given; unreadable ones are left out.

        world: where several processes look together, each has some of the batches, in the order of ranks.
        """
        order = np.arange(len(self.source), dtype=np.int64) if order is None else order
        own = world.rank_slice(-(-len(order) // batch_size))
        order = order[own.start * batch_size : own.stop * batch_size]
        return (batch for batch in self.plain_rounds(batch_size, order) if batch is not None)

    def plain_rounds(self, batch_size: int, order: Index) -> Iterator[Batch | None]:
        """The same for each batch of the order; None where none of its images can be read."""
        tasks = [BatchTask(None, order[start : start + batch_size]) for start in range(0, len(order), batch_size)]
        return self._prefetch(self._batch(one, None) if len(one.indices) else None for one in self._collated(tasks))

    def _prefetch(self, items: Generator[Item]) -> Iterator[Item]:
        """The items; where they are for another device, a thread makes the next while one is used."""
        if self._device.type == "cpu":
            yield from items
            return
        self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="prefetch")
        upcoming = self._thread.submit(next, items, _END)
        try:
            while (item := upcoming.result()) is not _END:
                upcoming = self._thread.submit(next, items, _END)
                yield item
        finally:
            if self._thread is None:  # closed meanwhile
                items.close()
            else:
                self._thread.submit(items.close).result()

    def _collated(self, tasks: list[BatchTask]) -> Iterator[Collated]:
        """Batches, with a note of what could not be read; too much of it is refused."""
        try:
            for found in map(self._make_here, tasks) if self._processes is None else self._processes.run(tasks):
                for index, reason in sorted(found.unreadable.items()):
                    self.unreadable[self.source.name(index)] = reason
                self._check_unreadable()
                yield found
        except WorkersDiedError as error:
            first, last = (self.source.name(int(error.task.indices[at])) for at in (0, -1))
            raise UserError(
                f"workers={self.workers}: the processes that decode images keep dying, the last one {error.how}, "
                f"at the images {first} to {last}; if memory is short, give fewer workers, or 0, else look at these "
                "images."
            ) from None

    def close(self) -> None:
        """Stop the worker processes; a next epoch would start new ones."""
        if self._thread is not None:  # first, for it starts the processes
            self._thread.shutdown()
            self._thread = None
        if self._processes is not None:
            self._processes.close()

    def _make_here(self, task: BatchTask) -> Collated:
        """A batch made in this process, by one thread: waiting for a second one costs more than it gives to a view."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return self._maker.make(task)
        finally:
            torch.set_num_threads(threads)

    def _batch(self, collated: Collated, epoch: int | None) -> Batch:
        index = torch.from_numpy(collated.indices)
        views: dict[str, ViewBatch] = {}
        for name, (pixels, box, flipped) in collated.views.items():
            images = to_device(torch.from_numpy(pixels), self._device)
            images = normalise(images, self.preprocess) if self.normalised else images
            views[name] = ViewBatch(images, torch.from_numpy(box), torch.from_numpy(flipped))
        keys = torch.from_numpy(sample_keys(self.seed, epoch or 0, collated.indices))
        targets = self._labels if epoch is None else self._learned
        batch = Batch(views, targets[index], index, keys)
        if epoch is None or self.augment is None:
            return batch
        if self.token_labels is not None:
            batch = replace(batch, token_targets=self.token_labels.cut(index, views["image"]))
        if not self.augment.mixes:
            return batch
        return mix(batch, len(self.source.classes), self.augment, seed=self.seed, epoch=epoch, patch=self.patch)

    @property
    def has_unshared(self) -> bool:
        """Whether this process could not read an image that the others have not heard of."""
        return len(self.unreadable) > self._shared

    def sync_unreadable(self) -> None:
        """Tell all processes what any of them could not read: the limit is one for all. A collective."""
        self.unreadable = self.world.union(self.unreadable)
        self._shared = len(self.unreadable)
        self._check_unreadable()

    def _check_unreadable(self) -> None:
        if self._limit is None:
            return
        try:
            check_unreadable(self.unreadable, len(self.source), self._limit, self.source.total)
        except UserError:
            if self._processes is not None:
                self._processes.close()
            raise
