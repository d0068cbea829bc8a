"""What a tar file holds, read from its headers alone, and how a member is written.

A shard may come from anybody: names that lead out of a folder and sparse files are refused, and whatever a data shard
has no need of is skipped, such as links, devices and pickles. Nothing is ever unpacked to the disk.
"""

from __future__ import annotations

import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple
from zlib import adler32

from vitreous.errors import UserError
from vitreous.inputs import format_bytes

BLOCK = 512
END = 2 * BLOCK  # bytes of zeros that end a tar file
PICKLES = (".pyd", ".pickle", ".pkl", ".pt", ".pth")  # members that others would run code to decode
MAX_NAME_BYTES = 2**16  # bytes of a header that only holds a long name
MAX_LENGTH_DIGITS = 20  # of the length of a record in such a header; of thousands, Python makes no number
MAX_MEMBER_BYTES = 2**60  # bytes of any member; a larger number is damage, and no system takes it for a place in a file

_FILE, _FOLDER, _PAX, _PAX_ALL, _LONG_NAME = (b"0", b"\0", b"7"), b"5", b"x", b"g", b"L"
_WITHOUT_CONTENT = {b"1": "hard link", b"2": "symbolic link", b"3": "device", b"4": "device", b"6": "pipe"}

Read = Callable[[int, int], bytes]  # given an offset and a length, the bytes there; fewer at the end of the file


class Member(NamedTuple):
    """One file in a tar."""

    name: str
    offset: int  # of its first byte
    size: int


def members(shard: str, read: Read, skipped: Counter[str]) -> Iterator[Member]:
    """The files of a tar in their order; `shard` is what errors call it.

    skipped: counts, by their kind, members of which nothing is read: links, devices, pipes, pickles.
    """
    at, long_name = 0, None
    if read(0, 2) == b"\x1f\x8b":
        raise UserError(f"{shard}: packed by gzip, so that no member can be read by itself; unpack it with gunzip.")
    while (block := read(at, BLOCK)) != bytes(BLOCK):
        kind, name, size = parse_header(shard, at, block)
        if kind in (_PAX, _LONG_NAME):
            body = _extension(shard, at, size, read)
            long_name = _pax_path(shard, at, body) if kind == _PAX else _text(body.rstrip(b"\0"))
        elif kind != _PAX_ALL:
            called, long_name = _text(name) if long_name is None else long_name, None
            if kind in _WITHOUT_CONTENT:
                skipped[_WITHOUT_CONTENT[kind]] += 1
                size = 0  # that of what a link leads to
            elif kind in _FILE:
                check_name(shard, called)
                if called.lower().endswith(PICKLES):
                    skipped["pickle"] += 1
                else:
                    yield Member(called, at + BLOCK, size)
            elif kind != _FOLDER:
                what = kind.decode("ascii", "backslashreplace")
                raise UserError(
                    f"{shard}: its member {called!r} is of the kind {what!r}, which no shard of images holds; do not "
                    "use it."
                )
        at += BLOCK + padded(size)


def parse_header(shard: str, at: int, block: bytes) -> tuple[bytes, bytes, int]:
    """Kind, name and size that a header of 512 bytes says, if it is one."""
    if len(block) < BLOCK:
        raise UserError(f"{shard}: cut short, there is no end of it after byte {at:,}; restore it from a copy.")
    field = block[148:156]
    try:
        checksum, size = _number(field), _number(block[124:136])
    except ValueError:
        checksum, size = -1, -1
    # The checksum is the sum of all bytes, with spaces in its own place. One more than that sum, modulo 65,521, is the
    # lower half of Adler-32, which is much faster than `sum`.
    expected = (1 + checksum - 8 * 0x20 + sum(field)) % 65521
    if adler32(block) & 0xFFFF != expected or not 0 <= size < MAX_MEMBER_BYTES:
        raise UserError(f"{shard}: damaged at byte {at:,}, where no header of a tar file is; restore it from a copy.")
    name = block[:100].split(b"\0", 1)[0]
    if block[257:263] == b"ustar\0" and block[345]:
        name = block[345:500].split(b"\0", 1)[0] + b"/" + name
    return block[156:157], name, size


def check_name(shard: str, name: str) -> None:
    parts = (name.replace("\\", "/") if "\\" in name else name).split("/")
    if not parts[0] or ".." in parts or "\0" in name or parts[0][1:] == ":":
        raise UserError(f"{shard}: its member {name!r} has a name that leads elsewhere; do not use this shard.")


def check_size(shard: str, member: Member, limit: int) -> None:
    """Refuse a member that is larger than what it should be ever is."""
    if member.size > limit:
        raise UserError(
            f"{shard}: its member {member.name!r} has {format_bytes(member.size)}, more than the limit of "
            f"{format_bytes(limit)}; make it smaller."
        )


def padded(size: int) -> int:
    """Bytes that a member of this size takes, header aside."""
    return -(-size // BLOCK) * BLOCK


def encode_member(name: str, content: bytes) -> tuple[bytes, bytes]:
    """Header and padded body of a member; who, when and where are left out, so the same images give the same bits."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), 0o644
    header = info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    return header, content + bytes(padded(len(content)) - len(content))


def _number(field: bytes) -> int:
    """Octal digits, or as GNU writes what has too many of them."""
    if field[0] < 0x80:
        return int(field.rstrip(b"\0 ") or b"0", 8)
    return int.from_bytes(bytes((field[0] & 0x7F,)) + field[1:], "big")


def _extension(shard: str, at: int, size: int, read: Read) -> bytes:
    body = read(at + BLOCK, size) if size <= MAX_NAME_BYTES else b""
    if len(body) != size:
        raise UserError(f"{shard}: damaged at byte {at:,}, in a header that gives a long name; restore it from a copy.")
    return body


def _pax_path(shard: str, at: int, body: bytes) -> str | None:
    """The name that an extended header gives the next member, None if it gives none."""
    path = None
    while body:
        length, _, _ = body.partition(b" ")
        record = body[: int(length)] if length.isdigit() and len(length) < MAX_LENGTH_DIGITS else b""
        key, equals, value = record[len(length) + 1 : -1].partition(b"=")
        if not equals:
            raise UserError(f"{shard}: damaged at byte {at:,}, in an extended header; restore it from a copy.")
        if key == b"path":
            path = _text(value)
        elif key == b"size" or key.startswith(b"GNU.sparse"):
            raise UserError(
                f"{shard}: a member at byte {at:,} is sparse or larger than 8 GB, which no image is; do not use it."
            )
        body = body[len(record) :]
    return path


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")
