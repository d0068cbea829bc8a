"""Many clients of a server on this machine: a process of its own, light, so that the server has the processor.

    python benchmarks/load.py < plan.json > outcomes.json

The plan is a `Plan` as JSON, which benchmarks/serving.py writes. Requests are whole before the first is sent, and
connections are kept, as real clients keep them. Nothing but Python's own library is imported.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

NO_ANSWER = 0
"""In place of a status: the connection ended before there was a whole answer."""
TIMED_OUT = -1
NOT_CONNECTED = -2
"""Nothing could be sent."""


@dataclass(frozen=True)
class Plan:
    """What clients do."""

    port: int
    target: str
    """Path and query."""
    images: list[str]
    """Files, sent in turn."""
    base64_json: bool
    """Send {"image": base64}; else the file as it is."""
    clients: int
    """Connections, each of which sends its next request when it has its answer."""
    seconds: float
    """For which new requests are begun."""
    rate: float | None = None
    """Requests a second, begun whether or not others have been answered; `clients` then is the most connections."""
    requests: int | None = None
    """Begin no more than these."""
    timeout: float = 60.0
    """Seconds for an answer."""


@dataclass(frozen=True)
class Outcome:
    """What became of one request."""

    began: float
    """By the machine's monotonic clock, which all processes share."""
    seconds: float
    """From its first byte sent to the last byte of the answer."""
    status: int
    """Of HTTP; see the constants above for requests that got none."""


class Connection(asyncio.Protocol):
    """One kept connection with at most one request under way."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.received = bytearray()
        self.answer: asyncio.Future[int] | None = None
        self.open = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def send(self, request: bytes) -> asyncio.Future[int]:
        """The status of the answer, once it is whole."""
        assert self.transport is not None
        self.received.clear()
        self.answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self.answer

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, found, body = self.received.partition(b"\r\n\r\n")
        if not found or self.answer is None or self.answer.done():
            return
        lines = head.lower().split(b"\r\n")
        lengths = [int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length:")]
        if lengths and len(body) >= lengths[0]:
            if b"connection: close" in lines:
                self.close()
            self.answer.set_result(int(head.split(b" ", 2)[1]))

    def connection_lost(self, error: Exception | None) -> None:
        self.open = False
        if self.answer is not None and not self.answer.done():
            self.answer.set_result(NO_ANSWER)

    def close(self) -> None:
        self.open = False
        if self.transport is not None:
            self.transport.close()


class Load:
    """Requests under way, and what became of them."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.requests: Iterator[bytes] = cycle([request_for(plan, Path(image)) for image in plan.images])
        self.outcomes: list[Outcome] = []
        self.begun = 0
        self.end = time.monotonic() + plan.seconds

    def more(self) -> bool:
        """Whether another request is begun; it is counted."""
        if time.monotonic() >= self.end or self.begun == self.plan.requests:
            return False
        self.begun += 1
        return True

    async def ask(self, connection: Connection | None) -> Connection | None:
        """Send the next request, by a new connection where there is none that is open; the connection, kept or not."""
        began, status = time.monotonic(), NOT_CONNECTED
        with suppress(OSError):
            if connection is None or not connection.open:
                _, connection = await asyncio.get_running_loop().create_connection(
                    Connection, "127.0.0.1", self.plan.port
                )
            try:
                status = await asyncio.wait_for(connection.send(next(self.requests)), self.plan.timeout)
            except TimeoutError:
                status = TIMED_OUT
                connection.close()
        self.outcomes.append(Outcome(began, time.monotonic() - began, status))
        return connection

    async def client(self) -> None:
        """One after the other."""
        connection: Connection | None = None
        while self.more():
            connection = await self.ask(connection)
            if self.outcomes[-1].status == NOT_CONNECTED:
                await asyncio.sleep(0.05)
        if connection is not None:
            connection.close()

    async def arrivals(self, rate: float) -> None:
        """So many a second, answered or not, by whichever connection is idle."""
        idle: list[Connection] = []
        under_way: set[asyncio.Task[None]] = set()

        async def one() -> None:
            connection = await self.ask(idle.pop() if idle else None)
            if connection is not None and connection.open:
                idle.append(connection)

        start = time.monotonic()
        while time.monotonic() < self.end:
            due = int((time.monotonic() - start) * rate)
            while self.begun < due and len(under_way) < self.plan.clients and self.more():
                task = asyncio.create_task(one())
                under_way.add(task)
                task.add_done_callback(under_way.discard)
            await asyncio.sleep(0.002)
        await asyncio.gather(*under_way)
        for connection in idle:
            connection.close()

    async def run(self) -> None:
        if self.plan.rate is not None:
            await self.arrivals(self.plan.rate)
        else:
            await asyncio.gather(*(self.client() for _ in range(self.plan.clients)))


def request_for(plan: Plan, image: Path) -> bytes:
    """All bytes of a request about the image."""
    body, kind = image.read_bytes(), "image/jpeg"
    if plan.base64_json:
        body, kind = json.dumps({"image": base64.b64encode(body).decode()}).encode(), "application/json"
    head = f"POST {plan.target} HTTP/1.1\r\nHost: 127.0.0.1:{plan.port}\r\nContent-Type: {kind}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def main() -> None:
    load = Load(Plan(**json.load(sys.stdin)))
    asyncio.run(load.run())
    json.dump([[one.began, one.seconds, one.status] for one in load.outcomes], sys.stdout)


if __name__ == "__main__":
    main()
