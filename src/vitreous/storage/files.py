"""Folders and files that are complete or absent: written under another name, fsynced, then renamed.

Folders get a manifest of digests too. For a folder called NAME,
`.NAME.new-0123abcd` is being written, `.NAME.lock` is the lock of whoever writes it, and `.NAME.old` is the folder that
it replaces where the file system cannot exchange two names in one step.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from safetensors.torch import save_file
from torch import Tensor

from vitreous.errors import UserError
from vitreous.inputs import utf8_text
from vitreous.storage.lock import LOCK, hold_name
from vitreous.storage.manifest import old_folder, write_manifest
from vitreous.storage.overwrite import check_file, check_folder, readable_errors, real_path, unwritable

_UNFINISHED = ".new-"  # in the name of what is being written; random digits follow
_NO_HARD_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
_NOT_EMPTY = (errno.ENOTEMPTY, errno.EEXIST)
MAX_RENAMES = 20  # tries to put a folder in another's place, where readers take that one back meanwhile


@contextmanager
def new_folder(final: Path) -> Iterator[Path]:
    """An empty folder to fill, which takes the place of `final` when the block ends well.

    Then it has a manifest and is on the disk to the last byte. What is there before must be empty or ours. If anything
    fails, `final` is as it was, a full disk is a `MachineError`, a missing permission a `UserError`. Of several
    processes or threads that write the same folder, each waits for the one before; the last one wins.
    """
    final = real_path(final)  # a link stays, and what it points to is replaced
    temporary = final.parent / f".{final.name}{_UNFINISHED}{secrets.token_hex(4)}"
    try:
        with readable_errors(final):
            final.parent.mkdir(parents=True, exist_ok=True)
            with hold_name(final) as locked:
                check_folder(final)
                if final.exists() and not final.is_dir():
                    raise UserError(f"{final}: there is a file of this name; remove it, or choose another name.")
                if locked:  # then whoever began to write it before has ended
                    remove_unfinished(final.parent, final.name)
                try:
                    temporary.mkdir()
                    yield temporary
                    write_manifest(temporary)
                    fsync_folder(temporary)
                    check_folder(final)  # whatever came there meanwhile
                    replace_folder(temporary, final)
                except BaseException:
                    with suppress(OSError):
                        remove_folder(temporary)
                    raise
    except OSError as error:
        raise unwritable(final, error) from error


def remove_unfinished(folder: Path, name: str | None = None) -> None:
    """Remove what killed processes were writing in a folder that nobody else writes to now.

    name: only what would have become the folder of this name.
    """
    pattern = r"\..*\.(new(-[0-9a-f]{8})?|lock)|\.new-[0-9a-f]{16}"
    unfinished = re.compile(pattern if name is None else rf"\.{re.escape(name)}\.new-[0-9a-f]{{8}}")
    for path in folder.iterdir():
        if unfinished.fullmatch(path.name) and path.name != LOCK:
            if path.is_dir():
                remove_folder(path)
            else:
                path.unlink(missing_ok=True)


def write_file(path: Path, content: str | bytes) -> Path:
    """Write a file that is whole or as it was before, as `new_file` does, and return its path. Text becomes UTF-8."""
    data = utf8_text(content).encode() if isinstance(content, str) else content  # it may name files of any bytes
    with new_file(path) as file:
        file.write(data)
    return path


def write_output(path: Path, content: str | bytes) -> Path:
    """The same for a file that a person named, whose content has our mark: no file of anybody else's is replaced."""
    return write_file(check_file(path), content)


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """A file to fill, which takes the place of `path` when the block ends well, and is then on the disk for good.

    If anything fails, what was there stays; a full disk is a `MachineError`, whatever else the system refuses a
    `UserError`. Its folder is made if need be. Several processes may write at once: the last one wins. A device or a
    pipe, such as /dev/stdout, is written to and not replaced.
    """
    final = real_path(path)  # a link stays, and what it points to is replaced
    temporary = final.with_name(f"{_UNFINISHED}{secrets.token_hex(8)}")
    try:
        with readable_errors(path):
            final.parent.mkdir(parents=True, exist_ok=True)
            if final.is_dir():
                raise UserError(f"{path}: there is a folder of this name; remove it, or choose another name.")
            if path.exists() and not path.is_file():
                with path.open("wb") as file:
                    yield file
                return
            with temporary.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(final)
            fsync_file(final.parent)
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def create_file(path: Path, content: str) -> bool:
    """Write a text file atomically unless it exists; False if it does.

    Of several processes that do so at once, even on several machines, one writes it and the others get False.
    """
    temporary = path.with_name(f"{_UNFINISHED}{secrets.token_hex(8)}")
    try:
        write_file(temporary, content)
        try:
            path.hardlink_to(temporary)
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            with path.open("x", encoding="utf-8") as file:  # for a moment it is there and empty
                file.write(content)
        fsync_file(path.parent)
    except FileExistsError:
        return False
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    return True


def is_unfinished(path: Path) -> bool:
    """Whether this is what `new_file` was writing when its process was killed."""
    return path.name.startswith(_UNFINISHED) and path.is_file()


def fsync_file(path: Path) -> None:
    """Return when the disk has the file, or the names in a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def fsync_folder(folder: Path) -> None:
    """Return when the disk has all files in the folder and below, and their names."""
    for path in folder.rglob("*"):
        fsync_file(path)
    fsync_file(folder)


def replace_folder(temporary: Path, final: Path) -> None:
    """Put a folder in another's place, by renaming only; then remove what was there.

    At every moment one of the two is complete at `final`, or, where the file system cannot exchange names, at
    `.NAME.old`, from where `restore_folder` takes it back.
    """
    for tries_left in reversed(range(MAX_RENAMES)):
        try:
            old = _put_in_place(temporary, final)
            break
        except OSError as error:
            if error.errno not in _NOT_EMPTY or not tries_left:
                raise
    fsync_file(final.parent)
    remove_folder(old)


def _put_in_place(temporary: Path, final: Path) -> Path:
    """Rename a folder to `final`, and say where what was there is now.

    Fails with one of `_NOT_EMPTY` where a reader restores the old one just before: for all it knows, we were killed.
    """
    old = old_folder(final)
    if not final.exists():
        temporary.rename(final)
    elif _exchange(temporary, final):
        return temporary
    else:
        remove_folder(old)
        final.rename(old)
        temporary.rename(final)
    return old


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write a .safetensors file that may be read by whoever may read a new file here."""
    path.touch()
    mode = path.stat().st_mode
    save_file(tensors, path, metadata={"format": "pt"})
    path.chmod(mode)  # safetensors lets only the owner read it


def remove_folder(folder: Path) -> None:
    """Remove a folder with all that is in it, if it is there."""
    with suppress(FileNotFoundError):
        shutil.rmtree(folder)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names in one step; False where the system cannot."""
    if sys.platform != "linux":
        return False
    here, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:  # an old C library
        return False
    return bool(rename(here, os.fsencode(one), here, os.fsencode(other), swap) == 0)
