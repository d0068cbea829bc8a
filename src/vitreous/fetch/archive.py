"""Archives of others, unpacked so that nothing is written but ordinary files below one folder.

A name that leads elsewhere, a link, a device, or more bytes than the archive may have: the archive is refused as a
whole. The folder is one that the caller has just made and removes if this fails, so no link can be in it.
"""

from __future__ import annotations

import lzma
import re
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from vitreous.data.unpack import GzipReader
from vitreous.errors import UserError
from vitreous.inputs import format_bytes, open_input

CHUNK_BYTES = 2**20
MAX_FILES = 4_000_000  # names in one archive; ImageNet has 1.3 million
SPARE_BYTES, MAX_EXPANSION = (
    100 * 10**6,
    4,
)  # an archive of n bytes may hold `SPARE_BYTES` and `MAX_EXPANSION` x n, unless the table says more
_SYSTEM_FILES = re.compile(r"(^|/)(__MACOSX|\._[^/]*|\.DS_Store)(/|$)")
_TARS = (".tar", ".tar.gz", ".tgz")

ByteProgress = Callable[[int], None]


class Quota:
    """How much an archive may still write; more is refused."""

    def __init__(self, path: Path, most: int | None, progress: ByteProgress | None = None) -> None:
        self.path = path
        self._most = SPARE_BYTES + MAX_EXPANSION * path.stat().st_size if most is None else most
        self._bytes, self._files = 0, 0
        self._progress = progress

    def take(self, size: int) -> None:
        self._bytes += size
        if self._bytes > self._most:
            raise UserError(
                f"{self.path}: holds more than {format_bytes(self._most)}, far more than it should; download it again."
            )
        if self._progress is not None:
            self._progress(self._bytes)

    def take_file(self) -> None:
        self._files += 1
        if self._files > MAX_FILES:
            raise UserError(f"{self.path}: holds more than {MAX_FILES:,} files; download it again.")


def unpack_archive(
    path: Path,
    folder: Path,
    *,
    only: tuple[str, ...] = (),
    nested: bool = False,
    most: int | None = None,
    progress: ByteProgress | None = None,
) -> None:
    """Write what a tar (packed or not) or a zip holds to `folder`, which is there and has no links in it.

    only: what the names that are wanted start with; () for all. nested: tars in it are unpacked too, each to a folder
    of its name. most: bytes; more than that is refused. progress: told how many bytes are written.
    """
    quota = Quota(path, most, progress)
    with open_input(path) as file, _readable(path):
        start = file.read(4)
        file.seek(0)
        if start in (b"PK\x03\x04", b"PK\x05\x06"):
            _unpack_zip(file, folder, only, nested, quota)
        else:
            _unpack_tar(file, folder, only, nested, quota)


def unpack_gzip(path: Path, final: Path, *, most: int | None = None, progress: ByteProgress | None = None) -> None:
    quota = Quota(path, most, progress)
    with open_input(path) as file:
        _copy(GzipReader(file, path), final, quota)


def _unpack_zip(file: IO[bytes], folder: Path, only: tuple[str, ...], nested: bool, quota: Quota) -> None:
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            quota.take_file()
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise _refused(quota.path, member.filename, "is a link or a device")
            name = _inner_name(quota.path, member.filename)
            if name is None or not _is_selected(name, only) or member.is_dir():
                continue
            with archive.open(member) as content:
                _place(content, name, folder, nested, quota)


def _unpack_tar(file: IO[bytes], folder: Path, only: tuple[str, ...], nested: bool, quota: Quota) -> None:
    with tarfile.open(fileobj=file, mode="r|*") as archive:  # read once, from front to back
        for member in archive:
            quota.take_file()
            if not (member.isreg() or member.isdir()):
                raise _refused(quota.path, member.name, "is a link or a device")
            name = _inner_name(quota.path, member.name)
            if name is None or not _is_selected(name, only) or member.isdir():
                continue
            content = archive.extractfile(member)
            assert content is not None
            with content:
                _place(content, name, folder, nested, quota)


def _place(content: IO[bytes], name: PurePosixPath, folder: Path, nested: bool, quota: Quota) -> None:
    suffix = next((end for end in _TARS if name.name.lower().endswith(end)), None)
    if nested and suffix is not None:
        inner = folder / name.with_name(name.name[: -len(suffix)])
        inner.mkdir(parents=True, exist_ok=True)
        _unpack_tar(content, inner, (), False, quota)
    else:
        final = folder / name
        final.parent.mkdir(parents=True, exist_ok=True)
        _copy(content, final, quota)


def _copy(content: IO[bytes] | GzipReader, final: Path, quota: Quota) -> None:
    with final.open("wb") as file:
        while piece := content.read(CHUNK_BYTES):
            quota.take(len(piece))
            file.write(piece)


def _inner_name(path: Path, name: str) -> PurePosixPath | None:
    """A name in an archive as a path below the folder; None for what a system leaves behind everywhere."""
    inner = PurePosixPath(name)
    if inner.is_absolute() or "\\" in name or "\0" in name or re.match(r"[A-Za-z]:", name) or ".." in inner.parts:
        raise _refused(path, name, "leads out of its folder")
    return None if _SYSTEM_FILES.search(name) or not inner.parts else inner


def _is_selected(name: PurePosixPath, only: tuple[str, ...]) -> bool:
    return not only or str(name).startswith(only)


def _refused(path: Path, name: str, why: str) -> UserError:
    return UserError(f"{path}: {name[:100]!r} in it {why}, so nothing of it is unpacked; get it from its owners.")


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError) as error:
        why = str(error)[:200] or type(error).__name__
        raise UserError(f"{path}: not a whole tar or zip ({why}); remove it and get it again.") from None
    except (RuntimeError, NotImplementedError) as error:  # encrypted, or packed in a way that Python does not know
        raise UserError(f"{path}: cannot be unpacked here ({str(error)[:200]}); get it from its owners.") from None
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise UserError(f"{path}: holds a file and a folder of one name ({error.filename}); get it again.") from None
    except OSError as error:
        if error.errno is None:  # gzip's own complaint about a wrong sum
            raise UserError(f"{path}: damaged ({error}); remove it and get it again.") from None
        raise
