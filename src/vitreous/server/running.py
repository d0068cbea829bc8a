"""A server that runs until a signal ends it."""

from __future__ import annotations

import gc
import logging
import math
import signal
import socket
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

import uvicorn

from vitreous.config.server import ServerSettings
from vitreous.errors import UserError
from vitreous.inputs import reason
from vitreous.interrupt import SIGNALS, Interrupted
from vitreous.server.app import make_app
from vitreous.server.connection import BoundedConnection, connection_class
from vitreous.server.served_model import ModelToServe, ServedModel


def listen(settings: ServerSettings) -> socket.socket:
    """A bound socket, which refuses connections until the server runs."""
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
    except OSError as error:
        bound.close()
        raise _port_error(settings.port, error) from None
    return bound


def _port_error(port: int, error: OSError) -> UserError:
    return UserError(f"port={port}: cannot be listened at ({reason(error)}); choose another, or 0 for any.")


def address_of(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run_server(
    models: Sequence[ModelToServe], settings: ServerSettings, bound: socket.socket, ready: Callable[[], None]
) -> bool:
    """Serve until a signal comes, then finish the accepted requests. ready: called once requests are answered.

    Returns whether all threads have ended: a long explanation may still run. A second Ctrl-C raises `Interrupted`.
    """
    server = make_server(models, settings, ready)
    try:
        bound.listen(server.config.backlog)
    except OSError as error:  # two may have the address, but only the first of them that listens keeps it
        raise _port_error(bound.getsockname()[1], error) from None
    # The libraries create so many objects that a full garbage collection takes more than half a second, in which no
    # request is answered: the collector ignores all objects that exist by now.
    gc.collect()
    gc.freeze()
    try:
        server.run(sockets=[bound])
    finally:
        gc.unfreeze()
    if server.force_exit:
        raise Interrupted(signal.SIGINT)
    return server.idle


def make_server(models: Sequence[ModelToServe], settings: ServerSettings, ready: Callable[[], None]) -> Server:
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # not for malformed requests
    app = make_app(models, settings)
    config = uvicorn.Config(
        app,
        http=connection_class(settings, app.state.metrics, app.state.policy),
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=math.ceil(settings.longest_seconds),
    )
    return Server(config, ready, app.state.models.values())


class Server(uvicorn.Server):
    """uvicorn's server, which reports when it is ready, and which signals end gracefully."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None], models: Collection[ServedModel]) -> None:
        super().__init__(config)
        self._ready, self._models = ready, models

    @property
    def idle(self) -> bool:
        return all(model.idle for model in self._models)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer the accepted requests, and tell clients that their connections close."""
        for connection in self.server_state.connections:
            if isinstance(connection, BoundedConnection):
                connection.announce_close()
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
