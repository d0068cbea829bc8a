"""HTTP connections with timeouts and limits against slow or hostile clients (slow loris).

uvicorn waits forever for the end of a request's headers, and for a client that does not read its response. Here each
wait has a timeout, responses must be read at a minimum speed, and if there are too many connections the one that has
been idle for longest is closed. `bodies` limits how slowly a body may come. Bodies in tiny chunks, and pipelined
requests whose responses are not read, are cut off too, as they cost the event loop its time.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

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


class _H11Connection(h11.Connection):
    """h11's parser, which refuses bodies in tiny chunks, and chunks beyond the limit before they come."""

    def __init__(self, refuse: Callable[[h11.Request], bool], max_body_bytes: int) -> None:
        """refuse: may answer a request itself, and returns whether it did."""
        super().__init__(h11.SERVER)
        self._refuse, self._max_body_bytes = refuse, max_body_bytes
        self._chunks = self._bytes = 0
        self.complaint = ApiError(400, NOT_HTTP)

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._chunks = self._bytes = 0
            if self._refuse(event):
                return self.next_event()
        elif isinstance(event, h11.Data):
            self._chunks += 1
            self._bytes += len(event.data)
            if self._chunks > MAX_SMALL_CHUNKS and self._bytes < MIN_CHUNK_BYTES * self._chunks:
                self.complaint = ApiError(400, TINY_CHUNKS)
                raise h11.RemoteProtocolError(TINY_CHUNKS)
        # h11 has read a chunk's announced size before its first byte, and keeps it to itself
        if getattr(self._reader, "_bytes_in_chunk", 0) > self._max_body_bytes:
            self.complaint = too_large(self._max_body_bytes)
            raise h11.RemoteProtocolError(self.complaint.sentence)
        return event


class BoundedConnection(H11Protocol):
    """uvicorn's connection with timeouts. `connection_class` sets the class attributes."""

    settings: ServerSettings
    metrics: ServerMetrics
    policy: Policy
    conn: _H11Connection

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn = _H11Connection(self._refuse_overload, self.settings.max_body_bytes)
        self.waiting_since = time.monotonic()  # since when the client has sent nothing that was expected
        self._receive_timer: asyncio.TimerHandle | None = None
        self._draining = False
        self._refused = False  # whether a request in the data just received was refused here
        self._send_timer: asyncio.TimerHandle | None = None

    @property
    def awaits_client(self) -> bool:
        """Whether it waits for the client to send headers or the rest of a body."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self._start_receive_timer(self.settings.header_seconds)
        if len(self.connections) > self.settings.max_connections:
            self._close_idlest()

    def _close_idlest(self) -> None:
        """Close the connection that has been idle for longest, unless enough are closing already."""
        connections = [one for one in self.connections if isinstance(one, BoundedConnection)]
        still = [one for one in connections if not one.transport.is_closing()]
        if len(still) > self.settings.max_connections:
            idle = [one for one in still if one.awaits_client and not one.transport.get_write_buffer_size()]
            min(idle, key=lambda one: one.waiting_since).transport.abort()

    def data_received(self, data: bytes) -> None:
        self._refused = False
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._cancel_receive_timer()
            self.waiting_since = time.monotonic()  # a part of a body came, so the connection is not idle
            if not self.cycle.more_body and self.flow.read_paused and self.conn.trailing_data[0]:
                self.announce_close()  # it pipelines requests: it may send the next one again
        elif not self.transport.is_closing():
            drained = self._draining and self.conn.their_state is not h11.SEND_BODY
            if self._receive_timer is None or drained:
                self._start_receive_timer(self.settings.header_seconds)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.waiting_since = time.monotonic()
        self._cancel_send_timer()  # of the previous response
        self._start_send_timer()
        self._drain()

    def _drain(self) -> None:
        """Read the rest of a refused request's body for `DRAIN_SECONDS`."""
        if self.conn.their_state is h11.SEND_BODY and not self.transport.is_closing():
            self._start_receive_timer(DRAIN_SECONDS)
            self._draining = True

    def _refuse_overload(self, request: h11.Request) -> bool:
        """Refuse an image here if all queues are full; return whether that was done.

        Under overload nearly all requests end here. A task, a scope and a checked response for each would cost several
        times as much. Clients that pipeline requests or do not read responses take the usual way, which makes them
        wait.
        """
        closes = request.http_version != b"1.1" or any(name == b"connection" for name, _ in request.headers)
        if closes or self._refused or self.transport.get_write_buffer_size():
            return False
        if (refused := self.policy.overload_error(request.method, request.target, request.headers)) is None:
            return False
        self._refused = True
        began = time.perf_counter()
        self._send(refused)
        self.metrics.request(request.target.partition(b"?")[0].decode(), refused.status, time.perf_counter() - began)
        self._start_receive_timer(self.settings.header_seconds)
        self._drain()
        self._start_send_timer()
        return True

    def _send(self, error: ApiError) -> None:
        for event in (h11.Response(status_code=error.status, headers=[]), h11.EndOfMessage()):
            self.conn.send(event)  # only updates h11's state; what is sent is this:
        self.transport.write(error.as_http([*self.server_state.default_headers, *RAW_HEADERS]))

    def announce_close(self) -> None:
        """Let the response to come say that the connection closes after it."""
        if self.cycle is not None and not self.cycle.response_started:
            self.cycle.default_headers = [*self.cycle.default_headers, (b"connection", b"close")]

    def send_400_response(self, msg: str) -> None:
        try:
            self.conn.complaint.headers["Connection"] = "close"
            self._send(self.conn.complaint)
        except h11.LocalProtocolError:
            self.transport.abort()
            return
        self.metrics.request("none", self.conn.complaint.status)
        self.transport.close()
        if self.cycle is not None and not self.cycle.response_complete:  # its response is not sent any more
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self._start_send_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_receive_timer()
        self._cancel_send_timer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_send_timer()

    def _start_send_timer(self) -> None:
        """Check after `pause_seconds` whether the client has read enough of the unsent bytes."""
        if self._send_timer is None and (unsent := self.transport.get_write_buffer_size()):
            self._send_timer = self.loop.call_later(self.settings.pause_seconds, self._check_send_rate, unsent)

    def _check_send_rate(self, before: int) -> None:
        """before: unsent bytes when the timer started."""
        self._send_timer = None
        unsent = self.transport.get_write_buffer_size()
        if unsent and before - unsent < self.settings.pause_seconds * self.settings.min_bytes_per_second:
            self.transport.abort()
        else:
            self._start_send_timer()

    def _start_receive_timer(self, seconds: float) -> None:
        self._cancel_receive_timer()
        self._draining = False
        self.waiting_since = time.monotonic()
        self._receive_timer = self.loop.call_later(seconds, self.transport.abort)

    def _cancel_receive_timer(self) -> None:
        if self._receive_timer is not None:
            self._receive_timer.cancel()
            self._receive_timer = None

    def _cancel_send_timer(self) -> None:
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None


def connection_class(limits: ServerSettings, counters: ServerMetrics, rules: Policy) -> type[BoundedConnection]:
    """The connection class for uvicorn, which makes an instance for each client."""
    return type("Connection", (BoundedConnection,), {"settings": limits, "metrics": counters, "policy": rules})
