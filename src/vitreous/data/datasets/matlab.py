"""MATLAB's .mat files (level 5, as SVHN, Flowers and ImageNet's kit have them), read with bounds.

Numbers, texts, cells and structs; complex and sparse arrays and objects are refused. The format is that of "MAT-File
Format" by The MathWorks: a header of 128 bytes, then elements, each with its type and size, some packed by zlib.
"""

from __future__ import annotations

import math
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import UserError
from vitreous.inputs import open_input
from vitreous.memory import check_memory

MATRIX, COMPRESSED = 14, 15
CELL, STRUCT, CHAR = 1, 2, 4
# Classes of arrays of numbers, and what NumPy calls them; how they are stored, which may be narrower than their class.
NUMBERS = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
TEXTS = {1: "latin-1", 2: "latin-1", 4: "utf-16", 16: "utf-8", 17: "utf-16", 18: "utf-32"}
COMPLEX = 0x0800
MAX_DEPTH = 8


# An array of numbers; a text; a cell array or an array of structs, column by column, structs by the names of fields.
MatValue: TypeAlias = "NDArray[Any] | str | tuple[MatValue, ...] | list[dict[str, MatValue]]"


class _DamagedError(Exception):
    """What is wrong with a file."""


def read_mat(path: Path, *names: str) -> dict[str, MatValue]:
    """The variables of these names; all must be there. Arrays have MATLAB's shape, at least two axes."""
    with open_input(path) as file:
        size = os.fstat(file.fileno()).st_size
        check_memory(2 * size, str(path), "take a machine with more memory, or check the file")
        content = memoryview(file.read(size))
    try:
        found = dict(_variables(path, content, set(names)))
    except (_DamagedError, struct.error, ValueError, KeyError, UnicodeDecodeError, zlib.error) as error:
        raise UserError(f"{path}: not a whole MATLAB file of level 5 ({error}); get it again.") from None
    if missing := sorted(set(names) - set(found)):
        raise UserError(f"{path}: has no variable {missing[0]!r}; get the file again.")
    return found


def read_numbers(path: Path, *names: str) -> tuple[NDArray[Any], ...]:
    """The variables of these names, which must be arrays of numbers."""
    found = read_mat(path, *names)
    arrays = []
    for name in names:
        value = found[name]
        if not isinstance(value, np.ndarray):
            raise UserError(f"{path}: {name} is no array of numbers; get the file again.")
        arrays.append(value)
    return tuple(arrays)


def _variables(path: Path, content: memoryview, names: set[str]) -> Iterator[tuple[str, MatValue]]:
    if len(content) < 128 or bytes(content[126:128]) not in (b"IM", b"MI"):
        raise _DamagedError("it starts otherwise")
    order = "<" if bytes(content[126:128]) == b"IM" else ">"
    version = struct.unpack(f"{order}H", content[124:126])[0]
    if version != 0x0100:
        raise _DamagedError(f"version {version >> 8}.{version & 255}")
    reader = _Reader(content[128:], order)
    while reader.left:
        kind, body = reader.element()
        if kind == COMPRESSED:
            kind, body = _unpacked(path, body, order)
        if kind != MATRIX:
            continue
        name, array = _Array.head(_Reader(body, order))
        if name in names:
            yield name, array.value(0)


def _unpacked(path: Path, body: memoryview, order: str) -> tuple[int, memoryview]:
    """The one element in a packed one; its size is known before it is unpacked."""
    unpacker = zlib.decompressobj()
    kind, size = struct.unpack(f"{order}II", unpacker.decompress(body, 8))
    check_memory(3 * size, f"{path}, {size:,} bytes unpacked", "take a machine with more memory, or check the file")
    found = bytearray()
    while len(found) < size:
        piece = unpacker.decompress(unpacker.unconsumed_tail, size - len(found))
        if not piece:
            raise _DamagedError("cut short")
        found += piece
    return kind, memoryview(found)


