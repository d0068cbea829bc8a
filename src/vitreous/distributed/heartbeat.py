"""A heartbeat between processes: each notices soon that another has failed, is lost or is in another collective.

Every process writes a heartbeat to the launcher's store: a growing count, its host, and the collective that it entered
last. It reads the heartbeat of the process before it, in a ring, so that thousands of processes need a few requests per
second each. The first one that fails writes the reason to the store; the others then end without a message. A request
to the store never returns if the process that holds it hangs. So a second thread, which makes no requests, measures how
long there has been no answer. It also ends a process that got a signal while its main thread waits in a collective, in
C++, where Python's signal handlers do not run.
"""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, NamedTuple

import torch

from vitreous.errors import MachineError, UserError
from vitreous.interrupt import SIGNALS, open_signal_pipe

RENDEZVOUS_SECONDS = 45.0
"""For the rendezvous of all processes; torchrun starts them when all machines are there."""
INTERVAL_SECONDS = 2.0  # between two heartbeats
LOST_SECONDS, ACCELERATOR_LOST_SECONDS = 20.0, 120.0
"""Without a heartbeat, after which a process counts as lost; more with an accelerator, whose driver may block all
threads of a healthy process for long."""
TIMEOUT = "VITREOUS_HEARTBEAT_SECONDS"  # environment variable for another time
GRACE_SECONDS = 3.0  # for a process to report its failure, or to end after another's
SIGNAL_SECONDS = 6.0  # that a process waits in a collective after a signal
POLL_SECONDS = 0.25  # between two checks for a failure of another process
FAILURE, HEARTBEAT, LEFT = "vitreous/failure", "vitreous/heartbeat", "vitreous/left"  # keys of the store
RESUME = "the same command resumes from the last checkpoint."


class Position(NamedTuple):
    """The collective that a process entered last."""

    number: int  # how many it has entered; all processes enter the same ones in the same order
    place: str  # the operation and the line that calls it


START = Position(0, "the start")


@dataclass
class Collectives:
    """The position of this process in the sequence of collectives."""

    entered: Position = START
    waiting: bool = False
    checker: Heartbeat | None = None  # in debug mode: compares each collective among processes

    @contextmanager
    def enter(self, operation: str) -> Iterator[None]:
        """Around a collective operation."""
        self.entered = Position(self.entered.number + 1, f"{operation} at {_call_site()}")
        self.waiting = True
        try:
            if self.checker is not None:
                self.checker.compare(self.entered)
            yield
        finally:
            self.waiting = False


def _call_site() -> str:
    """The line that called a collective, such as "training/loop.py:153"."""
    frame = sys._getframe(1)
    inside = ("vitreous.distributed.", "torch.", "contextlib")
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(inside):
        frame = frame.f_back
    return f"{'/'.join(Path(frame.f_code.co_filename).parts[-2:])}:{frame.f_lineno}"


collectives = Collectives()  # of this process, which is part of one group at most


def lost_seconds() -> float:
    """LOST_SECONDS, or as the environment variable says."""
    if (text := os.environ.get(TIMEOUT)) is None:
        return ACCELERATOR_LOST_SECONDS if torch.accelerator.is_available() else LOST_SECONDS
    with suppress(ValueError):
        if 2 * INTERVAL_SECONDS < (seconds := float(text)) < math.inf:
            return seconds
    raise UserError(f"{TIMEOUT}={text}: give a number of seconds above {2 * INTERVAL_SECONDS:g}, such as 300.")


