"""HTTP connections with timeouts and limits against slow or hostile clients (slow loris).

uvicorn waits forever for the end of a request's headers, and for a client that does not read its response. Here each
wait has a timeout, responses must be read at a minimum speed, and if there are too many connections the one that has
been idle for longest is closed. `bodies` limits how slowly a body may come. Bodies in tiny chunks, and pipelined
requests whose responses are not read, are cut off too, as they cost the event loop its time.

A `Connection` stands between the socket and uvicorn's protocol, and shares h11's parser with it, whose states say what
is going on.
"""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

import h11
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from vitreous.config.server import ServerSettings
from vitreous.server.errors import ApiError, too_large
from vitreous.server.guard import RAW_HEADERS, Policy
from vitreous.server.metrics import ServerMetrics

DRAIN_SECONDS = 2.0
"""For which the rest of a refused request's body is read: a client does not read the response while it sends."""
MAX_SMALL_CHUNKS = 1000
MIN_CHUNK_BYTES = 64  # on average, once there are more chunks
SEND_BUFFER_BYTES = 2**17  # in the kernel; with megabytes, a slow client would seem to read nothing
NOT_HTTP = "this is no request of HTTP that the server understands."
TINY_CHUNKS = "the body comes in chunks of a few bytes; send larger ones."


class Connections:
    """The connections of a server, and what they have in common."""

    def __init__(self, settings: ServerSettings, metrics: ServerMetrics, policy: Policy) -> None:
        self.settings, self.metrics, self.policy = settings, metrics, policy
        self.open: set[Connection] = set()

    def make(self, config: Config, server_state: ServerState, app_state: dict[str, Any], **loop: Any) -> Connection:
        """A connection, as uvicorn asks for it."""
        return Connection(self, H11Protocol(config, server_state, app_state, **loop))

    def close_idlest(self) -> None:
        """If there are too many, close the connection that has been idle for longest."""
        still = [one for one in self.open if not one.transport.is_closing()]
        if len(still) > self.settings.max_connections:
            idle = [one for one in still if one.awaits_client and not one.transport.get_write_buffer_size()]
            min(idle, key=lambda one: one.waiting_since).transport.abort()

    def announce_close(self) -> None:
        """Let all responses to come say that their connections close after them."""
        for one in self.open:
            one.parser.closes = True


