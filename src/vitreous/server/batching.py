"""Dynamic batching of the images of many requests.

No image waits for a batch to fill: when the engine is free, all waiting images are the next batch. While it is busy
more arrive, so batches grow with the load, up to the engine's best batch size. An engine with `max_concurrency` > 1
computes several batches at once.
"""

from __future__ import annotations

import asyncio
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from vitreous.inference.engine import Engine
from vitreous.server.errors import ApiError, timeout_error, too_many_images
from vitreous.server.metrics import ModelMetrics

T = TypeVar("T")
P = ParamSpec("P")
FIRST_SECONDS_PER_IMAGE = 0.02  # assumed before any was computed
RESERVED_SECONDS = 0.25  # for which an image that is being received counts as queued


class ThreadPool:
    """Threads that are not waited for at the end, and whether any of them is busy."""

    def __init__(self, count: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._running: dict[Future[Any], float] = {}  # and when each was submitted

    async def run(self, job: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a job in a thread and return its result. Cancelling ends the wait, not the thread."""
        future = self._threads.submit(job, *args, **kwargs)
        self._running[future] = time.monotonic()
        future.add_done_callback(self._running.pop)
        return await asyncio.wrap_future(future)

    @property
    def idle(self) -> bool:
        return not self._running

    @property
    def busy_seconds(self) -> float:
        """Seconds since the oldest running job was submitted; 0 if none is running."""
        return time.monotonic() - min(list(self._running.values()), default=time.monotonic())

    def close(self) -> None:
        """Start no more jobs; do not wait for those that run."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class PixelBudget:
    """Limits the pixels that are decoded at once: a blank image is a small file, but large in memory."""

    def __init__(self, limit: int) -> None:
        self._free, self._changed = limit, threading.Condition()

    @contextmanager
    def take(self, count: int, until: float) -> Iterator[None]:
        """Block until this many pixels are free; refuse the image if they are not until then."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._free >= count, until - time.monotonic()):
                raise timeout_error()
            self._free -= count
        try:
            yield
        finally:
            with self._changed:
                self._free += count
                self._changed.notify_all()


class AdmissionQueue:
    """Limits the images that wait or are computed at once; others are refused immediately."""

    def __init__(self, size: int, seconds: float) -> None:
        """seconds: within which an image must be answered."""
        self.size, self.seconds = size, seconds
        self.admitted = 0
        self._receiving: list[float] = []  # start times of images that are being received, sorted
        self._reserved: deque[float] = deque()  # times at which headers came of images that nobody has begun to receive
        self.set_seconds_per_image(FIRST_SECONDS_PER_IMAGE)

    def set_seconds_per_image(self, seconds_per_image: float) -> None:
        """Set the time per image on an idle server, as measured."""
        self.seconds_per_image = self._best_seconds_per_image = seconds_per_image

    def check(self, count: int = 1) -> None:
        """Refuse this many images if the queue is full, or if they would not all be answered in time.

        An idle server admits a single image however slow the model is, and several if the model was ever fast enough:
        only computing them shows that a slow phase is over.
        """
        if count > self.size:
            raise too_many_images(self.size)
        if count > 1 and count * self._best_seconds_per_image > self.seconds:
            raise ApiError(
                413,
                f"{count} images would take longer here than the {self.seconds:g} s that an answer may take; send at "
                f"most {max(1, int(self.seconds / self._best_seconds_per_image))} at once.",
            )
        self._check_room(self.admitted, count)

    def _check_room(self, admitted: int, count: int) -> None:
        last = (admitted + count) * self.seconds_per_image  # seconds until the last of them would be answered
        if admitted + count > self.size or (admitted and last > self.seconds):
            wait = admitted * self.seconds_per_image
            raise ApiError(503, f"{admitted} images are waiting already; try again later.", retry_after=wait)

    def check_before_receiving(self) -> None:
        """Refuse an image before it is received if it and those that are being received would not fit."""
        since = time.monotonic() - RESERVED_SECONDS
        while self._reserved and self._reserved[0] < since:
            self._reserved.popleft()
        receiving = len(self._receiving) - bisect_left(self._receiving, since)
        self._check_room(self.admitted + receiving + len(self._reserved), 1)

    def reserve(self) -> None:
        """Keep a place for an image whose headers have come; it is refused at once if it would not fit.

        Of hundreds of requests that come together, the last is else refused only after all before it were routed.
        """
        self.check_before_receiving()
        self._reserved.append(time.monotonic())

    @contextmanager
    def receiving(self) -> Iterator[None]:
        """Within the block an image is received, which counts towards the queue's limit for `RESERVED_SECONDS`."""
        if self._reserved:
            self._reserved.popleft()
        self.check_before_receiving()
        since = time.monotonic()
        self._receiving.append(since)
        try:
            yield
        finally:
            self._receiving.remove(since)

    @contextmanager
    def take(self, count: int) -> Iterator[None]:
        """Admit this many images for the duration of the block."""
        self.check(count)
        self.admitted += count
        admitted, started = self.admitted, time.monotonic()
        try:
            yield
            # Little's law: time in the system / images in the system, whether decoding or the engine is the bottleneck
            self.seconds_per_image += 0.1 * ((time.monotonic() - started) / admitted - self.seconds_per_image)
            self._best_seconds_per_image = min(self._best_seconds_per_image, self.seconds_per_image)
        finally:
            self.admitted -= count


@dataclass
class _PendingView:
    view: Tensor
    outputs: Sequence[str]
    result: asyncio.Future[list[Tensor]]
    until: float
    since: float = field(default_factory=time.monotonic)


class Batcher:
    """Computes waiting images with an engine in batches, first come first served."""

    def __init__(self, engine: Engine, queue: AdmissionQueue, metrics: ModelMetrics, grace_seconds: float) -> None:
        """grace_seconds: how long a batch may take once it has begun, before its requests are refused."""
        self.grace_seconds = grace_seconds
        self.engine, self.batch_size = engine, min(engine.batch_size, queue.size)
        self.metrics = metrics
        self._waiting: list[_PendingView] = []
        self._calls = engine.max_concurrency
        self.threads = ThreadPool(self._calls, "engine")
        self._busy = 0
        self._workers: set[asyncio.Task[None]] = set()  # held, as the event loop holds tasks by weak references alone

    async def compute(self, outputs: Sequence[str], views: Sequence[Tensor], seconds: float) -> list[Tensor]:
        """(B, ...) of each of the engine's outputs; refused if the batch does not begin within this many seconds."""
        loop, until = asyncio.get_running_loop(), time.monotonic() + seconds
        waiting = [_PendingView(view, outputs, loop.create_future(), until) for view in views]
        self._waiting += waiting
        if self._busy < self._calls:
            self._busy += 1
            worker = loop.create_task(self._work())
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)
        try:
            async with asyncio.timeout(max(seconds, 0) + self.grace_seconds):
                rows = await asyncio.gather(*(one.result for one in waiting))
                return [torch.stack(values) for values in zip(*rows, strict=True)]
        except TimeoutError:
            raise timeout_error() from None
        finally:
            for one in waiting:
                one.result.cancel()

    async def _work(self) -> None:
        """Compute batches as long as images wait."""
        try:
            while batch := self._next_batch():
                started = time.monotonic()
                for one in batch:
                    self.metrics.stages["wait"].observe(started - one.since)
                results = await self.threads.run(_compute, self.engine, batch)
                seconds = time.monotonic() - started
                self.metrics.batch(len(batch), seconds)
                for one, result in zip(batch, results, strict=True):
                    _resolve(one.result, result)
        finally:
            # No await since the queue was found empty, so the next call of `compute` starts a worker.
            self._busy -= 1

    def _next_batch(self) -> list[_PendingView]:
        """The longest waiting images that need the same outputs, at most a batch; empty if none wait."""
        now = time.monotonic()
        for one in self._waiting:
            if one.until < now:
                _resolve(one.result, timeout_error())
        waiting = [one for one in self._waiting if not one.result.done()]
        matching = [one for one in waiting if one.outputs == waiting[0].outputs]
        batch = matching[: self.batch_size]
        batched = set(map(id, batch))
        self._waiting = [one for one in waiting if id(one) not in batched]
        return batch


def _resolve(future: asyncio.Future[list[Tensor]], result: list[Tensor] | Exception) -> None:
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)


def _compute(engine: Engine, batch: Sequence[_PendingView]) -> Sequence[list[Tensor] | Exception]:
    """The outputs of each image; if the batch fails, each is computed alone, so that only the faulty one fails."""
    try:
        found = engine.outputs(torch.stack([one.view for one in batch]), batch[0].outputs)
        return [list(row) for row in zip(*found, strict=True)]
    except Exception as error:
        if len(batch) == 1:
            return [error]
        return [result for one in batch for result in _compute(engine, [one])]
