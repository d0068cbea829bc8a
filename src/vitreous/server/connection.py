"""Connections that cost nothing: whoever sends or takes too slowly is cut off.

uvicorn waits for ever for the end of a request's headers, and for a client that does not read its answer. Here each
wait has an end, each answer is taken at a least speed, and where there are too many connections those go first that
have sent nothing for longest. So clients that only hold connections (slow loris) take no place from others. How slowly
a body may come, `bodies` says. Whoever sends much in tiny parts, or request upon request without reading an answer, is
cut off too: each costs the loop its time.
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
from vitreous.server.errors import ApiError
from vitreous.server.guard import RAW_HEADERS, Policy
from vitreous.server.metrics import ServerMetrics

DRAIN_SECONDS = 2.0
"""For which the rest of a body is taken whose request was refused: a client that still sends reads no answer."""
MAX_SMALL_CHUNKS = 1000
MIN_CHUNK_BYTES = 64  # on average, once there are more chunks
SEND_BUFFER_BYTES = 2**17
"""Of an answer that the system holds for a client: with megabytes of them, a slow client seems to take nothing."""
NO_HTTP = "this is no request of HTTP that the server understands."
CRUMBS = "the body comes in chunks of a few bytes; send larger ones."


class _Http(h11.Connection):
    """A client's side of HTTP, without bodies in crumbs."""

    def __init__(self, refuse: Callable[[h11.Request], bool]) -> None:
        """refuse: answers a request itself, or leaves it."""
        super().__init__(h11.SERVER)
        self._refuse = refuse

    _chunks = _bytes = 0
    complaint = NO_HTTP

    def next_event(self) -> Any:
        """What the client says next."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._chunks = self._bytes = 0
            if self._refuse(event):
                return self.next_event()
        elif isinstance(event, h11.Data):
            self._chunks += 1
            self._bytes += len(event.data)
            if self._chunks > MAX_SMALL_CHUNKS and self._bytes < MIN_CHUNK_BYTES * self._chunks:
                self.complaint = CRUMBS
                raise h11.RemoteProtocolError(CRUMBS)
        return event


class BoundedConnection(H11Protocol):
    """A connection of uvicorn's, with limits on time. What it is annotated with, the class has that `bounded` makes."""

    settings: ServerSettings
    metrics: ServerMetrics
    policy: Policy
    conn: _Http

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn = _Http(self._refuse_without_place)
        self.since = time.monotonic()
        """When the wait began for what the client has not sent yet."""
        self._waiting: asyncio.TimerHandle | None = None
        self._draining = False
        self._refused = False
        """Whether a request among what was just received has been refused here."""
        self._writing: asyncio.TimerHandle | None = None

    @property
    def asks_nothing(self) -> bool:
        """Whether it waits for the client: for headers, or for the rest of a body."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client connects; where there are too many, the one goes that has been waited for longest."""
        super().connection_made(transport)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self._wait(self.settings.header_seconds)
        if len(self.connections) > self.settings.max_connections:
            self._make_room()

    def _make_room(self) -> None:
        """Close the one that has been waited for longest. Those that close already, in a burst many, do not count."""
        connections = [one for one in self.connections if isinstance(one, BoundedConnection)]
        still = [one for one in connections if not one.transport.is_closing()]
        if len(still) > self.settings.max_connections:
            idle = [one for one in still if one.asks_nothing and not one.transport.get_write_buffer_size()]
            min(idle, key=lambda one: one.since).transport.abort()

    def data_received(self, data: bytes) -> None:
        """The client sends something: the rest of its headers must follow in time."""
        self._refused = False
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()
            self.since = time.monotonic()  # of a body: whoever sends it is not who has kept us waiting for longest
            if not self.cycle.more_body and self.flow.read_paused and self.conn.trailing_data[0]:
                self.say_close()  # it sends the next request before it has this one's answer: it may send it again
        elif not self.transport.is_closing():
            drained = self._draining and self.conn.their_state is not h11.SEND_BODY
            if self._waiting is None or drained:
                self._wait(self.settings.header_seconds)

    def on_response_complete(self) -> None:
        """An answer is complete; of a body that was not wanted, the rest is taken for a little while."""
        super().on_response_complete()
        self.since = time.monotonic()
        self._stop_writing()  # of the answer before, if there was one
        self._watch_writing()
        self._drain()

    def _drain(self) -> None:
        """Take the rest of a body that nobody wants, for a little while."""
        if self.conn.their_state is h11.SEND_BODY and not self.transport.is_closing():
            self._wait(DRAIN_SECONDS)
            self._draining = True

    def _refuse_without_place(self, request: h11.Request) -> bool:
        """Answer an image for which there is no place; whether that was done.

        Under overload nearly all requests end here. By the usual way each would cost a task, a scope and a response
        whose headers are checked one by one: several times as much, taken from what could be answered. But who sends
        request upon request, or takes no answers, takes the usual way, which makes such a client wait.
        """
        closes = request.http_version != b"1.1" or any(name == b"connection" for name, _ in request.headers)
        if closes or self._refused or self.transport.get_write_buffer_size():
            return False
        if (refused := self.policy.no_place(request.method, request.target, request.headers)) is None:
            return False
        self._refused = True
        began = time.perf_counter()
        self._send(refused)
        self.metrics.request(request.target.partition(b"?")[0].decode(), refused.status, time.perf_counter() - began)
        self._wait(self.settings.header_seconds)
        self._drain()
        self._watch_writing()
        return True

    def _send(self, error: ApiError) -> None:
        for event in (h11.Response(status_code=error.status, headers=[]), h11.EndOfMessage()):
            self.conn.send(event)  # for its own account of where the two stand; what is sent is this:
        self.transport.write(error.as_http([*self.server_state.default_headers, *RAW_HEADERS]))

    def say_close(self) -> None:
        """Tell the client that the answer to come is the last one here."""
        if self.cycle is not None and not self.cycle.response_started:
            self.cycle.default_headers = [*self.cycle.default_headers, (b"connection", b"close")]

    def send_400_response(self, msg: str) -> None:
        """The client speaks no HTTP; where it has been answered already, there is nothing more to say."""
        try:
            self._send(ApiError(400, self.conn.complaint, headers={"Connection": "close"}))
        except h11.LocalProtocolError:
            self.transport.abort()
            return
        self.metrics.request("none", 400)
        self.transport.close()
        if self.cycle is not None and not self.cycle.response_complete:  # it may have an answer too: that is not sent
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self._watch_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._stop_waiting()
        self._stop_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client does not take its answer."""
        super().pause_writing()
        self._watch_writing()

    def _watch_writing(self) -> None:
        """See to it that the client takes what is left of its answer, also once the connection only waits for that."""
        if self._writing is None and (unsent := self.transport.get_write_buffer_size()):
            self._writing = self.loop.call_later(self.settings.pause_seconds, self._check_writing, unsent)

    def _check_writing(self, before: int) -> None:
        """before: bytes that were left of it when the watch began."""
        self._writing = None
        unsent = self.transport.get_write_buffer_size()
        if unsent and before - unsent < self.settings.pause_seconds * self.settings.min_bytes_per_second:
            self.transport.abort()
        else:
            self._watch_writing()

    def _wait(self, seconds: float) -> None:
        self._stop_waiting()
        self._draining = False
        self.since = time.monotonic()
        self._waiting = self.loop.call_later(seconds, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _stop_writing(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None


def bounded(limits: ServerSettings, counters: ServerMetrics, rules: Policy) -> type[BoundedConnection]:
    """Connections with these limits: uvicorn takes a class, and makes one of it for each client."""
    return type("Connection", (BoundedConnection,), {"settings": limits, "metrics": counters, "policy": rules})
