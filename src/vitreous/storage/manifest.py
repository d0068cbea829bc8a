"""manifest.json: size and SHA-256 of every file in a folder, so that what is loaded is what was saved, to the last bit.

A folder with our manifest is whole or refused: nothing in it is read on trust. Files that the manifest does not list do
no harm, for they are never read.
"""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath
from typing import Any

from vitreous.errors import UserError
from vitreous.inputs import parse_json, read_text, reason
from vitreous.storage.digest import is_sha256, sha256_file
from vitreous.storage.replaced import read_whole

MANIFEST = "manifest.json"

Entries = dict[str, tuple[int, str]]
"""Of each file, by its path below the folder, its size in bytes and its SHA-256."""


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
    """What a manifest lists, if it is whole: no bit of it may differ, not even one that changes no meaning."""
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
