"""What the table says of a dataset: plain data, and the function that reads its files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from vitreous.data.source import Data, Split

Group = Literal["natural", "specialized", "structured"]
# A tar or zip, which is unpacked; one file packed by gzip, which too; a file that stays as it is; or a folder that
# somebody else has unpacked.
Kind = Literal["archive", "gzip", "plain", "folder"]


@dataclass(frozen=True)
class File:
    """One file of a dataset as its owners publish it. Sizes and checksums are those of checksums.txt; None where nobody
    has published any. The SHA-256 of every file is written down when the dataset is made."""

    name: str  # what it is called here; it may say more than the end of its address
    urls: tuple[str, ...] = ()  # those after the first are mirrors; (): a person has to get it, as `by_hand` says
    size: int | None = None
    sha256: str | None = None
    md5: str | None = None
    kind: Kind = "archive"
    into: str = ""  # the folder below the dataset's own that it goes to
    only: tuple[str, ...] = ()  # what the names in an archive that are needed start with; () for all
    nested: bool = False  # whether the tars in an archive are unpacked too, each to a folder of its name
    unpacked: int | None = None  # bytes that it has at most when it is unpacked, where that is far more than its own
    by_hand: str = ""  # how a person gets it, as the end of a sentence that starts with its name


def files_at(base: str, *names: str, kind: Kind = "archive", only: tuple[str, ...] = ()) -> tuple[File, ...]:
    """Files of these names below one address."""
    return tuple(File(name, (base + name,), kind=kind, only=only) for name in names)


@dataclass(frozen=True)
class Vtab:
    """The place of a dataset in VTAB, and what VTAB trains on and chooses by. VTAB's 800 training images are the first
    of its train split and the 200 validation images the first of its val split; both are cut as `vtab.vtab_1k` says."""

    group: Group
    # How much of the train split VTAB trains on, the rest being its val split; None where the data have one.
    train_percent: int | None = None


@dataclass(frozen=True)
class Dataset:
    """One row of the table."""

    name: str
    title: str
    homepage: str
    licence: str
    citation: str
    files: tuple[File, ...]
    classes: int
    splits: Mapping[Split, int]  # how many images `read` finds in each split, as published
    # From the folder that holds the files to the data; None where the files hold no images.
    read: Callable[[Path], Data] | None
    # The folder of the files where several datasets are read from the same ones; "" for one of its own name.
    store: str = ""
    # What is done once to the unpacked files, in their folder, so that they can be read image by image.
    prepare: Callable[[Path], None] | None = None
    prepared: int = 0  # bytes that this takes on the disk, at most, beside the unpacked files
    needs: tuple[str, ...] = ()  # packages that its files are read with and that are not installed with this one
    vtab: Vtab | None = None
    digits: bool = False  # whether the images show digits, which mirrored are none
    split_by: str = ""  # who decided what belongs to which split, where it was not the owners
    notes: tuple[str, ...] = field(default=())

    @property
    def remarks(self) -> tuple[str, ...]:
        """What somebody who compares figures should know of the data."""
        return (*((f"Splits: {self.split_by}.",) if self.split_by else ()), *self.notes)

    @property
    def folder(self) -> str:
        return self.store or self.name

    @property
    def varied(self) -> bool:
        """Whether training images may be cropped and mirrored: not where that changes the label, as with positions,
        orientations, counts and distances, and with digits."""
        return not self.digits and (self.vtab is None or self.vtab.group != "structured")

    @property
    def by_hand(self) -> tuple[File, ...]:
        return tuple(file for file in self.files if not file.urls)

    @property
    def size(self) -> int | None:
        """Bytes of the files whose sizes are published; None where there is none, or a folder that has no size."""
        if any(file.kind == "folder" for file in self.files):
            return None
        return sum(file.size or 0 for file in self.files) or None
