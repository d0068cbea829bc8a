"""A signal that asks the program to end: an exception wherever it comes, but where work must not be left half done.

What is on the disk is complete or not there at every moment, so a command may end anywhere. What is in memory is not
whole in the midst of a training step: there `uninterrupted` keeps a signal waiting.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Ctrl-C; what `kill`, `timeout`, systemd and SLURM send; a terminal that was closed."""
ECHO = 1.0
"""Seconds in which more signals are the same one: a process group may get it twice, from two who pass it on."""


class Interrupted(KeyboardInterrupt):
    """This signal came. Whoever catches it may go on to save, and should then end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@dataclass
class _Heard:
    """What came of signals so far: they belong to the process, so there is one of these."""

    number: int | None = None
    since: float = 0.0
    raised: bool = False
    held: int = 0
    """How many `uninterrupted` blocks the program is in."""

    def raise_once(self) -> None:
        if self.number is not None and not self.raised and not self.held:
            self.raised = True
            raise Interrupted(self.number)


_heard = _Heard()


@contextmanager
def interruptible() -> Iterator[None]:
    """Within, the first signal is `Interrupted`, and one that comes later ends the process at once.

    Signals that whoever started the process wanted ignored (nohup, a shell's background job) stay ignored.
    """
    _heard.number, _heard.raised = None, False
    previous = {number: signal.getsignal(number) for number in SIGNALS}
    heeded = [number for number, handler in previous.items() if handler is not signal.SIG_IGN]
    for number in heeded:
        signal.signal(number, _hear)
    try:
        yield
    finally:
        for number in heeded:
            signal.signal(number, previous[number])


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Within, a signal waits until the block has ended."""
    _heard.held += 1
    try:
        yield
    finally:
        _heard.held -= 1
    _heard.raise_once()


def signal_heard() -> int | None:
    """The signal that asked this command to end, if one did."""
    return _heard.number


def _hear(number: int, _: object) -> None:
    if _heard.number is None:
        _heard.number, _heard.since = number, time.monotonic()
        _heard.raise_once()
    elif time.monotonic() - _heard.since > ECHO:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
