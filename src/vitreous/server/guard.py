"""Middleware before every route: authorisation, security headers, metrics.

Without a token a server listens on this machine alone. A stranger's page may still make a local browser send requests:
from its own origin, or by a name that it lets point here (DNS rebinding). Both are refused, but for the origins that
were allowed. With a token every request needs it, and any host name is accepted.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import logging
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from urllib.parse import urlsplit

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitreous.arguments import shown
from vitreous.config.server import ServerSettings
from vitreous.server.bodies import BODY_METER, BodyBudget, BodyMeter
from vitreous.server.errors import ApiError
from vitreous.server.metrics import ServerMetrics

log = logging.getLogger("vitreous")

PUBLIC_PATHS = ("/", "/health", "/v2/health/live", "/v2/health/ready", "/docs", "/openapi.json")
PUBLIC_FOLDER = "/page/static/"
"""Readable without a token: the page, which asks for it, the documentation, and health checks."""
IMAGE_PATHS = ("/predict", "/", "/embed")  # refused before anything is begun for them while all queues are full
CLIENT_CLOSED_REQUEST = 499  # nginx's status for a client that disconnected before it was answered
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(self), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cache-control": "no-store",
}
"""Of every response, unless a route sets its own."""
RAW_HEADERS = [(name.encode(), value.encode()) for name, value in HEADERS.items()]


PREFLIGHT_HEADERS = {
    "Access-Control-Allow-Methods": "GET, POST",
    "Access-Control-Allow-Headers": "Authorization, Content-Type, Inference-Header-Content-Length",
    "Access-Control-Max-Age": "600",
}


class _Responder:
    """Sends a response with the security headers, and knows its status, 0 before it has begun."""

    def __init__(self, send: Send, origin: bytes | None) -> None:
        """origin: of web pages elsewhere that may read it (CORS)."""
        self._send, self._headers = send, list(RAW_HEADERS)
        if origin is not None:
            exposed = b"Retry-After, Inference-Header-Content-Length"
            self._headers += [(b"access-control-allow-origin", origin), (b"access-control-expose-headers", exposed)]
            self._headers += [(b"vary", b"Origin")]
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            own = {name.lower() for name, _ in message["headers"]}
            message["headers"] = [*message["headers"], *(pair for pair in self._headers if pair[0] not in own)]
        await self._send(message)


class Policy:
    """Decides from a request's headers whether it is allowed and can be served now."""

    def __init__(self, settings: ServerSettings, reserve: Callable[[], None]) -> None:
        """reserve: keeps a place for an image, or raises an `ApiError` if every model's queue is full."""
        self._host, self._origins, self._reserve = settings.host, settings.allowed_origins, reserve
        self._token = None if settings.token is None else _digest(settings.token.encode())

    def overload_error(self, method: bytes, target: bytes, headers: Iterable[tuple[bytes, bytes]]) -> ApiError | None:
        """The error for an authorised request with an image for which there is no place; None for any other request."""
        path = target.partition(b"?")[0].decode("latin-1")
        if method != b"POST" or path not in IMAGE_PATHS or self.allowed_origin(headers) is not None:
            return None
        with suppress(ApiError):  # whoever may not ask is not told how busy it is
            self.check("POST", path, headers)
            try:
                self._reserve()
            except ApiError as refused:
                return refused
        return None

    def allowed_origin(self, headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
        """The origin of the web page that sends this, if it is one of those that may; None for the server's own."""
        origin = dict(headers).get(b"origin")
        known = origin is not None and ("*" in self._origins or origin.decode("latin-1") in self._origins)
        return origin if known else None

    def check(self, method: str, path: str, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        """Refuse what is not authorised."""
        headers = {name: value.decode("latin-1") for name, value in pairs}
        if b"content-length" in headers and b"transfer-encoding" in headers:  # a proxy may believe the other one
            raise ApiError(400, "give Content-Length or Transfer-Encoding, not both.", headers={"Connection": "close"})
        if self._token is None:
            _check_host(headers.get(b"host", ""), self._host)
            if self.allowed_origin(pairs) is None:
                _check_origin(headers)
            return
        if method == "GET" and (path in PUBLIC_PATHS or path.startswith(PUBLIC_FOLDER)):
            return
        kind, _, given = headers.get(b"authorization", "").partition(" ")
        right = hmac.compare_digest(_digest(given.strip().encode("latin-1")), self._token)
        if kind.lower() != "bearer" or not right:
            raise ApiError(
                401,
                "this server needs its token; send the header Authorization: Bearer TOKEN.",
                headers={"WWW-Authenticate": "Bearer"},
            )


class Guard:
    """An ASGI application around another."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, metrics: ServerMetrics, policy: Policy) -> None:
        self.app, self.metrics, self.policy = app, metrics, policy
        self._budget = BodyBudget(settings.max_total_body_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # uvicorn leaves the body out
        origin = self.policy.allowed_origin(scope["headers"])
        started, guarded = time.perf_counter(), _Responder(send, origin)
        meter = scope[BODY_METER] = BodyMeter(self._budget, self.metrics)
        try:
            if origin is not None and scope["method"] == "OPTIONS":  # a browser asks whether the page may ask
                await Response(status_code=204, headers=PREFLIGHT_HEADERS)(scope, receive, guarded)
            else:
                await self._call(scope, receive, guarded)
        finally:
            meter.close()
            self.metrics.request(_route(scope), guarded.status, time.perf_counter() - started)

    async def _call(self, scope: Scope, receive: Receive, send: _Responder) -> None:
        task, watch, disconnected = asyncio.current_task(), None, False

        async def wait_for_disconnect() -> None:
            """Once the body is complete, the next message is that the client disconnected."""
            nonlocal disconnected
            if (await receive())["type"] == "http.disconnect" and not send.status and task is not None:
                disconnected = task.cancel()

        async def receive_and_watch() -> Message:
            nonlocal watch
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body") and watch is None:
                watch = asyncio.ensure_future(wait_for_disconnect())
            return message

        try:
            self.policy.check(scope["method"], scope["path"], scope["headers"])
            await self.app(scope, receive_and_watch, send)
        except ApiError as error:
            await error.response()(scope, receive, send)
        except ClientDisconnect:
            send.status = CLIENT_CLOSED_REQUEST
        except asyncio.CancelledError:  # the server ends, and has waited for long enough; so does this task, here
            if disconnected:  # nobody waits for an answer, so nothing more is computed for it
                send.status = CLIENT_CLOSED_REQUEST
            elif not send.status:
                ending = ApiError(503, "the server ends; try again later.", retry_after=1)
                await ending.response()(scope, receive, send)
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]  # the innermost: where it was raised
            place = f"{frame.filename}:{frame.lineno}, in {frame.name}"
            log.error(f"{scope['method']} {_route(scope)}: {type(error).__name__}: {error} ({place})")
            log.debug("where it happened", exc_info=True)
            if send.status:
                raise  # the answer had begun: only to close the connection says that it is not whole
            failed = ApiError(500, "the server made a mistake, which its log tells; it is not your request's fault.")
            await failed.response()(scope, receive, send)
        finally:
            if watch is not None:
                watch.cancel()


def _digest(token: bytes) -> bytes:
    """A hash of fixed length, so that the time of a comparison does not even tell the token's length."""
    return hashlib.sha256(token).digest()


def _check_host(host: str, own: str) -> None:
    """Refuse a Host header that is not a local name (DNS rebinding)."""
    name = _host_name(f"//{host}")
    if name not in (own.lower(), "localhost") and not name.endswith(".localhost") and not is_loopback(name):
        raise ApiError(
            421,
            "this server answers to this machine's own address alone, such as 127.0.0.1; give it a token for others.",
        )


def _check_origin(headers: dict[bytes, str]) -> None:
    """Refuse a request that a page of another server makes a browser send."""
    origin = headers.get(b"origin")
    if origin is not None and (not _host_name(origin) or urlsplit(origin).netloc != headers.get(b"host")):
        raise ApiError(
            403,
            f"this request comes from a web page of {shown(origin)}; start the server with --allow-origin and that "
            "address if such pages may send requests.",
        )


def _host_name(address: str) -> str:
    """The host name in an address, without a port; "" if there is none or the address is malformed."""
    try:
        parts = urlsplit(address)
        name, _ = parts.hostname, parts.port
    except ValueError:  # brackets or numbers that mean nothing
        return ""
    return (name or "") if "@" not in parts.netloc else ""


def is_loopback(address: str) -> bool:
    """Whether it is a numeric address that only this machine reaches."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _route(scope: Scope) -> str:
    """The route's template: paths as clients write them would make ever new counters."""
    known = scope["path"] if scope["path"] in IMAGE_PATHS else "other"
    return str(getattr(scope.get("route"), "path", known))
