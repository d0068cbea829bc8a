"""Images of many requests, computed together.

Nothing waits for company: whatever is there when the engine is free is the next batch. While the engine is busy the
next one gathers, so batches grow with the load by themselves, up to what is fastest for the engine. One that may begin
a batch before the last has ended is handed several.
"""

from __future__ import annotations

import asyncio
import math
import os
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from vitreous.inference.engine import Engine
from vitreous.server.errors import ApiError, too_late, too_many
from vitreous.server.metrics import ModelMetrics

T = TypeVar("T")
P = ParamSpec("P")
Forward = Callable[[Tensor], Tensor]
"""(B, C, H, W) uint8 to (B, ...): an engine's logits or representations."""
FIRST_SECONDS_PER_IMAGE = 0.02  # before any was computed
RESERVED_SECONDS = 0.25
"""For which a place is kept for an image that is being sent. Whoever takes longer holds none meanwhile."""


def usable_cores(group: Path = Path("/sys/fs/cgroup")) -> int:
    """Cores that this process may use: those that it may run on, and no more than the quota of its group (cgroup)."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:  # cgroups of version 1
            quota, period = ((group / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return max(1, min(cores, math.ceil(int(quota) / int(period)))) if int(quota) > 0 else cores
    except (OSError, ValueError):  # no groups, or no quota: "max"
        return cores


class ThreadPool:
    """So many threads, which nobody needs to wait for in the end, and whether any of them is still at work."""

    def __init__(self, count: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._under_way: dict[Future[Any], float] = {}  # and when each was begun

    async def run(self, job: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What a job returns, in a thread. Whoever is cancelled waits no longer, but the thread goes on."""
        future = self._threads.submit(job, *args, **kwargs)
        self._under_way[future] = time.monotonic()
        future.add_done_callback(self._under_way.pop)
        return await asyncio.wrap_future(future)

    @property
    def idle(self) -> bool:
        """Whether all that was begun has ended."""
        return not self._under_way

    @property
    def busy_seconds(self) -> float:
        """How long ago what is still under way was begun; 0 where nothing is."""
        return time.monotonic() - min(list(self._under_way.values()), default=time.monotonic())

    def close(self) -> None:
        """Begin nothing more. What runs goes on, and is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class PixelBudget:
    """How many pixels are decoded at once: a blank image is small as a file, and large in memory."""

    def __init__(self, limit: int) -> None:
        self._free, self._changed = limit, threading.Condition()

    @contextmanager
    def take(self, count: int, until: float) -> Iterator[None]:
        """Wait, in a thread, for room for so many; refused if there is none until then."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._free >= count, until - time.monotonic()):
                raise too_late()
            self._free -= count
        try:
            yield
        finally:
            with self._changed:
                self._free += count
                self._changed.notify_all()


class AdmissionQueue:
    """How many images may wait or be computed at once; who finds none free is refused at once."""

    def __init__(self, size: int, seconds: float) -> None:
        """seconds: in which an image must be answered, or it is not worth beginning."""
        self.size, self.seconds = size, seconds
        self.taken = 0
        self._arriving: list[float] = []  # when each image that is being sent was let in, the latest last
        self.measured(FIRST_SECONDS_PER_IMAGE)

    def measured(self, seconds_each: float) -> None:
        """So long does an image take where nothing else goes on."""
        self.seconds_each = self._at_best = seconds_each

    def check(self, count: int = 1) -> None:
        """Refuse so many images where they would find no place, or not all be answered in time.

        Where nothing else is computed a single one is always let in, however slow the model is, and several are where
        they were ever fast enough: only what is computed shows that a slow hour is over.
        """
        if count > self.size:
            raise too_many(self.size)
        if count > 1 and count * self._at_best > self.seconds:
            raise ApiError(
                413,
                f"{count} images would take longer here than the {self.seconds:g} s that an answer may take; send at "
                f"most {max(1, int(self.seconds / self._at_best))} at once.",
            )
        self._check_room(self.taken, count)

    def _check_room(self, taken: int, count: int) -> None:
        last = (taken + count) * self.seconds_each  # when the last of them would be answered
        if taken + count > self.size or (taken and last > self.seconds):
            wait = taken * self.seconds_each
            raise ApiError(503, f"{taken} images are waiting already; try again later.", retry_after=wait)

    def check_before_reading(self) -> None:
        """Refuse an image that has not been sent yet where it, and those that are just being sent, find no place."""
        since = time.monotonic() - RESERVED_SECONDS
        self._check_room(self.taken + len(self._arriving) - bisect_left(self._arriving, since), 1)

    @contextmanager
    def arriving(self) -> Iterator[None]:
        """Within, an image is read that is expected to find a place: others are refused before they send theirs."""
        self.check_before_reading()
        since = time.monotonic()
        self._arriving.append(since)
        try:
            yield
        finally:
            self._arriving.remove(since)

    @contextmanager
    def take(self, count: int) -> Iterator[None]:
        """Places for so many images, free again afterwards."""
        self.check(count)
        self.taken += count
        ahead, started = self.taken, time.monotonic()
        try:
            yield
            # Whatever holds them up, decoding or the engine: so long for so many, by Little's law.
            self.seconds_each += 0.1 * ((time.monotonic() - started) / ahead - self.seconds_each)
            self._at_best = min(self._at_best, self.seconds_each)
        finally:
            self.taken -= count


