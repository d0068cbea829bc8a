"""Folders gone through for images, and what was passed over on the way."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from vitreous.data.decode import IMAGE_SUFFIXES
from vitreous.inputs import file_kind

FOREIGN_SUFFIXES = frozenset(
    (".avif", ".heic", ".heif", ".jxl", ".jp2", ".j2k", ".svg", ".eps", ".psd", ".tga", ".exr", ".ico", ".dng", ".cr2")
) | {".cr3", ".nef", ".arw", ".orf", ".raf", ".rw2"}
"""Names of images, in lower case, of kinds that are not opened: who has them should hear of it."""


class FolderWalk:
    """Goes through folders; remembers what it passed over."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.passed_over: Counter[str] = Counter()
        """How many of each kind: ".avif", "pipe", "link that leads nowhere"."""

    def images(self, root: Path, below: str = "") -> Iterator[str]:
        """Paths, below `root`, of all image files in `root/below` and the folders in it.

        Links are followed, but no folder is entered twice and none that holds the start, so loops end.
        """
        seen = {_identity(root)} if below else set()
        waiting = [below]
        while waiting:
            folder = waiting.pop()
            where = os.path.join(root, folder)  # noqa: PTH118  a Path for each of a million files is slow
            if _identity(where) in seen:
                self.notes.append(f"{where}: a link to a folder that was already read, passed over.")
                continue
            seen.add(_identity(where))
            with os.scandir(where) as found:
                for entry in found:
                    if _hidden(entry.name):
                        continue
                    name = f"{folder}{os.sep}{entry.name}" if folder else entry.name
                    if is_folder(entry):
                        waiting.append(name)
                    elif is_image(entry):
                        yield name
                    elif (kind := _foreign_kind(entry)) is not None:
                        self.passed_over[kind] += 1
            waiting.sort(reverse=True)

    def remarks(self, root: Path) -> tuple[str, ...]:
        """The notes, and one on what was passed over, by kind."""
        if not self.passed_over:
            return tuple(self.notes)
        return (*self.notes, f"{root}: passed over {self._kinds()}, which cannot be read as images here.")

    def nothing(self, root: Path, instead: str) -> str:
        """The sentence for a folder without images."""
        passed = f" (but {self._kinds()}, which cannot be read here)" if self.passed_over else ""
        return f"{root}: there are no images here{passed}; {instead}."

    def _kinds(self) -> str:
        ordered = sorted(self.passed_over.items(), key=lambda pair: (-pair[1], pair[0]))
        return ", ".join(f"{count:,} {kind}" for kind, count in ordered)


def has_images(root: Path, below: str = "") -> bool:
    """Whether there is any image in `root/below`."""
    return next(FolderWalk().images(root, below), None) is not None


def entries(folder: str | Path) -> list[os.DirEntry[str]]:
    """What is in a folder, by name, without hidden files."""
    with os.scandir(folder) as found:
        return sorted((entry for entry in found if not _hidden(entry.name)), key=lambda entry: entry.name)


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder, or a link to one."""
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def is_image(entry: os.DirEntry[str]) -> bool:
    """Whether it can be an image. A broken link counts: it is reported as unreadable, not lost in silence."""
    return _suffix(entry) in IMAGE_SUFFIXES and _kind(entry) in ("file", None)


def _foreign_kind(entry: os.DirEntry[str]) -> str | None:
    """What a person should hear of that is neither a folder nor an image; None for files of any other kind."""
    kind = _kind(entry)
    if kind == "file":
        return _suffix(entry) if _suffix(entry) in FOREIGN_SUFFIXES else None
    return kind or "link that leads nowhere"


def _kind(entry: os.DirEntry[str]) -> str | None:
    """ "file", "pipe"...; None for a link that leads nowhere."""
    try:
        # Most systems say with the name whether it is a plain file: then it need not be asked.
        return "file" if entry.is_file() else file_kind(entry.stat().st_mode)
    except OSError:
        return None


def _suffix(entry: os.DirEntry[str]) -> str:
    return os.path.splitext(entry.name)[1].lower()  # noqa: PTH122


def _identity(folder: str | Path) -> tuple[int, int]:
    status = os.stat(folder)  # noqa: PTH116
    return status.st_dev, status.st_ino


def _hidden(name: str) -> bool:
    """Files of the system, such as the "._cat.jpg" that a Mac leaves beside every image."""
    return name.startswith(".") or name == "__MACOSX"
