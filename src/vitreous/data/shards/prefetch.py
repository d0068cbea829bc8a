"""Images fetched from afar before they are needed, several at once: an answer's way takes longer than its bytes.

What must be asked of each of many shards, here or afar, is asked of several at once too (`map_in_threads`)."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future, wait
from functools import cache
from queue import SimpleQueue
from threading import Lock, Thread, current_thread, main_thread
from typing import NamedTuple, TypeVar

from vitreous.data.shards.reading import is_address, read_range
from vitreous.interrupt import Interrupted, received_signal

CONNECTIONS = 8  # at once, of each process
MAX_BYTES = 2**28  # that are fetched before they are read
SIGNAL_CHECK_SECONDS = 0.5  # after which whoever waits for an image looks whether the command is to end

T = TypeVar("T")
R = TypeVar("R")


class Piece(NamedTuple):
    """Some bytes of a shard."""

    url: str
    start: int
    length: int
    size: int  # of the whole shard


def fetch_ahead(pieces: Iterable[Piece], keep_pending: bool = False) -> None:
    """Fetch what will be read next, as far ahead as there is room. Of files here, nothing is.

    keep_pending: what was to be read before still is; else that is forgotten.
    """
    _fetcher(os.getpid()).expect([piece for piece in pieces if is_address(piece.url)], keep_pending)


def read_piece(piece: Piece) -> bytes:
    """Its bytes, fewer where the shard ends before."""
    return _fetcher(os.getpid()).read(piece) if is_address(piece.url) else read_range(*piece)


def map_in_threads(function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """What the function gives for each item, in order; `CONNECTIONS` at once."""
    threads, waiting = _Threads(), deque[Future[R]]()

    def compute(item: T, future: Future[R]) -> None:
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(function(item))
            except BaseException as error:
                future.set_exception(error)

    try:
        for item in items:
            waiting.append(Future())
            threads.run(compute, item, waiting[-1])
            if len(waiting) == 2 * CONNECTIONS:
                yield _wait_for(waiting.popleft())
        while waiting:
            yield _wait_for(waiting.popleft())
    finally:
        for future in waiting:
            future.cancel()
        threads.end()


class _Threads:
    """A few, started when there is something to do.

    The program does not wait for them when it ends, as it would for those of `concurrent.futures`: a server that is
    silent is given up after minutes only.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads: list[Thread] = []

    def run(self, function: Callable[[T, Future[R]], None], item: T, future: Future[R]) -> None:
        self._queue.put(lambda: function(item, future))
        if len(self._threads) < CONNECTIONS:
            self._threads.append(Thread(target=self._work, name="fetch", daemon=True))
            self._threads[-1].start()

    def end(self) -> list[Thread]:
        for _ in self._threads:
            self._queue.put(None)
        return self._threads

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            job()


class _Fetcher:
    """What will be read, is under way or has come."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._planned: dict[Piece, None] = {}  # to be fetched when there is room, in this order
        self._begun: dict[Piece, Future[bytes]] = {}
        self._read: dict[Piece, None] = {}  # of those, what was read and makes room, the oldest first
        self._held = 0  # bytes of what is begun
        self._threads = _Threads()

    def expect(self, pieces: list[Piece], keep_pending: bool) -> None:
        with self._lock:
            if not keep_pending:
                expected = set(pieces)
                self._planned.clear()
                self._read.clear()
                for piece in [piece for piece in self._begun if piece not in expected]:
                    self._forget(piece)
            self._planned.update((piece, None) for piece in pieces if piece not in self._begun)
            self._fill()

    def read(self, piece: Piece) -> bytes:
        with self._lock:
            if piece in self._planned:  # it is its turn, room or not
                self._begin(piece)
            future = self._begun.get(piece)
        if future is None:
            return read_range(*piece)
        try:
            return _wait_for(future)
        except CancelledError:  # another thread expects other things
            return read_range(*piece)
        finally:
            with self._lock:
                if self._begun.get(piece) is future:
                    self._read[piece] = None
                    self._fill()

    def close(self) -> None:
        """Forget all, and wait for the threads."""
        self.expect([], keep_pending=False)
        for thread in self._threads.end():
            thread.join()

    def _fill(self) -> None:
        """Begin what there is room for, if need be in the place of what was read."""
        while self._planned:
            piece = next(iter(self._planned))
            while self._held + piece.length > MAX_BYTES and self._read:
                self._forget(next(iter(self._read)))
            if self._held + piece.length > MAX_BYTES:
                return
            self._begin(piece)

    def _begin(self, piece: Piece) -> None:
        del self._planned[piece]
        self._begun[piece] = Future()
        self._held += piece.length
        self._threads.run(self._fetch, piece, self._begun[piece])

    def _forget(self, piece: Piece) -> None:
        self._begun.pop(piece).cancel()
        self._read.pop(piece, None)
        self._held -= piece.length

    def _fetch(self, piece: Piece, future: Future[bytes]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(read_range(*piece))
        except BaseException as error:
            with self._lock:
                if self._begun.get(piece) is future:
                    self._forget(piece)  # only who waits for it hears of this; whoever reads it next asks anew
            future.set_exception(error)


def _wait_for(future: Future[R]) -> R:
    """What was fetched. Only the main thread is woken by a signal; others must look whether there was one."""
    # `wait` hears of a cancelled one only when a connection is free to pass it over
    while current_thread() is not main_thread() and not (
        wait([future], SIGNAL_CHECK_SECONDS).done or future.cancelled()
    ):
        if (number := received_signal()) is not None:
            raise Interrupted(number)
    return future.result()


@cache
def _fetcher(process: int) -> _Fetcher:
    """Of this process: threads do not follow into one that is forked."""
    return _Fetcher()
