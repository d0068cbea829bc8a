"""One cache by content: features, a teacher's logits, token labels, converted models, indexes of shards.

`computed/KIND/KEY` below `cache_root()` is an entry: a file or a folder that is complete or absent. KEY is a digest of
all that the entry follows from, so nothing in the cache is ever out of date. An entry's time of modification says when
it was last used: all kinds together take at most `LIMIT_BYTES`, and the least recently used entries are removed first.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from contextlib import suppress
from pathlib import Path

from vitreous.inputs import reason
from vitreous.storage.manifest import sha256_json

LIMIT_BYTES = 16 * 2**30
STORE = "computed"
HELP = (
    f"Features, token labels, converted models and shard indexes are cached in $VITREOUS_CACHE/{STORE} (default "
    f"~/.cache/vitreous/{STORE}, at most {LIMIT_BYTES // 2**30} GiB); delete that folder to empty the cache."
)


def cache_root() -> Path:
    """$VITREOUS_CACHE, else `vitreous` in the user's folder for caches."""
    if given := os.environ.get("VITREOUS_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vitreous"


def cache_key(*values: object) -> str:
    """64 hexadecimal digits that differ if any of the values differs; they are anything that JSON can say."""
    return sha256_json(values)


def cache_path(kind: str, name: str) -> Path:
    """Where an entry is, or would be. name: its key, perhaps with a suffix."""
    return cache_root() / STORE / kind / name


def mark_used(entry: Path, hold_seconds: float = 0.0) -> None:
    """Note that an entry is used now. For `hold_seconds` from now it is not removed: its files may be opened again."""
    until = time.time() + hold_seconds
    with suppress(OSError):  # it is not there yet, or in a cache that may only be read
        os.utime(entry, (until, until))


def evict(except_for: Path) -> None:
    """Remove the least recently used entries while all take more than the limit, except this one and those held."""
    entries: list[tuple[float, int, Path]] = []
    for path in (cache_root() / STORE).glob("*/*"):
        with suppress(OSError):  # another process may be removing it
            files = [path, *path.rglob("*")] if path.is_dir() else [path]
            entries.append((path.stat().st_mtime, sum(file.stat().st_size for file in files if file.is_file()), path))
    total = sum(size for _, size, _ in entries)
    for used, size, path in sorted(entries):
        if total <= LIMIT_BYTES or used > time.time():
            return
        if path != except_for:
            with suppress(OSError):
                _remove(path)
            total -= size


def _remove(path: Path) -> None:
    """A folder is renamed first, so that nobody finds half of it."""
    if not path.is_dir():
        path.unlink()
        return
    renamed = path.with_name(f".removed-{secrets.token_hex(8)}")
    path.rename(renamed)
    shutil.rmtree(renamed)


def not_cached(what: str, error: Exception) -> str:
    """The message if something cannot be written to the cache."""
    why = reason(error) if isinstance(error, OSError) else str(error).rstrip(".")
    return f"{cache_root()}: {what} cannot be cached there; set VITREOUS_CACHE to a folder that can be written ({why})."