class Parser(h11.Connection):
    """h11's parser, which refuses bodies in tiny chunks, and chunks beyond the limit before they come."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(h11.SERVER)
        self._connection = connection
        self._chunks = self._bytes = 0
        self.closes = False  # whether responses say that the connection closes

    @property
    def busy(self) -> bool:
        """Whether a request has begun that is not answered completely."""
        return self.our_state in (h11.SEND_RESPONSE, h11.SEND_BODY)

    def next_event(self) -> Any:
        try:
            event = super().next_event()
        except h11.RemoteProtocolError:
            return self._complain(ApiError(400, NOT_HTTP))
        if isinstance(event, h11.Request):
            self._chunks = self._bytes = 0
            if self._connection.refuse_overload(event):
                return self.next_event()
        elif isinstance(event, h11.Data):
            self._chunks += 1
            self._bytes += len(event.data)
            if self._chunks > MAX_SMALL_CHUNKS and self._bytes < MIN_CHUNK_BYTES * self._chunks:
                return self._complain(ApiError(400, TINY_CHUNKS))
        # h11 has read a chunk's announced size before its first byte, and keeps it to itself
        limit = self._connection.settings.max_body_bytes
        return self._complain(too_large(limit)) if getattr(self._reader, "_bytes_in_chunk", 0) > limit else event

    def _complain(self, error: ApiError) -> Any:
        self._connection.complain(error)
        return h11.NEED_DATA  # which never comes

    def send(self, event: h11.Event) -> bytes | None:  # type: ignore[override]  # h11 has an overload for each event
        if isinstance(event, h11.Response) and self.closes and (b"connection", b"close") not in event.headers:
            headers = [*event.headers, (b"connection", b"close")]
            event = h11.Response(status_code=event.status_code, headers=headers, reason=event.reason)
        sent = super().send(event)
        if isinstance(event, h11.EndOfMessage):
            self._connection.response_ended()
        return sent


class Connection(asyncio.Protocol):
    """A client's connection: uvicorn's protocol within timeouts."""

    transport: asyncio.Transport

    def __init__(self, all_connections: Connections, protocol: H11Protocol) -> None:
        self._all, self.protocol = all_connections, protocol
        self.settings, self._metrics = all_connections.settings, all_connections.metrics
        self.parser = protocol.conn = Parser(self)
        self.waiting_since = time.monotonic()  # since when the client has sent nothing that was expected
        self._receive_timer: asyncio.TimerHandle | None = None
        self._draining = False
        self._refused = False  # whether a request in the data just received was refused here
        self._send_timer: asyncio.TimerHandle | None = None

    @property
    def awaits_client(self) -> bool:
        """Whether it waits for the client to send headers or the rest of a body."""
        return not self.parser.busy or self.parser.their_state is h11.SEND_BODY

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        self._all.open.add(self)
        self.protocol.connection_made(transport)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self._start_receive_timer(self.settings.header_seconds)
        self._all.close_idlest()

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.open.discard(self)
        self._cancel_receive_timer()
        self._cancel_send_timer()
        self.protocol.connection_lost(exc)

    def eof_received(self) -> None:
        self.protocol.eof_received()

    def data_received(self, data: bytes) -> None:
        self._refused = False
        self.protocol.data_received(data)
        receives_body = self.parser.their_state is h11.SEND_BODY
        if self.parser.busy:
            self._cancel_receive_timer()
            self.waiting_since = time.monotonic()  # a part of a body came, so the connection is not idle
            if not receives_body and self.parser.trailing_data[0]:
                self.parser.closes = True  # it pipelines requests: it may send the next one again
        elif not self.transport.is_closing():
            drained = self._draining and not receives_body
            if self._receive_timer is None or drained:
                self._start_receive_timer(self.settings.header_seconds)

    def response_ended(self) -> None:
        """All of a response was written; the rest of a refused body is read for `DRAIN_SECONDS`."""
        self.waiting_since = time.monotonic()
        self._cancel_send_timer()  # of the previous response
        self._start_send_timer()
        if self.parser.their_state is h11.SEND_BODY and not self.transport.is_closing():
            self._start_receive_timer(DRAIN_SECONDS)
            self._draining = True

    def refuse_overload(self, request: h11.Request) -> bool:
        """Refuse an image here if all queues are full; return whether that was done.

        Under overload nearly all requests end here. A task, a scope and a checked response for each would cost several
        times as much. Clients that pipeline requests or do not read responses take the usual way, which makes them
        wait.
        """
        closes = request.http_version != b"1.1" or any(name == b"connection" for name, _ in request.headers)
        if closes or self._refused or self.transport.get_write_buffer_size():
            return False
        error = self._all.policy.overload_error(request.method, request.target, request.headers)
        if error is None:
            return False
        self._refused = True
        began = time.perf_counter()
        self._start_receive_timer(self.settings.header_seconds)
        self._send(error)
        self._metrics.request(request.target.partition(b"?")[0].decode(), error.status, time.perf_counter() - began)
        return True

    def complain(self, error: ApiError) -> None:
        """Answer what cannot be read further, and close the connection."""
        if self.parser.our_state not in (h11.IDLE, h11.SEND_RESPONSE):  # a response has begun
            self.transport.abort()
            return
        error.headers["Connection"] = "close"
        self._send(error)
        self._metrics.request("none", error.status)
        self.protocol.connection_lost(None)  # closes it, and whatever answers the request learns that nobody listens

    def _send(self, error: ApiError) -> None:
        self.transport.write(error.as_http([*self.protocol.server_state.default_headers, *RAW_HEADERS]))
        for event in (h11.Response(status_code=error.status, headers=[]), h11.EndOfMessage()):
            self.parser.send(event)  # only updates h11's state

    def pause_writing(self) -> None:
        self.protocol.pause_writing()
        self._start_send_timer()

    def resume_writing(self) -> None:
        self.protocol.resume_writing()

    def _start_send_timer(self) -> None:
        """Check after `pause_seconds` whether the client has read enough of the unsent bytes."""
        if self._send_timer is None and (unsent := self.transport.get_write_buffer_size()):
            self._send_timer = self.protocol.loop.call_later(self.settings.pause_seconds, self._check_send_rate, unsent)

    def _check_send_rate(self, before: int) -> None:
        """before: unsent bytes when the timer started."""
        self._send_timer = None
        unsent = self.transport.get_write_buffer_size()
        if unsent and before - unsent < self.settings.pause_seconds * self.settings.min_bytes_per_second:
            self.transport.abort()
        else:
            self._start_send_timer()

    def _cancel_send_timer(self) -> None:
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None

    def _start_receive_timer(self, seconds: float) -> None:
        self._cancel_receive_timer()
        self._draining = False
        self.waiting_since = time.monotonic()
        self._receive_timer = self.protocol.loop.call_later(seconds, self.transport.abort)

    def _cancel_receive_timer(self) -> None:
        if self._receive_timer is not None:
            self._receive_timer.cancel()
            self._receive_timer = None
