"""Termination signals become the exception `Interrupted`; a block of `uninterrupted` delays it until the block's end.

Files are complete or absent at every moment, so a command may end anywhere. The state in memory is inconsistent during
a training step: such code is put into `uninterrupted`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Ctrl-C; what `kill`, `timeout`, systemd and SLURM send; a terminal that was closed."""
ECHO_SECONDS = 1.0  # in which a second signal counts as the first: a launcher and a shell may both forward it
RESEND_SECONDS = 0.01  # until a signal whose exception Python dropped is sent again


class Interrupted(KeyboardInterrupt):
    """A termination signal. A handler of this exception may still save, and should then end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@dataclass
class _SignalState:
    """The signals of this process so far."""

    number: int | None = None  # the first signal
    since: float = 0.0  # when it came, by `time.monotonic`
    raised: bool = False
    depth: int = 0  # of nested `uninterrupted` blocks

    def raise_once(self) -> None:
        if self.number is not None and not self.raised and not self.depth:
            self.raised = True
            raise Interrupted(self.number)


_state = _SignalState()


@contextmanager
def interruptible() -> Iterator[None]:
    """Within, the first signal raises `Interrupted`, and a later one ends the process at once. Ignored signals (nohup,
    a shell's background job) stay ignored."""
    _state.number, _state.raised = None, False
    previous = {number: signal.getsignal(number) for number in SIGNALS}
    handled = [number for number, handler in previous.items() if handler is not signal.SIG_IGN]
    for number in handled:
        signal.signal(number, _handle)
    try:
        with _resending_dropped():
            yield
    finally:
        for number in handled:
            signal.signal(number, previous[number])


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Within, `Interrupted` is not raised; a signal that came raises it at the end of the block."""
    _state.depth += 1
    try:
        yield
    finally:
        _state.depth -= 1
    _state.raise_once()


def received_signal() -> int | None:
    """The number of the first termination signal, if one came."""
    return _state.number


def open_signal_pipe() -> int | None:
    """The reading end of a pipe that gets the number of each signal at once, also while the main thread is in C++.

    No Python handler runs there, but another thread can read. None outside `interruptible`.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(os, "register_at_fork"):
        return None
    if not any(signal.getsignal(number) is _handle for number in SIGNALS):
        return None
    reader, writer = os.pipe()
    for end in (reader, writer):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))  # a child's signals are not this process's
    return reader


def _handle(number: int, _: object) -> None:
    if _state.number is None:
        _state.number, _state.since = number, time.monotonic()
    elif time.monotonic() - _state.since > ECHO_SECONDS:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    _state.raise_once()


@contextmanager
def _resending_dropped() -> Iterator[None]:
    """Within, a signal that comes in `__del__` or a weak reference's callback is sent again: Python prints
    exceptions from there and drops them."""
    before = sys.unraisablehook

    def hook(unraisable: UnraisableHookArgs) -> None:
        if isinstance(unraisable.exc_value, Interrupted) and hasattr(signal, "pthread_kill"):
            _state.raised = False
            # Later and from elsewhere: here it would be dropped again.
            threading.Thread(target=_send_again, args=(unraisable.exc_value.number,), daemon=True).start()
        else:
            before(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


def _send_again(number: int) -> None:
    time.sleep(RESEND_SECONDS)
    if signal.getsignal(number) is _handle:
        signal.pthread_kill(threading.main_thread().ident or 0, number)  # which wakes it, too
