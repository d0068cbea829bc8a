"""Threads for work that cannot be stopped once it has begun."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


class ThreadPool:
    """So many threads, which nobody needs to wait for in the end, and whether any of them is still at work."""

    def __init__(self, count: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._under_way: set[Future[Any]] = set()

    async def run(self, job: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What a job returns, in a thread. Whoever is cancelled waits no longer, but the thread goes on."""
        future = self._threads.submit(job, *args, **kwargs)
        self._under_way.add(future)
        future.add_done_callback(self._under_way.discard)
        return await asyncio.wrap_future(future)

    @property
    def idle(self) -> bool:
        """Whether all that was begun has ended."""
        return not self._under_way

    def close(self) -> None:
        """Begin nothing more. What runs goes on, and is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)
