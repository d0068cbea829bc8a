"""The index of shards that came without one: their headers are gone through once, and the result is cached.

It is found again by the paths or addresses, sizes and versions of the shards, so changed shards are never read by an
old index; where a server tells no version, none is cached.

A sample is what webdataset takes for one: members one after the other whose names are the same up to the first dot of
the last part. Its image is the member that is called .jpg, .png...; its label is in .cls, else in .json, as "label"
or "cls".
"""

from __future__ import annotations

import logging
import re
import time
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitreous.data.decode import IMAGE_SUFFIXES, MAX_BYTES
from vitreous.data.folder import Names
from vitreous.data.shards.index import (
    INDEX,
    ROWS,
    Shard,
    ShardIndex,
    ShardRows,
    check_rows,
    parse_index,
    read_index,
    write_index,
)
from vitreous.data.shards.prefetch import map_in_threads
from vitreous.data.shards.reading import FileVersion, is_address, reader, stat_file, without_query
from vitreous.data.shards.tar import Member, Read, check_size, members
from vitreous.data.source import SPLIT_NAMES, Split, order_classes
from vitreous.errors import MachineError, UserError
from vitreous.inputs import parse_json, read_text, utf8_text
from vitreous.storage.cache import cache_key, cache_path, evict, mark_used, not_cached
from vitreous.storage.files import new_folder, remove_folder

log = logging.getLogger("vitreous")

MAX_LABEL_BYTES, MAX_JSON_BYTES = 2**10, 2**20  # of a .cls and of a .json member
PROGRESS_SECONDS = 10.0  # after which it is said how far the scan is

_SAMPLE = re.compile(r"((?:.*/)?[^./][^.]*)\.([^/]+)", re.DOTALL)
_META = re.compile(r"__[^/]*__(?:/|$)")

LabelledMember = tuple[Member, str | None]  # an image, and its label if it has one


def scan_shards(urls: Sequence[str]) -> ShardIndex:
    """The index of these shards, in the order given, from the cache where they were scanned before.

    Classes are called by what .cls says: numbers, or names. Several shards are scanned at once.
    """
    versions = list(map_in_threads(stat_file, urls))
    if (cached := _load_index(urls, versions)) is not None:
        return cached
    sizes = dict(zip(urls, (version.size for version in versions), strict=True))

    def scan(url: str) -> tuple[list[LabelledMember], Counter[str]]:
        skipped_here = Counter[str]()
        with reader(url) as read:
            return list(_samples(url, sizes[url], read, skipped_here)), skipped_here

    offset, length, label, names = array("q"), array("i"), array("i"), Names()
    numbers: dict[str, int] = {}  # of each label, in the order in which they were found
    shards, skipped, told = list[Shard](), Counter[str](), time.monotonic()
    for url, (samples, skipped_here) in zip(urls, map_in_threads(scan, urls), strict=True):
        if time.monotonic() > told + PROGRESS_SECONDS:
            log.info(f"{len(shards):,} of {len(urls):,} shards are indexed, which is done once.")
            told = time.monotonic()
        skipped += skipped_here
        for image, text in samples:
            offset.append(image.offset)
            length.append(image.size)
            names.append(image.name)
            label.append(-1 if text is None else numbers.setdefault(text, len(numbers)))
        name = file_name(url)
        shards.append(Shard(name, split_of(name), sizes[url], len(samples)))
    if not len(names):
        raise UserError(f"{urls[0]}: no images in it, nor in the {len(urls) - 1:,} shards after it; check them.")
    classes = order_classes(numbers) if numbers else ()
    number = {name: number for number, name in enumerate(classes)}
    ordered = np.array([*(number[name] for name in numbers), -1], dtype=np.int32)
    offsets: NDArray[np.int64] = np.frombuffer(offset, dtype=np.int64)
    lengths: NDArray[np.int32] = np.frombuffer(length, dtype=np.int32)
    rows = ShardRows(offsets, lengths, ordered[np.frombuffer(label, dtype=np.int32)], names)
    index = ShardIndex(tuple(urls), tuple(shards), classes, rows, dict(skipped))
    check_rows(index, urls[0])
    _store_index(index, versions)
    return index


def split_of(name: str) -> Split:
    """The split that a shard's name tells, such as imagenet-validation-12.tar; else train."""
    words = re.split(r"[^a-z]+", name.lower())
    return next((SPLIT_NAMES[word] for word in words if word in SPLIT_NAMES), "train")


def file_name(url: str) -> str:
    return without_query(url).replace("\\", "/").rstrip("/").rpartition("/")[2]


def _samples(shard: str, size: int, read: Read, skipped: Counter[str]) -> Iterator[LabelledMember]:
    """The image of each sample, and its label if it has one. skipped: members that can be neither, by their kind."""
    key, image, label, described = "", None, None, None
    for member in members(shard, read, skipped):
        if member.offset + member.size > size:
            raise UserError(
                f"{shard}: cut short at byte {size:,}, within its member {member.name!r}; restore it from a copy."
            )
        named = _SAMPLE.fullmatch(member.name)
        if named is None or (member.name.startswith("__") and _META.match(member.name)):
            continue
        if named[1] != key:
            if image is not None:
                yield image, label if label is not None else _json_label(shard, described, read)
            key, image, label, described = named[1], None, None, None
        suffix = f".{named[2].lower()}"
        if suffix in IMAGE_SUFFIXES and image is None:
            check_size(shard, member, MAX_BYTES)
            image = member
        elif suffix == ".cls":
            check_size(shard, member, MAX_LABEL_BYTES)
            label = read(member.offset, member.size).decode("utf-8", "backslashreplace").strip() or None
        elif suffix == ".json":
            described = member
    if image is not None:
        yield image, label if label is not None else _json_label(shard, described, read)


def _json_label(shard: str, member: Member | None, read: Read) -> str | None:
    if member is None:
        return None
    check_size(shard, member, MAX_JSON_BYTES)
    found = parse_json(read(member.offset, member.size).decode("utf-8", "replace"), f"{shard}, {member.name}")
    label = found.get("label", found.get("cls")) if isinstance(found, dict) else None
    return (
        utf8_text(str(label)[:MAX_LABEL_BYTES])
        if isinstance(label, str | int) and not isinstance(label, bool)
        else None
    )


def _load_index(urls: Sequence[str], versions: Sequence[FileVersion]) -> ShardIndex | None:
    entry = _entry(urls, versions)
    try:
        if entry is None or not entry.is_dir():
            return None
        page = parse_index(read_text(entry / INDEX), str(entry / INDEX))
        index = read_index(page, entry / ROWS, tuple(urls), str(entry / INDEX))
    except (UserError, OSError):
        return None
    mark_used(entry)
    return index


def _store_index(index: ShardIndex, versions: Sequence[FileVersion]) -> None:
    """Cache an index; where that is impossible, it is made again the next time."""
    if (entry := _entry(index.urls, versions)) is None:
        return
    try:
        remove_folder(entry)  # a damaged one
        with new_folder(entry) as folder:
            text = write_index(index, folder / ROWS)
            (folder / INDEX).write_text(text, encoding="utf-8")
    except (UserError, MachineError, OSError) as error:
        log.info(not_cached("the index of these shards, which is made again each time,", error))
    else:
        evict(except_for=entry)


def _entry(urls: Sequence[str], versions: Sequence[FileVersion]) -> Path | None:
    if not all(version.tag for version in versions):
        return None
    absolute = [url if is_address(url) else str(Path(url).absolute()) for url in urls]
    return cache_path("shards", cache_key("shards", absolute, versions))
