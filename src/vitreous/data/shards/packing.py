"""Data packed into shards: a folder that is complete or not there, taken up where it was when it was interrupted.

While it is written, `.NAME.new` has the shards that are finished, each with a record of what is in it; a failure before
the first is finished leaves nothing.
"""

from __future__ import annotations

import json
import logging
import re
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO
from zlib import crc32

import numpy as np
from safetensors import SafetensorError

from vitreous.data.decode import IMAGE_SUFFIXES, ImageError, read_header
from vitreous.data.folder import Names
from vitreous.data.loader import check_unreadable
from vitreous.data.rng import Index
from vitreous.data.shards.index import (
    INDEX,
    ROWS,
    Shard,
    ShardIndex,
    ShardRows,
    join_rows,
    load_rows,
    rows_note,
    write_index,
)
from vitreous.data.shards.tar import END, encode_member
from vitreous.data.source import Data, Source, Split, key_hashes
from vitreous.data.view import map_concurrently
from vitreous.errors import UserError
from vitreous.inputs import reason, utf8_text
from vitreous.storage.files import fsync_file, fsync_folder, new_file, replace_folder, write_file
from vitreous.storage.lock import LOCK, hold_folder
from vitreous.storage.overwrite import readable_errors, real_path
from vitreous.threads import usable_cores

log = logging.getLogger("vitreous")

_SUFFIXES = {"JPEG": ".jpg", "TIFF": ".tif", "JPEG2000": ".jp2"}
_UNSAFE = re.compile(r"[%\\\x00-\x1f\x7f]")

Progress = Callable[[int, int], None]  # told images done and in all


@dataclass(frozen=True)
class Packed:
    """Shards that were written."""

    folder: Path
    shards: tuple[Shard, ...]
    left_out: dict[str, str]  # images that could not be read: name to reason


def pack(data: Data, out: Path, shard_size: int, progress: Progress) -> Packed:
    """Write all splits as shards of at most `shard_size` bytes, unless a single image has more, with an index."""
    final = real_path(out)
    _check_new(final)
    temporary = final.with_name(f".{final.name}.new")
    with readable_errors(out):
        temporary.mkdir(parents=True, exist_ok=True)
        try:
            with hold_folder(temporary, log.info, "packing data into it"):
                _check_new(final)  # another command may have finished meanwhile
                try:
                    finished = _write_shards(data, temporary, shard_size, progress)
                    left_out = {name: why for one in finished for name, why in one.left_out.items()}
                    check_unreadable(left_out, sum(map(len, data.splits.values())))
                    _write_index(temporary, finished, data.classes)
                    replace_folder(temporary, final)  # with the lock, so that nobody takes up what is finished
                except BaseException:
                    if not any(temporary.glob("*.safetensors")):  # no shard is finished
                        for path in temporary.iterdir():
                            if path.name != LOCK:
                                path.unlink()
                    raise
                (final / LOCK).unlink(missing_ok=True)
        finally:
            with suppress(OSError):  # a shard is finished, or another command is packing: it stays
                temporary.rmdir()
    return Packed(out, tuple(one.shard for one in finished), left_out)


def _write_shards(data: Data, folder: Path, shard_size: int, progress: Progress) -> list[_FinishedShard]:
    finished, total, done = list[_FinishedShard](), sum(map(len, data.splits.values())), 0
    for split, source in data.splits.items():
        for shard, images in _pack_split(folder, split, source, shard_size):
            progress(done + images, total)
            finished += [] if shard is None else [shard]
        done += len(source)
    return finished


def _check_new(final: Path) -> None:
    try:
        taken = final.exists() and (not final.is_dir() or any(final.iterdir()))
        packed = taken and (final / INDEX).is_file()
    except OSError as error:
        raise UserError(f"{final}: cannot be used ({reason(error)}); choose another folder.") from None
    if taken:
        what = "holds shards already; remove them to pack anew, or choose" if packed else "is not empty; choose"
        raise UserError(f"{final}: {what} a folder that is new or empty.")


@dataclass(frozen=True)
class _FinishedShard:
    shard: Shard
    rows: ShardRows
    end: int  # images of the split, in the order of packing, that it and those before it have dealt with
    left_out: dict[str, str]


@dataclass(frozen=True)
class _Image:
    name: str
    size: int  # of what it was made from, before it was read
    key: str = ""
    suffix: str = ""
    content: bytes = b""
    label: int = -1
    error: str = ""


def _pack_split(
    folder: Path, split: Split, source: Source, shard_size: int
) -> Iterator[tuple[_FinishedShard | None, int]]:
    """Each shard when it is whole, else None, and how many images were dealt with.

    A train split is shuffled once, so that each shard has a bit of everything.
    """
    order: Index = np.argsort(key_hashes(source, 0), kind="stable") if split == "train" else np.arange(len(source))
    at = number = 0
    path = folder / f"{split}-{number:06d}.tar"
    while (known := _finished_before(path, source, order, at, shard_size)) is not None:
        number, at = number + 1, known.end
        path = folder / f"{split}-{number:06d}.tar"
        yield known, at
    prepare = partial(_prepare, source)
    images = map_concurrently(prepare, order[at:].tolist(), max(4, usable_cores()))
    _, image = next(images, (0, None))
    while image is not None:
        left_out: dict[str, str] = {}
        sizes: list[int] = []
        path = folder / f"{split}-{number:06d}.tar"
        path.with_suffix(".safetensors").unlink(missing_ok=True)
        with new_file(path) as file:
            writer = _ShardWriter(file)
            while image is not None:
                if image.error:
                    left_out[image.name] = image.error
                elif not writer.add(image, shard_size):
                    break
                sizes.append(image.size)
                at += 1
                yield None, at
                _, image = next(images, (0, None))
            rows, digest = writer.finish()
        shard = Shard(path.name, split, writer.size, len(rows.offset), digest)
        # For a command that takes the packing up, and for the index. By its size an image that changes is noticed.
        note = {"end": at, "left_out": left_out, "sizes": sizes, "shard_size": shard_size}
        rows.save(folder / ".record", json.dumps({"shard": asdict(shard), **note}))
        fsync_file(folder / ".record")
        (folder / ".record").replace(path.with_suffix(".safetensors"))
        number += 1
        yield _FinishedShard(shard, rows, at, left_out), at


