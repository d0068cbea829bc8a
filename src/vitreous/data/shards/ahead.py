"""Images fetched from afar before they are needed, several at once: an answer's way takes longer than its bytes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import CancelledError, Future, wait
from functools import cache
from queue import SimpleQueue
from threading import Lock, Thread, current_thread, main_thread
from typing import NamedTuple

from vitreous.data.shards.places import is_address, read_range
from vitreous.interrupt import Interrupted, signal_heard

CONNECTIONS = 8  # images that each process fetches at once
MOST = 2**28  # bytes that are fetched ahead, at most
LOOK = 0.5  # seconds after which whoever waits for an image looks whether the command is to end


class Piece(NamedTuple):
    """Some bytes of a shard."""

    place: str
    start: int
    length: int
    size: int  # of the whole shard


def fetch_ahead(pieces: Iterable[Piece], keep_pending: bool = False) -> None:
    """Fetch what will be read next, as far ahead as there is room. Of files here, nothing is.

    keep_pending: what was to be read before still is; else that is forgotten.
    """
    _fetcher(os.getpid()).expect([piece for piece in pieces if is_address(piece.place)], keep_pending)


def read_piece(piece: Piece) -> bytes:
    """Its bytes, fewer where the shard ends before."""
    return _fetcher(os.getpid()).read(piece) if is_address(piece.place) else read_range(*piece)


class _Fetcher:
    """Threads, and what they were asked for.

    The program does not wait for them when it ends, as it would for those of `concurrent.futures`: a server that is
    silent is given up after minutes only.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._planned: dict[Piece, None] = {}  # to be fetched when there is room, in this order
        self._begun: dict[Piece, Future[bytes]] = {}
        self._read: dict[Piece, None] = {}  # of those, what was read and makes room, the oldest first
        self._held = 0  # bytes of what is begun
        self._queue: SimpleQueue[tuple[Piece, Future[bytes]] | None] = SimpleQueue()
        self._threads: list[Thread] = []

    def expect(self, pieces: list[Piece], keep_pending: bool) -> None:
        with self._lock:
            if not keep_pending:
                wanted = set(pieces)
                self._planned.clear()
                self._read.clear()
                for piece in [piece for piece in self._begun if piece not in wanted]:
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
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def _fill(self) -> None:
        """Begin what there is room for, if need be in the place of what was read."""
        while self._planned:
            piece = next(iter(self._planned))
            while self._held + piece.length > MOST and self._read:
                self._forget(next(iter(self._read)))
            if self._held + piece.length > MOST:
                return
            self._begin(piece)

    def _begin(self, piece: Piece) -> None:
        del self._planned[piece]
        self._begun[piece] = Future()
        self._held += piece.length
        self._queue.put((piece, self._begun[piece]))
        if len(self._threads) < CONNECTIONS:
            self._threads.append(Thread(target=self._fetch, name="fetch", daemon=True))
            self._threads[-1].start()

    def _forget(self, piece: Piece) -> None:
        self._begun.pop(piece).cancel()
        self._read.pop(piece, None)
        self._held -= piece.length

    def _fetch(self) -> None:
        while (asked := self._queue.get()) is not None:
            piece, future = asked
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(read_range(*piece))
            except BaseException as error:
                with self._lock:
                    if self._begun.get(piece) is future:
                        self._forget(piece)  # only who waits for it hears of this; whoever reads it next asks anew
                future.set_exception(error)


def _wait_for(future: Future[bytes]) -> bytes:
    """What was fetched. Only the main thread is woken by a signal; others must look whether there was one."""
    # `wait` hears of a cancelled one only when a connection is free to pass it over
    while current_thread() is not main_thread() and not (wait([future], LOOK).done or future.cancelled()):
        if (number := signal_heard()) is not None:
            raise Interrupted(number)
    return future.result()


@cache
def _fetcher(process: int) -> _Fetcher:
    """Of this process: threads do not follow into one that is forked."""
    return _Fetcher()