@dataclass
class _Waiting:
    view: Tensor
    function: Forward
    result: asyncio.Future[Tensor]
    until: float
    since: float = field(default_factory=time.monotonic)


class Batcher:
    """Has an engine answer the images that wait, first come first served."""

    def __init__(self, engine: Engine, queue: AdmissionQueue, metrics: ModelMetrics, grace: float) -> None:
        """grace: seconds that a batch may take once it has begun; then whoever waits is told so."""
        self.grace = grace
        self.batch_size = min(engine.batch_size, queue.size)
        self.metrics = metrics
        self._waiting: list[_Waiting] = []
        self._calls = engine.max_concurrency
        self.threads = ThreadPool(self._calls, "engine")
        self._busy = 0
        self._workers: set[asyncio.Task[None]] = set()  # held, as the event loop holds tasks by weak references alone

    async def ask(self, function: Forward, views: Sequence[Tensor], seconds: float) -> list[Tensor]:
        """What the function says of each view; refused if that takes longer than so many seconds to begin."""
        loop, until = asyncio.get_running_loop(), time.monotonic() + seconds
        waiting = [_Waiting(view, function, loop.create_future(), until) for view in views]
        self._waiting += waiting
        if self._busy < self._calls:
            self._busy += 1
            worker = loop.create_task(self._work())
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)
        try:
            async with asyncio.timeout(max(seconds, 0) + self.grace):
                return list(await asyncio.gather(*(one.result for one in waiting)))
        except TimeoutError:
            raise too_late() from None
        finally:
            for one in waiting:
                one.result.cancel()

    async def _work(self) -> None:
        """Have batches computed as long as there are images that wait."""
        try:
            while batch := self._next_batch():
                started = time.monotonic()
                for one in batch:
                    self.metrics.stages["wait"].observe(started - one.since)
                results = await self.threads.run(_compute, batch)
                seconds = time.monotonic() - started
                self.metrics.batch(len(batch), seconds)
                for one, result in zip(batch, results, strict=True):
                    _tell(one.result, result)
        finally:
            # With no await since nothing was found to wait: whoever asks from now on starts a worker.
            self._busy -= 1

    def _next_batch(self) -> list[_Waiting]:
        """The images that wait for longest, as many as fit and ask for the same; none where none wait."""
        now = time.monotonic()
        for one in self._waiting:
            if one.until < now:
                _tell(one.result, too_late())
        waiting = [one for one in self._waiting if not one.result.done()]
        alike = [one for one in waiting if one.function == waiting[0].function]
        batch = alike[: self.batch_size]
        taken = set(map(id, batch))
        self._waiting = [one for one in waiting if id(one) not in taken]
        return batch


def _tell(future: asyncio.Future[Tensor], result: Tensor | Exception) -> None:
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)


def _compute(batch: Sequence[_Waiting]) -> Iterable[Tensor | Exception]:
    """A result for each; where they fail together each is computed alone, so that nobody suffers for another."""
    try:
        return list(batch[0].function(torch.stack([one.view for one in batch])))
    except Exception as error:
        if len(batch) == 1:
            return [error]
        return [result for one in batch for result in _compute([one])]
