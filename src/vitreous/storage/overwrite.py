"""What may be written over: only what is empty, or what vitreous wrote itself and can prove that it did.

A folder is ours if our manifest lists all that is in it and nothing was changed since. A file is ours if it carries our
mark, as everything does that we write where a person says: pages and JSON name their generator, images and plots the
software that made them, an .npz has it as the archive's comment, Parquet in its schema. Tables of predictions, which
have no place for it, are recognised by their columns. A name proves nothing.
"""

from __future__ import annotations

import errno
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from safetensors import SafetensorError

from vitreous import __version__
from vitreous.errors import MachineError, UserError
from vitreous.inputs import open_input, reason
from vitreous.storage.manifest import MANIFEST, check_manifest, read_whole

GENERATOR = f"vitreous {__version__}"  # what every file that a person asked for says it was made by

_MARK_BYTES = 4096  # bytes at the start and at the end of a file among which the mark is
_SOFTWARE = re.compile(rb"vitreous \d")  # a PNG's text, or the EXIF block of any image
_MARKS = {
    b"<!doctype html>": re.compile(rb'<meta name="generator" content="vitreous \d'),
    b"<?xml": re.compile(rb"<dc:title>vitreous \d"),
    b"{": re.compile(rb'\A\{\s*"generator": "vitreous \d|\A\{"path": "[^\n]*"prediction": [^\n]*"probability": '),
    b"path,prediction": re.compile(rb"\Apath,prediction,probability[,\w]*,(label_probability,right|error)\n"),
    b"PAR1": re.compile(rb"generator.{1,9}vitreous \d", re.DOTALL),
    b"PK": re.compile(rb"vitreous \d[\w.+]*\Z"),
    b"\x89PNG": _SOFTWARE,
    b"\xff\xd8": _SOFTWARE,
    b"RIFF": _SOFTWARE,
    b"II*\0": _SOFTWARE,
}
"""How each kind of file begins, and what the mark in it looks like."""
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_PERMISSION = (errno.EACCES, errno.EPERM, errno.EROFS)
_NOT_A_FOLDER = (errno.ENOTDIR, errno.EEXIST)


def unwritable(path: Path, error: Exception) -> UserError:
    """The error to raise where a file or folder cannot be written."""
    return UserError(f"{path}: cannot be written ({reason(error)}); choose another place.")


@contextmanager
def readable_errors(place: Path) -> Iterator[None]:
    """Within, a full disk becomes a `MachineError` that names `place`, a missing permission a `UserError`."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        found = re.search(r"os error (\d+)", str(error))  # safetensors has the system's number in its message only
        number = error.errno if isinstance(error, OSError) else int(found[1]) if found else None
        if number in _DISK_FULL:
            raise MachineError(
                f"{place}: the disk is full; free some space and repeat the command: what was saved before is intact."
            ) from error
        if number in _NO_PERMISSION:
            raise UserError(
                f"{place}: no permission to write here; change its mode or owner, or choose another place."
            ) from error
        if number in _NOT_A_FOLDER:
            raise UserError(f"{place}: a part of this path is a file, not a folder; choose another place.") from error
        raise


def is_marked(start: bytes, end: bytes) -> bool:
    """Whether a file that starts and ends like this is one of ours."""
    return any(start.startswith(kind) and mark.search(start + end) for kind, mark in _MARKS.items())


def sign_zip(file: BinaryIO) -> None:
    """Put our mark into an archive that has just been written: its comment, which comes last."""
    comment = GENERATOR.encode()
    file.seek(-2, 2)  # the comment's length
    file.write(len(comment).to_bytes(2, "little") + comment)


def name_output(out: str | Path, what: str) -> Path:
    """The place that a person named for `what`; an empty name, which would mean the folder they are in, is refused."""
    if not str(out).strip():
        raise UserError(f"out: the name of the {what} to write is empty; give one.")
    return Path(out)


def output_folder(out: str | Path) -> Path:
    """The folder that a person named for files, which need not be there yet; what is no folder is refused."""
    place = name_output(out, "folder")
    try:
        in_the_way = place.exists() and not place.is_dir()
    except (OSError, ValueError) as error:
        raise unwritable(place, error) from None
    if in_the_way:
        raise UserError(f"{place}: there is a file of this name, and a folder is needed; choose another name.")
    return place


def real_path(path: Path) -> Path:
    """Where a path leads, links followed."""
    try:
        return path.resolve()
    except (RuntimeError, ValueError, OSError) as error:  # links in a circle, a null byte, no folder to start from
        raise UserError(f"{path}: leads nowhere ({str(error)[:200]}); choose another place.") from None


def check_file(path: str | Path) -> Path:
    """The file to write, as a path; refused unless there is none yet, or an empty one, or one of ours.

    A device or a pipe may be written to: that loses nothing.
    """
    if str(path).endswith(("/", "\\")):
        raise UserError(f"{path}: this is the name of a folder; give the name of a file.")
    path = name_output(path, "file")
    try:
        found = path.stat()
    except (OSError, ValueError):  # nothing there; or whoever writes it will say what is wrong
        return path
    if stat.S_ISDIR(found.st_mode):
        raise UserError(f"{path}: there is a folder of this name; remove it, or choose another name.")
    if stat.S_ISREG(found.st_mode) and found.st_size and not _is_ours(path):
        raise UserError(
            f"{path}: there is a file of this name that vitreous did not write; choose another name, or move it away."
        )
    return path


def _is_ours(path: Path) -> bool:
    with open_input(path) as file:
        start = file.read(_MARK_BYTES)
        file.seek(max(len(start), file.seek(0, 2) - _MARK_BYTES))
        return is_marked(start, file.read(_MARK_BYTES))


def check_folder(out: Path, files: frozenset[str] | None = None) -> None:
    """Refuse to replace a folder unless it is empty, or our manifest vouches for all that is in it.

    files: what it must hold besides the manifest; None for whatever the manifest lists.
    """
    read_whole(out, lambda: _check_folder(out, files))


def _check_folder(out: Path, files: frozenset[str] | None) -> None:
    try:
        inside = {path.name for path in out.iterdir()} if out.is_dir() else set()
    except OSError as error:
        raise UserError(f"{out}: cannot be read ({reason(error)}); choose another folder.") from None
    if not inside:
        return
    advice = "would be replaced as a whole; choose a folder that is new, empty, or written by this very command before."
    if MANIFEST not in inside or (files is not None and inside != files | {MANIFEST}):
        some = ", ".join(sorted(inside - (files or frozenset()) - {MANIFEST})[:3] or sorted(inside))
        raise UserError(f"{out}: is not empty (it holds {some}) and {advice}")
    try:
        listed = check_manifest(out)
    except UserError as error:
        raise UserError(f"{out}: is not as vitreous wrote it ({str(error).split(';')[0]}) and {advice}") from None
    found = {path.relative_to(out).as_posix() for path in out.rglob("*") if not path.is_dir() or path.is_symlink()}
    if stray := sorted(found - listed - {MANIFEST}):
        raise UserError(f"{out}: is not empty (it holds {', '.join(stray[:3])}) and {advice}")


def check_elsewhere(out: Path) -> None:
    """Refuse to replace the folder that a person is in, or one that holds it."""
    here = real_path(Path())
    if real_path(out) in (here, *here.parents):
        raise UserError(
            f"{out}: is or holds the folder you are in, and would be replaced as a whole; name a new folder."
        )


def check_apart(out: Path, source: Path | None) -> None:
    read = None if source is None else real_path(source)
    if read is not None and real_path(out) in (read, *read.parents):
        raise UserError(f"{out}: is or holds the source {source}, which would be lost; choose another place.")
