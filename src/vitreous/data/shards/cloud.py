"""Files in a cloud's storage, through fsspec where it is installed; who may read them is its own business."""

from __future__ import annotations

from typing import Any

from vitreous.data.workers import extend_heartbeat
from vitreous.errors import UserError

SCHEMES = ("s3", "gs", "gcs", "az", "abfs", "hf", "memory")
"""What is handed to fsspec. Others of its schemes run commands or open archives, and no shard needs them."""
TAGS = ("ETag", "etag", "blob_id", "last_commit", "LastModified", "last_modified", "mtime", "created")
"""What storages call that which changes with a file, the surest first."""
SILENCE = 300.0
"""Seconds that a storage may take for an answer: how often it is asked, and how long, is fsspec's own business."""


def stat(address: str) -> tuple[int, str]:
    """Size of the file, and what changes with it."""
    files, path = _open(address)
    found = _asked(address, lambda: files.info(path))
    tag = next((found[key] for key in TAGS if found.get(key)), "")
    return int(found["size"]), str(tag)


def read(address: str, start: int, length: int) -> bytes:
    """So many bytes from `start` on, fewer where the file ends."""
    files, path = _open(address)
    extend_heartbeat(SILENCE)
    found: bytes = _asked(address, lambda: files.cat_file(path, start=start, end=start + length))
    return found


def names(address: str) -> list[str]:
    """The addresses of the files directly below this one."""
    files, path = _open(address)
    found = _asked(address, lambda: files.ls(path, detail=False))
    return sorted(f"{address.rstrip('/')}/{name.rstrip('/').rpartition('/')[2]}" for name in found)


def _open(address: str) -> tuple[Any, str]:
    scheme = address.partition("://")[0].lower()
    if scheme not in SCHEMES:
        known = ", ".join(("http", "https", *SCHEMES[:-1]))
        raise UserError(f"{address}: {scheme}:// is not read; give a folder, or an address of {known}.")
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise UserError(
            f"{address}: read with the package fsspec and that of the storage; install them, such as pip install s3fs."
        ) from None
    # fsspec keeps one of each per process, so that a forked one does not share its parent's connections
    files, path = _asked(address, lambda: url_to_fs(address))
    return files, str(path)


def _asked(address: str, ask: Any) -> Any:
    try:
        return ask()
    except UserError:
        raise
    except Exception as error:  # each storage has errors of its own
        why = str(error).strip().replace("\n", " ")[:200] or type(error).__name__
        raise UserError(f"{address}: cannot be read ({why}); check the address and who may read it.") from error
