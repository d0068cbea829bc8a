"""From a source to batches, in an order and with views that are a pure function of (seed, epoch, index).

Single images are decoded by worker processes; small images in memory are varied a batch at a time, without workers.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import torch

from vitreous.config.data import Augment, Preprocess, View
from vitreous.data.augment import normalise
from vitreous.data.batch import Batch, ViewBatch
from vitreous.data.chance import Index, sample_keys
from vitreous.data.decode import check_channels
from vitreous.data.making import BatchMaker, BatchTask, Made, MadeViews, Transforms, choose_maker
from vitreous.data.mix import mix
from vitreous.data.source import Source
from vitreous.data.token_labels import TokenLabels
from vitreous.data.unreadable import LIMIT, check_unreadable, most_unreadable
from vitreous.data.workers import WorkerPool, WorkersDiedError
from vitreous.distributed.world import ALONE, World
from vitreous.errors import UserError
from vitreous.memory import check_memory

PLAIN: Mapping[str, View] = {"image": View()}
FEW = 256
"""Below so many images, starting processes takes longer than they save."""
WORKER_BYTES = 64 * 2**20
"""What a process that decodes takes for itself, roughly: some of Python's and Pillow's memory, and two batches."""


def choose_workers(asked: int | None, images: int | None = None, beside: int = 1) -> int:
    """How many processes decode: as many as asked for, else one per core, four at most, and none for a few images.

    Many more than there are cores would only take memory from each other, and are refused. beside: so many trainings
    share the cores.
    """
    cores = max(1, (os.cpu_count() or 1) // beside)
    if asked is None:
        return 0 if images is not None and images < FEW else min(4, cores)
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
    patch: the side of the model's patches, for a mixing that exchanges whole ones.
    token_labels: what says of each patch of a varied image what it shows; set it before the first batch.
    world: where several processes load together, each has its part: of every shuffled batch some of the images, the
        pairs that are mixed together; else some of the batches, in the order of ranks. What they could not read counts
        together after `share_unreadable`.

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
        unreadable_limit: float | None = LIMIT,
        normalised: bool = True,
        patch: int | None = None,
        world: World = ALONE,
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
        whole = max(len(source), source.whole)
        self._allowed = most_unreadable(whole, 1.0 if unreadable_limit is None else unreadable_limit)
        self._limit = unreadable_limit
        self._labels = torch.from_numpy(source.labels)
        self._learned = self._labels if source.soft is None else torch.from_numpy(source.soft)
        wanted = Transforms(preprocess, augment, views, seed)
        self._maker = choose_maker(source, wanted, cache_bytes, self._allowed, self.shuffle)
        self.workers = 0 if isinstance(self._maker, BatchMaker) else workers
        self._processes = WorkerPool(self._maker.make, self.workers) if self.workers else None

    @property
    def steps_per_epoch(self) -> int:
        """Batches in an epoch."""
        if self.shuffle:
            return len(self.source) // self.batch_size
        return math.ceil(len(self.source) / self.batch_size)

    def order(self, epoch: int) -> Index:
        """The indices of all images in the order of this epoch."""
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
        for made in self._made(tasks):
            if len(made.taken):
                yield self._batch(made, epoch)

    def plain_batches(self, batch_size: int, order: Index | None = None, world: World = ALONE) -> Iterator[Batch]:
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
        for made in self._made(tasks):
            yield self._batch(made, None) if len(made.taken) else None

    def _made(self, tasks: list[BatchTask]) -> Iterator[Made]:
        try:
            for made in map(self._make_here, tasks) if self._processes is None else self._processes.run(tasks):
                self._note(made.unreadable)
                yield made
        except WorkersDiedError as error:
            raise UserError(self._obituary(error)) from None

    def _obituary(self, error: WorkersDiedError) -> str:
        first, last = (self.source.name(int(error.task.indices[at])) for at in (0, -1))
        return (
            f"workers={self.workers}: the processes that decode images keep dying, the last one {error.how}, at the "
            f"images {first} to {last}; if memory is short, give fewer workers, or 0, else look at these images."
        )

    def close(self) -> None:
        """Stop the worker processes; a next epoch would start new ones."""
        if self._processes is not None:
            self._processes.close()

    def _make_here(self, task: BatchTask) -> Made:
        """A batch made in this process, by one thread: waiting for a second one costs more than it gives to a view."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return self._maker.make(task)
        finally:
            torch.set_num_threads(threads)

    def _batch(self, made: Made, epoch: int | None) -> Batch:
        index = torch.from_numpy(made.taken)
        views = {name: self._views(found) for name, found in made.views.items()}
        keys = torch.from_numpy(sample_keys(self.seed, epoch or 0, made.taken))
        targets = self._labels if epoch is None else self._learned
        batch = Batch(views, targets[index], index, keys)
        if epoch is None or self.augment is None:
            return batch
        if self.token_labels is not None:
            batch = replace(batch, token_targets=self.token_labels.cut(index, views["image"]))
        if not self.augment.mixes:
            return batch
        return mix(batch, len(self.source.classes), self.augment, seed=self.seed, epoch=epoch, patch=self.patch)

    def _views(self, made: MadeViews) -> ViewBatch:
        images = torch.from_numpy(made.images)
        if self.normalised:
            images = normalise(images, self.preprocess)
        return ViewBatch(images, torch.from_numpy(made.box), torch.from_numpy(made.flipped))

    def _note(self, unreadable: dict[int, str]) -> None:
        """Remember images that could not be read; stop when they are too many."""
        for index, reason in sorted(unreadable.items()):
            self.unreadable[self.source.name(index)] = reason
        self._check_unreadable()

    @property
    def has_unshared(self) -> bool:
        """Whether this process could not read an image that the others have not heard of."""
        return len(self.unreadable) > self._shared

    def share_unreadable(self) -> None:
        """Tell all processes what any of them could not read: the limit is one for all. A collective."""
        self.unreadable = self.world.union(self.unreadable)
        self._shared = len(self.unreadable)
        self._check_unreadable()

    def _check_unreadable(self) -> None:
        if self._limit is None:
            return
        try:
            check_unreadable(self.unreadable, len(self.source), self._limit, self.source.whole)
        except UserError:
            self.close()
            raise
