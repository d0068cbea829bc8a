"""A model that a server answers for."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated, TypeVar

import torch
from fastapi import Depends, Query, Request
from torch import Tensor

from vitreous.arguments import shown
from vitreous.config.data import Preprocess
from vitreous.config.server import ServerSettings
from vitreous.data.decode import ImageError, read_header
from vitreous.data.view import ImageInput, make_view
from vitreous.inference.engine import InferenceModel
from vitreous.inference.speed import noise
from vitreous.server.batching import AdmissionQueue, Batcher, Forward, PixelBudget, ThreadPool, usable_cores
from vitreous.server.errors import ApiError, too_late
from vitreous.server.metrics import ServerMetrics
from vitreous.weights.bundle import Bundle

T = TypeVar("T")
LOWER_PRIORITY = 10  # steps (nice)


@dataclass(frozen=True)
class ModelToServe:
    """A model that was opened, and the name by which requests call it."""

    name: str
    deployed: InferenceModel
    bundle: Bundle | None
    """What looks inside it asks this; None for an exported model, which cannot be looked into."""


class ServedModel:
    """A model with its queue. Its methods are called from the event loop, and compute elsewhere."""

    def __init__(self, model: ModelToServe, settings: ServerSettings, metrics: ServerMetrics) -> None:
        self.name, self.deployed, self.bundle = model.name, model.deployed, model.bundle
        self.settings = settings
        self.engine = model.deployed.engine
        self.preprocess = self.engine.preprocess
        self.labels = model.deployed.labels  # (K,) the names of its classes; () without a classifier
        self.queue = AdmissionQueue(settings.max_queue_size, settings.response_seconds)
        self.metrics = metrics.of_model(self.name, lambda: self.queue.taken)
        self.batcher = Batcher(self.engine, self.queue, self.metrics, settings.grace_seconds)
        self._decoders_per_request = max(1, usable_cores() // 2)
        self._pixels = PixelBudget(max(settings.max_total_pixels, settings.max_pixels))
        self._explain_thread = ThreadPool(1, "explain")
        self._waiting_explanations = 0

    def warm_up(self) -> None:
        """Have the engine compile whatever it compiles when it is first asked, and see how fast it is.

        The threads that OpenVINO starts then compute at the low priority of the one that asks. So on a busy machine
        those that take requests in and refuse them come first: they need little, and at once.
        """

        def lower_priority() -> None:  # of this thread, and of those that it starts; elsewhere it is the process's
            if sys.platform == "linux":
                os.nice(LOWER_PRIORITY)

        def ask_about_noise() -> None:
            forward = self.engine.logits if self.labels else self.engine.representations
            for count in (1, self.batcher.batch_size, self.batcher.batch_size):
                started = time.monotonic()
                forward(noise(self.engine, count))
                self.queue.measured((time.monotonic() - started) / count)

        with ThreadPoolExecutor(1, initializer=lower_priority) as thread:
            thread.submit(ask_about_noise).result()

    def check_classifier(self) -> None:
        """Refuse a question about classes where there are none."""
        if not self.labels:
            raise ApiError(400, f"{self.name} has no classifier and so no labels to give; ask /embed.")

    async def ask(self, images: Sequence[ImageInput], *functions: Forward) -> list[Tensor]:
        """(B, ...) of each of the engine's functions; the images are decoded once."""
        with self.queue.take(len(images)):
            until = time.monotonic() + self.settings.response_seconds
            views = await self._views(images, until)
            return [torch.stack(await self.batcher.ask(one, views, until - time.monotonic())) for one in functions]

    async def logits_of_view(self, view: Tensor) -> Tensor | None:
        """(K,) of a view (C, H, W) uint8 that has a place already; None without a classifier."""
        if not self.labels:
            return None
        return (await self.batcher.ask(self.engine.logits, [view], self.settings.response_seconds))[0]

    async def _views(self, images: Sequence[ImageInput], until: float) -> list[Tensor]:
        """(C, H, W) uint8 of each image. Not all threads decode those of one request: others' come in between."""
        turn = asyncio.Semaphore(self._decoders_per_request)

        async def decode(image: ImageInput) -> Tensor:
            async with turn:
                return await asyncio.to_thread(self._view, image, until)

        views = []
        # All are waited for, whatever becomes of one: its place is free when its work is done, not before.
        for number, view in enumerate(await asyncio.gather(*map(decode, images), return_exceptions=True)):
            if isinstance(view, ImageError):
                which = f"image {number}: " if len(images) > 1 else ""
                raise ApiError(422, f"{which}{view.reason}")
            if isinstance(view, BaseException):
                raise view
            views.append(view)
        return views

    def _view(self, image: ImageInput, until: float) -> Tensor:
        if time.monotonic() > until:
            raise too_late()
        pixels = check_pixels(image, self.settings) if isinstance(image, bytes) else 0
        with self._pixels.take(pixels, until), self.metrics.stages["decode"].time():
            return make_view(image, self.preprocess)

    async def decode(self, image: bytes, read: Callable[[bytes, Preprocess], T]) -> T:
        """What a function reads from an image's file, in a thread; a file beyond the limits, or none, is refused."""

        def begin() -> T:
            pixels, until = check_pixels(image, self.settings), time.monotonic() + self.settings.response_seconds
            with self._pixels.take(pixels, until), self.metrics.stages["decode"].time():
                return read(image, self.preprocess)

        try:
            return await asyncio.to_thread(begin)
        except ImageError as error:
            raise ApiError(422, error.reason) from None

    def check_explanations(self) -> None:
        """Refuse an explanation where too many wait for theirs already."""
        if self._waiting_explanations >= self.settings.max_explanations:
            waiting = f"{self._waiting_explanations} explanations are waiting already"
            raise ApiError(503, f"{waiting}; try again later.", retry_after=2)

    async def explain(self, job: Callable[[], T]) -> T:
        """What a job finds that looks inside the model, such as an explanation; one at a time, in a thread.

        Whoever finds too many waiting is refused at once.
        """
        self.check_explanations()
        self._waiting_explanations += 1
        until = time.monotonic() + self.settings.response_seconds

        def begin() -> T:
            if time.monotonic() > until:
                raise too_late()
            with self.metrics.stages["explain"].time():
                return job()

        try:
            return await self._explain_thread.run(begin)
        finally:
            self._waiting_explanations -= 1

    @property
    def idle(self) -> bool:
        """Whether none of its threads is at work."""
        return self.batcher.threads.idle and self._explain_thread.idle

    def check_alive(self) -> None:
        """Refuse where a batch takes so long that the engine must hang: whoever watches the server restarts it."""
        seconds, usual = self.batcher.threads.busy_seconds, self.batcher.batch_size * self.queue.seconds_each
        if seconds > self.settings.longest_seconds + 10 * usual:
            raise ApiError(503, f"{self.name} has computed one batch for {seconds:.0f} s; restart the server.")

    def close(self) -> None:
        """Begin nothing more. What has begun, such as an explanation, cannot be stopped, and is not waited for."""
        self.batcher.threads.close()
        self._explain_thread.close()


def check_pixels(image: bytes, settings: ServerSettings) -> int:
    """How many pixels of a file are decoded; more than a server decodes for a stranger are refused.

    A PNG of nothing is small, and takes long. A large JPEG is read at a smaller scale.
    """
    if not image:
        raise ImageError("the image", "it has no bytes; send the bytes of its file.")
    header = read_header(image)
    if header.format != "JPEG" and header.width * header.height > settings.max_pixels:
        limit = f"{settings.max_pixels / 1e6:.0f} million"
        raise ImageError("the image", f"it has more pixels than the limit of {limit}; make it smaller.")
    return min(header.width * header.height, settings.max_pixels)


def choose_model(request: Request, name: str | None) -> ServedModel:
    """The model of this name; the first where none is named."""
    models: dict[str, ServedModel] = request.app.state.models
    if name is None:
        return next(iter(models.values()))
    if name not in models:
        raise ApiError(404, f"model {shown(name)}: there is none of this name; there are {', '.join(models)}.")
    return models[name]


async def _chosen(
    request: Request, model: Annotated[str | None, Query(description="Which model; default: the first.")] = None
) -> ServedModel:
    return choose_model(request, model)


Chosen = Annotated[ServedModel, Depends(_chosen)]
"""The model that a request names."""
