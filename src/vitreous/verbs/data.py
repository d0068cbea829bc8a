"""`vitreous data get`, `data list`, `data pack` and `inspect`: what there is to learn from."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from vitreous.cli.terminal import print_skipped, print_wide, printable, table
from vitreous.cli.verb import Verb, verb
from vitreous.errors import UserError
from vitreous.inputs import counted, format_bytes, parse_bytes
from vitreous.storage.lock import hold_folder
from vitreous.storage.overwrite import check_apart, output_folder, readable_errors

if TYPE_CHECKING:
    from vitreous.data.datasets.dataset import Dataset
    from vitreous.data.health import Duplicates, HealthReport
    from vitreous.data.shards.packing import Packed
    from vitreous.data.source import Data

log = logging.getLogger("vitreous")

MIN_SHARD_BYTES = 10_000
MAX_SHOWN_CLASSES, MAX_SHOWN_LINES = 40, 10
"""What `inspect` prints; --json has all."""


@dataclass(frozen=True, kw_only=True)
class DataRootOption:
    """The folder of public datasets."""

    root: str | Path | None = None
    """DIR: The folder of all datasets. Default: $VITREOUS_DATA, else ~/.cache/vitreous/data."""


@dataclass(frozen=True)
class DataGet(DataRootOption, Verb[Path]):
    """Download a public dataset, check it, and unpack it; the commands then open it as data:NAME.

    If it is interrupted, repeat the same command: the download resumes. Files that only a person may get (those of
    ImageNet, for instance) are named, with the folder to put them in. `vitreous data list` shows the names.
    """

    name: str
    """NAME: Which dataset, such as pets or cifar100."""
    resumes: ClassVar[bool] = True

    def run(self) -> Path:
        from vitreous.data.datasets.store import data_root, find_dataset, is_here
        from vitreous.fetch.install import downloads_of, install

        dataset, root = find_dataset(self.name), data_root(self.root)
        folder = root / dataset.name
        if is_here(dataset, root):
            log.info(f"{folder}: {dataset.title} is already there.")
            return folder
        downloads = downloads_of(dataset, root)
        with readable_errors(downloads):
            downloads.mkdir(parents=True, exist_ok=True)
        with hold_folder(downloads, log.info, "getting this dataset"):
            return install(dataset, root, progress=self.active_callbacks.download)

    def show(self, result: Path) -> None:
        print(result)


@dataclass(frozen=True)
class FileRow:
    """One file of a dataset; None for what is not published."""

    name: str
    urls: tuple[str, ...]  # () for a file that has to be downloaded by hand
    size: int | None
    sha256: str | None
    md5: str | None


@dataclass(frozen=True)
class DatasetRow:
    """One dataset of the table."""

    name: str
    title: str
    here: bool  # whether it is complete on this machine
    damaged: str | None  # what is wrong with its folder, if it cannot be read
    classes: int
    splits: dict[str, int]
    bytes: int | None  # the sum of the published file sizes; None if none is published
    vtab: str | None  # the group of VTAB that it belongs to
    by_hand: tuple[str, ...]  # files that have to be downloaded by hand
    checksums: int  # how many of its files have a published checksum
    files: int
    sources: tuple[FileRow, ...]  # the files themselves
    licence: str
    citation: str
    homepage: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class DataList(DataRootOption, Verb[list[DatasetRow]]):
    """List the public datasets that `data get` knows, with their classes, splits, size and licence."""

    json_help: ClassVar[str] = "Print one JSON list, with files (addresses, sizes, checksums), citations and notes."

    def run(self) -> list[DatasetRow]:
        from vitreous.data.datasets.store import data_root
        from vitreous.data.datasets.table import DATASETS

        root = data_root(self.root)
        return [_row(dataset, root) for dataset in DATASETS.values()]

    def to_json(self, result: list[DatasetRow]) -> Any:
        return [asdict(row) for row in result]

    def show(self, result: list[DatasetRow]) -> None:
        rows = (
            (
                row.name + ("*" if row.by_hand else ""),
                "yes" if row.here else "damaged" if row.damaged else "",
                str(row.classes),
                *(f"{row.splits[split]:,}" if split in row.splits else "" for split in ("train", "val", "test")),
                "" if row.bytes is None else format_bytes(row.bytes),
                row.vtab or "",
                row.licence,
            )
            for row in result
        )
        columns = ("dataset", "here", "classes#", "train#", "val#", "test#", "size#", "VTAB", "licence")
        by_hand = "* Some files only a person can get; `vitreous data get NAME` says which, and where to put them."
        print_wide(table(columns, rows), "", by_hand)
        print_wide(*(printable(f"{row.name}: {row.damaged}") for row in result if row.damaged))


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


@dataclass(frozen=True)
class DataPack(Verb["Packed"]):
    """Pack data into WebDataset shards: a few large files, for many images or remote storage.

    Images keep their bytes, and packed arrays become PNG files. The train split is shuffled once, so that each shard
    is a random sample. OUT is then data for every command. If it is interrupted, repeat the same command:
    it resumes with the shard that it was writing.
    """

    data: str | Path | Data
    """DATA: Whatever fit takes: a folder with one subfolder per class, a list, packed data, data:NAME or builtin."""
    out: str | Path
    """OUT: The folder to write, which must be new or empty."""
    _: KW_ONLY
    shard_size: str | int = "256MB"
    """SIZE: Size of a shard, such as 256MB or 1GB."""
    resumes: ClassVar[bool] = True

    def run(self) -> Packed:
        from vitreous.data.opening import open_images
        from vitreous.data.shards.packing import pack
        from vitreous.data.source import Data

        size = parse_bytes(self.shard_size, "shard_size", least=MIN_SHARD_BYTES)
        folder = output_folder(self.out)
        if not isinstance(self.data, Data) and Path(self.data).exists():
            check_apart(folder, Path(self.data))
        opened = open_images(self.data)
        for note in opened.notes:
            log.info(note)
        return pack(opened, folder, size, self.progress("packing"))

    def to_json(self, result: Packed) -> Any:
        return {"path": str(result.folder), "shards": list(map(asdict, result.shards)), "left_out": result.left_out}

    def show(self, result: Packed) -> None:
        print_skipped(result.left_out)
        counts = Counter[str]()
        for shard in result.shards:
            counts[shard.split] += shard.images
        images = " and ".join(f"{count:,} {split}" for split, count in counts.items())
        size = format_bytes(sum(shard.bytes for shard in result.shards))
        print(f"{result.folder}: {images} images in {counted(len(result.shards), 'shard')}, {size}")


@dataclass(frozen=True)
class Inspect(Verb["HealthReport"]):
    """Check data before training: counts, sizes, unreadable files, duplicates, leaks between splits."""

    data: str | Path | Data
    """DATA: A folder with one subfolder per class, {formats}, shards, data:NAME, or builtin."""
    json_help: ClassVar[str] = "Print one JSON object with everything."

    def run(self) -> HealthReport:
        from vitreous.data.health import inspect_data
        from vitreous.data.opening import open_dataset

        return inspect_data(open_dataset(self.data), self.progress("reading"))

    def show(self, result: HealthReport) -> None:
        splits, labels, rows = result.splits, result.classes, []
        for name, split in splits.items():
            some = [count for count in split.counts.values() if count] or [0]
            sizes = (f"{split.images:,}", f"{len(some):,}", f"{min(some):,}", f"{max(some):,}")
            rows.append((name, *sizes, f"{split.imbalance:.1f}:1"))
        counts = (
            (printable(label), *(f"{split.counts.get(label, 0):,}" for split in splits.values()))
            for label in labels[:MAX_SHOWN_CLASSES]
        )
        print_wide(
            f"{counted(result.images, 'image')} of {counted(len(labels), 'class')}\n",
            table(("split", "images#", "classes#", "smallest#", "largest#", "imbalance#"), rows),
            "",
            table(("class", *(f"{name}#" for name in splits)), counts),
        )
        if len(labels) > MAX_SHOWN_CLASSES:
            print_wide(f"... and {len(labels) - MAX_SHOWN_CLASSES} more; --json lists all")
        print()
        for name, pixels in (("width", result.width), ("height", result.height)):
            if pixels:
                print_wide(f"{name:8}{pixels['min']:.0f} to {pixels['max']:.0f} pixels, median {pixels['median']:.0f}")
        for name, kinds in (("modes", result.modes), ("formats", result.formats)):
            if kinds:
                print_wide(f"{name:8}{', '.join(f'{kind} {count:,}' for kind, count in kinds.items())}")
        trouble = {
            "cannot be read": [f"{printable(path)}: {reason}" for path, reason in result.unreadable.items()],
            "in more than one split, which makes results look better than they are": _lines(result.leaks, "splits"),
            "the same image in more than one class": _lines(result.contradictions, "labels"),
            "exact duplicates": _lines(result.exact_duplicates),
            "near duplicates": _lines(result.near_duplicates),
            "notes": [printable(note) for note in result.notes],
        }
        for title, lines in trouble.items():
            if lines:
                print("\n".join([f"\n{len(lines):,} {title}:", *(f"  {line}" for line in lines[:MAX_SHOWN_LINES])]))
            if len(lines) > MAX_SHOWN_LINES:
                print(f"  ... and {len(lines) - MAX_SHOWN_LINES:,} more; --json lists all")
        if not (result.unreadable or result.exact_duplicates or result.near_duplicates):
            print("\nAll images can be read, and there are no duplicates.")


def _lines(groups: Sequence[Duplicates], shown: str = "") -> list[str]:
    """One line per group: its images, and in brackets the splits or labels that they are in."""
    lines = []
    for group in groups:
        places = f" ({', '.join(map(printable, getattr(group, shown)))})" if shown else ""
        lines.append(" = ".join(map(printable, group.names)) + places)
    return lines


get_data = verb(DataGet, "get_data")
list_data = verb(DataList, "list_data")
pack_data = verb(DataPack, "pack_data")
inspect = verb(Inspect)
