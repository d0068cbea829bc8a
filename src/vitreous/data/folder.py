"""Pictures as files: a folder with a folder for each class, a flat folder, or a list in CSV or JSONL."""

from __future__ import annotations

import csv
import json
import os
import stat
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.data.decode import PICTURE_SUFFIXES, Header, PictureError, open_picture, read_header
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
from vitreous.errors import UserError

LIST_SUFFIXES = (".csv", ".jsonl", ".ndjson")


class Names:
    """Many paths in one block of bytes: a fifth of the memory of strings, and shared untouched by worker processes."""

    def __init__(self, names: Sequence[str]) -> None:
        encoded = [os.fsencode(name) for name in names]
        self._ends = np.cumsum([len(name) for name in encoded], dtype=np.int64)
        self._bytes = b"".join(encoded)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> str:
        start = int(self._ends[index - 1]) if index else 0
        return os.fsdecode(self._bytes[start : int(self._ends[index])])


class FolderSource(Source):
    """Picture files below a folder."""

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
        """The decoded picture."""
        return open_picture(self.path(index), channels=channels, at_least=at_least)

    def header(self, index: int) -> Header:
        """What the file's first bytes say."""
        return read_header(self.path(index))

    def content(self, index: int) -> bytes:
        """The file's bytes."""
        try:
            return self.path(index).read_bytes()
        except OSError as error:
            reason = f"cannot be read ({error.strerror}); check the file."
            raise PictureError(self.name(index), reason) from None

    def subset(self, indices: Sequence[int] | Labels) -> FolderSource:
        """These files."""
        chosen = np.asarray(indices, dtype=np.int64)
        return FolderSource(self.root, self._names, self.labels[chosen], self.classes, self._rows[chosen])

    def with_labels(self, labels: Labels, classes: tuple[str, ...]) -> FolderSource:
        """The same files with other labels."""
        return FolderSource(self.root, self._names, labels, classes, self._rows)


def open_folder(root: Path) -> Data:
    """Data from a folder with a folder for each class, or with train, val and test folders that have them."""
    notes: list[str] = []
    parts = _split_folders(root, notes) or {"train": root}
    found = {split: _scan_classes(folder, notes) for split, folder in parts.items()}
    if not any(found.values()) and next(_pictures(root, notes), None) is None:
        raise UserError(f"{root}: there are no pictures here; give a folder that has a folder of pictures a class.")
    for split in [split for split, part in found.items() if not part]:
        if split == "train" or len(found) == 1:
            raise NoClassesError(
                f"{parts[split]}: there are pictures but no class folders; put each class in a folder of its own, "
                "or give a .csv with the columns path,label."
            )
        notes.append(f"{parts[split]}: there are pictures but no class folders, passed over.")
        del found[split]
    classes = order_classes(name for part in found.values() for name in part)
    splits: dict[Split, Source] = {}
    for split, part in found.items():
        names = [name for label in classes for name in part.get(label, ())]
        counts = [len(part.get(label, ())) for label in classes]
        labels = np.repeat(np.arange(len(classes), dtype=np.int64), counts)
        splits[split] = FolderSource(parts[split], Names(names), labels, classes)
    check_classes(root, splits, classes)
    return Data(splits, classes, tuple(notes))


def open_unlabelled(root: Path) -> Data:
    """Data from all pictures below a folder, without labels; what lies in train, val and test folders stays apart."""
    notes: list[str] = []
    parts = _split_folders(root, notes)
    folders = [entry for entry in _entries(root) if _is_folder(entry)]
    if not parts and len(folders) == 1 and _split_folders(Path(folders[0].path), []):
        raise UserError(f"{root}: its train and test folders are in {folders[0].path}; give that folder.")
    if parts and any(_is_picture(entry) for entry in _entries(root)):
        beside = " and ".join(path.name for path in parts.values())
        notes.append(f"{root}: pictures beside the {beside} folders, passed over.")
    places = parts or {"train": root}
    splits: dict[Split, Source] = {split: pictures_below(folder, notes) for split, folder in places.items()}
    return Data(splits, (), tuple(notes))


def pictures_below(root: Path, notes: list[str]) -> FolderSource:
    """All pictures below a folder, in the order of their paths; `notes` hears of links that were not followed."""
    names = sorted(_pictures(root, notes))
    if not names:
        raise UserError(f"{root}: there are no pictures here; give a folder with {_suffixes()} files.")
    return FolderSource(root, Names(names), np.full(len(names), -1, dtype=np.int64), ())


def open_list(path: Path) -> Data:
    """Data from a CSV or JSONL with path, label and perhaps split; paths count from the file's own folder."""
    rows = list(_csv_rows(path) if path.suffix.lower() == ".csv" else _jsonl_rows(path))
    if not rows:
        raise UserError(f"{path}: the list is empty; give one line per picture, with path and label.")
    first = path.parent / rows[0][0]
    if not first.is_file():
        raise UserError(f"{path}: there is no file {first}; write paths as seen from the folder of the list.")
    classes = order_classes(label for _, label, _ in rows)
    number = {name: i for i, name in enumerate(classes)}
    splits: dict[Split, Source] = {}
    for split in ("train", "val", "test"):
        part = [(name, number[label]) for name, label, of in rows if of == split]
        if part:
            labels = np.array([label for _, label in part], dtype=np.int64)
            splits[split] = FolderSource(path.parent, Names([name for name, _ in part]), labels, classes)
    check_classes(path, splits, classes)
    return Data(splits, classes)


