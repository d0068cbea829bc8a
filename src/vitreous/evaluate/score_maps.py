"""A teacher's answers for the places of pictures, made once and kept in files.

A file holds some pictures, as an array of records: which picture (a digest of its bytes), and of each place the
likeliest classes with their probabilities. It is named after its own SHA-256, so damage shows, and it is complete or
not there. Renamed, moved or split data find their maps again; a training that was killed goes on with those it made.

Letters: B pictures, h x w places, k classes kept of K.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.data.decode import PictureError
from vitreous.data.source import Source
from vitreous.errors import UserError
from vitreous.weights.files import write_file

Records = NDArray[Any]
Digest = bytes

FORMAT = 1
FILE_BYTES = 8 * 2**20
"""A file is closed when it has grown so large, or after so many seconds: what a kill can cost."""
FILE_SECONDS = 30.0
OPEN = 64
"""Files that are mapped into the memory at a time."""
LIMIT = 8 * 2**30
"""Bytes that maps of all teachers may take: beyond that, those that were not used for longest are removed."""


def top_classes(scores: Tensor, kept: int) -> tuple[Tensor, Tensor]:
    """(..., k) classes int64 and their probabilities float16, the likeliest first, of scores (..., K)."""
    top = scores.float().softmax(dim=-1).topk(min(kept, scores.shape[-1]), dim=-1)
    return top.indices, top.values.half()


def spread_out(classes: Tensor, shares: Tensor, count: int) -> Tensor:
    """(..., K) float32 that sum to 1, of the kept ones (..., k): what they leave is shared evenly by all others."""
    known, kept = shares.float(), shares.shape[-1]
    rest = (1 - known.sum(dim=-1, keepdim=True)).clamp(min=0)
    full = (rest / max(1, count - kept)).expand(*known.shape[:-1], count).scatter(-1, classes.long(), known)
    return full / full.sum(dim=-1, keepdim=True)


def picture_digests(source: Source) -> list[Digest | None]:
    """Of each picture 16 bytes that follow from its own; None of one that cannot be read."""
    found: list[Digest | None] = []
    for index in range(len(source)):
        try:
            found.append(sha256(source.content(index)).digest()[:16])
        except PictureError:
            found.append(None)
    return found


@dataclass
class MapStore:
    """Maps of one teacher in a folder of their own. What a person should know of it is in `remarks`."""

    folder: Path
    count: int
    """K."""
    kept: int
    """k."""
    remarks: list[str] = field(default_factory=list)

    def known(self) -> dict[Digest, tuple[Path, int]]:
        """In which file and row each picture's map is; a damaged file is removed, and its maps count as not made."""
        found: dict[Digest, tuple[Path, int]] = {}
        for path in _files(self.folder):
            records = self._whole(path)
            if records is None:
                self.remarks.append(f"{path}: damaged; its token labels are made again.")
                with suppress(OSError):
                    path.unlink()
                continue
            for row, digest in enumerate(records["picture"]):
                found.setdefault(digest.tobytes(), (path, row))
        return found

    def _whole(self, path: Path) -> Records | None:
        """The file's records if it is to the bit what was written, else None."""
        try:
            data = path.read_bytes()
            if sha256(data).hexdigest() != path.stem:
                return None
            records: Records = np.load(io.BytesIO(data), allow_pickle=False)
        except (OSError, ValueError):
            return None
        return records if records.dtype.names == ("picture", "classes", "shares") else None

    def write(self, batches: Iterable[tuple[Sequence[Digest], Tensor]]) -> None:
        """Keep maps that come batch by batch: the pictures' digests, and scores (B, h, w, K)."""
        waiting: list[Records] = []
        since = time.monotonic()
        try:
            for digests, scores in batches:
                waiting.append(self._records(digests, scores))
                if time.monotonic() - since > FILE_SECONDS or sum(some.nbytes for some in waiting) > FILE_BYTES:
                    full, waiting, since = waiting, [], time.monotonic()
                    self._write_file(np.concatenate(full))
        finally:  # an interruption loses nothing that was made
            if waiting:
                self._write_file(np.concatenate(waiting))

    def _records(self, digests: Sequence[Digest], scores: Tensor) -> Records:
        classes, shares = top_classes(scores, self.kept)
        whole = np.min_scalar_type(self.count - 1)
        shape = tuple(classes.shape[1:])
        kind = np.dtype([("picture", "u1", 16), ("classes", whole, shape), ("shares", "<f2", shape)])
        records = np.empty(len(digests), kind)
        records["picture"] = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 16)
        records["classes"], records["shares"] = classes.cpu().numpy(), shares.cpu().numpy()
        return records

    def _write_file(self, records: Records) -> None:
        buffer = io.BytesIO()
        np.save(buffer, records, allow_pickle=False)
        data = buffer.getvalue()
        try:
            write_file(self.folder / f"{sha256(data).hexdigest()}.npy", data)
        except UserError as error:
            raise UserError(
                f"{self.folder}: token labels could not be kept there; set VITREOUS_CACHE to a folder that can be "
                f"written ({str(error).rstrip('.')})."
            ) from None

    def touch(self) -> None:
        """Note that it was used, and remove what was not for longest where all stores together are too large."""
        with suppress(OSError):
            os.utime(self.folder)
        with suppress(OSError):  # another process may be removing the same files
            folders = sorted(self.folder.parent.iterdir(), key=lambda place: place.stat().st_mtime, reverse=True)
            total = 0
            for place in folders:
                files = _files(place)
                total += sum(path.stat().st_size for path in files)
                if total > LIMIT and place != self.folder:
                    for path in files:
                        path.unlink(missing_ok=True)


class StoredMaps:
    """The maps of a source's pictures, read from their files when they are asked for."""

    def __init__(self, store: MapStore, digests: Sequence[Digest | None], name: Callable[[int], str]) -> None:
        """`name` says what a person calls a picture."""
        self._name, self._count = name, store.count
        known = store.known()
        self._places = [None if digest is None else known.get(digest) for digest in digests]
        self._open = lru_cache(maxsize=OPEN)(_mapped)

    def missing(self) -> list[int]:
        """The numbers of the pictures that have no map."""
        return [index for index, place in enumerate(self._places) if place is None]

    def read(self, index: Tensor) -> Tensor:
        """(B, h, w, K) float32 that sum to 1."""
        rows = [self._row(number) for number in index.tolist()]
        classes, shares = (
            torch.from_numpy(np.stack([row[name] for row in rows]).astype(kind))
            for name, kind in (("classes", np.int64), ("shares", np.float32))
        )
        return spread_out(classes, shares, self._count)

    def _row(self, number: int) -> Any:
        place = self._places[number]
        if place is None:
            raise UserError(
                f"{self._name(number)}: could not be read when its token labels were made; repeat the command."
            )
        path, row = place
        try:
            return self._open(path)[row]
        except (OSError, ValueError):
            raise UserError(
                f"{path}: the token labels in it are gone or damaged; repeat the command, and they are made again."
            ) from None


def _files(folder: Path) -> list[Path]:
    """The files of a store: those with a SHA-256 for a name."""
    return sorted(path for path in folder.glob("*.npy") if len(path.stem) == 64)


def _mapped(path: Path) -> Records:
    records: Records = np.load(path, mmap_mode="r", allow_pickle=False)
    return records
