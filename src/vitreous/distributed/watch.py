"""Each of several processes learns soon when another has failed or is lost, and ends rather than wait for ever.

Every process beats: it writes a growing number to the launcher's store, and looks after the process before it, in a
ring, so that thousands of processes need no more than a few words a second each. Whoever fails says why in the store;
the others then end without another word. The store itself may be held by the process that hangs, and a question to it
then never returns; so a second thread, which asks nobody, counts how long there has been no answer.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from contextlib import suppress
from datetime import timedelta
from enum import Enum
from threading import Event, Lock, Thread
from typing import Any

JOINING = 45.0
"""Seconds in which all processes must have come together; torchrun starts them when all machines are there."""
BEAT = 2.0
"""Seconds between two looks."""
LOST = 20.0
"""Seconds without a beat after which a process counts as lost."""
GRACE = 3.0
"""Seconds that a process has to say why it fails, or to end by itself when another has failed."""
FAILURE = "vitreous/failure"


class Failed(Enum):
    """Which process was the first to fail."""

    NOBODY = 0
    THIS = 1
    ANOTHER = 2


class Watch:
    """Beats, looks after the process before this one, and ends this one rather than let it wait for ever.

    Time is counted in waits of our own, not read from a clock: whoever is stopped and continued, as by Ctrl-Z and fg,
    has missed nothing.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size, self.before = rank, size, (rank - 1) % size
        self.failed = Failed.NOBODY
        self._settling = Lock()
        self.store: Any = None
        self._over = Event()
        self._patience = JOINING + GRACE  # seconds until an answer of the store is overdue
        self._overdue = cannot_meet(rank, size, f"no answer in {JOINING:.0f} s")
        Thread(target=self._count, name="patience", daemon=True).start()

    def begin(self, store: Any) -> None:
        """The processes find each other at this store: beat, and look."""
        self.store = store.clone()  # a connection of its own
        self.store.set_timeout(timedelta(seconds=LOST))
        self._overdue = (
            f"process {self.rank}: the launcher has not answered for {LOST:.0f} s; the same command goes on from the "
            "last checkpoint."
        )
        Thread(target=self._look, name="watch", daemon=True).start()

    def _count(self) -> None:
        """End this process where the store is silent: a question to a process that is stopped never times out."""
        while not self._over.wait(BEAT) and self.failed is Failed.NOBODY:
            self._patience -= BEAT
            if self._patience <= 0:
                _exit(self._overdue)

    def _look(self) -> None:
        """Until the end, or until a process is lost."""
        try:
            reason = self._look_after()
        except RuntimeError as error:  # the store is gone, and with it the first machine
            if self._over.is_set():
                return
            reason = f"the launcher cannot be reached any more ({str(error).strip().splitlines()[0]})"
            self._settle(Failed.THIS)
        if reason is None:
            return
        if not self._over.wait(GRACE):  # the main thread waits for somebody who will not come
            _exit(reason if self.failed is Failed.THIS else None)

    def _look_after(self) -> str | None:
        """Why to end; None at the end of all."""
        number, last, patience = 0, b"", JOINING  # until the first beat
        while True:
            number += 1
            self.store.set(f"vitreous/beat/{self.rank}", f"{number} {socket.gethostname()}")
            if self.failed is not Failed.NOBODY:  # the main thread knows, and ends
                return None
            if self.store.check([FAILURE]):
                first, reason = self._hear(self.store.get(FAILURE))
                return reason if first is Failed.ANOTHER else None  # as above
            beat = f"vitreous/beat/{self.before}"
            now = self.store.get(beat) if self.store.check([beat]) else b""
            if now != last or self.store.check([f"vitreous/left/{self.before}"]):
                last, patience = now, LOST
            elif patience <= 0:
                return self._lose(now.decode().partition(" ")[2])
            self._patience = LOST
            if self._over.wait(BEAT):
                return None
            patience -= BEAT

    def _lose(self, machine: str) -> str:
        """Say that the process before this one is lost."""
        reason = (
            f"process {self.before} on {machine} has not been heard of for {LOST:.0f} s; the others end, and the same "
            "command goes on from the last checkpoint."
            if machine
            else cannot_meet(self.rank, self.size, f"process {self.before} did not come in {JOINING:.0f} s")
        )
        self.claim(reason)
        return reason

    def claim(self, reason: str) -> None:
        """Say why this process fails, unless another has failed before."""
        if self.failed is not Failed.NOBODY:
            return
        own = f"{self.rank} {reason}"
        with suppress(RuntimeError):
            if self.store is not None:
                self._hear(self.store.compare_set(FAILURE, "", own))
                return
        self._settle(Failed.THIS)  # there is nobody to ask

    def wait_for_reason(self) -> str:
        """What the process that failed first has said; it may be about to."""
        with suppress(RuntimeError):
            end = time.monotonic() + GRACE
            while time.monotonic() < end:
                if self.store.check([FAILURE]):
                    return self._hear(self.store.get(FAILURE))[1]
                time.sleep(0.1)
        reason = "another process has ended without a word; the same command goes on from the last checkpoint."
        self.claim(reason)
        return reason

    def leave(self) -> None:
        """Stop, and let the others know, if that takes no longer than a little."""
        self._over.set()
        if self.store is None:
            return
        goodbye = Thread(target=self._say_goodbye, daemon=True)
        goodbye.start()
        goodbye.join(GRACE)

    def _say_goodbye(self) -> None:
        """The first waits for the others, for its machine may hold the store."""
        with suppress(RuntimeError):
            self.store.set(f"vitreous/left/{self.rank}", "")
            if self.rank == 0:
                self.store.wait([f"vitreous/left/{rank}" for rank in range(1, self.size)], timedelta(seconds=GRACE))

    def _hear(self, word: bytes) -> tuple[Failed, str]:
        """Whose failure was the first, which is settled now, and its reason, by what the store has of it.

        It may be this process's own, of which the other thread has not heard yet that it was the first.
        """
        rank, _, reason = word.decode().partition(" ")
        return self._settle(Failed.THIS if int(rank) == self.rank else Failed.ANOTHER), reason

    def _settle(self, first: Failed) -> Failed:
        """Keep which process was the first to fail, unless that is known: two threads may find out at once."""
        with self._settling:
            if self.failed is Failed.NOBODY:
                self.failed = first
            return self.failed


def cannot_meet(rank: int, size: int, reason: str) -> str:
    """The sentence of a process that does not find the others."""
    place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    return (
        f"process {rank} of {size}: cannot meet the others at {place} ({reason}); check that all were started and may "
        "connect to each other."
    )


def _exit(sentence: str | None) -> None:
    """End at once, whatever the other threads wait for."""
    if sentence is not None:
        print(f"vitreous: {sentence}", file=sys.__stderr__, flush=True)
    os._exit(1)