def _finished_before(path: Path, source: Source, order: Index, start: int, shard_size: int) -> _FinishedShard | None:
    """The shard at a path, if an interrupted command finished it and it has the same images and labels.

    One that images were left out of is made anew, as they may have been mended, and so is one of whose images any has
    another size by now. start: of its images in the order.
    """
    record = path.with_suffix(".safetensors")
    try:
        note = json.loads(rows_note(record))
        found = _FinishedShard(Shard(**note["shard"]), load_rows(record), note["end"], left_out={})
        sizes = list(note["sizes"])
        if path.stat().st_size != found.shard.bytes or note["shard_size"] != shard_size or note["left_out"]:
            return None
    except (OSError, SafetensorError, UserError, ValueError, KeyError, TypeError):
        return None
    taken = order[start : found.end].tolist()
    same = len(taken) == len(found.rows.names) == len(sizes) and all(
        source.key(i) == found.rows.names[row]
        and source.labels[i] == found.rows.label[row]
        and source.size(i) == sizes[row]
        for row, i in enumerate(taken)
    )
    return found if same else None


def _prepare(source: Source, index: int) -> _Image:
    """Read by a thread: what waits for the disk or makes a PNG needs no Python lock."""
    name, size = source.name(index), source.size(index)
    try:
        key, content = source.key(index), source.encoded(index)
        return _Image(name, size, key, suffix_of(key, content), content, int(source.labels[index]))
    except ImageError as error:
        return _Image(name, size, error=error.reason)


def _write_index(folder: Path, finished: list[_FinishedShard], classes: tuple[str, ...]) -> None:
    shards = tuple(one.shard for one in finished)
    files = tuple(shard.file for shard in shards)
    index = ShardIndex(files, shards, classes, join_rows([one.rows for one in finished]))
    write_file(folder / INDEX, write_index(index, folder / ROWS))
    wanted = {ROWS, INDEX, LOCK, *files}
    for path in folder.iterdir():
        if path.name not in wanted:
            with suppress(OSError):
                path.unlink()
    fsync_folder(folder)


class _ShardWriter:
    """A tar file that is being written, and what its index will say of it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._digest = file, sha256()
        self.size = 0
        self._taken: set[str] = set()
        self._offset, self._length, self._label, self._crc = array("q"), array("i"), array("i"), array("I")
        self._names = Names()

    def add(self, image: _Image, shard_size: int) -> bool:
        """Write an image and its label; False where it has no room, unless it is the first."""
        name = self._member_name(image.key)
        header, body = encode_member(name + image.suffix, image.content)
        label = b"".join(encode_member(f"{name}.cls", str(image.label).encode())) if image.label >= 0 else b""
        if self._taken and self.size + len(header) + len(body) + len(label) + END > shard_size:
            return False
        self._taken.add(name)
        self._offset.append(self.size + len(header))
        self._length.append(len(image.content))
        self._label.append(image.label)
        self._crc.append(crc32(image.content))
        self._names.append(image.key)
        for part in (header, body, label):
            self._write(part)
        return True

    def finish(self) -> tuple[ShardRows, str]:
        self._write(bytes(END))
        rows = ShardRows(
            np.frombuffer(self._offset, dtype=np.int64),
            np.frombuffer(self._length, dtype=np.int32),
            np.frombuffer(self._label, dtype=np.int32),
            self._names,
            np.frombuffer(self._crc, dtype=np.uint32),
        )
        return rows, self._digest.hexdigest()

    def _write(self, content: bytes) -> None:
        self._file.write(content)
        self._digest.update(content)
        self.size += len(content)

    def _member_name(self, key: str) -> str:
        """A name for the image that no reader stumbles over, and that no other in this shard has."""
        name = member_name(key)
        number = 1
        while name in self._taken:
            number += 1
            name = f"{member_name(key)}~{number}"
        return name


def suffix_of(key: str, content: bytes) -> str:
    """How the member is called: as the image's file was, in lower case, else after what it is.

    Raises `ImageError` where the content is not an image, and no name says so.
    """
    known = re.search(r"\.[^./]*$", key)
    if known and known[0].lower() in IMAGE_SUFFIXES:
        return known[0].lower()
    kind = read_header(content, name=key).format
    return _SUFFIXES.get(kind, f".{kind.lower()}")


def member_name(key: str) -> str:
    """An image's key as the name of a member, without the suffix: no dot in its last part, and nowhere `..`."""
    stem = re.sub(r"\.[^./]*$", lambda found: "" if found[0].lower() in IMAGE_SUFFIXES else found[0], utf8_text(key))
    *folders, last = _UNSAFE.sub(lambda found: f"%{ord(found[0]):02X}", stem).split("/")
    folders = [folder.replace(".", "%2E") if folder in (".", "..") else folder for folder in folders if folder]
    last = last.replace(".", "%2E") or "%"
    first = folders[0] if folders else last
    if first.startswith("__"):  # what webdataset passes over
        folders, last = ([f"%5F{first[1:]}", *folders[1:]], last) if folders else ([], f"%5F{last[1:]}")
    return "/".join((*folders, last))
