"""A model that the server serves, with its queue."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated, TypeVar

from fastapi import Depends, Query, Request
from torch import Tensor

from vitreous.arguments import shown
from vitreous.config.data import Preprocess
from vitreous.config.server import ServerSettings
from vitreous.data.decode import ImageError, read_header
from vitreous.data.view import ImageInput, make_view
from vitreous.inference.engine import LOGITS, REPRESENTATION, InferenceModel
from vitreous.inference.speed import noise
from vitreous.server.batching import AdmissionQueue, Batcher, PixelBudget, ThreadPool
from vitreous.server.errors import ApiError, timeout_error
from vitreous.server.metrics import ServerMetrics
from vitreous.threads import usable_cores
from vitreous.weights.bundle import Bundle

T = TypeVar("T")
Image = TypeVar("Image", bound=ImageInput)
ENGINE_NICENESS = 10


@dataclass(frozen=True)
class ModelToServe:
    """A model that was opened, and the name by which requests call it."""

    name: str
    inference_model: InferenceModel
    bundle: Bundle | None  # for explanations; None for an exported model, which cannot be explained


class ServedModel:
    """A model with its queue. Its methods are called in the event loop, and compute in threads."""

    def __init__(self, model: ModelToServe, settings: ServerSettings, metrics: ServerMetrics) -> None:
        self.name, self.inference_model, self.bundle = model.name, model.inference_model, model.bundle
        self.settings = settings
        self.engine = model.inference_model.engine
        self.preprocess = self.engine.preprocess
        self.labels = model.inference_model.labels  # (K,) the names of its classes; () without a classifier
        self.queue = AdmissionQueue(settings.max_queue_size, settings.response_seconds)
        self.metrics = metrics.for_model(self.name, lambda: self.queue.admitted)
        self.batcher = Batcher(self.engine, self.queue, self.metrics, settings.grace_seconds)
        self._decoders_per_request = max(1, usable_cores() // 2)
        self._pixels = PixelBudget(max(settings.max_total_pixels, settings.max_pixels))
        self._explain_thread = ThreadPool(1, "explain")
        self._waiting_explanations = 0

    def warm_up(self) -> None:
        """Run the engine on noise, so that it compiles what it compiles at the first call, and measure its speed.

        The threads that OpenVINO starts inherit the low priority of the calling thread. So on a busy machine the event
        loop, which needs little time but at once, comes first.
        """

        def compute_noise() -> None:
            if sys.platform == "linux":  # where it is of this thread and those that it starts; else of the process
                os.nice(ENGINE_NICENESS)
            for count in (1, self.batcher.batch_size, self.batcher.batch_size):
                started = time.monotonic()
                self.engine.outputs(noise(self.engine, count), [LOGITS if self.labels else REPRESENTATION])
                self.queue.set_seconds_per_image((time.monotonic() - started) / count)

        with ThreadPoolExecutor(1) as thread:
            thread.submit(compute_noise).result()

    async def compute(self, images: Sequence[ImageInput], *outputs: str) -> list[Tensor]:
        """(B, ...) of each of the engine's outputs, which are computed at once."""
        with self.queue.take(len(images)):
            until = time.monotonic() + self.settings.response_seconds
            views = await self._views(images, until)
            return await self.batcher.compute(outputs, views, until - time.monotonic())

    async def logits_of_view(self, view: Tensor) -> Tensor | None:
        """(K,) logits of a view (C, H, W) uint8 that was admitted already; None without a classifier."""
        if not self.labels:
            return None
        return (await self.batcher.compute((LOGITS,), [view], self.settings.response_seconds))[0][0]

    async def _views(self, images: Sequence[ImageInput], until: float) -> list[Tensor]:
        """(C, H, W) uint8 of each image. One request does not occupy all decoding threads."""
        free = asyncio.Semaphore(self._decoders_per_request)

        async def decode(image: ImageInput) -> Tensor:
            async with free:
                return await asyncio.to_thread(self._decode, image, until, make_view)

        views = []
        # All are awaited even if one fails: an image leaves the queue when its work is done, not before.
        for number, view in enumerate(await asyncio.gather(*map(decode, images), return_exceptions=True)):
            if isinstance(view, ImageError):
                which = f"image {number}: " if len(images) > 1 else ""
                raise ApiError(422, f"{which}{view.reason}")
            if isinstance(view, BaseException):
                raise view
            views.append(view)
        return views

    def _decode(self, image: Image, until: float, read: Callable[[Image, Preprocess], T]) -> T:
        if time.monotonic() > until:
            raise timeout_error()
        pixels = check_pixels(image, self.settings) if isinstance(image, bytes) else 0
        with self._pixels.take(pixels, until), self.metrics.stages["decode"].time():
            return read(image, self.preprocess)

    async def decode(self, image: bytes, read: Callable[[bytes, Preprocess], T]) -> T:
        """The result of `read` for an image's file, in a thread; a file beyond the limits is refused."""
        until = time.monotonic() + self.settings.response_seconds
        try:
            return await asyncio.to_thread(self._decode, image, until, read)
        except ImageError as error:
            raise ApiError(422, error.reason) from None

    def check_explanations(self) -> None:
        """Refuse an explanation if too many wait already."""
        if self._waiting_explanations >= self.settings.max_explanations:
            waiting = f"{self._waiting_explanations} explanations are waiting already"
            raise ApiError(503, f"{waiting}; try again later.", retry_after=2)

    async def explain(self, job: Callable[[], T]) -> T:
        """The result of a job that looks inside the model; one at a time, in a thread."""
        self.check_explanations()
        self._waiting_explanations += 1
        until = time.monotonic() + self.settings.response_seconds

        def begin() -> T:
            if time.monotonic() > until:
                raise timeout_error()
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
        """Fail if a batch takes so long that the engine must hang, so that a supervisor restarts the server."""
        seconds, usual = self.batcher.threads.busy_seconds, self.batcher.batch_size * self.queue.seconds_per_image
        if seconds > self.settings.longest_seconds + 10 * usual:
            raise ApiError(503, f"{self.name} has computed one batch for {seconds:.0f} s; restart the server.")

    def close(self) -> None:
        """Start no more jobs; do not wait for those that run."""
        self.batcher.threads.close()
        self._explain_thread.close()


