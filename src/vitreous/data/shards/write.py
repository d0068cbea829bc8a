"""One shard, written: images as they are, each with its label beside it, in the way of webdataset."""

from __future__ import annotations

import re
from array import array
from hashlib import sha256
from typing import BinaryIO
from zlib import crc32

import numpy as np

from vitreous.data.decode import IMAGE_SUFFIXES, read_header
from vitreous.data.folder import Names
from vitreous.data.shards.index import ShardRows
from vitreous.data.shards.tar import BLOCK, END, header_size, padded, written_member
from vitreous.inputs import as_text

_SUFFIXES = {"JPEG": ".jpg", "TIFF": ".tif"}
_UNSAFE = re.compile(r"[%\\\x00-\x1f\x7f]")


class ShardWriter:
    """A tar file that is being written, and what its index will say of it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._digest = file, sha256()
        self.size = 0
        self._taken: set[str] = set()
        self._offset, self._length, self._label, self._crc = array("q"), array("i"), array("i"), array("I")
        self._names = Names()

    def __len__(self) -> int:
        return len(self._names)

    def add(self, key: str, suffix: str, content: bytes, label: int) -> None:
        """One more image, called `key` in the index; label: -1 for none."""
        name = self._member_name(key)
        self._taken.add(name)
        header, body = written_member(name + suffix, content)
        self._offset.append(self.size + len(header))
        self._length.append(len(content))
        self._label.append(label)
        self._crc.append(crc32(content))
        self._names.append(key)
        self._write(header)
        self._write(body)
        if label >= 0:
            self._write(b"".join(written_member(f"{name}.cls", str(label).encode())))

    def room(self, key: str, suffix: str, content: bytes, label: int) -> int:
        """Bytes that `add` would write."""
        name = self._member_name(key)
        labelled = header_size(f"{name}.cls") + BLOCK if label >= 0 else 0
        return header_size(name + suffix) + padded(len(content)) + labelled

    def finish(self) -> tuple[ShardRows, str]:
        """End the file; its rows and its SHA-256."""
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
    stem = re.sub(r"\.[^./]*$", lambda found: "" if found[0].lower() in IMAGE_SUFFIXES else found[0], as_text(key))
    *folders, last = _UNSAFE.sub(_escaped, stem).split("/")
    folders = [folder.replace(".", "%2E") if folder in (".", "..") else folder for folder in folders if folder]
    last = last.replace(".", "%2E") or "%"
    first = folders[0] if folders else last
    if first.startswith("__"):  # what webdataset passes over
        folders, last = ([f"%5F{first[1:]}", *folders[1:]], last) if folders else ([], f"%5F{last[1:]}")
    return "/".join((*folders, last))


def _escaped(found: re.Match[str]) -> str:
    return f"%{ord(found[0]):02X}"
