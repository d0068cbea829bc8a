"""Which images are in which shard, and where: arrays and one block of names, some 40 bytes per image and its name.

`shards.json` says it for people and programs: classes, and of each shard its split, size, images and SHA-256.
`shards.safetensors` beside it has one row per image.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from vitreous.data.folder import Names
from vitreous.data.shards.tar import BLOCK
from vitreous.data.source import SPLITS, Split
from vitreous.errors import UserError
from vitreous.inputs import parse_json
from vitreous.storage.manifest import is_sha256, sha256_file, sha256_json
from vitreous.storage.overwrite import GENERATOR

INDEX, ROWS = "shards.json", "shards.safetensors"
FORMAT = 1

_ARRAYS = {"offset": np.int64, "length": np.int32, "label": np.int32, "names": np.uint8, "name_ends": np.int64}


@dataclass(frozen=True)
class Shard:
    """One tar file."""

    file: str  # its name, without the folder
    split: Split
    bytes: int
    images: int
    sha256: str | None = None  # none where nobody has computed it


@dataclass(frozen=True)
class ShardRows:
    """One row per image, in the order of the shards."""

    offset: NDArray[np.int64]  # (n,) of the first byte of each image in its shard
    length: NDArray[np.int32]
    label: NDArray[np.int32]  # (n,), each an index of the classes, or -1
    names: Names
    crc: NDArray[np.uint32] | None = None  # (n,) CRC-32 of each image; None where nobody has computed it

    def save(self, path: Path, note: str) -> None:
        """As a .safetensors file, with a note in its header; only one, for safetensors writes several in any order."""
        blob, ends = self.names.arrays()
        arrays: dict[str, NDArray[Any]] = {"offset": self.offset, "length": self.length, "label": self.label}
        arrays |= {"names": blob, "name_ends": ends}
        if self.crc is not None:
            arrays["crc"] = self.crc
        path.touch()
        mode = path.stat().st_mode
        save_file(arrays, path, metadata={"vitreous": note})
        path.chmod(mode)  # safetensors lets only the owner read it


def join_rows(parts: Sequence[ShardRows]) -> ShardRows:
    """All rows, one part after the other; all of them must have their CRC-32, or none."""
    blocks, ends = zip(*(part.names.arrays() for part in parts), strict=True)
    before = np.cumsum([0, *(len(block) for block in blocks)])
    shifted = [end + start for end, start in zip(ends, before, strict=False)]
    crc = [part.crc for part in parts if part.crc is not None]
    return ShardRows(
        np.concatenate([part.offset for part in parts]),
        np.concatenate([part.length for part in parts]),
        np.concatenate([part.label for part in parts]),
        Names.of(np.concatenate(blocks), np.concatenate(shifted)),
        np.concatenate(crc) if crc else None,
    )


@dataclass(frozen=True)
class ShardIndex:
    """All shards of a dataset."""

    urls: tuple[str, ...]  # path or address of each
    shards: tuple[Shard, ...]
    classes: tuple[str, ...]
    rows: ShardRows
    skipped: dict[str, int] = field(default_factory=dict)  # members that cannot be images, by kind: "symbolic link"

    @property
    def starts(self) -> NDArray[np.int64]:
        """(shards + 1,): the row that each shard begins with."""
        return np.cumsum([0, *(shard.images for shard in self.shards)], dtype=np.int64)


def write_index(index: ShardIndex, path: Path) -> str:
    """Write the rows to a file, and return the text of shards.json; each of the two vouches for the other."""
    index.rows.save(path, _fingerprint(index.shards, index.classes))
    rows = {"file": ROWS, "bytes": path.stat().st_size, "sha256": sha256_file(path)}
    shards = [{key: value for key, value in asdict(shard).items() if value is not None} for shard in index.shards]
    fields = {"generator": GENERATOR, "format": FORMAT, "classes": index.classes, "rows": rows}
    fields |= {"skipped": index.skipped} if index.skipped else {}
    return json.dumps({**fields, "shards": shards}, indent=1) + "\n"


def read_index(page: IndexPage, path: Path, urls: tuple[str, ...], where: str) -> ShardIndex:
    """The index that a page and a file of rows make up, found to be whole; `where` is what errors call the page."""
    if sha256_file(path) != page.rows_sha256:
        raise UserError(f"{path}: damaged or changed since it was written; restore it from a copy.")
    index = ShardIndex(urls, page.shards, page.classes, load_rows(path), page.skipped)
    if rows_note(path) != _fingerprint(page.shards, page.classes):
        raise UserError(f"{where}: damaged or changed since it was written; restore it from a copy.")
    check_rows(index, where)
    return index


def _fingerprint(shards: tuple[Shard, ...], classes: tuple[str, ...]) -> str:
    return sha256_json([classes, [asdict(shard) for shard in shards]])


@dataclass(frozen=True)
class IndexPage:
    """The content of shards.json."""

    shards: tuple[Shard, ...]
    classes: tuple[str, ...]
    rows_bytes: int
    rows_sha256: str
    skipped: dict[str, int]


def parse_index(text: str, where: str) -> IndexPage:
    found = parse_json(text, where)
    try:
        if found["format"] != FORMAT:
            raise UserError(f"{where}: of format {found['format']!r:.40}; read it with the vitreous that wrote it.")
        shards = tuple(Shard(**shard) for shard in found["shards"])
        classes, rows = tuple(found["classes"]), found["rows"]
        page = IndexPage(shards, classes, rows["bytes"], rows["sha256"], dict(found.get("skipped", {})))
        right = all(_is_right(shard) for shard in shards) and all(isinstance(name, str) for name in classes)
        whole = _is_count(page.rows_bytes) and is_sha256(page.rows_sha256) and rows["file"] == ROWS
        whole = whole and all(map(_is_count, page.skipped.values()))
    except (KeyError, TypeError, ValueError):
        right = whole = False
    if not (right and whole) or not shards:
        raise UserError(f"{where}: not an index that `vitreous data pack` writes; restore it from a copy.")
    return page


def _is_right(shard: Shard) -> bool:
    plain = isinstance(shard.file, str) and PurePosixPath(shard.file).name == shard.file and "\\" not in shard.file
    counts = _is_count(shard.bytes) and _is_count(shard.images)
    digest = shard.sha256 is None or is_sha256(shard.sha256)
    return plain and counts and digest and shard.split in SPLITS


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def load_rows(path: Path) -> ShardRows:
    """The rows in a .safetensors file; whether they fit the shards is checked by `check_rows`."""
    try:
        arrays = load_file(path)
        for name, kind in _ARRAYS.items():
            if arrays[name].dtype != kind or arrays[name].ndim != 1:
                raise KeyError(name)
        crc = arrays.get("crc")
        if crc is not None and (crc.dtype != np.uint32 or crc.shape != arrays["offset"].shape):
            raise KeyError("crc")
    except (SafetensorError, KeyError, ValueError) as error:
        raise UserError(f"{path}: not an index of shards ({str(error)[:200]}); restore it from a copy.") from None
    names = Names.of(arrays["names"], arrays["name_ends"])
    return ShardRows(arrays["offset"], arrays["length"], arrays["label"], names, crc)


def rows_note(path: Path) -> str:
    with safe_open(path, framework="np") as file:
        return str((file.metadata() or {}).get("vitreous"))


def check_rows(index: ShardIndex, where: object) -> None:
    """Refuse rows that do not fit the shards: another number of them, or images beyond the end of a shard."""
    rows, counts = index.rows, [shard.images for shard in index.shards]
    blob, ends = rows.names.arrays()
    total = sum(counts)
    whole = total > 0 and all(len(array) == total for array in (rows.offset, rows.length, rows.label, ends))
    if whole:
        room = np.repeat(np.array([shard.bytes for shard in index.shards], dtype=np.int64), counts)
        whole = bool(
            (rows.offset >= BLOCK).all()
            and (rows.length >= 0).all()
            and (rows.offset + rows.length <= room).all()
            and (rows.label >= -1).all()
            and (rows.label < max(len(index.classes), 1)).all()
            and (np.diff(ends, prepend=0) >= 0).all()
            and int(ends[-1]) == len(blob)
        )
    if not whole:
        raise UserError(f"{where}: its rows do not fit its shards; restore it from a copy, or pack the data again.")
