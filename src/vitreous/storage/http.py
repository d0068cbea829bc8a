"""HTTP: connections that stay open, proxies, redirects, and which failures may pass.

Errors say what happened without the address, which whoever asked puts in front.
"""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, InvalidURL
from urllib.parse import SplitResult, unquote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

from vitreous import __version__
from vitreous.inputs import reason

MAX_REDIRECTS = 5
PIECE_BYTES = 2**16
MAX_SKIPPED_BYTES = 2**16  # of the body of a redirect, which are read so that its connection can be used again
_local = threading.local()

Waiting = Callable[[float], None]  # called with the seconds for which the server may now be silent


@dataclass(frozen=True)
class RetryPolicy:
    """When a server is given up: after `tries` attempts that fail, with growing pauses between."""

    seconds: float = 30.0  # without a byte; and how long `least` bytes may take
    least: int = 2**14  # bytes; fewer are next to nothing
    tries: int = 5
    pause: float = 0.5


class HttpError(Exception):
    """The server has something else, or nothing: asking again is no use."""

    def __init__(self, why: str, advice: str = "check the address", status: int = 0) -> None:
        super().__init__(why)
        self.advice, self.status = advice, status


class TemporaryHttpError(HttpError):
    """The connection failed, or the server is busy: the same may succeed later."""


def is_web(address: str) -> bool:
    """Whether this is an address on the web."""
    return address.lower().startswith(("http://", "https://"))


@contextmanager
def get(
    url: str, headers: Mapping[str, str], policy: RetryPolicy, waiting: Waiting = lambda seconds: None
) -> Iterator[HTTPResponse]:
    """What the server answers, with a status that means success; whatever else it answers is an `HttpError`."""
    headers = {"User-Agent": f"vitreous/{__version__}", "Accept-Encoding": "identity", **headers}
    place = url
    for _ in range(MAX_REDIRECTS):
        if not is_web(place):
            raise HttpError(
                "not an address on the web" if place == url else f"leads to {place[:200]!r}, not to the web"
            )
        waiting(3 * policy.seconds)  # for a connection, for its encryption, and for an answer
        with _errors():
            parts = urlsplit(place)
            response = _ask(parts, headers, policy)
        try:
            if response.status not in (301, 302, 303, 307, 308):
                _check_status(response)
                yield response
                return
            place = urljoin(place, response.headers.get("Location", ""))
            with _errors():
                response.read(MAX_SKIPPED_BYTES)
        finally:
            if response.length != 0 and not response.isclosed():  # the rest would be taken for the next answer
                _close(parts)
            response.close()
    raise HttpError("leads from one address to another without end")


def read_pieces(
    response: HTTPResponse, policy: RetryPolicy, limit: int | None = None, waiting: Waiting = lambda seconds: None
) -> Iterator[bytes]:
    """The body as it comes, at most `limit` bytes; a server that trickles is taken for broken off."""
    done, since, then = 0, time.monotonic(), 0
    while limit is None or done < limit:
        with _errors():
            piece = response.read1(PIECE_BYTES if limit is None else min(PIECE_BYTES, limit - done))
        if not piece:
            return
        waiting(policy.seconds)
        done += len(piece)
        yield piece
        if time.monotonic() - since > policy.seconds:
            if done - then < policy.least:
                raise TemporaryHttpError(f"{done - then:,} bytes in {policy.seconds:g} s")
            since, then = time.monotonic(), done


def _check_status(response: HTTPResponse) -> None:
    if response.status in (200, 206):
        return
    kind = TemporaryHttpError if response.status in (408, 425, 429) or response.status >= 500 else HttpError
    raise kind(f"the server answers {response.status} {response.reason}", status=response.status)


@contextmanager
def _errors() -> Iterator[None]:
    """Within, whatever goes wrong is the network's doing, and an `HttpError`."""
    try:
        yield
    except ssl.SSLCertVerificationError as error:
        raise HttpError(
            f"its server cannot prove that it is who it says ({reason(error)[:200]})",
            "check the address, or have its certificate trusted on this machine",
        ) from None
    except socket.gaierror as error:
        if error.errno == socket.EAI_NONAME:
            raise HttpError("there is no server of this name") from None
        raise TemporaryHttpError(reason(error)[:200]) from None
    except (InvalidURL, ValueError) as error:
        raise HttpError(f"not an address on the web ({str(error)[:200]})") from None
    except (HTTPException, OSError) as error:  # timeouts and refused connections among them
        raise TemporaryHttpError(reason(error)[:200] or type(error).__name__) from None


class _Connections(dict[tuple[str, str], HTTPConnection]):
    """A thread's open connections, by scheme and server; closed when the thread ends."""

    def __init__(self) -> None:
        super().__init__()
        self.process = os.getpid()

    def __del__(self) -> None:
        for connection in self.values():
            connection.close()


def _connections() -> _Connections:
    """This thread's; a process that was forked opens its own."""
    kept: _Connections | None = getattr(_local, "open", None)
    if kept is None or kept.process != os.getpid():
        kept = _local.open = _Connections()
    return kept


def _close(parts: SplitResult) -> None:
    """Close this thread's connection to a server: after an error nobody knows what else is waiting in it."""
    connection = _connections().pop((parts.scheme, parts.netloc), None)
    if connection is not None:
        connection.close()


def _ask(parts: SplitResult, headers: Mapping[str, str], policy: RetryPolicy) -> HTTPResponse:
    kept, key = _connections(), (parts.scheme, parts.netloc)
    proxy = _proxy_of(parts)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if proxy is not None and parts.scheme == "http":
        path, headers = f"http://{parts.netloc}{path}", {**headers, **_proxy_headers(proxy)}
    open_already = key in kept
    if not open_already:
        kept[key] = _connect(parts, proxy, policy)
    try:
        kept[key].request("GET", path, headers=headers)
        return kept[key].getresponse()
    except Exception as error:
        _close(parts)
        if open_already and isinstance(error, ConnectionError):  # closed by the server meanwhile
            return _ask(parts, headers, policy)
        raise


def _connect(parts: SplitResult, proxy: SplitResult | None, policy: RetryPolicy) -> HTTPConnection:
    if not parts.netloc:
        raise InvalidURL("it names no server")
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    if proxy is None:
        return kind(parts.netloc, timeout=policy.seconds)
    connection = kind(proxy.hostname or "", proxy.port or 80, timeout=policy.seconds)
    if parts.scheme == "https":
        connection.set_tunnel(parts.netloc, headers=_proxy_headers(proxy))
    return connection


def _proxy_of(parts: SplitResult) -> SplitResult | None:
    """The proxy that the environment, or the system, names for an address."""
    proxy = getproxies().get(parts.scheme)
    if not proxy or proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    return urlsplit(proxy if "://" in proxy else f"http://{proxy}")


def _proxy_headers(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    token = b64encode(f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()).decode()
    return {"Proxy-Authorization": f"Basic {token}"}
