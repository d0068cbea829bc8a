"""Bytes of shards wherever they lie: a path here, an http(s) address, or one that fsspec knows, such as s3://.

What a server says of a file (size, ETag) is remembered, so that two versions are never mixed. Who may read a cloud's
storage is its own business.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from vitreous.data.shards.tar import Read
from vitreous.data.workers import extend_heartbeat
from vitreous.errors import UserError
from vitreous.inputs import open_input, reason
from vitreous.storage.http import HttpError, RetryPolicy, TemporaryHttpError, get, is_web, read_pieces

T = TypeVar("T")

LOCAL_READ_BYTES, REMOTE_READ_BYTES = 2**12, 2**20
"""That are read at a time where headers are looked for: a header and a label here, several images from afar."""
MAX_OPEN_FILES = 64  # that a process keeps open
CLOUD_SCHEMES = ("s3", "gs", "gcs", "az", "abfs", "hf", "memory")
"""What is handed to fsspec. Others of its schemes run commands or open archives, and no shard needs them."""
CLOUD_TAGS = ("ETag", "etag", "blob_id", "last_commit", "LastModified", "last_modified", "mtime", "created")
"""Names of the fields that change with a file, by storage; the most reliable first."""
CLOUD_SECONDS = 300.0  # that a storage may take to answer: how often it is asked, and how long, is fsspec's business

retry = RetryPolicy()


class FileVersion(NamedTuple):
    """What a disk or a server says of a file."""

    size: int
    tag: str  # what changes with the file: its time of change, or a server's tag


def is_address(text: str) -> bool:
    return "://" in text


def without_query(url: str) -> str:
    """An address up to its question mark; in the name of a file that is a letter like any other."""
    return url.partition("?")[0] if is_address(url) else url


def beside(url: str, name: str) -> str:
    """The file of this name in a folder, or below an address."""
    return f"{url.rstrip('/')}/{name}" if is_address(url) else str(Path(url) / name)


def stat_file(url: str) -> FileVersion:
    """Of a server: what its first byte comes with. If it changes the file later, that is noticed."""
    if is_web(url):
        _versions.pop(url, None)
        return _with_retries(url, 0, 1)[1]
    if is_address(url):
        files, path = _open_cloud(url)
        found = _ask_cloud(url, lambda: files.info(path))
        return FileVersion(int(found["size"]), str(next((found[key] for key in CLOUD_TAGS if found.get(key)), "")))
    with open_input(Path(url)) as file:
        status = os.fstat(file.fileno())
        return FileVersion(status.st_size, str(status.st_mtime_ns))


def read_range(url: str, start: int, length: int, size: int | None = None) -> bytes:
    """So many bytes from `start` on, fewer only where the file ends.

    size: bytes that the file must have in all, where that is known and costs nothing to ask.
    """
    if is_web(url):
        content, version = _with_retries(url, start, length)
        if size is not None and version.size != size:
            raise UserError(
                f"{url}: has {version.size:,} bytes, and {size:,} when its index was made; make the index again."
            )
        return content
    if is_address(url):
        files, path = _open_cloud(url)
        extend_heartbeat(CLOUD_SECONDS)
        return _ask_cloud(url, lambda: bytes(files.cat_file(path, start=start, end=start + length)))
    return _open_file(url).read(start, length)


@contextmanager
def reader(url: str) -> Iterator[Read]:
    """A function that reads one file from its start to its end, a little at a time."""
    if is_address(url):
        yield _Window(lambda start, length: read_range(url, start, length), REMOTE_READ_BYTES).read
        return
    with open_input(Path(url)) as file:
        yield _Window(lambda start, length: _pread(url, file.fileno(), start, length), LOCAL_READ_BYTES).read


class _Window:
    """The piece of a file that was read last: what is asked for next is mostly in it."""

    def __init__(self, read: Read, piece: int) -> None:
        self._read, self._piece = read, piece
        self._start, self._bytes = 0, b""

    def read(self, start: int, length: int) -> bytes:
        at = start - self._start
        if at < 0 or at + length > len(self._bytes):
            self._start, self._bytes, at = start, self._read(start, max(length, self._piece)), 0
        return self._bytes[at : at + length]


class _OpenFile:
    """A file that stays open while somebody holds it.

    It reads for itself: whoever took its number alone would read another file once this one is dropped and its number
    given away.
    """

    def __init__(self, url: str) -> None:
        self._url, self._handle = url, -1
        with open_input(Path(url)) as file:
            self._handle = os.dup(file.fileno())

    def read(self, start: int, length: int) -> bytes:
        return _pread(self._url, self._handle, start, length)

    def __del__(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)


def _open_file(url: str) -> _OpenFile:
    """The file that has this name now; to open it anew takes longer than to read an image."""
    try:
        status = os.stat(url)  # noqa: PTH116  it is asked for each image, and a Path takes longer to make
    except (OSError, ValueError):
        return _OpenFile(url)  # which says what is wrong
    return _open_cached(url, status.st_dev, status.st_ino)


@lru_cache(MAX_OPEN_FILES)
def _open_cached(url: str, _device: int, _number: int) -> _OpenFile:
    return _OpenFile(url)


def _pread(url: str, handle: int, start: int, length: int) -> bytes:
    try:
        return os.pread(handle, length, start)
    except OSError as error:
        raise UserError(f"{url}: cannot be read at byte {start:,} ({reason(error)}); check the disk.") from None


_versions: dict[str, FileVersion] = {}
"""Of each file, as the server said first. Another thread may forget it at any time (`stat_file`)."""


def _with_retries(url: str, start: int, length: int) -> tuple[bytes, FileVersion]:
    """The bytes, and the version of the file that they are of."""
    for attempt in range(retry.tries):
        if attempt:
            pause = retry.pause * 2 ** (attempt - 1)
            extend_heartbeat(pause)
            time.sleep(pause)
        try:
            return _attempt(url, start, length)
        except TemporaryHttpError as error:
            why = error
        except HttpError as error:
            if error.status == 416:
                raise UserError(f"{url}: has no byte {start:,}, so it is cut short; restore it from a copy.") from None
            raise UserError(f"{url}: {error}; {error.advice}.") from None
    raise UserError(f"{url}: broke off at byte {start:,}, {retry.tries} times ({why}); repeat the command later.")


def _attempt(url: str, start: int, length: int) -> tuple[bytes, FileVersion]:
    with get(url, {"Range": f"bytes={start}-{start + length - 1}"}, retry, extend_heartbeat) as response:
        if response.status == 200:
            raise UserError(
                f"{url}: its server gives whole files only, no parts of them (range requests); download the shards, "
                "and give their folder."
            )
        found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", response.headers.get("Content-Range", ""))
        if found is None or int(found[1]) != start:
            raise UserError(f"{url}: its server answers with another part than the one asked for; download the shards.")
        tag = response.headers.get("ETag") or response.headers.get("Last-Modified") or ""
        version = FileVersion(int(found[3]), tag)
        if _versions.setdefault(url, version) != version:
            raise UserError(f"{url}: was changed on the server while it was read; repeat the command.")
        expected = min(length, version.size - start)
        body = b"".join(read_pieces(response, retry, expected, extend_heartbeat))
    if len(body) < expected:
        raise TemporaryHttpError(f"{len(body):,} of {expected:,} bytes came")
    return body, version


def list_cloud(address: str) -> list[str]:
    """The addresses of the files directly below this one."""
    files, path = _open_cloud(address)
    found = _ask_cloud(address, lambda: files.ls(path, detail=False))
    return sorted(f"{address.rstrip('/')}/{name.rstrip('/').rpartition('/')[2]}" for name in found)


def _open_cloud(address: str) -> tuple[Any, str]:
    scheme = address.partition("://")[0].lower()
    if scheme not in CLOUD_SCHEMES:
        known = ", ".join(("http", "https", *CLOUD_SCHEMES[:-1]))
        raise UserError(f"{address}: {scheme}:// is not read; give a folder, or an address of {known}.")
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise UserError(
            f"{address}: read with the package fsspec and that of the storage; install them, such as pip install s3fs."
        ) from None
    # fsspec keeps one of each per process, so that a forked one does not share its parent's connections
    files, path = _ask_cloud(address, lambda: url_to_fs(address))
    return files, str(path)


def _ask_cloud(address: str, ask: Callable[[], T]) -> T:
    try:
        return ask()
    except Exception as error:  # each storage has errors of its own
        why = str(error).strip().replace("\n", " ")[:200] or type(error).__name__
        raise UserError(f"{address}: cannot be read ({why}); check the address and who may read it.") from error
