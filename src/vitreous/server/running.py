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
from vitreous.server.connection import BoundedConnection, bounded
from vitreous.server.served_model import ModelToServe, ServedModel


def listen(settings: ServerSettings) -> socket.socket:
    """A socket at the address, which refuses everybody until the server runs."""
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
        raise _port_taken(settings.port, error) from None
    return bound


def _port_taken(port: int, error: OSError) -> UserError:
    return UserError(f"port={port}: cannot be listened at ({reason(error)}); choose another, or 0 for any.")


def address_of(bound: socket.socket) -> str:
    """What to open in a browser."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run_server(
    models: Sequence[ModelToServe], settings: ServerSettings, bound: socket.socket, ready: Callable[[], None]
) -> bool:
    """Answer until a signal comes; then finish what was accepted. ready: called once requests are answered.

    Whether all that was begun has ended, too: an explanation that takes longer than a server may take to end goes on in
    its thread. `Interrupted` where Ctrl-C came once more.
    """
    server = make_server(models, settings, ready)
    try:
        bound.listen(server.config.backlog)
    except OSError as error:  # two may have the address, but only the first of them that listens keeps it
        raise _port_taken(bound.getsockname()[1], error) from None
    # The libraries leave Python's garbage collector so many objects that to look through them all takes more than half
    # a second, in which nobody is answered, nor refused: it passes over all that is there by now.
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
    """The server, which does not run yet."""
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # a client's nonsense is nothing to report
    app = make_app(models, settings)
    config = uvicorn.Config(
        app,
        http=bounded(settings, app.state.metrics, app.state.policy),
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
    """uvicorn's, which says when it is ready, and for which a signal is the way to end well."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None], models: Collection[ServedModel]) -> None:
        super().__init__(config)
        self._ready, self._models = ready, models

    @property
    def idle(self) -> bool:
        """Whether no thread is at work for it."""
        return all(model.idle for model in self._models)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer."""
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End well: what was accepted is answered, and clients are told that their connections close."""
        for connection in self.server_state.connections:
            if isinstance(connection, BoundedConnection):
                connection.say_close()
        await super().shutdown(sockets)
        if self.force_exit:
            await self.lifespan.shutdown()  # which waits for nothing; uvicorn leaves it to be cancelled

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Within, the first signal asks for the end, and Ctrl-C once more has it at once."""
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
