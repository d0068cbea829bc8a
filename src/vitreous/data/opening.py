"""Data and images that a person names on the command line or in a notebook, opened."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from vitreous.data.builtin import builtin_data
from vitreous.data.datasets.store import PREFIX, open_named
from vitreous.data.decode import IMAGE_SUFFIXES
from vitreous.data.folder import (
    FolderSource,
    FolderWalk,
    Names,
    has_images,
    images_below,
    one_image,
    open_folder,
    open_unlabelled_folder,
)
from vitreous.data.formats import format_of, format_titles, loaded, open_known
from vitreous.data.shards.opening import is_shards, open_shards
from vitreous.data.source import Data, NoClassesError, Source, Split
from vitreous.errors import UserError
from vitreous.inputs import file_kind, reason

log = logging.getLogger("vitreous")

BUILTIN = "builtin"


def open_data(path: str | Path, *, labelled: bool = True) -> Data:
    """The dataset at `path`, recognised by what is there.

    - a folder with a folder for each class, by itself or in each of train, val and test;
    - a row of `DATA_FORMATS`: a list, arrays, CIFAR or MNIST files, a folder that `data get` made;
    - WebDataset shards: a folder of tar files, a pattern such as train-{000..009}.tar, or an address of them;
    - `data:NAME` for a dataset that `data get` brought.

    labelled: False takes any folder of files as images without labels; only train, val and test folders stay apart.
    """
    if not str(path):
        raise UserError(f"data: an empty path; give a folder, {format_titles()}.")
    if isinstance(path, str) and path.startswith(PREFIX):
        return open_named(path)
    try:
        if is_shards(path):
            return open_shards(path, labelled=labelled)
        path = Path(path)
        try:
            kind = file_kind(path.stat().st_mode)
        except ValueError as error:  # a name with a null byte
            raise UserError(f"{str(path)!a}: cannot be read ({error}); check the path.") from None
        if kind in ("file", "folder") and (known := open_known(path, folder=kind == "folder")) is not None:
            return known
        if kind == "folder":
            return open_folder(path) if labelled else open_unlabelled_folder(path)
        what = "not a known kind of data" if kind == "file" else f"this is a {kind}, not data"
        raise UserError(f"{path}: {what}; give a folder, {format_titles()}.")
    except PermissionError as error:
        raise UserError(f"{error.filename or path}: no permission to read it; change its mode or owner.") from None
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UserError(f"{error.filename or path}: there is nothing of this name; check the path.") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({reason(error)}); check the path.") from None


def open_dataset(data: str | Path | Data) -> Data:
    """The data at a path; "builtin" stands for the images that come with the package."""
    if isinstance(data, Data):
        return data
    return builtin_data() if data == BUILTIN else open_data(data)


def open_images(data: str | Path | Data) -> Data:
    """The data at a path; of a folder without class folders, or with only one, the images alone, and a note."""
    try:
        return open_dataset(data)
    except NoClassesError as error:
        if isinstance(data, Data) or not (is_shards(data) or Path(data).is_dir()):
            raise
        opened = open_data(data, labelled=False)
        why = str(error).removeprefix(f"{data}: ").split(";")[0]
        counts = ", ".join(f"{len(source):,} {split}" for split, source in opened.splits.items())
        return replace(opened, notes=(f"{data}: no labels ({why}): {counts} images.", *opened.notes))


def open_unlabelled(data: str | Path) -> tuple[Source, tuple[str, ...]]:
    """All images at a path without their labels, and notes on what was skipped. Of a folder of files, all below it. Of
    data in splits, the train split: who keeps a test split apart wants to be judged by it."""
    opened = builtin_data() if data == BUILTIN else open_data(data, labelled=False)
    source = opened.splits.get("train") or next(iter(opened.splits.values()))
    others = [f"{len(other):,} {split}" for split, other in opened.splits.items() if other is not source]
    unused = (f"{data}: its {' and '.join(others)} images are not used.",) if others else ()
    return source.with_labels(np.full(len(source), -1, dtype=np.int64), ()), (*opened.notes, *unused)


def is_dataset_name(data: str | Path) -> bool:
    """Whether it names images by a list, an archive or a dataset's name, not by a file or folder of their own."""
    return str(data) == BUILTIN or str(data).startswith(PREFIX) or format_of(Path(data)) is not None


def open_every_image(data: str | Path) -> tuple[tuple[Source, ...], tuple[str, ...]]:
    """All images at a path, whatever labels and splits they have, and notes on what was skipped. A file of an image; a
    folder, of which all images below it are taken, in the order of their paths; a list, which needs no labels; or any
    other data that `open_data` knows, of which all splits are taken. Names of files are absolute."""
    path = Path(data)
    if _is_folder(path):
        walk = FolderWalk()
        if has_images(path):
            return (images_below(path.absolute(), walk),), walk.remarks(path)
    elif path.suffix.lower() in IMAGE_SUFFIXES:
        return (one_image(path.absolute()),), ()
    elif (row := format_of(path)) and row.open_images and path.is_file():
        return (loaded(row.open_images)(path.absolute()),), ()
    opened = (
        builtin_data() if data == BUILTIN else open_data(path.absolute() if path.exists() else data, labelled=False)
    )
    return tuple(opened.splits.values()), opened.notes


def list_images(given: str | Path | Sequence[str | Path]) -> list[Path]:
    """The files, and of each folder the images in it, in the order of their paths; what was skipped is logged."""
    notes: list[str] = []
    paths: list[Path] = []
    for place in [given] if isinstance(given, str | Path) else given:
        if is_shards(place):
            raise UserError(f"{place}: shards, and image files are needed here; give some, or a folder of them.")
        found = open_folder_of_images(place, notes)
        paths += [Path(place)] if found is None else [found.path(index) for index in range(len(found))]
    check_found(len(paths), notes)
    return paths


def open_folder_of_images(folder: str | Path, notes: list[str]) -> FolderSource | None:
    """The images in a folder; None if the path is none. `notes` gets what was skipped, or that there are no images."""
    if not str(folder):
        raise UserError("an empty path: give an image or a folder.")
    path, walk = Path(folder), FolderWalk()
    if not _is_folder(path):
        return None
    try:
        source = images_below(path, walk)
    except UserError as error:
        notes.append(str(error))
        return FolderSource(path, Names(), np.zeros(0, dtype=np.int64), ())
    except OSError as error:
        raise UserError(f"{error.filename or path}: cannot be read ({reason(error)}); check its mode.") from None
    notes += walk.remarks(path)
    return source


def check_found(count: int, notes: Sequence[str]) -> None:
    if not count:
        raise UserError(notes[0] if notes else "no images: give at least one image or folder.")
    for note in notes:
        log.info(note)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # too long a name, say: who reads it as an image will tell
        return False


def choose_split(data: Data, split: Split | None) -> tuple[str, Source]:
    """The split of the data to measure on, and its name: the one asked for, else test, else val, else all."""
    if split is not None and split not in data.splits:
        raise UserError(f"split={split!r}: the data have only {', '.join(data.splits)}; choose one of these.")
    for name in (split,) if split is not None else ("test", "val", "train"):
        if name in data.splits:
            return ("all" if len(data.splits) == 1 and split is None else name), data.splits[name]
    raise UserError("the data are empty; give some with images.")
