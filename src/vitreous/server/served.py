"""A model that a server answers for."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from vitreous.config.data import Preprocess
from vitreous.config.server import ServerSettings
from vitreous.data.decode import ImageError, read_header
from vitreous.data.view import ImageInput, make_view
from vitreous.inference.engine import Engine, InferenceModel
from vitreous.inference.speed import noise
from vitreous.model.predictions import class_probabilities
from vitreous.server.batching import Batcher, Places
from vitreous.server.metrics import ServerMetrics
from vitreous.server.refusal import RefusedError, too_late
from vitreous.server.threads import ThreadPool
from vitreous.weights.bundle import Bundle

T = TypeVar("T")
LOWER = 10
"""Steps of priority (nice)."""


@dataclass(frozen=True)
class ModelToServe:
    """A model that was opened, and the name by which requests call it."""

    name: str
    deployed: InferenceModel
    bundle: Bundle | None
    """What looks inside it asks this; None for an exported model, which cannot be looked into."""


class Served:
    """A model with its queue. Its methods are called from the event loop, and compute elsewhere."""

    def __init__(self, model: ModelToServe, settings: ServerSettings, metrics: ServerMetrics) -> None:
        self.name, self.deployed, self.bundle = model.name, model.deployed, model.bundle
        self.settings = settings
        self.places = Places(settings.most_images, settings.answer_seconds)
        self.metrics = metrics.of_model(self.name, lambda: self.places.taken)
        self.batcher = Batcher(self.engine, self.places, self.metrics, settings.grace_seconds)
        self._looking = ThreadPool(1, "look")
        self._looks = 0

    @property
    def engine(self) -> Engine:
        """What answers for it."""
        return self.deployed.engine

    @property
    def labels(self) -> tuple[str, ...]:
        """(K,) the names of its classes; () without a classifier."""
        return self.deployed.labels

    @property
    def preprocess(self) -> Preprocess:
        """How images become views."""
        return self.engine.preprocess

    def warm_up(self) -> None:
        """Have the engine compile whatever it compiles when it is first asked, and see how fast it is.

        The threads that OpenVINO starts then compute at the low priority of the one that asks. So on a busy machine
        those that take requests in and refuse them come first: they need little, and at once.
        """
        with ThreadPoolExecutor(1, initializer=_yield_to_others) as thread:
            thread.submit(self._ask_about_noise).result()

    def _ask_about_noise(self) -> None:
        answer = self.engine.logits if self.labels else self.engine.representations
        for count in (1, self.batcher.most, self.batcher.most):
            started = time.monotonic()
            answer(noise(self.engine, count))
            self.places.measured((time.monotonic() - started) / count)

    def check_classifier(self) -> None:
        """Refuse a question about classes where there are none."""
        if not self.labels:
            raise RefusedError(400, f"{self.name} has no classifier and so no labels to give; ask /embed.")

    async def scores(self, images: Sequence[ImageInput]) -> list[Tensor]:
        """(K,) for each image, one score for each class (logits)."""
        self.check_classifier()
        return await self._ask(self.engine.logits, images)

    async def representations(self, images: Sequence[ImageInput]) -> list[Tensor]:
        """(D,) for each image: what the model makes of it, before any classifier."""
        return await self._ask(self.engine.representations, images)

    async def _ask(self, function: Callable[[Tensor], Tensor], images: Sequence[ImageInput]) -> list[Tensor]:
        with self.places.take(len(images)):
            until = time.monotonic() + self.settings.answer_seconds
            views = await self._views(images, until)
            return await self.batcher.ask(function, views, until - time.monotonic())

    async def scores_of_view(self, view: Tensor) -> Tensor | None:
        """(K,) the scores of a view (C, H, W) uint8 that has a place already; None without a classifier."""
        if not self.labels:
            return None
        return (await self.batcher.ask(self.engine.logits, [view], self.settings.answer_seconds))[0]

    async def _views(self, images: Sequence[ImageInput], until: float) -> list[Tensor]:
        """(C, H, W) uint8 of each image. Not all threads decode those of one request: others' come in between."""
        turn = asyncio.Semaphore(max(1, (os.cpu_count() or 1) // 2))

        async def decode(image: ImageInput) -> Tensor:
            async with turn:
                return await asyncio.to_thread(self._view, image, until)

        views = []
        # All are waited for, whatever becomes of one: its place is free when its work is done, not before.
        for number, view in enumerate(await asyncio.gather(*map(decode, images), return_exceptions=True)):
            if isinstance(view, ImageError):
                which = f"image {number}: " if len(images) > 1 else ""
                raise RefusedError(422, f"{which}{view.reason}")
            if isinstance(view, BaseException):
                raise view
            views.append(view)
        return views

    def _view(self, image: ImageInput, until: float) -> Tensor:
        if time.monotonic() > until:
            raise too_late()
        with self.metrics.timed("decode"):
            if isinstance(image, bytes):
                check_extent(image, self.settings)
            return make_view(image, self.preprocess)

    async def see(self, image: bytes, look: Callable[[bytes, Preprocess], T]) -> T:
        """What a function finds in an image's file, in a thread; a file beyond the limits, or none, is refused."""

        def begin() -> T:
            with self.metrics.timed("decode"):
                check_extent(image, self.settings)
                return look(image, self.preprocess)

        try:
            return await asyncio.to_thread(begin)
        except ImageError as error:
            raise RefusedError(422, error.reason) from None

    def check_looks(self) -> None:
        """Refuse a look inside the model where too many wait for theirs already."""
        if self._looks >= self.settings.most_looking:
            raise RefusedError(503, f"{self._looks} explanations are waiting already; try again later.", retry_after=2)

    async def look(self, job: Callable[[], T]) -> T:
        """What a job finds that looks inside the model, such as an explanation; one at a time, in a thread.

        Whoever finds too many waiting is refused at once.
        """
        self.check_looks()
        self._looks += 1
        until = time.monotonic() + self.settings.answer_seconds

        def begin() -> T:
            if time.monotonic() > until:
                raise too_late()
            with self.metrics.timed("explain"):
                return job()

        try:
            return await self._looking.run(begin)
        finally:
            self._looks -= 1

    @property
    def idle(self) -> bool:
        """Whether none of its threads is at work."""
        return self.batcher.idle and self._looking.idle

    def close(self) -> None:
        """Begin nothing more. What has begun, such as an explanation, cannot be stopped, and is not waited for."""
        self.batcher.close()
        self._looking.close()


def check_extent(image: bytes, settings: ServerSettings) -> None:
    """Refuse a file with more pixels than a server decodes for a stranger: a PNG of nothing is small, and takes long.

    A large JPEG is read at a smaller scale.
    """
    if not image:
        raise ImageError("the image", "it has no bytes; send the bytes of its file.")
    header = read_header(image)
    if header.format != "JPEG" and header.width * header.height > settings.most_pixels:
        limit = f"{settings.most_pixels / 1e6:.0f} million"
        raise ImageError("the image", f"it has more pixels than the limit of {limit}; make it smaller.")


def _yield_to_others() -> None:
    """Lower the priority of this thread, and of those that it starts; elsewhere than on Linux it is the process's."""
    if sys.platform == "linux":
        os.nice(LOWER)


def probabilities(scores: Sequence[Tensor]) -> Tensor:
    """(B, K): how likely each class is, by the scores (K,) of each image."""
    return class_probabilities(torch.stack(list(scores)))
