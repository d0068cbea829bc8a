"""Images as files: a folder with a folder for each class, or a flat folder, and notes of what is skipped."""

from __future__ import annotations

import os
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.data.decode import (
    HAS_HEIC,
    HEIC_ADVICE,
    HEIC_SUFFIXES,
    IMAGE_SUFFIXES,
    Header,
    open_image,
    read_content,
    read_header,
)
from vitreous.data.rng import Index
from vitreous.data.source import SPLIT_NAMES, Data, Labels, NoClassesError, Source, Split, check_classes, order_classes
from vitreous.errors import UserError
from vitreous.inputs import file_kind, utf8_text

# Names of images, in lower case, of kinds that are not opened: who has them should hear of it.
_CAMERAS = (".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".raf", ".rw2")
_RARE = (".avif", ".heic", ".heif", ".jxl", ".jp2", ".j2k", ".svg", ".eps", ".psd", ".tga", ".exr", ".ico")
FOREIGN_SUFFIXES = frozenset(_CAMERAS + _RARE) - IMAGE_SUFFIXES


class Names:
    """Many paths in one block of bytes: a fifth of the memory of strings, and shared untouched by worker processes."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._bytes: bytearray | NDArray[np.uint8] = bytearray()
        self._ends: array[int] | NDArray[np.int64] = array("q")
        for name in names:
            self.append(name)

    @classmethod
    def of(cls, block: NDArray[np.uint8], ends: NDArray[np.int64]) -> Names:
        names = cls()
        names._bytes, names._ends = block, ends
        return names

    def arrays(self) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """All bytes, and where each name ends, (n,)."""
        return np.frombuffer(self._bytes, dtype=np.uint8), np.frombuffer(self._ends, dtype=np.int64)

    def __reduce__(self) -> tuple[Any, ...]:
        """As arrays, which several processes of one machine can share as they are."""
        return Names.of, self.arrays()

    def append(self, name: str) -> None:
        assert isinstance(self._bytes, bytearray)
        assert isinstance(self._ends, array)
        self._bytes += os.fsencode(name)
        self._ends.append(len(self._bytes))

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> str:
        start = self._ends[index - 1] if index else 0
        return os.fsdecode(bytes(self._bytes[start : self._ends[index]]))


class FolderSource(Source):
    """Image files below a folder."""

    def __init__(
        self, root: Path, names: Names, labels: Labels, classes: tuple[str, ...], rows: Index | None = None
    ) -> None:
        """names: paths below `root`; rows (n,): which of them, None for all; labels: (n,)."""
        self.root, self.labels, self.classes, self._names = root, labels, classes, names
        self._rows = np.arange(len(names)) if rows is None else rows

    @property
    def total(self) -> int:
        return len(self._names)

    def name(self, index: int) -> str:
        return str(self.path(index))

    def key(self, index: int) -> str:
        """The path below the root, with forward slashes on every system."""
        return self._names[int(self._rows[index])].replace(os.sep, "/")

    def path(self, index: int) -> Path:
        return self.root / self._names[int(self._rows[index])]

    def read(self, index: int, *, channels: int = 3, at_least: int | None = None) -> Image.Image:
        return open_image(self.path(index), channels=channels, at_least=at_least)

    def header(self, index: int) -> Header:
        return read_header(self.path(index))

    def content(self, index: int) -> bytes:
        return read_content(self.path(index))

    def size(self, index: int) -> int:
        try:
            return self.path(index).stat().st_size
        except (OSError, ValueError):
            return 0


class FolderWalk:
    """Goes through folders; remembers what it skipped."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.skipped: Counter[str] = Counter()  # how many of each kind: ".avif", "pipe", "link that leads nowhere"

    def images(self, root: Path, below: str = "") -> Iterator[str]:
        """Paths, below `root`, of all image files in `root/below` and the folders in it. Links are followed, but no
        folder is entered twice and none that holds the start, so loops end."""
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
                        self.skipped[kind] += 1
            waiting.sort(reverse=True)

    def remarks(self, root: Path) -> tuple[str, ...]:
        """The notes, and one on what was skipped, by kind."""
        if not self.skipped:
            return tuple(self.notes)
        advice = f"; {HEIC_ADVICE}" if not HAS_HEIC and any(kind in HEIC_SUFFIXES for kind in self.skipped) else ""
        return (*self.notes, f"{root}: passed over {self._kinds()}, which cannot be read as images here{advice}.")

    def nothing(self, root: Path, instead: str) -> str:
        skipped = f" (but {self._kinds()}, which cannot be read here)" if self.skipped else ""
        return f"{root}: there are no images here{skipped}; {instead}."

    def _kinds(self) -> str:
        ordered = sorted(self.skipped.items(), key=lambda pair: (-pair[1], pair[0]))
        return ", ".join(f"{count:,} {kind}" for kind, count in ordered)


def has_images(root: Path, below: str = "") -> bool:
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


def open_folder(root: Path) -> Data:
    """Data from a folder with a folder for each class, or with train, val and test folders that have them."""
    walk = FolderWalk()
    parts = _split_folders(root, walk) or {"train": root}
    found = {split: _scan_classes(folder, walk) for split, folder in parts.items()}
    if not any(found.values()) and not has_images(root):
        raise UserError(walk.nothing(root, "give a folder that has a folder of images a class"))
    for split in [split for split, part in found.items() if not part]:
        if split == "train" or len(found) == 1:
            raise NoClassesError(
                f"{parts[split]}: there are images but no class folders; put each class in a folder of its own, "
                "or give a .csv with the columns path,label."
            )
        walk.notes.append(f"{parts[split]}: there are images but no class folders, passed over.")
        del found[split]
    classes = order_classes(name for part in found.values() for name in part)
    splits: dict[Split, Source] = {}
    for split, part in found.items():
        names = [name for label in classes for name in part.get(label, ())]
        counts = [len(part.get(label, ())) for label in classes]
        labels = np.repeat(np.arange(len(classes), dtype=np.int64), counts)
        splits[split] = FolderSource(parts[split], Names(names), labels, classes)
    check_classes(root, splits, classes)
    return Data(splits, classes, walk.remarks(root))


def open_unlabelled_folder(root: Path) -> Data:
    """Data from all images below a folder, without labels; what lies in train, val and test folders stays apart."""
    walk = FolderWalk()
    parts = _split_folders(root, walk)
    folders = [entry for entry in entries(root) if is_folder(entry)]
    if not parts and len(folders) == 1 and _split_folders(Path(folders[0].path), FolderWalk()):
        raise UserError(f"{root}: its train and test folders are in {folders[0].path}; give that folder.")
    if parts and any(is_image(entry) for entry in entries(root)):
        beside = " and ".join(path.name for path in parts.values())
        walk.notes.append(f"{root}: images beside the {beside} folders, passed over.")
    splits: dict[Split, Source] = {
        split: images_below(folder, walk) for split, folder in (parts or {"train": root}).items()
    }
    return Data(splits, (), walk.remarks(root))


def images_below(root: Path, walk: FolderWalk) -> FolderSource:
    """All images below a folder, in the order of their paths; `walk` remembers what was skipped."""
    names = sorted(walk.images(root))
    if not names:
        raise UserError(walk.nothing(root, f"give a folder with {', '.join(sorted(IMAGE_SUFFIXES))} files"))
    return FolderSource(root, Names(names), np.full(len(names), -1, dtype=np.int64), ())


def one_image(path: Path) -> FolderSource:
    return FolderSource(path.parent, Names([path.name]), np.full(1, -1, dtype=np.int64), ())


def _split_folders(root: Path, walk: FolderWalk) -> dict[Split, Path]:
    """The train, val and test folders of `root`; none where it has class folders. A folder called train may be a class,
    of railway images perhaps: so it is where there are none but images in it, and folders of images beside it that have
    other names, and no val or test."""
    folders = [entry for entry in entries(root) if is_folder(entry)]
    if not any(entry.name.lower() in SPLIT_NAMES for entry in folders):
        return {}
    filled = [entry for entry in folders if has_images(root, entry.name)]
    named = [(SPLIT_NAMES[entry.name.lower()], entry) for entry in filled if entry.name.lower() in SPLIT_NAMES]
    with_folders = {split for split, entry in named if any(is_folder(below) for below in entries(entry.path))}
    several = "train" in dict(named) and len(dict(named)) > 1
    if len(named) < len(filled) and "train" not in with_folders and not several:
        return {}
    parts: dict[Split, Path] = {}
    for split, entry in named:
        if split in parts:
            raise UserError(
                f"{root}: {parts[split].name} and {entry.name} are both {split} folders; join or rename them."
            )
        parts[split] = Path(entry.path)
    for entry in folders:
        if entry not in filled:
            walk.notes.append(f"{entry.path}: no images in this folder, passed over.")
        elif Path(entry.path) not in parts.values():
            walk.notes.append(f"{entry.path}: not a train, val or test folder, passed over.")
    return parts


def _scan_classes(root: Path, walk: FolderWalk) -> dict[str, list[str]]:
    """Class name to the sorted paths, below `root`, of its images; folders without images are noted."""
    found: dict[str, list[str]] = {}
    for entry in entries(root):
        if not is_folder(entry):
            continue
        names = sorted(walk.images(root, entry.name))
        if not names:
            walk.notes.append(f"{entry.path}: no images in this folder, passed over.")
            continue
        inner = [below.name for below in entries(entry.path) if is_folder(below) and below.name.lower() in SPLIT_NAMES]
        if len({SPLIT_NAMES[name.lower()] for name in inner}) > 1:
            inner.sort(key=lambda name: list(SPLIT_NAMES).index(name.lower()))
            raise UserError(
                f"{entry.path}: the folders {' and '.join(inner)} in it look like splits of one class, and all would "
                f"be taken for training; put the split first ({inner[0]}/{entry.name}), or give a .csv with the "
                "columns path,label,split."
            )
        label = utf8_text(entry.name)  # what a model says and its files hold; the folder keeps its own name
        if label in found:
            raise UserError(
                f"{entry.path}: the name of this class is not UTF-8, and written as {label!r} it is that of another "
                "class folder; rename one of the two."
            )
        found[label] = names
    return found
