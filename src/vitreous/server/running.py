"""A server that runs until a signal ends it."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import uvicorn

from vitreous.config.server import ServerSettings
from vitreous.errors import UserError
from vitreous.inputs import reason
from vitreous.interrupt import SIGNALS, Interrupted
from vitreous.server.app import make_app
from vitreous.server.batching import ThreadPool
from vitreous.server.connection import Connections
from vitreous.server.served_model import LoadedModels, ModelToServe

BACKLOG = 2048  # connections that the system accepts for the server
WAITING_SECONDS = 10.0


def listen(settings: ServerSettings) -> socket.socket:
    """A socket that connects already; whoever connects waits until the server runs."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise UserError(f"host={settings.host!r}: there is no such address ({reason(error)}).") from None
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        raise UserError(
            f"port={settings.port}: cannot be listened at ({reason(error)}); choose another, or 0 for any."
        ) from None
    return bound


def address_of(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """uvicorn's server, which loads its models while it answers, and which signals end gracefully."""

    def __init__(
        self,
        models: Iterable[ModelToServe],
        settings: ServerSettings,
        ready: Callable[[], None] = lambda: None,
        waiting: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        """models: taken one by one in a thread; until all are loaded, requests are answered with 503.
        ready: called once the models answer. waiting: called every 10 s until then, with the seconds so far.
        """
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # not for malformed requests
        app = make_app((), settings)
        self._connections = Connections(settings, app.state.metrics, app.state.policy)
        super().__init__(
            uvicorn.Config(
                app,
                http=self._connections.make,  # type: ignore[arg-type]  # uvicorn calls it, whatever it is
                ws="none",
                loop="asyncio",
                lifespan="on",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=math.ceil(settings.longest_seconds),
            )
        )
        self._loaded: LoadedModels = app.state.models
        self._models, self._ready, self._waiting = models, ready, waiting
        self._loader = ThreadPool(1, "load")
        self.failure: Exception | None = None  # why the models could not be loaded

    def serve_until_signal(self, bound: socket.socket) -> bool:
        """Serve until a signal comes, then finish the accepted requests.

        Returns whether all threads have ended: a long explanation may still run. A second Ctrl-C raises `Interrupted`.
        """
        try:
            self.run(sockets=[bound])
        finally:
            gc.unfreeze()
        if self.force_exit:
            raise Interrupted(signal.SIGINT)
        if self.failure is not None:
            raise self.failure
        return self.idle

    @property
    def idle(self) -> bool:
        return self._loader.idle and self._loaded.idle

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._loading = asyncio.create_task(self._load())

    async def _load(self) -> None:
        load, started = asyncio.ensure_future(self._loader.run(self._loaded.load, self._models)), time.monotonic()
        try:
            while not (await asyncio.wait((load,), timeout=WAITING_SECONDS))[0]:
                self._waiting(time.monotonic() - started)
            load.result()
            # The libraries create so many objects that a full garbage collection takes more than half a second, in
            # which no request is answered: the collector ignores all objects that exist by now.
            gc.collect()
            gc.freeze()
            self._ready()
        except Exception as error:
            self.failure, self.should_exit = error, True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer the accepted requests, and tell clients that their connections close."""
        self._connections.announce_close()
        await super().shutdown(sockets)
        if self.force_exit:
            await self.lifespan.shutdown()  # uvicorn would leave it to be cancelled

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Within the block a signal ends the server gracefully, and a second Ctrl-C at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous = {number: signal.getsignal(number) for number in SIGNALS}
        heeded = [number for number, handler in previous.items() if handler is not signal.SIG_IGN]
        for number in heeded:
            signal.signal(number, self.handle_exit)
        try:
            yield
        finally:
            for number in heeded:
                signal.signal(number, previous[number])
