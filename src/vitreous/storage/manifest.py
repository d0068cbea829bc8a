"""manifest.json: size and SHA-256 of every file in a folder, so that what is loaded is what was saved, to the last bit.

A folder with our manifest is whole or refused: nothing in it is read on trust. Files that the manifest does not list do
no harm, for they are never read. Another process may replace a folder while it is read, or was killed while it
replaced it: `read_whole` and `restore_folder`. Digests are SHA-256, as 64 hexadecimal digits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from hashlib import file_digest, sha256
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from vitreous.errors import UserError
from vitreous.inputs import parse_json, read_text, reason

T = TypeVar("T")
MANIFEST = "manifest.json"
MAX_READS = 20  # times that a folder is read while others replace it

Entries = dict[str, tuple[int, str]]  # of each file, by its path below the folder, its size in bytes and its SHA-256


def sha256_file(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def sha256_json(value: object) -> str:
    """Of anything that JSON can say; other objects count as their text."""
    return sha256(json.dumps(value, default=str).encode()).hexdigest()


def is_sha256(value: object) -> bool:
    """Whether this is such a digest and nothing else: files are called after it."""
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None


def write_manifest(folder: Path) -> None:
    """Write manifest.json: size and SHA-256 of every other file in the folder and below."""
    files = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256_file(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path != folder / MANIFEST
    }
    (folder / MANIFEST).write_text(_text(files), encoding="utf-8")


def _text(files: Any) -> str:
    return json.dumps({"format": 1, "files": files}, indent=2) + "\n"


def read_manifest(folder: Path) -> Entries:
    """What a manifest lists; refused if a single bit of it differs."""
    path = folder / MANIFEST
    if not path.exists():
        raise UserError(
            f"{path}: missing, so nothing vouches for the other files; restore it from a copy, or save the model again."
        )
    damaged = UserError(f"{path}: damaged; restore it from a copy, or save the model again.")
    text = read_text(path)
    try:
        files = parse_json(text, path)["files"]
        whole = text == _text(files)
        entries = {name: (entry["bytes"], entry["sha256"]) for name, entry in files.items()}
    except (UserError, KeyError, TypeError, AttributeError):
        raise damaged from None
    if not whole or not all(type(size) is int and is_sha256(digest) for size, digest in entries.values()):
        raise damaged
    for name in entries:
        if not _is_below(name):
            raise UserError(f"{path}: lists {name!r}, which is no file of this folder; save the model again.")
    return entries


def _is_below(name: str) -> bool:
    """Whether this is the plain name of a file in the folder or below: not absolute, no way up, no other spelling."""
    path = PurePosixPath(name)
    plain = "\\" not in name and "\0" not in name and str(path) == name
    return plain and not path.is_absolute() and not {"..", "."} & set(path.parts) and name != MANIFEST


def check_manifest(folder: Path) -> frozenset[str]:
    """The files that the manifest lists, each found to be what was saved; else the folder is refused.

    A symbolic link that leads out of the folder is refused too, except to where the hub's own cache keeps its files.
    """
    return read_whole(folder, lambda: _check_files(folder))


def _check_files(folder: Path) -> frozenset[str]:
    entries = read_manifest(folder)
    homes = [folder.resolve()]
    if homes[0].parent.name == "snapshots":
        homes.append(homes[0].parents[1] / "blobs")
    for name, (size, digest) in entries.items():
        file = folder / name
        try:
            if not file.is_file():
                raise UserError(f"{file}: missing; restore the folder from a copy, or save the model again.")
            if not any(file.resolve().is_relative_to(home) for home in homes):
                raise UserError(f"{file}: a link to a file elsewhere; put the file itself in its place.")
            same = file.stat().st_size == size and sha256_file(file) == digest
        except OSError as error:
            raise UserError(f"{file}: cannot be read ({reason(error)}); check its mode and owner.") from None
        if not same:
            raise UserError(
                f"{file}: damaged or changed, its SHA-256 is not the one in {MANIFEST}; restore it from a copy."
            )
    return frozenset(entries)


def has_manifest(folder: Path) -> bool:
    """Whether a folder's manifest.json is ours, be it whole or damaged; other programs have files of this name too."""
    path = folder / MANIFEST
    if not path.exists():
        return False
    try:
        found = parse_json(read_text(path), path)
    except UserError:  # not even JSON: better refused than taken for another program's
        return True
    ours = {"format", "files"}
    if not isinstance(found, dict) or not ours & found.keys():
        return False
    tables = [value for value in found.values() if isinstance(value, dict)]
    entries = [entry for table in tables for entry in table.values() if isinstance(entry, dict)]
    return found.keys() == ours or any({"bytes", "sha256"} & entry.keys() for entry in entries)


def unlisted_files(folder: Path, listed: frozenset[str]) -> list[str]:
    """What else is directly in a folder, except hidden files."""
    known = {PurePosixPath(name).parts[0] for name in listed} | {MANIFEST}
    return sorted(path.name for path in folder.iterdir() if path.name not in known and not path.name.startswith("."))


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
