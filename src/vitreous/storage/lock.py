"""One process at a time writes to a folder: locks that the system releases when their holder ends in any way."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from vitreous.errors import UserError
from vitreous.storage.overwrite import GENERATOR, check_file, is_marked, readable_errors, unwritable

try:
    import fcntl
except ImportError:  # a system that has other locks
    fcntl = None  # type: ignore[assignment]

LOCK = ".vitreous.lock"
"""In a run folder: who holds it, as JSON. The file is removed by its holder, and harmless where that was killed."""

RELEASE_SECONDS = 1.0
"""Until a killed holder's children have released the lock too: each was forked with it, and closes it at once."""
WRITE_SECONDS = 600.0  # the longest wait for another process that writes the same folder
POLL_SECONDS = 0.02

_open_locks: set[int] = set()
"""Open lock files. Processes that are forked to decode images close theirs: else they would hold on to the lock of a
parent that was killed."""


@contextmanager
def hold_folder(folder: Path, message: Callable[[str], None], doing: str = "training in it") -> Iterator[None]:
    """Within, no other process works in the folder. If one does already, the error names it.

    message: called where the file system has no locks; then nothing is held. doing: what the other is doing there.
    """
    with _locked(folder / LOCK, folder, doing, RELEASE_SECONDS) as locked:
        if not locked:
            message(
                f"{folder}: this file system has no locks, so nothing keeps another process from working in the same "
                "folder; start only one."
            )
        yield


@contextmanager
def hold_name(path: Path) -> Iterator[bool]:
    """Within, no other process writes this file or folder, after waiting for one that does.

    False where the file system has no locks. The lock is `.NAME.lock` beside it.
    """
    with _locked(path.parent / f".{path.name}.lock", path, "writing it", WRITE_SECONDS) as locked:
        yield locked


@contextmanager
def lock_run_folder(folder: Path, files: Sequence[str], message: Callable[[str], None]) -> Iterator[None]:
    """Lock the folder, made if it is missing; refused if one of these files in it is not ours.

    Called after all other checks, so that a refused command leaves nothing behind.
    """
    for name in files:
        check_file(folder / name)
    with readable_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with hold_folder(folder, message):
        yield


@contextmanager
def _locked(path: Path, place: Path, doing: str, wait_seconds: float) -> Iterator[bool]:
    """Within, this process has the lock; False where the file system has none."""
    handle, locked = _acquire(path, place, doing, wait_seconds)
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, _card().encode(), 0)
        yield locked
    finally:
        with suppress(OSError):
            if handle in _open_locks and _is_at(handle, path):
                path.unlink()
        _close(handle)


def _acquire(path: Path, place: Path, doing: str, wait_seconds: float) -> tuple[int, bool]:
    """The open file, and whether it is locked. Its last holder may remove it just now: then a new one is made."""
    end = time.monotonic() + wait_seconds
    while True:
        handle = _open(path)
        try:
            _check_ours(handle, path)
            state = _try_lock(handle)
            if state is None or (state and _is_at(handle, path)):
                taken, handle = handle, -1
                return taken, bool(state)
            holder = _read_holder(handle)
        finally:
            if handle >= 0:
                _close(handle)
        if time.monotonic() > end and not state:
            raise UserError(f"{place}: {holder} is {doing}; wait for it to end, or write to another folder.")
        time.sleep(POLL_SECONDS)


def _open(path: Path) -> int:
    try:
        with readable_errors(path.parent):
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        raise unwritable(path, error) from None
    _open_locks.add(handle)
    return handle


def _close(handle: int) -> None:
    if handle in _open_locks:  # else this is a child that was forked meanwhile, and has closed it
        _open_locks.remove(handle)
        os.close(handle)


def _check_ours(handle: int, path: Path) -> None:
    try:
        content = os.pread(handle, 4096, 0)
    except OSError as error:  # a pipe, say
        raise unwritable(path, error) from None
    if content and not is_marked(content, b""):
        raise UserError(
            f"{path}: there is a file of this name that vitreous did not write; choose another place, or move it away."
        )


def _try_lock(handle: int) -> bool | None:
    """Whether this process has the lock now; None where the file system, or the system, has none."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except OSError:
        return False


def _card() -> str:
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    return json.dumps({"generator": GENERATOR, "pid": os.getpid(), "host": socket.gethostname(), "since": since}) + "\n"


def _read_holder(handle: int) -> str:
    """Who the file says holds it: "process 1234 on desk, since 2026-11-16 21:13:04,"."""
    try:
        found = json.loads(os.pread(handle, 4096, 0))
        return f"process {int(found['pid'])} on {found['host']}, since {found['since']},"
    except (ValueError, KeyError, TypeError):  # it has not written it yet
        return "another process"


def _close_all() -> None:
    for handle in _open_locks:
        os.close(handle)
    _open_locks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_all)
