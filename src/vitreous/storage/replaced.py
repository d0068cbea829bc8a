"""Reading a folder that another process may replace meanwhile, or was killed while it replaced it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
MAX_READS = 20
"""Times that a folder is read while others replace it."""


def old_folder(final: Path) -> Path:
    """Where a folder is while another takes its place, on file systems that cannot exchange two names in one step."""
    return final.parent / f".{final.name}.old"


def restore_folder(final: Path) -> None:
    """Take back what a replacement that was killed between its two renames had moved away."""
    final = final.resolve()
    old = old_folder(final)
    if old.is_dir() and not final.exists():
        with suppress(OSError):
            old.rename(final)


def read_whole(folder: Path, read: Callable[[], T]) -> T:
    """What `read` returns of a folder; read again if another process replaced the folder meanwhile.

    Without this a reader would find the manifest of one folder beside the files of the next, and call them damaged.
    """
    for tries_left in reversed(range(MAX_READS)):
        before = _identity(folder)
        try:
            found = read()
        except Exception:
            if not tries_left or not _changed(folder, before):
                raise
            restore_folder(folder)
        else:
            if not tries_left or not _changed(folder, before):
                break
    return found


def _changed(folder: Path, before: tuple[int, ...] | None) -> bool:
    now = _identity(folder)
    try:
        return now != before or (now is None and old_folder(folder.resolve()).is_dir())
    except (OSError, ValueError, RuntimeError):  # no name of a folder: `read` has said so
        return False


def _identity(folder: Path) -> tuple[int, ...] | None:
    try:
        found = folder.stat()
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns
