"""Parts of files on the web: range requests over connections that stay open, each tried again a few times.

What a server says of a file (size, ETag) is remembered, so that two versions are never mixed.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
import threading
import time
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, InvalidURL
from typing import NamedTuple
from urllib.parse import urljoin, urlsplit

from vitreous import __version__
from vitreous.data.workers import extend_heartbeat
from vitreous.errors import UserError
from vitreous.inputs import reason

REDIRECTS = 5
PIECE = 2**16


@dataclass(frozen=True)
class RetryPolicy:
    """When a server is given up: after `tries` attempts that fail, with growing pauses between."""

    seconds: float = 30.0  # without a byte; and how long `least` bytes may take
    least: int = 2**14  # bytes; fewer are next to nothing
    tries: int = 5
    pause: float = 0.5


retry = RetryPolicy()


class _AgainError(Exception):
    """The connection failed, or the server is busy: the same may succeed later."""


class FileVersion(NamedTuple):
    """What a server says of a file."""

    size: int
    tag: str


_versions: dict[str, FileVersion] = {}
"""Of each file, as the server said first. Another thread may forget it at any time (`stat`)."""
_local = threading.local()


def is_web(address: str) -> bool:
    """Whether this is an address on the web."""
    return address.lower().startswith(("http://", "https://"))


def stat(url: str) -> FileVersion:
    """Size and tag of the file: what its first byte comes with. A server that changes it later is noticed."""
    _versions.pop(url, None)
    _, version = _with_retries(url, 0, 1)
    return version


def read(url: str, start: int, length: int, size: int | None = None) -> bytes:
    """So many bytes from `start` on, fewer where the file ends; size: what the file must have in all."""
    content, version = _with_retries(url, start, length)
    if size is not None and version.size != size:
        raise UserError(
            f"{url}: has {version.size:,} bytes, and {size:,} when its index was made; make the index again."
        )
    return content


def _with_retries(url: str, start: int, length: int) -> tuple[bytes, FileVersion]:
    """The bytes, and the version of the file that they are of."""
    for attempt in range(retry.tries):
        if attempt:
            pause = retry.pause * 2 ** (attempt - 1)
            extend_heartbeat(pause)
            time.sleep(pause)
        try:
            return _attempt(url, start, length)
        except _AgainError as error:
            _forget()
            why = error
        except UserError:
            _forget()
            raise
    raise UserError(f"{url}: broke off at byte {start:,}, {retry.tries} times ({why}); repeat the command later.")


def _attempt(url: str, start: int, length: int) -> tuple[bytes, FileVersion]:
    place = url
    headers = {
        "User-Agent": f"vitreous/{__version__}",
        "Accept-Encoding": "identity",
        "Range": f"bytes={start}-{start + length - 1}",
    }
    try:
        for _ in range(REDIRECTS):
            parts = urlsplit(place)
            connection = _connection(parts.scheme, parts.netloc)
            extend_heartbeat(3 * retry.seconds)  # for a connection, for its encryption, and for an answer
            connection.request("GET", parts.path + (f"?{parts.query}" if parts.query else ""), headers=headers)
            answer = connection.getresponse()
            try:
                if answer.status not in (301, 302, 303, 307, 308):
                    return _received(url, answer, start, length)
                place = urljoin(place, answer.headers.get("Location", ""))
            finally:
                if answer.length != 0:  # what was not read of it would be taken for the next answer
                    _forget()
                answer.close()
            if not is_web(place):
                raise UserError(f"{url}: leads to {place[:200]!r}, which is no address on the web; check it.")
        raise UserError(f"{url}: leads from one address to another without end; check it.")
    except ssl.SSLCertVerificationError as error:
        raise UserError(
            f"{url}: its server cannot prove that it is who it says ({reason(error)[:200]}); check the address, or "
            "have its certificate trusted on this machine."
        ) from None
    except socket.gaierror as error:
        if error.errno == socket.EAI_NONAME:
            raise UserError(f"{url}: there is no server of this name; check the address.") from None
        raise _AgainError(reason(error)[:200]) from None
    except (InvalidURL, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{url}: not an address on the web ({str(error)[:200]}); check it.") from None
    except (HTTPException, OSError) as error:  # timeouts and refused connections among them
        raise _AgainError(reason(error)[:200] or type(error).__name__) from None


def _received(url: str, answer: HTTPResponse, start: int, length: int) -> tuple[bytes, FileVersion]:
    if answer.status in (408, 425, 429) or answer.status >= 500:
        raise _AgainError(f"the server answers {answer.status} {answer.reason}")
    if answer.status == 416:
        raise UserError(f"{url}: has no byte {start:,}, so it is cut short; restore it from a copy.")
    if answer.status == 200:
        raise UserError(
            f"{url}: its server gives whole files only, no parts of them (range requests); download the shards, and "
            "give their folder."
        )
    if answer.status != 206:
        raise UserError(f"{url}: the server answers {answer.status} {answer.reason}; check the address.")
    said = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", answer.headers.get("Content-Range", ""))
    if said is None or int(said[1]) != start:
        raise UserError(f"{url}: its server answers with another part than the one asked for; download the shards.")
    tag = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
    version = FileVersion(int(said[3]), tag)
    _check_version(url, version)
    wanted = min(length, version.size - start)
    body = _body(answer, wanted)
    if len(body) < wanted:
        raise _AgainError(f"{len(body):,} of {wanted:,} bytes came")
    return body, version


def _body(answer: HTTPResponse, wanted: int) -> bytes:
    """What comes, up to so many bytes; a server that trickles is taken for broken off."""
    body = bytearray()
    since, then = time.monotonic(), 0
    while len(body) < wanted and (piece := answer.read1(min(PIECE, wanted - len(body)))):
        body += piece
        extend_heartbeat(retry.seconds)
        if time.monotonic() - since > retry.seconds:
            if len(body) - then < retry.least:
                raise _AgainError(f"{len(body) - then:,} bytes in {retry.seconds:g} s")
            since, then = time.monotonic(), len(body)
    return bytes(body)


def _check_version(url: str, version: FileVersion) -> None:
    if _versions.setdefault(url, version) != version:
        raise UserError(f"{url}: was changed on the server while it was read; repeat the command.")


class _Connections(dict[tuple[str, str], HTTPConnection]):
    """A thread's open connections, by scheme and server; closed when the thread ends."""

    def __init__(self) -> None:
        super().__init__()
        self.process = os.getpid()

    def __del__(self) -> None:
        for connection in self.values():
            connection.close()


def _connection(scheme: str, host: str) -> HTTPConnection:
    """This thread's open connection to a server; a process that was forked opens its own."""
    kept: _Connections | None = getattr(_local, "open", None)
    if kept is None or kept.process != os.getpid():
        kept = _local.open = _Connections()
    if (scheme, host) not in kept:
        kind = HTTPSConnection if scheme == "https" else HTTPConnection
        kept[scheme, host] = kind(host, timeout=retry.seconds)
    return kept[scheme, host]


def _forget() -> None:
    """Close this thread's connections: after an error nobody knows what else is waiting in them."""
    _local.open = None
