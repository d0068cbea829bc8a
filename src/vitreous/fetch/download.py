"""One file from the web: taken up where it broke off, and at its place only when it is whole.

While it comes, FILE.part has what has come, and FILE.from where from and which version, so that no two versions are
ever put together. The second stays beside the file, and says of it alone that we brought it and may remove it again.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from http.client import HTTPResponse
from pathlib import Path

from vitreous.callbacks import Progress
from vitreous.errors import UserError
from vitreous.inputs import format_bytes, reason
from vitreous.storage.files import write_file
from vitreous.storage.http import HttpError, RetryPolicy, TemporaryHttpError, get, read_pieces
from vitreous.storage.overwrite import readable_errors

MAX_UNKNOWN_BYTES = 2**40  # of a file whose size nobody says
RETRY = RetryPolicy(tries=4, pause=1.0)  # tries count in a row, without `least` bytes between


@dataclass(frozen=True)
class DownloadRecord:
    """What a server said of the file that is being fetched."""

    url: str
    tag: str | None = None
    """A strong ETag, or a date of change; None where the server gives neither, so that nothing can be continued."""
    size: int | None = None
    finished: int | None = None
    """The modification time in ns of the whole file; None while it is coming. A file of another time is not ours."""


def part_of(path: Path) -> Path:
    return path.with_name(path.name + ".part")


def origin_of(path: Path) -> Path:
    """Where a file that was downloaded came from."""
    return path.with_name(path.name + ".from")


def download(
    urls: Sequence[str],
    path: Path,
    *,
    size: int | None = None,
    progress: Progress | None = None,
    retry: RetryPolicy | None = None,
) -> str:
    """Bring the file to `path`, from the first address that has it, and return that address.

    size: bytes that it must have, if that is known. progress: told bytes done and in all.
    """
    errors: dict[str, HttpError] = {}
    for url in sorted(urls, key=lambda url: _record_of(path, url) is None):  # first what can be continued
        try:
            with readable_errors(path):
                _fetch(url, path, size, progress, retry or RETRY)
            return url
        except HttpError as error:
            errors[url] = error
    why = "; ".join(f"{url}: {_complaint(error, url, path)}" for url, error in errors.items())
    if any(isinstance(error, TemporaryHttpError) for error in errors.values()):
        raise UserError(f"{why}; repeat the command to go on.")
    raise UserError(f"{why}; try again later, or put the file at {path} yourself.")


def downloaded_from(path: Path) -> str | None:
    """The address that the file was downloaded from; None for a file that somebody put there."""
    note = _read_record(path)
    return note.url if note is not None and note.finished == path.stat().st_mtime_ns else None


def _complaint(error: HttpError, url: str, path: Path) -> str:
    if not isinstance(error, TemporaryHttpError):
        return str(error)
    done = _size(part_of(path)) if _record_of(path, url) else 0
    return f"broke off{f' after {format_bytes(done)}, which are kept' if done else ''} ({error})"


def _fetch(url: str, path: Path, size: int | None, progress: Progress | None, retry: RetryPolicy) -> None:
    unfinished, failures = part_of(path), 0
    most = _size(unfinished)
    while True:
        try:
            _attempt(url, path, size, progress, retry)
            break
        except TemporaryHttpError:
            failures = 0 if _size(unfinished) >= most + retry.least else failures + 1
            most = max(most, _size(unfinished))
            if failures >= retry.tries:
                raise
            time.sleep(retry.pause * 2**failures)
    unfinished.replace(path)
    _write_record(path, replace(_record_of(path, url) or DownloadRecord(url), finished=path.stat().st_mtime_ns))


def _attempt(url: str, path: Path, size: int | None, progress: Progress | None, retry: RetryPolicy) -> None:
    """Read as much as one connection gives, to the end of `FILE.part`."""
    unfinished, headers = part_of(path), {}
    known = _record_of(path, url)
    done = _size(unfinished) if known else 0
    if known and done and done in (size, known.size):  # it was whole, and its process was ended before it said so
        return
    if known is None or known.tag is None:
        done = 0
    elif done:
        headers = {"Range": f"bytes={done}-", "If-Range": known.tag}
    try:
        with get(url, headers, retry) as response:
            if response.status != 206:
                done = 0
            elif not _continues(response, known, done):
                raise _file_changed(unfinished)
            length = response.headers.get("Content-Length", "")
            total = done + int(length) if length.isascii() and length.isdigit() else None
            if size is not None and total is not None and total != size:
                raise HttpError(f"it has {total:,} bytes now, and {size:,} were published")
            _write_record(path, DownloadRecord(url, _tag(response), total))
            _receive(response, unfinished, done, total or size, progress, retry)
    except HttpError as error:
        if error.status == 416 and done:  # it has fewer bytes than are here: another version
            raise _file_changed(unfinished) from None
        raise


def _file_changed(unfinished: Path) -> TemporaryHttpError:
    unfinished.unlink(missing_ok=True)
    return TemporaryHttpError("the file was changed on the server")


def _receive(
    response: HTTPResponse,
    file: Path,
    done: int,
    total: int | None,
    progress: Progress | None,
    retry: RetryPolicy,
) -> None:
    most = total or MAX_UNKNOWN_BYTES
    with file.open("r+b" if done else "wb") as output:
        output.truncate(done)
        output.seek(done)
        for piece in read_pieces(response, retry):
            done += len(piece)
            if done > most:
                raise HttpError(f"it sends more than the {most:,} bytes that it should have")
            output.write(piece)
            if progress is not None:
                progress(done, total or done)
        output.flush()
        os.fsync(output.fileno())
    if total is not None and done < total:
        raise TemporaryHttpError(f"{done:,} of {total:,} bytes came")


def _continues(response: HTTPResponse, known: DownloadRecord | None, done: int) -> bool:
    """Whether a part of a file is what follows the bytes that are here, and of the same version."""
    found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
    if found is None or int(found[1]) != done or known is None:
        return False
    same_size = known.size is None or found[2] in ("*", str(known.size))
    return same_size and _tag(response) in (None, known.tag)


def _tag(response: HTTPResponse) -> str | None:
    """What changes with every byte of the file: a weak ETag does not, and a date of change does as a rule."""
    tag: str | None = response.headers.get("ETag")
    return tag if tag and not tag.startswith("W/") else response.headers.get("Last-Modified")


def _record_of(path: Path, url: str) -> DownloadRecord | None:
    """The version that `FILE.part` is of, if it is of this address."""
    note = _read_record(path)
    return note if note is not None and note.url == url else None


def _read_record(path: Path) -> DownloadRecord | None:
    with suppress(OSError, ValueError, TypeError):
        note = DownloadRecord(**json.loads(origin_of(path).read_text(encoding="utf-8")))
        return note if isinstance(note.url, str) and isinstance(note.tag, str | None) else None
    return None


def _write_record(path: Path, version: DownloadRecord) -> None:
    write_file(origin_of(path), json.dumps(asdict(version)) + "\n")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({reason(error)}); check its mode and owner.") from None
