"""`vitreous data list`: the table of public datasets, and which are on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vitreous.arguments import checked
from vitreous.data.datasets.entry import Dataset
from vitreous.data.datasets.place import data_root, is_here
from vitreous.data.datasets.table import DATASETS
from vitreous.errors import UserError


@dataclass(frozen=True)
class FileRow:
    """One file of a dataset; None for what nobody has published."""

    name: str
    urls: tuple[str, ...]
    """() for a file that a person has to get."""
    size: int | None
    sha256: str | None
    md5: str | None


@dataclass(frozen=True)
class DatasetRow:
    """One dataset of the table, in plain values."""

    name: str
    title: str
    here: bool
    """Whether it is complete on this machine."""
    damaged: str | None
    """What is wrong with its folder, where that cannot be read."""
    classes: int
    splits: dict[str, int]
    bytes: int | None
    """Of the files whose sizes are published; None if none's is."""
    vtab: str | None
    """The group of VTAB that it belongs to."""
    by_hand: tuple[str, ...]
    """Files that a person has to get."""
    checksums: int
    """Of how many of its files a checksum is published."""
    files: int
    sources: tuple[FileRow, ...]
    """The files themselves."""
    licence: str
    citation: str
    homepage: str
    notes: tuple[str, ...]


@checked
def list_data(*, root: str | Path | None = None) -> list[DatasetRow]:
    """All datasets of the table, in its order. root: where to look for them; default as in `get_data`."""
    place = data_root(root)
    return [_row(dataset, place) for dataset in DATASETS.values()]


def _row(dataset: Dataset, root: Path) -> DatasetRow:
    here, damaged = False, None
    try:
        here = is_here(dataset, root)
    except UserError as error:
        damaged = str(error)
    return DatasetRow(
        name=dataset.name,
        title=dataset.title,
        here=here,
        damaged=damaged,
        classes=dataset.classes,
        splits={str(split): count for split, count in dataset.splits.items()},
        bytes=dataset.size,
        vtab=None if dataset.vtab is None else dataset.vtab.group,
        by_hand=tuple(file.name for file in dataset.by_hand),
        checksums=sum(file.sha256 is not None or file.md5 is not None for file in dataset.files),
        files=len(dataset.files),
        sources=tuple(FileRow(file.name, file.urls, file.size, file.sha256, file.md5) for file in dataset.files),
        licence=dataset.licence,
        citation=dataset.citation,
        homepage=dataset.homepage,
        notes=dataset.remarks,
    )
