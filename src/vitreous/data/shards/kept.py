"""Indexes that were made of other people's shards, or fetched from afar, kept among the caches.

Each is a pair of files that is named after what it is the index of: places, sizes and versions of the shards. So shards
that were changed are never read by an old index; where a place tells no version, none is kept.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from vitreous.data.datasets.place import cache_root
from vitreous.data.shards.index import ShardIndex, parse_index, read_index, write_index
from vitreous.data.shards.places import Stored, is_address
from vitreous.errors import UserError
from vitreous.inputs import read_text, reason

log = logging.getLogger("vitreous")

LIMIT = 8 * 2**30
"""Bytes that indexes may take: beyond that, what was not used for longest is removed."""


def kept_index(places: Sequence[str], stored: Sequence[Stored]) -> ShardIndex | None:
    """The index that was kept of these shards; None if there is none, or a damaged one."""
    if not _have_versions(stored):
        return None
    page, rows = _files(_digest(places, stored))
    try:
        if not page.is_file():
            return None
        index = read_index(parse_index(read_text(page), str(page)), rows, tuple(places), str(page))
        os.utime(rows)
        return index
    except (UserError, OSError):
        return None


def keep_index(index: ShardIndex, stored: Sequence[Stored]) -> None:
    """Keep it; where that is impossible, it is made again the next time."""
    if not _have_versions(stored):
        return
    page, rows = _files(_digest(index.places, stored))
    try:
        rows.parent.mkdir(parents=True, exist_ok=True)
        new = temporary(rows)
        try:
            text = write_index(index, new)
            new.replace(rows)
        finally:
            new.unlink(missing_ok=True)
        new = temporary(page)
        new.write_text(text, encoding="utf-8")
        new.replace(page)  # last: it is what is looked for
        _make_room(rows.parent)
    except OSError as error:
        log.info(
            f"{rows.parent}: the index of these shards could not be kept there ({reason(error)}); set VITREOUS_CACHE "
            "to a folder that can be written, or it is made again each time."
        )


def kept_file(digest: str) -> Path:
    """Where a file of rows that was fetched lies, by its SHA-256."""
    return cache_root() / "shards" / f"{digest}.safetensors"


def temporary(path: Path) -> Path:
    """A name beside a file, for what will take its place when it is whole."""
    return path.with_name(f".new-{secrets.token_hex(8)}")


def _files(digest: str) -> tuple[Path, Path]:
    folder = cache_root() / "shards"
    return folder / f"{digest}.json", folder / f"{digest}.safetensors"


def _have_versions(stored: Sequence[Stored]) -> bool:
    return all(one.version for one in stored)


def _digest(places: Sequence[str], stored: Sequence[Stored]) -> str:
    digest = sha256()
    for place, (size, version) in zip(places, stored, strict=True):
        where = place if is_address(place) else str(Path(place).absolute())
        digest.update(f"{where}\0{size}\0{version}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:32]


def _make_room(folder: Path) -> None:
    """Remove what was not used for longest while all take more than the limit."""
    files = sorted(folder.glob("*.safetensors"), key=lambda path: path.stat().st_mtime)
    taken = sum(path.stat().st_size for path in files)
    for path in files[:-1]:
        if taken <= LIMIT:
            return
        taken -= path.stat().st_size
        with suppress(OSError):
            path.unlink()
            path.with_suffix(".json").unlink(missing_ok=True)
