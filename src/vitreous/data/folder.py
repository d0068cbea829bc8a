"""Images as files: a folder with a folder for each class, or a flat folder."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.data.decode import IMAGE_SUFFIXES, Header, open_image, read_content, read_header
from vitreous.data.source import (
    SPLIT_NAMES,
    Data,
    Labels,
    NoClassesError,
    Source,
    Split,
    check_classes,
    order_classes,
)
from vitreous.data.walk import FolderWalk, entries, has_images, is_folder, is_image
from vitreous.errors import UserError
from vitreous.inputs import as_text


class Names:
    """Many paths in one block of bytes: a fifth of the memory of strings, and shared untouched by worker processes."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._bytes: bytearray | NDArray[np.uint8] = bytearray()
        self._ends: array[int] | NDArray[np.int64] = array("q")
        for name in names:
            self.append(name)

    @classmethod
    def of(cls, block: NDArray[np.uint8], ends: NDArray[np.int64]) -> Names:
        """Those that `arrays` gave."""
        made = cls()
        made._bytes, made._ends = block, ends
        return made

    def arrays(self) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """All bytes, and where each name ends, (n,)."""
        return np.frombuffer(self._bytes, dtype=np.uint8), np.frombuffer(self._ends, dtype=np.int64)

    def __reduce__(self) -> tuple[Any, ...]:
        """As arrays, which several processes of one machine can share as they are."""
        return Names.of, self.arrays()

    def append(self, name: str) -> None:
        """One more."""
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
        self,
        root: Path,
        names: Names,
        labels: Labels,
        classes: tuple[str, ...],
        rows: NDArray[np.int64] | None = None,
    ) -> None:
        """names: paths below `root`; rows (n,): which of them, None for all; labels: (n,)."""
        self.root = root
        self.labels = labels
        self.classes = classes
        self._names = names
        self._rows = np.arange(len(names)) if rows is None else rows

    @property
    def whole(self) -> int:
        """All files that were found."""
        return len(self._names)

    def name(self, index: int) -> str:
        """The file's path."""
        return str(self.path(index))

    def key(self, index: int) -> str:
        """The path below the root, with forward slashes on every system."""
        return self._names[int(self._rows[index])].replace(os.sep, "/")

    def path(self, index: int) -> Path:
        """The file's path."""
        return self.root / self._names[int(self._rows[index])]

    def read(self, index: int, *, channels: int = 3, at_least: int | None = None) -> Image.Image:
        """The decoded image."""
        return open_image(self.path(index), channels=channels, at_least=at_least)

    def header(self, index: int) -> Header:
        """What the file's first bytes say."""
        return read_header(self.path(index))

    def content(self, index: int) -> bytes:
        """The file's bytes."""
        return read_content(self.path(index))

    def size(self, index: int) -> int:
        """The file's size."""
        try:
            return self.path(index).stat().st_size
        except (OSError, ValueError):
            return 0

    def subset(self, indices: Sequence[int] | Labels) -> FolderSource:
        """These files."""
        chosen = np.asarray(indices, dtype=np.int64)
        return FolderSource(self.root, self._names, self.labels[chosen], self.classes, self._rows[chosen])

    def with_labels(self, labels: Labels, classes: tuple[str, ...]) -> FolderSource:
        """The same files with other labels."""
        return FolderSource(self.root, self._names, labels, classes, self._rows)


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


def open_unlabelled(root: Path) -> Data:
    """Data from all images below a folder, without labels; what lies in train, val and test folders stays apart."""
    walk = FolderWalk()
    parts = _split_folders(root, walk)
    folders = [entry for entry in entries(root) if is_folder(entry)]
    if not parts and len(folders) == 1 and _split_folders(Path(folders[0].path), FolderWalk()):
        raise UserError(f"{root}: its train and test folders are in {folders[0].path}; give that folder.")
    if parts and any(is_image(entry) for entry in entries(root)):
        beside = " and ".join(path.name for path in parts.values())
        walk.notes.append(f"{root}: images beside the {beside} folders, passed over.")
    places = parts or {"train": root}
    splits: dict[Split, Source] = {split: images_below(folder, walk) for split, folder in places.items()}
    return Data(splits, (), walk.remarks(root))


def images_below(root: Path, walk: FolderWalk) -> FolderSource:
    """All images below a folder, in the order of their paths; `walk` remembers what was passed over."""
    names = sorted(walk.images(root))
    if not names:
        raise UserError(walk.nothing(root, f"give a folder with {', '.join(sorted(IMAGE_SUFFIXES))} files"))
    return FolderSource(root, Names(names), np.full(len(names), -1, dtype=np.int64), ())


def one_image(path: Path) -> FolderSource:
    """An image's file on its own."""
    return FolderSource(path.parent, Names([path.name]), np.full(1, -1, dtype=np.int64), ())


def _split_folders(root: Path, walk: FolderWalk) -> dict[Split, Path]:
    """The train, val and test folders of `root`; none where it has class folders.

    A folder called train may be a class, of railway images perhaps: so it is where there are none but images in it,
    and folders of images beside it that have other names, and no val or test.
    """
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
        label = as_text(entry.name)  # what a model says and its files hold; the folder keeps its own name
        if label in found:
            raise UserError(
                f"{entry.path}: the name of this class is not UTF-8, and written as {label!r} it is that of another "
                "class folder; rename one of the two."
            )
        found[label] = names
    return found
