"""The table of data formats. Imports nothing heavy: the command line's help lists their titles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from vitreous.data.source import Data, Source

Opened = TypeVar("Opened")


@dataclass(frozen=True)
class DataFormat:
    """One kind of data in a file or a folder. A function of the package is named "FILE.function", and imported when it
    is needed."""

    title: str  # what help and refusals call such data
    # From the path to the data; of a folder None, if it holds other data.
    open: Callable[[Path], Data | None] | str
    suffixes: tuple[str, ...] = ()  # of files, in lower case; () for a folder
    # The images alone, in their order, where such a file may name some without labels.
    open_images: Callable[[Path], Source] | str | None = None


DATA_FORMATS: dict[str, DataFormat] = {
    "csv": DataFormat("a .csv", "lists.open_list", (".csv",), "lists.open_paths"),
    "jsonl": DataFormat("a .jsonl", "lists.open_list", (".jsonl", ".ndjson"), "lists.open_paths"),
    "npz": DataFormat("an .npz", "packed.open_npz", (".npz",)),
    "dataset": DataFormat("a folder of `vitreous data get`", "datasets.store.open_dataset_folder"),
    "packed": DataFormat("CIFAR or MNIST files", "packed.open_packed_folder"),
}


def format_of(path: Path) -> DataFormat | None:
    """The format of a file, by its suffix."""
    suffix = path.suffix.lower()
    return next((row for row in DATA_FORMATS.values() if suffix in row.suffixes), None)


def open_known(path: Path, *, folder: bool) -> Data | None:
    """The data in a file or a folder; None if they are in none of these formats."""
    suffix = path.suffix.lower()
    rows = [row for row in DATA_FORMATS.values() if (not row.suffixes if folder else suffix in row.suffixes)]
    return next((data for row in rows if (data := loaded(row.open)(path)) is not None), None)


def loaded(function: Callable[[Path], Opened] | str) -> Callable[[Path], Opened]:
    """The function that a row holds or names."""
    if not isinstance(function, str):
        return function
    file, _, name = function.rpartition(".")
    return getattr(import_module(f"vitreous.data.{file}"), name)


def format_titles() -> str:
    return ", ".join(row.title for row in DATA_FORMATS.values())