def check_pixels(image: bytes, settings: ServerSettings) -> int:
    """The number of pixels that are decoded; too many are refused. Large JPEGs are decoded at a smaller scale."""
    if not image:
        raise ImageError("the image", "it has no bytes; send the bytes of its file.")
    header = read_header(image)
    if header.format != "JPEG" and header.width * header.height > settings.max_pixels:
        limit = f"{settings.max_pixels / 1e6:.0f} million"
        raise ImageError("the image", f"it has more pixels than the limit of {limit}; make it smaller.")
    return min(header.width * header.height, settings.max_pixels)


class LoadedModels:
    """All models of a server by name; the first is the default. None is there before all are loaded."""

    def __init__(self, settings: ServerSettings, metrics: ServerMetrics) -> None:
        self._settings, self._metrics = settings, metrics
        self._models: dict[str, ServedModel] = {}
        self._started = time.monotonic()

    def load(self, models: Iterable[ModelToServe]) -> None:
        """Serve these models, of different names. Each is warmed up, so that one that fails is found now."""
        made: dict[str, ServedModel] = {}
        for model in models:
            made[model.name] = ServedModel(model, self._settings, self._metrics)
            made[model.name].warm_up()
        self._models = made

    def all(self) -> dict[str, ServedModel]:
        """By name; refused while they are being loaded."""
        if not self._models:
            seconds = time.monotonic() - self._started
            raise ApiError(
                503,
                f"the server has been loading its models for {seconds:.0f} s, which can take minutes the first time; "
                "try again soon.",
                retry_after=2,
            )
        return self._models

    def choose(self, name: str | None) -> ServedModel:
        """The model of this name; None for the first."""
        models = self.all()
        if name is None:
            return next(iter(models.values()))
        if name not in models:
            raise ApiError(404, f"model {shown(name)}: there is none of this name; there are {', '.join(models)}.")
        return models[name]

    def check_alive(self) -> None:
        """Fail if an engine hangs."""
        for model in self._models.values():
            model.check_alive()

    def reserve(self) -> None:
        """Keep a place for an image in the first queue that has one; refuse it if every model's queue is full."""
        refused: ApiError | None = None
        for model in self.all().values():
            try:
                model.queue.reserve()
            except ApiError as error:
                refused = error
            else:
                return
        if refused is not None:
            raise refused

    @property
    def idle(self) -> bool:
        return all(model.idle for model in self._models.values())

    def close(self) -> None:
        for model in self._models.values():
            model.close()


async def _all_models(request: Request) -> LoadedModels:
    models: LoadedModels = request.app.state.models
    return models


Models = Annotated[LoadedModels, Depends(_all_models)]


async def _chosen(
    models: Models, model: Annotated[str | None, Query(description="Which model; default: the first.")] = None
) -> ServedModel:
    return models.choose(model)


Chosen = Annotated[ServedModel, Depends(_chosen)]  # the model that a request names
