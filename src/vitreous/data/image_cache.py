"""Decoded images in memory that all worker processes share, up to a limit."""

from __future__ import annotations

import mmap
import os
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.memory import available_memory

MAX_CACHE_BYTES = 2**30
BoxFractions = tuple[float, float, float, float]
"""Top, left, height and width of a box, as fractions of its height and width."""


class ImageCache:
    """At most `limit` bytes of uint8 arrays of three axes, by their index from 0 to count - 1.

    Nothing is ever thrown out: an epoch reads every image once, so the oldest would always be the next one needed.
    The memory is anonymous and shared, so that processes forked later see what any of them wrote; the system gives
    pages only where something was written. A process that was started afresh (not forked) begins without.
    """

    def __init__(self, count: int, limit: int) -> None:
        self._limit = limit
        self._memory = mmap.mmap(-1, limit) if limit > 0 else None
        # (offset + 1, and three sides) for each index; 0 where there is nothing
        table = mmap.mmap(-1, max(count * 4 * 8, 1))
        self._table: NDArray[np.int64] = np.frombuffer(table, dtype=np.int64, count=count * 4).reshape(count, 4)
        boxes = mmap.mmap(-1, max(count * 4 * 8, 1))
        self._boxes: NDArray[np.float64] = np.frombuffer(boxes, dtype=np.float64, count=count * 4).reshape(count, 4)
        self._used: NDArray[np.int64] = np.frombuffer(mmap.mmap(-1, 8), dtype=np.int64)
        self._file = os.memfd_create("vitreous-cache") if limit > 0 and sys.platform == "linux" else None
        if self._file is not None:
            weakref.finalize(self, os.close, self._file)

    def get(self, index: int) -> tuple[NDArray[np.uint8], BoxFractions] | None:
        """The array cached for this index, without a copy, and its box; or None."""
        offset, *shape = (int(x) for x in self._table[index])
        if offset == 0 or self._memory is None:
            return None
        size = shape[0] * shape[1] * shape[2]
        array = np.frombuffer(self._memory, dtype=np.uint8, count=size, offset=offset - 1).reshape(shape)
        y, x, h, w = self._boxes[index].tolist()
        return array, (y, x, h, w)

    def put(self, index: int, array: NDArray[np.uint8], box: BoxFractions) -> None:
        """Keep a copy, if there is room, and which box of its image it shows."""
        if self._memory is None or self._table[index, 0]:
            return
        with self._locked():
            start = self.used
            if start + array.size > self._limit:
                return
            self._used[0] = start + array.size
        self._memory[start : start + array.size] = array.tobytes()
        self._table[index, 1:] = array.shape
        self._boxes[index] = box
        self._table[index, 0] = start + 1  # last: from here on the others find it

    @property
    def used(self) -> int:
        """Bytes taken."""
        return int(self._used[0])

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Alone among the processes that share it. The system takes the lock from one that is killed."""
        if self._file is None or sys.platform != "linux":  # then there are no others
            yield
            return
        import fcntl

        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)

    def __getstate__(self) -> dict[str, Any]:
        return {"count": len(self._table)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        ImageCache.__init__(self, state["count"], 0)


def default_cache_bytes(root: Path = Path("/")) -> int:
    """1 GiB, but no more than a quarter of `available_memory`."""
    available = available_memory(root)
    return MAX_CACHE_BYTES // 4 if available is None else min(MAX_CACHE_BYTES, available // 4)
