"""Bytes of shards wherever they lie: a path here, an http(s) address, or one that fsspec knows, such as s3://."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from vitreous.data.shards import cloud, web
from vitreous.data.shards.tar import Read
from vitreous.errors import UserError
from vitreous.inputs import open_input, reason

NEAR, FAR = 2**12, 2**20
"""Bytes that are read at a time where headers are looked for: a header and a label here, several images from afar."""
OPEN = 64  # files that a process keeps open


class Stored(NamedTuple):
    """What a place says of its file."""

    size: int
    version: str  # what changes with the file: its time of change, or a server's tag


def is_address(text: str) -> bool:
    """Whether this names something that is not on this machine."""
    return "://" in text


def without_query(place: str) -> str:
    """An address up to its question mark; in the name of a file that is a letter like any other."""
    return place.partition("?")[0] if is_address(place) else place


def beside(place: str, name: str) -> str:
    """The file of this name in a folder, or below an address."""
    return f"{place.rstrip('/')}/{name}" if is_address(place) else str(Path(place) / name)


def stat_place(place: str) -> Stored:
    """Size and version of a file."""
    if is_address(place):
        return Stored(*(web.stat(place) if web.is_web(place) else cloud.stat(place)))
    with open_input(Path(place)) as file:
        status = os.fstat(file.fileno())
        return Stored(status.st_size, str(status.st_mtime_ns))


def read_range(place: str, start: int, length: int, size: int | None = None) -> bytes:
    """So many bytes from `start` on, fewer only where the file ends.

    size: bytes that the file must have in all, where that is known and costs nothing to ask.
    """
    if is_address(place):
        return web.read(place, start, length, size) if web.is_web(place) else cloud.read(place, start, length)
    return _opened(place).read(start, length)


@contextmanager
def reader(place: str) -> Iterator[Read]:
    """What reads one file from its start to its end, a little at a time."""
    if is_address(place):
        yield _Window(lambda start, length: read_range(place, start, length), FAR).read
        return
    with open_input(Path(place)) as file:
        yield _Window(lambda start, length: _pread(place, file.fileno(), start, length), NEAR).read


class _Window:
    """The piece of a file that was read last: what is asked for next is mostly in it."""

    def __init__(self, read: Read, piece: int) -> None:
        self._read, self._piece = read, piece
        self._start, self._bytes = 0, b""

    def read(self, start: int, length: int) -> bytes:
        """So many bytes from `start` on, fewer where the file ends."""
        at = start - self._start
        if at < 0 or at + length > len(self._bytes):
            self._start, self._bytes, at = start, self._read(start, max(length, self._piece)), 0
        return self._bytes[at : at + length]


class _Open:
    """A file that stays open while somebody holds it.

    It reads for itself: whoever took its number alone would read another file once this one is dropped and its number
    given away.
    """

    def __init__(self, place: str) -> None:
        self._place, self._handle = place, -1
        with open_input(Path(place)) as file:
            self._handle = os.dup(file.fileno())

    def read(self, start: int, length: int) -> bytes:
        """So many bytes from `start` on, fewer where the file ends."""
        return _pread(self._place, self._handle, start, length)

    def __del__(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)


def _opened(place: str) -> _Open:
    """The file that has this name now; to open it anew takes longer than to read an image."""
    try:
        status = os.stat(place)  # noqa: PTH116  it is asked for each image, and a Path takes longer to make
    except (OSError, ValueError):
        return _Open(place)  # which says what is wrong
    return _kept_open(place, status.st_dev, status.st_ino)


@lru_cache(OPEN)
def _kept_open(place: str, _device: int, _number: int) -> _Open:
    return _Open(place)


def _pread(place: str, handle: int, start: int, length: int) -> bytes:
    try:
        return os.pread(handle, length, start)
    except OSError as error:
        raise UserError(f"{place}: cannot be read at byte {start:,} ({reason(error)}); check the disk.") from None
