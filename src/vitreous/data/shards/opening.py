"""What a person names as shards, opened: a folder, a pattern of tar files, or an address."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import BinaryIO

import numpy as np

from vitreous.data.folder import entries, has_images
from vitreous.data.shards.index import INDEX, ROWS, IndexPage, ShardIndex, parse_index, read_index
from vitreous.data.shards.prefetch import map_in_threads
from vitreous.data.shards.reading import beside, is_address, list_cloud, read_range, stat_file, without_query
from vitreous.data.shards.scan import file_name, scan_shards
from vitreous.data.shards.source import ShardSource
from vitreous.data.source import SPLITS, Data, NoClassesError, Source, Split, check_classes
from vitreous.errors import MachineError, UserError
from vitreous.inputs import MAX_TEXT_BYTES, format_bytes, read_text
from vitreous.storage.cache import LIMIT_BYTES, cache_path, evict, mark_used, not_cached
from vitreous.storage.files import new_file
from vitreous.storage.http import is_web
from vitreous.storage.manifest import sha256_file

CLASSES = "classes.txt"
"""In a folder of other people's shards: the names of the classes that .cls numbers, one per line."""
MAX_SHARDS = 1_000_000
CHUNK_BYTES = 2**24

_BRACES = re.compile(r"\{([^{}]*)\}")


def is_shards(place: str | Path) -> bool:
    """Whether this names shards: an address, a pattern, a tar file, shards.json, or a folder of nothing but tars."""
    text = str(place)
    if text.startswith("pipe:"):
        raise UserError(f"{text[:80]}: runs a command, which no data may; give a folder, a tar file or an address.")
    path = Path(text)
    try:
        if path.is_dir():
            return (path / INDEX).is_file() or (_has_tars(path) and not has_images(path))
    except OSError:  # a name that is too long, or a folder that may not be read: who opens it will say so
        return False
    return is_address(text) or text.endswith(".tar") or file_name(text) == INDEX


def open_shards(place: str | Path, *, labelled: bool = True) -> Data:
    """The data in shards.

    - a folder that `vitreous data pack` wrote, or its shards.json, here or at an address;
    - a folder of tar files, one tar file, or a pattern such as train-{000000..000009}.tar, here or at an address.

    labelled: False takes images without labels too.
    """
    index = _find(str(place))
    data = _data(index, str(place))
    if labelled:
        if not index.classes:
            raise NoClassesError(f"{place}: these shards have no labels (.cls); pack them from labelled data.")
        for source in data.splits.values():  # images without would be learned, or counted, as a class of their own
            if count := int((source.labels < 0).sum()):
                first = source.name(int(source.labels.argmin()))
                raise NoClassesError(
                    f"{place}: {first} has no label (.cls), nor have {count - 1:,} others of the {len(source):,} "
                    "images of its split; give every image a label, or leave these shards out."
                )
        check_classes(place, data.splits, data.classes)
    return data


def shards_name(place: str) -> str:
    """What shards are called: their folder for an index, else what comes before their numbers."""
    path = without_query(place).rstrip("/").removesuffix(INDEX).rstrip("/")
    name = file_name(path.partition("{")[0] if path.endswith(".tar") else path).removesuffix(".tar")
    return re.sub(r"[-_.]*\d*$", "", name) if path.endswith(".tar") else name


def _data(index: ShardIndex, place: str) -> Data:
    starts, splits = index.starts, dict[Split, Source]()
    for split in SPLITS:
        parts = [
            np.arange(starts[number], starts[number + 1])
            for number, shard in enumerate(index.shards)
            if shard.split == split and shard.images
        ]
        if parts:
            rows = np.concatenate(parts)
            splits[split] = ShardSource(index, rows, index.rows.label[rows].astype(np.int64), index.classes)
    kinds = ", ".join(f"{count:,} of the kind {kind}" for kind, count in sorted(index.skipped.items()))
    notes = (f"{place}: skipped members of the shards that cannot be images: {kinds}.",) if kinds else ()
    return Data(splits, index.classes, notes)


def _find(place: str) -> ShardIndex:
    if file_name(place) == INDEX:
        return _packed(without_query(place).removesuffix(INDEX).rstrip("/") or ".")
    if is_address(place):
        return scan_shards(expand_braces(place)) if file_name(place).endswith(".tar") else _find_below(place)
    path = Path(place)
    if (path / INDEX).is_file():
        return _packed(place)
    if path.is_dir():
        return _named_classes(
            scan_shards([str(path / entry.name) for entry in entries(path) if _is_tar(entry)]), path / CLASSES
        )
    return _named_classes(scan_shards(expand_braces(place)), path.parent / CLASSES)


def _find_below(address: str) -> ShardIndex:
    """What is in a folder far away: a web server is asked for the index, and a storage for what it has."""
    folder = address.rstrip("/")
    if is_web(folder):
        return _packed(folder)
    names = list_cloud(folder)
    if beside(folder, INDEX) in names:
        return _packed(folder)
    tars = [name for name in names if name.endswith(".tar")]
    if not tars:
        raise UserError(f"{address}: there is neither {INDEX} nor a .tar file; check the address.")
    return scan_shards(tars)