class _Reader:
    """Elements one after the other, in the order of bytes that the file's header says."""

    def __init__(self, content: memoryview, order: str) -> None:
        self.content = content
        self.order: Literal["<", ">"] = "<" if order == "<" else ">"
        self._at = 0

    @property
    def left(self) -> int:
        return len(self.content) - self._at

    def element(self) -> tuple[int, memoryview]:
        first = struct.unpack(f"{self.order}I", self._take(4))[0]
        if first >> 16:  # a short one: type and size in four bytes, then four of data
            body = self._take(4)
            if first >> 16 > 4:
                raise _DamagedError(f"a short element of {first >> 16} bytes")
            return first & 0xFFFF, body[: first >> 16]
        size = struct.unpack(f"{self.order}I", self._take(4))[0]
        body = self._take(size)
        if first != COMPRESSED:
            self._at = min(len(self.content), self._at + -size % 8)
        return first, body

    def numbers(self) -> NDArray[Any]:
        kind, body = self.element()
        return np.frombuffer(body, dtype=np.dtype(STORED[kind]).newbyteorder(self.order))

    def integers(self) -> tuple[int, ...]:
        """The next element's numbers, which are whole, and at least one."""
        found = self.numbers()
        if not len(found) or found.dtype.kind not in "iu":
            raise _DamagedError("no whole numbers where flags, sizes or lengths are")
        return tuple(found.tolist())

    def _take(self, size: int) -> memoryview:
        if size > self.left:
            raise _DamagedError("cut short")
        self._at += size
        return self.content[self._at - size : self._at]


@dataclass(frozen=True)
class _Array:
    """An array whose values are not read yet."""

    kind: int
    flags: int
    shape: tuple[int, ...]
    rest: _Reader

    @classmethod
    def head(cls, reader: _Reader) -> tuple[str, _Array]:
        if not reader.left:  # an empty cell may have nothing at all
            return "", cls(6, 0, (0, 0), reader)
        flags = reader.integers()[0]
        shape = reader.integers()
        name = bytes(reader.element()[1]).decode("ascii")
        if min(shape, default=-1) < 0 or len(shape) < 2:
            raise _DamagedError(f"an array of the shape {shape}")
        return name, cls(flags & 0xFF, flags, shape, reader)

    def value(self, depth: int) -> MatValue:
        count = math.prod(self.shape)
        if depth > MAX_DEPTH:
            raise _DamagedError("nested too deeply")
        if self.kind == CELL:
            self._check_many(count)
            return tuple(self._next(depth) for _ in range(count))
        if self.kind == STRUCT:
            fields = self._fields()
            self._check_many(count * max(1, len(fields)))
            return [{name: self._next(depth) for name in fields} for _ in range(count)]
        if self.kind == CHAR:
            if not count and not self.rest.left:
                return ""
            kind, body = self.rest.element()
            wide = {"<": "-le", ">": "-be"}[self.rest.order] if TEXTS[kind].endswith(("16", "32")) else ""
            return bytes(body).decode(TEXTS[kind] + wide)
        if self.kind not in NUMBERS or self.flags & COMPLEX:
            raise _DamagedError(f"an array of class {self.kind}, which is not read here")
        if not count and not self.rest.left:
            return np.empty(self.shape, NUMBERS[self.kind])
        stored = self.rest.numbers()
        if len(stored) != count:
            raise _DamagedError(f"{len(stored)} numbers in an array of the shape {self.shape}")
        return stored.astype(NUMBERS[self.kind], copy=False).reshape(self.shape, order="F")

    def _fields(self) -> list[str]:
        length = self.rest.integers()[0]
        names = bytes(self.rest.element()[1])
        if length < 1 or len(names) % length:
            raise _DamagedError("names of fields of no length")
        found = [names[at : at + length].split(b"\0")[0].decode("ascii") for at in range(0, len(names), length)]
        if len(set(found)) < len(found):
            raise _DamagedError("two fields of one name")
        return found

    def _check_many(self, count: int) -> None:
        if 8 * count > self.rest.left:  # each value takes at least its type and size
            raise _DamagedError(f"{count:,} values in {self.rest.left:,} bytes")

    def _next(self, depth: int) -> MatValue:
        kind, body = self.rest.element()
        if kind != MATRIX:
            raise _DamagedError(f"an element of type {kind} in a cell")
        return _Array.head(_Reader(body, self.rest.order))[1].value(depth + 1)