def _split_folders(root: Path, notes: list[str]) -> dict[Split, Path]:
    """The train, val and test folders of `root`; none where it has class folders.

    A folder called train may be a class, of railway pictures perhaps: so it is where there are none but pictures in it,
    and folders of pictures beside it that have other names, and no val or test.
    """
    folders = [entry for entry in _entries(root) if _is_folder(entry)]
    if not any(entry.name.lower() in SPLIT_NAMES for entry in folders):
        return {}
    filled = [entry for entry in folders if next(_pictures(root, [], entry.name), None) is not None]
    named = [(SPLIT_NAMES[entry.name.lower()], entry) for entry in filled if entry.name.lower() in SPLIT_NAMES]
    with_folders = {split for split, entry in named if any(_is_folder(below) for below in _entries(entry.path))}
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
            notes.append(f"{entry.path}: no pictures in this folder, passed over.")
        elif Path(entry.path) not in parts.values():
            notes.append(f"{entry.path}: not a train, val or test folder, passed over.")
    return parts


def _scan_classes(root: Path, notes: list[str]) -> dict[str, list[str]]:
    """Class name to the sorted paths, below `root`, of its pictures; folders without pictures are noted."""
    found: dict[str, list[str]] = {}
    for entry in _entries(root):
        if not _is_folder(entry):
            continue
        names = sorted(_pictures(root, notes, entry.name))
        if names:
            found[entry.name] = names
        else:
            notes.append(f"{entry.path}: no pictures in this folder, passed over.")
    return found


def _pictures(root: Path, notes: list[str], below: str = "") -> Iterator[str]:
    """Paths, below `root`, of all picture files in `root/below` and the folders in it.

    Links are followed, but no folder is entered twice and none that holds the start, so loops end.
    """
    seen = {_identity(root)} if below else set()
    waiting = [below]
    while waiting:
        folder = waiting.pop()
        where = os.path.join(root, folder)  # noqa: PTH118  a Path for each of a million files is slow
        if _identity(where) in seen:
            notes.append(f"{where}: a link to a folder that was already read, passed over.")
            continue
        seen.add(_identity(where))
        with os.scandir(where) as entries:
            for entry in entries:
                if _hidden(entry.name):
                    continue
                name = f"{folder}{os.sep}{entry.name}" if folder else entry.name
                if _is_folder(entry):
                    waiting.append(name)
                elif _is_picture(entry):
                    yield name
        waiting.sort(reverse=True)


def _entries(folder: str | Path) -> list[os.DirEntry[str]]:
    """What is in a folder, by name, without hidden files."""
    with os.scandir(folder) as entries:
        return sorted((entry for entry in entries if not _hidden(entry.name)), key=lambda entry: entry.name)


def _identity(folder: str | Path) -> tuple[int, int]:
    status = os.stat(folder)  # noqa: PTH116
    return status.st_dev, status.st_ino


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _is_picture(entry: os.DirEntry[str]) -> bool:
    return os.path.splitext(entry.name)[1].lower() in PICTURE_SUFFIXES and _is_file(entry)  # noqa: PTH122


def _is_file(entry: os.DirEntry[str]) -> bool:
    """Whether it can be a picture. A broken link counts: it is reported as unreadable, not lost in silence."""
    if entry.is_symlink():
        try:
            return stat.S_ISREG(entry.stat().st_mode)
        except OSError:
            return True
    return entry.is_file()


def _hidden(name: str) -> bool:
    """Files of the system, such as the "._cat.jpg" that a Mac leaves beside every picture."""
    return name.startswith(".") or name == "__MACOSX"


def _csv_rows(path: Path) -> Iterator[tuple[str, str, Split]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        table = csv.DictReader(file)
        try:
            missing = {"path", "label"} - set(table.fieldnames or ())
            if missing:
                have = ", ".join(islice(table.fieldnames or ("nothing",), 6))
                raise UserError(
                    f"{path}: the first line must name the columns path,label and perhaps split; it has {have}."
                )
            for row in table:
                yield _row(path, table.line_num, row)
        except (csv.Error, UnicodeDecodeError) as error:
            raise UserError(f"{path}: not a CSV in UTF-8 ({error}); save it as one.") from None


def _jsonl_rows(path: Path) -> Iterator[tuple[str, str, Split]]:
    try:
        for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), start=1):
            if line.strip():
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise UserError(f'{path}, line {number}: must be an object such as {{"path": ..., "label": ...}}.')
                yield _row(path, number, row)
    except json.JSONDecodeError as error:
        raise UserError(f"{path}, line {number}: not JSON ({error.msg}); write one object a line.") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not text in UTF-8 ({error.reason}); save it as that.") from None


def _row(path: Path, number: int, row: dict[str, Any]) -> tuple[str, str, Split]:
    """(path, label, split) of one line."""
    name, label = row.get("path"), row.get("label")
    if not name or label is None or label == "":
        raise UserError(f"{path}, line {number}: path and label must both be given.")
    said = str(row.get("split") or "train").strip()
    split = SPLIT_NAMES.get(said.lower())
    if split is None:
        raise UserError(f"{path}, line {number}: split {said!r} must be train, val or test.")
    return str(name), str(label), split


def _suffixes() -> str:
    return ", ".join(sorted(PICTURE_SUFFIXES))
