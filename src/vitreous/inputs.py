"""Reading files that a user names: regular files only, up to a maximal size."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from typing import Any, BinaryIO

from vitreous.errors import UserError

MAX_TEXT_BYTES = 64 * 2**20  # of JSON, labels or a manifest


def open_input(path: Path) -> BinaryIO:
    """The file, opened for reading, if it is an ordinary one; a folder, a pipe or a device is refused at once."""
    try:
        # Without O_NONBLOCK, opening a pipe waits until somebody writes into it.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:  # ValueError: a name with a null byte
        raise UserError(f"{path}: cannot be read ({reason(error)}); check its name, mode and owner.") from None
    try:
        kind = file_kind(os.fstat(handle).st_mode)
        if kind != "file":
            raise UserError(f"{path}: this is a {kind}, not a file; give an ordinary file.")
    except BaseException:
        os.close(handle)
        raise
    return os.fdopen(handle, "rb")  # from here on the file closes it, after an interrupt too


def read_bytes(path: Path, most: int = MAX_TEXT_BYTES) -> bytes:
    """All bytes of an ordinary file of at most `most` bytes."""
    with open_input(path) as file:
        try:
            content = file.read(most + 1)
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({reason(error)}); check the disk.") from None
    if len(content) > most:
        raise UserError(f"{path}: more than {format_bytes(most)}, which is too large for what it should be; check it.")
    return content


def read_text(path: Path, most: int = MAX_TEXT_BYTES) -> str:
    try:
        return read_bytes(path, most).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not text in UTF-8 (byte {error.start}); save it as UTF-8.") from None


def read_json(path: Path, most: int = MAX_TEXT_BYTES) -> Any:
    return parse_json(read_text(path, most), path)


def parse_json(text: str, where: object) -> Any:
    """The value of JSON text. NaN, infinity and too deep nesting are refused."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise UserError(f"{where}: nested too deeply to be read as JSON; check the file.") from None
    except ValueError as error:
        raise UserError(f"{where}: not valid JSON ({str(error)[:200]}); restore it from a copy, or mend it.") from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number that JSON has")


def utf8_text(name: str) -> str:
    """A file name as text that encodes to UTF-8, the same in every locale. Python keeps bytes that the locale cannot
    decode as lone surrogates; here they become UTF-8 characters if they are valid, else escapes such as \\xe9."""
    try:
        raw = name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a surrogate that stands for no byte, such as JSON may hold
        raw = name.encode("utf-8", "backslashreplace")
    return raw.decode("utf-8", "backslashreplace")


def file_kind(mode: int) -> str:
    """ "file", "folder", "pipe", "device" or "socket"."""
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"}
    return kinds.get(stat.S_IFMT(mode), "device")


def reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def parse_bytes(size: str | int, name: str, least: int = 1) -> int:
    """The bytes of a number or of a text such as "256MB". name: the option, for error messages."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)b?", str(size).strip().lower(), re.ASCII)
    count = int(float(found[1]) * 1000 ** " kmgt".index(found[2] or " ")) if found and len(found[1]) < 20 else -1
    if count < 0:
        raise UserError(f"{name}={str(size)[:40]!r}: give bytes with their unit, such as 256MB or 1GB.")
    if not least <= count < 2**60:
        raise UserError(f"{name}={str(size)[:40]!r}: give at least {format_bytes(least)}, and less than an exabyte.")
    return count


def counted(number: int, noun: str) -> str:
    """ "1 image", "1,200 images", "2 classes"."""
    plural = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{plural}"


def format_bytes(count: int) -> str:
    """Such as "512 MB" or "1.5 GB"."""
    amount, unit = float(count), "bytes"
    for unit in ("bytes", "kB", "MB", "GB", "TB", "PB"):
        if amount < 1000 or unit == "PB":
            break
        amount /= 1000
    return f"{amount:,.0f} {unit}" if amount >= 10 or unit == "bytes" else f"{amount:.1f} {unit}"
