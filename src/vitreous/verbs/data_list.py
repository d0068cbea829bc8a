"""`vitreous data list`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from vitreous.cli.terminal import console, printable, table
from vitreous.cli.verb import Verb, verb
from vitreous.errors import UserError
from vitreous.inputs import size_text
from vitreous.verbs.data_get import DataRoot

if TYPE_CHECKING:
    from vitreous.data.datasets.dataset import Dataset


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
    """The sum of the published file sizes; None if none is published."""
    vtab: str | None
    """The group of VTAB that it belongs to."""
    by_hand: tuple[str, ...]
    """Files that a person has to get."""
    checksums: int
    """How many of its files have a published checksum."""
    files: int
    sources: tuple[FileRow, ...]
    """The files themselves."""
    licence: str
    citation: str
    homepage: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class DataList(DataRoot, Verb[list[DatasetRow]]):
    """List the public datasets that `data get` knows, with their classes, splits, size and licence."""

    json_help: ClassVar[str] = "Print one JSON list, with files (addresses, sizes, checksums), citations and notes."

    def run(self) -> list[DatasetRow]:
        """All datasets of the table, in its order."""
        from vitreous.data.datasets.store import data_root
        from vitreous.data.datasets.table import DATASETS

        root = data_root(self.root)
        return [_row(dataset, root) for dataset in DATASETS.values()]

    def to_json(self, result: list[DatasetRow]) -> Any:
        """A list of objects."""
        return [asdict(row) for row in result]

    def show(self, result: list[DatasetRow]) -> None:
        """One line per dataset."""
        listed = table("dataset", "here", "classes#", "train#", "val#", "test#", "size#", "VTAB", "licence")
        for row in result:
            counts = (f"{row.splits[split]:,}" if split in row.splits else "" for split in ("train", "val", "test"))
            size = "" if row.bytes is None else size_text(row.bytes)
            name = row.name + ("*" if row.by_hand else "")
            here = "yes" if row.here else "damaged" if row.damaged else ""
            listed.add_row(name, here, str(row.classes), *counts, size, row.vtab or "", row.licence)
        page = console()
        page.print(listed)
        page.print("\n* Some files only a person can get; `vitreous data get NAME` says which, and where to put them.")
        for row in result:
            if row.damaged:
                page.print(printable(f"{row.name}: {row.damaged}"))


def _row(dataset: Dataset, root: Path) -> DatasetRow:
    from vitreous.data.datasets.store import is_here

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


list_data = verb(DataList, "list_data")
