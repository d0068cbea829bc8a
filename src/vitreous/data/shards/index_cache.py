"""Indexes of other people's shards, which took a scan, in the cache.

An index is found again by the places, sizes and versions of its shards, so changed shards are never read by an old
index; where a place tells no version, none is cached.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from vitreous.data.shards.index import INDEX, ROWS, ShardIndex, parse_index, read_index, write_index
from vitreous.data.shards.places import Stored, is_address
from vitreous.errors import MachineError, UserError
from vitreous.inputs import read_text
from vitreous.storage.cache import cache_key, cache_path, evict, mark_used, not_cached
from vitreous.storage.files import new_folder, remove_folder

log = logging.getLogger("vitreous")


def load_index(places: Sequence[str], stored: Sequence[Stored]) -> ShardIndex | None:
    """The cached index of these shards; None if there is none, or a damaged one."""
    entry = _entry(places, stored)
    try:
        if entry is None or not entry.is_dir():
            return None
        page = parse_index(read_text(entry / INDEX), str(entry / INDEX))
        index = read_index(page, entry / ROWS, tuple(places), str(entry / INDEX))
    except (UserError, OSError):
        return None
    mark_used(entry)
    return index


def store_index(index: ShardIndex, stored: Sequence[Stored]) -> None:
    """Cache an index; where that is impossible, it is made again the next time."""
    if (entry := _entry(index.places, stored)) is None:
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


def _entry(places: Sequence[str], stored: Sequence[Stored]) -> Path | None:
    if not all(one.version for one in stored):
        return None
    absolute = [place if is_address(place) else str(Path(place).absolute()) for place in places]
    return cache_path("shards", cache_key("shards", absolute, stored))
