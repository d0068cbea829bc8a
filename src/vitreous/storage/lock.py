"""One process at a time writes to a run folder: a lock that the system lets go when its holder ends in any way."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from vitreous.errors import UserError
from vitreous.inputs import reason
from vitreous.storage.failures import readable_errors
from vitreous.storage.overwrite import GENERATOR, check_file

try:
    import fcntl
except ImportError:  # a system that has other locks
    fcntl = None  # type: ignore[assignment]

LOCK = ".vitreous.lock"
"""Who holds the folder, as JSON; it is gone when the holder has ended in good order, and harmless if not."""

MOMENT = 1.0
"""Seconds until a killed holder's children have let go too: each was forked with the lock, and closes it at once."""

_held: set[int] = set()
"""Open files that are locked. Processes that are forked to decode images close theirs: else they would hold on to the
lock of a parent that was killed."""


@contextmanager
def hold_folder(folder: Path, say: Callable[[str], None], doing: str = "training in it") -> Iterator[None]:
    """Within, no other process trains in the run folder. If one does already, it is named in a refusal.

    say: is told where the file system has no locks; then nothing is held. doing: what the other is doing there.
    """
    path = check_file(folder / LOCK)
    handle = _lock(path, say, doing)
    _held.add(handle)
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, _card().encode(), 0)
        yield
    finally:
        with suppress(OSError):
            if _is_at(handle, path):
                path.unlink()
        _held.discard(handle)
        os.close(handle)


@contextmanager
def claim_folder(folder: Path, files: Sequence[str], say: Callable[[str], None]) -> Iterator[None]:
    """Within, the folder is ours, made where it is missing; refused where one of these files in it is not ours.

    To be called when all else is known to be right, for a mistake should leave nothing.
    """
    for name in files:
        check_file(folder / name)
    with readable_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with hold_folder(folder, say):
        yield


def _lock(path: Path, say: Callable[[str], None], doing: str) -> int:
    """The open file, locked. The one at `path` may be removed by its last holder just now: then there is a new one."""
    refused = time.monotonic() + MOMENT
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            raise UserError(f"{path}: cannot be written ({reason(error)}); write to another folder.") from None
        try:
            if fcntl is None:
                raise OSError("this system has none")
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _read_holder(handle)
            os.close(handle)
            if time.monotonic() < refused:
                time.sleep(0.02)
                continue
            raise UserError(
                f"{path.parent}: {holder} is {doing}; wait for it to end, or write to another folder."
            ) from None
        except OSError as error:
            say(
                f"{path.parent}: this file system has no locks ({reason(error)}), so nothing keeps another process "
                "from working in the same folder; start only one."
            )
            return handle
        if _is_at(handle, path):
            return handle
        os.close(handle)


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


def _let_go() -> None:
    for handle in _held:
        os.close(handle)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
