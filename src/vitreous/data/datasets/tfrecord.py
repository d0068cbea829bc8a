"""TensorFlow's record files, read without TensorFlow, and VTAB's images of DeepMind Lab, which come in such.

A record is its length (8 bytes, little-endian), a sum of that (4), the content, a sum of that (4). The sums are not
checked: the archive's own checksum was. The content is a protocol buffer, `tf.train.Example`; of the protocol's wire
format only what such messages have is read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from vitreous.data.source import Split
from vitreous.errors import UserError
from vitreous.inputs import open_input

MAX_RECORD_BYTES = 2**26  # one image in it is far smaller
VARINT, LENGTH, FIXED = 0, 2, {1: 8, 5: 4}  # types of values, and the bytes of those of fixed length


class _DamagedError(Exception):
    """What is wrong with a record."""


Feature = list[bytes] | list[int]


def read_examples(path: Path) -> Iterator[dict[str, Feature]]:
    """The examples in a file, each with its bytes and whole numbers by name; numbers with a point are left out."""
    with open_input(path) as file:
        number = 1
        try:
            for content in _records(file):
                yield _example(content)
                number += 1
        except (_DamagedError, UnicodeDecodeError) as error:
            raise UserError(f"{path}: record {number} is damaged or cut short ({error}); get the file again.") from None


def _records(file: BinaryIO) -> Iterator[bytes]:
    while head := file.read(12):
        if len(head) < 12:
            raise _DamagedError("no length")
        size = struct.unpack("<Q", head[:8])[0]
        if size > MAX_RECORD_BYTES:
            raise _DamagedError(f"{size:,} bytes")
        content = file.read(size)
        if len(content) < size or len(file.read(4)) < 4:
            raise _DamagedError("cut short")
        yield content


def _example(content: bytes) -> dict[str, Feature]:
    """Example { Features features = 1 }, Features { map<string, Feature> feature = 1 }."""
    found: dict[str, Feature] = {}
    for features in _messages(content, 1):
        for entry in _messages(features, 1):
            name = b"".join(_messages(entry, 1)).decode("utf-8")
            for feature in _messages(entry, 2):
                if values := _values(feature):
                    found[name] = values
    return found


def _values(feature: bytes) -> Feature:
    """Feature { BytesList bytes_list = 1; FloatList float_list = 2; Int64List int64_list = 3 }."""
    texts = [text for values in _messages(feature, 1) for text in _messages(values, 1)]
    if texts:
        return texts
    numbers: list[int] = []
    for values in _messages(feature, 3):
        for field, value in _fields(values):
            if field == 1 and isinstance(value, int):
                numbers.append(_signed(value))
            elif field == 1 and isinstance(value, bytes):  # many in a row
                at = 0
                while at < len(value):
                    one, at = _varint(value, at)
                    numbers.append(_signed(one))
    return numbers


def _messages(content: bytes, number: int) -> list[bytes]:
    return [value for field, value in _fields(content) if field == number and isinstance(value, bytes)]


def _fields(content: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message: number and value. Numbers of fixed length, which may have a point, are skipped."""
    at = 0
    while at < len(content):
        tag, at = _varint(content, at)
        kind = tag & 7
        if kind == VARINT:
            value, at = _varint(content, at)
            yield tag >> 3, value
            continue
        if kind == LENGTH:
            size, at = _varint(content, at)
        elif kind in FIXED:
            size = FIXED[kind]
        else:
            raise _DamagedError(f"a value of type {kind}")
        if size > len(content) - at:
            raise _DamagedError("a value that is longer than its message")
        if kind == LENGTH:
            yield tag >> 3, content[at : at + size]
        at += size


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, the lowest first, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(content):
            raise _DamagedError("a number without an end")
        value |= (content[at] & 0x7F) << shift
        at += 1
        if content[at - 1] < 0x80:
            return value, at
    raise _DamagedError("a number without an end")


def _signed(value: int) -> int:
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value


DMLAB_CLASSES = 6


def prepare_dmlab(root: Path) -> None:
    """Write the images in the record files to train, val and test folders with a folder for each class."""
    splits: dict[Split, str] = {"train": "train", "val": "validation", "test": "test"}
    for split, name in splits.items():
        files = sorted(root.rglob(f"dmlab-{name}.tfrecord*"))
        if not files:
            raise UserError(f"{root}: there is no dmlab-{name}.tfrecord; get the archive again.")
        number = 0
        for path in files:
            for example in read_examples(path):
                image, label = (example.get(key, [None])[0] for key in ("image", "label"))
                if not isinstance(image, bytes) or not isinstance(label, int) or not 0 <= label < DMLAB_CLASSES:
                    raise UserError(f"{path}: an example without image and label; get the archive again.")
                final = root / split / str(label) / f"{number:06d}.jpg"
                final.parent.mkdir(parents=True, exist_ok=True)
                final.write_bytes(image)
                number += 1
            path.unlink()