def _has_tars(folder: Path) -> bool:
    with os.scandir(folder) as found:
        return any(map(_is_tar, found))


def _is_tar(entry: os.DirEntry[str]) -> bool:
    return entry.name.endswith(".tar") and not entry.name.startswith(".") and entry.is_file()


def expand_braces(pattern: str) -> list[str]:
    """What a shell makes of {000..012} and {a,b}, in its order."""
    choices = [_choices(pattern, inside) for inside in _BRACES.findall(pattern)]
    count = int(np.prod([len(found) for found in choices], dtype=np.float64)) if choices else 1
    if count > MAX_SHARDS:
        raise UserError(f"{pattern}: stands for {count:,} shards, more than {MAX_SHARDS:,}; check the pattern.")
    outside = _BRACES.split(pattern)[::2]
    return ["".join(a + b for a, b in zip(outside, (*chosen, ""), strict=True)) for chosen in product(*choices)]


def _choices(pattern: str, inside: str) -> list[str]:
    ends = re.fullmatch(r"(\d+)\.\.(\d+)", inside)
    if ends is None:
        if "," not in inside:
            raise UserError(f"{pattern}: {{{inside}}} is not understood; write {{000000..000009}} or {{a,b}}.")
        return inside.split(",")
    first, last = int(ends[1]), int(ends[2])
    if not 0 <= last - first < MAX_SHARDS:
        raise UserError(f"{pattern}: {{{inside}}} stands for no number, or for far too many; check the pattern.")
    return [f"{number:0{len(ends[1])}d}" for number in range(first, last + 1)]


def _named_classes(index: ShardIndex, names: Path) -> ShardIndex:
    if not index.classes or not names.is_file():
        return index
    classes = tuple(line.strip() for line in read_text(names).splitlines() if line.strip())
    numbers = [int(name) if name.isdecimal() else -1 for name in index.classes]
    if min(numbers) < 0 or max(numbers) >= len(classes) or len(set(classes)) < len(classes):
        raise UserError(
            f"{names}: does not fit the labels of the shards, {index.classes[0]} to {index.classes[-1]}: one distinct "
            "name per line, from number 0 on; mend it or remove it."
        )
    table = np.array([*numbers, -1], dtype=np.int32)
    return replace(index, classes=classes, rows=replace(index.rows, label=table[index.rows.label]))


def _packed(folder: str) -> ShardIndex:
    """The index that `vitreous data pack` wrote, with its rows, found to be whole."""
    where = beside(folder, INDEX)
    page = parse_index(_text(where), where)
    urls = tuple(beside(folder, shard.file) for shard in page.shards)
    rows = beside(folder, ROWS)
    if is_address(folder):
        return read_index(page, _fetched_rows(rows, page), urls, where)
    if not Path(rows).is_file():
        raise UserError(f"{rows}: missing; restore it from a copy, or pack the data again.")
    index = read_index(page, Path(rows), urls, where)
    versions = map_in_threads(stat_file, urls)  # now, not when their images are read
    for url, shard, version in zip(urls, page.shards, versions, strict=True):
        if (found := version.size) != shard.bytes:
            cut = "cut short" if found < shard.bytes else "changed"
            raise UserError(f"{url}: {cut}, it has {found:,} bytes and had {shard.bytes:,}; restore it from a copy.")
    return index


def _text(place: str) -> str:
    if not is_address(place):
        return read_text(Path(place))
    size = stat_file(place).size
    if size > MAX_TEXT_BYTES:
        raise UserError(f"{place}: {format_bytes(size)}, which is too large for an index; check the address.")
    try:
        return read_range(place, 0, size).decode("utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{place}: not text in UTF-8; check the address.") from None


def _fetched_rows(where: str, page: IndexPage) -> Path:
    """The file of rows in the cache, fetched where it is not there, or damaged."""
    path = cache_path("shards", f"{page.rows_sha256}.safetensors")
    if path.is_file() and sha256_file(path) == page.rows_sha256:
        mark_used(path)
        return path
    if page.rows_bytes > LIMIT_BYTES:
        raise UserError(
            f"{where}: {format_bytes(page.rows_bytes)}, too large for an index that is cached here; download the "
            "shards, and give their folder."
        )
    failed: UserError | None = None
    try:
        with new_file(path) as file:
            try:
                _fetch_rows(where, page, file)
            except UserError as error:  # about the address, not about the cache
                failed = error
                raise
    except (UserError, MachineError) as error:
        if error is failed:
            raise
        raise type(error)(not_cached("the index of these shards", error)) from None
    evict(except_for=path)
    return path


def _fetch_rows(where: str, page: IndexPage, file: BinaryIO) -> None:
    digest = sha256()
    for start in range(0, page.rows_bytes, CHUNK_BYTES):
        piece = read_range(where, start, min(CHUNK_BYTES, page.rows_bytes - start), page.rows_bytes)
        digest.update(piece)
        file.write(piece)
    if file.tell() < page.rows_bytes:
        raise UserError(f"{where}: cut short; restore it from a copy, or pack the data again.")
    if digest.hexdigest() != page.rows_sha256:
        raise UserError(f"{where}: not the file that {INDEX} is of; restore both from a copy.")