class Heartbeat:
    """Sends heartbeats, reads those of the process before this one, and ends this process rather than let it hang. Time
    is counted in waits, not read from a clock: a process that was stopped (Ctrl-Z) and continued misses nothing."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size, self.previous, self.lost_seconds = rank, size, (rank - 1) % size, lost_seconds()
        self.failure: tuple[int, str] | None = None
        """The rank of the process that failed first, and why."""
        self.store: Any = None
        self._settling = Lock()
        self._over = Event()
        self._signal: int | None = None
        self._signals = open_signal_pipe()
        self._previous_place = "the start"
        self._seconds_left = RENDEZVOUS_SECONDS + GRACE_SECONDS  # until an answer of the store is overdue
        self._overdue = rendezvous_failure(rank, size, f"no answer in {RENDEZVOUS_SECONDS:.0f} s")
        Thread(target=self._enforce_timeouts, name="timeouts", daemon=True).start()

    @property
    def is_first(self) -> bool:
        return self.failure is None or self.failure[0] == self.rank

    def start(self, store: Any) -> None:
        self.store = store.clone()  # a connection of its own
        self.store.set_timeout(timedelta(seconds=self.lost_seconds))
        self._overdue = f"process {self.rank}: no answer from the launcher for {self.lost_seconds:.0f} s; {RESUME}"
        self._thread = Thread(target=self._watch, name="heartbeat", daemon=True)
        self._thread.start()

    def _enforce_timeouts(self) -> None:
        """End this process if the store does not answer (a request to a stopped process never times out), or if it got
        a signal and waits in a collective for others, which may never come."""
        seconds, entered = 0.0, collectives.entered
        while not self._over.wait(INTERVAL_SECONDS) and self.failure is None:
            self._seconds_left -= INTERVAL_SECONDS
            if self._seconds_left <= 0:
                self._exit(self._overdue)
            with suppress(BlockingIOError):
                received = os.read(self._signals, 64) if self._signals is not None else b""
                self._signal = next((number for number in received if number in SIGNALS), self._signal)
            waits = collectives.waiting and collectives.entered is entered
            seconds, entered = seconds + INTERVAL_SECONDS if waits and self._signal else 0.0, collectives.entered
            if self._signal and seconds >= SIGNAL_SECONDS:
                name = signal.Signals(self._signal).name
                self.leave(f"was ended by {name}")
                self._exit(
                    f"process {self.rank}: ended by {name} while it waited for other processes in {entered.place} "
                    f"(process {self.previous} was last in {self._previous_place}); {RESUME}"
                )

    def _watch(self) -> None:
        """Run until the end, or until a process has failed or is lost."""
        try:
            reason = self._watch_previous()
        except RuntimeError as error:  # the store is gone, and with it the first machine
            if self._over.is_set():
                return
            reason = _unreachable(error)
            self._set_failure(self.rank, reason)
        if reason is not None and not self._over.wait(GRACE_SECONDS):  # the main thread waits for others in vain
            self._exit(reason if self.is_first else None)

    def _watch_previous(self) -> str | None:
        """Why to end; None at the end, or if the main thread knows why."""
        count, last, seconds_left = 0, None, RENDEZVOUS_SECONDS  # until the first heartbeat
        while True:
            count, entered = count + 1, collectives.entered
            self.store.set(f"{HEARTBEAT}/{self.rank}", json.dumps([count, socket.gethostname(), *entered]))
            if self.failure is not None:
                return None
            if self.store.check([FAILURE]):
                reason = self._parse_failure(self.store.get(FAILURE))
                return None if self.is_first else reason
            beat = self._read(self.previous)
            if beat != last or self.store.check([f"{LEFT}/{self.previous}"]):
                last, seconds_left = beat, self.lost_seconds
            elif seconds_left <= 0:
                if not beat:
                    reason = f"process {self.previous} did not come in {RENDEZVOUS_SECONDS:.0f} s"
                    return self.claim_failure(rendezvous_failure(self.rank, self.size, reason))
                silent = (
                    f"has sent no heartbeat for {self.lost_seconds:.0f} s; if it was only slow, set {TIMEOUT} higher"
                )
                return self.claim_failure(f"process {self.previous} on {beat[1]} {silent}; {RESUME}")
            if beat:
                _, _, number, self._previous_place = beat
                if number == entered.number and self._previous_place != entered.place:
                    return self.claim_failure(self._mismatch(entered, self.previous, self._previous_place))
            self._seconds_left = self.lost_seconds
            if self._over.wait(INTERVAL_SECONDS):
                return None
            seconds_left -= INTERVAL_SECONDS

    def _read(self, rank: int) -> list[Any] | None:
        """The last heartbeat of a process: count, host, and the number and place of its last collective."""
        key = f"{HEARTBEAT}/{rank}"
        return json.loads(self.store.get(key)) if self.store.check([key]) else None

    def compare(self, position: Position) -> None:
        """Refuse a collective if another process has entered another one under the same number."""
        key, own = f"vitreous/collective/{position.number}", f"{self.rank} {position.place}"
        rank, _, place = self.store.compare_set(key, "", own).decode().partition(" ")
        if place != position.place:
            raise MachineError(self._mismatch(position, int(rank), place))

    def _mismatch(self, own: Position, rank: int, place: str) -> str:
        return (
            f"process {self.rank} waits in {own.place}, process {rank} in {place}: they would wait for ever. This is a "
            f"bug in vitreous; please report this sentence; {RESUME}"
        )

    def claim_failure(self, reason: str) -> str:
        """Report why this process fails, unless another has failed before; the reason of the first failure."""
        if self.store is not None and self.failure is None:
            with suppress(RuntimeError):
                return self._parse_failure(self.store.compare_set(FAILURE, "", f"{self.rank} {reason}"))
        return self._set_failure(self.rank, reason)  # there is nobody to ask

    def poll_failure(self) -> str | None:
        """How another process has failed or ended; None if all have sent a heartbeat meanwhile."""
        if self.failure is not None:
            return self.failure[1]
        others = [rank for rank in range(self.size) if rank != self.rank]
        try:
            before = {rank: self._read(rank) for rank in others}
            for _ in range(round((INTERVAL_SECONDS + GRACE_SECONDS) / POLL_SECONDS)):
                if self.store.check([FAILURE]):
                    return self._parse_failure(self.store.get(FAILURE))
                others = [rank for rank in others if self._read(rank) == before[rank]]
                if not others:
                    return None
                for rank in others:
                    if self.store.check([key := f"{LEFT}/{rank}"]):
                        return self.claim_failure(f"process {rank} {self.store.get(key).decode()}; {RESUME}")
                time.sleep(POLL_SECONDS)
        except RuntimeError as error:
            return self.claim_failure(_unreachable(error))
        host = (before[others[0]] or ["", "an unknown machine"])[1]
        return self.claim_failure(f"process {others[0]} on {host} has ended without a message; {RESUME}")

    def leave(self, how: str = "has ended") -> None:
        """Stop, and tell the others if the store answers soon."""
        self._over.set()
        if self.store is not None:
            goodbye = Thread(target=self._say_goodbye, args=(how,), daemon=True)
            goodbye.start()
            for thread in (goodbye, self._thread):  # Python aborts if it ends while a thread is in torch's store
                thread.join(GRACE_SECONDS)

    def _say_goodbye(self, how: str) -> None:
        """The main process waits for the others, because its machine may hold the store."""
        with suppress(RuntimeError):
            self.store.set(f"{LEFT}/{self.rank}", how)
            if self.rank == 0:
                others = [f"{LEFT}/{rank}" for rank in range(1, self.size)]
                self.store.wait(others, timedelta(seconds=GRACE_SECONDS / 2))

    def _parse_failure(self, failure: bytes) -> str:
        """The reason of the first failure, as the store has it; it may be this process's own."""
        rank, _, reason = failure.decode().partition(" ")
        return self._set_failure(int(rank), reason)

    def _set_failure(self, rank: int, reason: str) -> str:
        """Set the first failure unless it is known: two threads may find one at once."""
        with self._settling:
            self.failure = self.failure or (rank, reason)
            return self.failure[1]

    def _exit(self, message: str | None) -> None:
        """End at once, without waiting for other threads."""
        if message is not None:
            print(f"vitreous: {message}", file=sys.__stderr__, flush=True)
        os._exit(1 if self._signal is None else 128 + self._signal)


def rendezvous_failure(rank: int, size: int, reason: str) -> str:
    address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    return (
        f"process {rank} of {size}: no rendezvous with the others at {address} ({reason}); check that all were started "
        "and may connect to each other."
    )


def _unreachable(error: RuntimeError) -> str:
    return f"the launcher cannot be reached any more ({first_line(error)}); {RESUME}"


def first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
