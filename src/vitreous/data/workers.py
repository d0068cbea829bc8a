"""Processes that make batches. One that dies is replaced, and none outlives the process that started it."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.util import Finalize
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, Generic, TypeVar

import torch

from vitreous.errors import UserError
from vitreous.inputs import reason
from vitreous.interrupt import SIGNALS

Task = TypeVar("Task")
Result = TypeVar("Result")

TASKS_PER_WORKER = 2  # at once: it makes one while another waits to be fetched
# Seconds without a result after which processes are looked at, and without any processor time after which one with
# something to do counts as dead: it was stopped, or it waits for a disk that does not answer. One that waits for a
# server says so (`extend_heartbeat`), and then has that time first.
CHECK_SECONDS, HANG_SECONDS = 5.0, 20.0
# As many processes in turn may die without one result between; then it is no accident. Of those that were killed for
# doing nothing, all that end within HANG_SECONDS count as one: a disk that does not answer stops them all.
MAX_DEATHS = 5

_PROCESSES: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else None)


_silent_until: Any = None  # in a worker: until when it may do nothing, shared with its parent, by `time.monotonic`


def extend_heartbeat(seconds: float) -> None:
    """Say that this process may wait for a server for so long and is not dead; nothing where it is no worker."""
    if _silent_until is not None:
        _silent_until.value = max(_silent_until.value, time.monotonic() + seconds)


class WorkersDiedError(Exception):
    """Process after process died; `task` is what the last of them was working on."""

    def __init__(self, how: str, task: Any) -> None:
        super().__init__(how)
        self.how, self.task = how, task


class WorkerPool(Generic[Task, Result]):
    """`count` processes that turn tasks into what `make` makes of them; results come in the order of the tasks. Results
    travel as pickled NumPy arrays, through pipes: tensors would need /dev/shm, which containers keep small."""

    def __init__(self, make: Callable[[Task], Result], count: int) -> None:
        self._make, self._count = make, count
        self._workers: list[_Worker] = []
        self._results: dict[int, Result | None] = {}  # by the number of the task; None where it is not there yet
        self._number = 0
        self._again: deque[tuple[int, Task]] = deque()  # tasks that a process did not get done
        self._deaths = 0
        self._last_stall = float("-inf")  # when one was counted last, by `time.monotonic`
        # multiprocessing waits for its processes when the program ends, and these do not heed its SIGTERM.
        Finalize(self, _end, (self._workers,), exitpriority=10)

    def run(self, tasks: Iterable[Task]) -> Iterator[Result]:
        """What was made of each task. The processes start with the first and live on after the last."""
        rest, begun = deque(tasks), deque[int]()
        try:
            while rest or begun:
                self._dispatch(rest, begun)
                while not begun or self._results[begun[0]] is None:
                    self._receive()
                    self._dispatch(rest, begun)
                made = self._results.pop(begun.popleft())
                assert made is not None
                yield made
        except GeneratorExit:  # nobody wants the rest: what still comes of it is dropped
            raise
        except BaseException:  # whatever came between may have cut a message in two
            self.close()
            raise
        finally:
            for number in begun:
                self._results.pop(number, None)

    def close(self) -> None:
        """End the processes; whoever still wants results has new ones started."""
        for worker in self._workers:
            self._again += worker.tasks.items()
        _end(self._workers)

    def _dispatch(self, rest: deque[Task], begun: deque[int]) -> None:
        """Give the least busy processes as much to do as they may have; first what others left undone. Nothing new
        while many results wait for an older one: if its process hangs, the others have to fall silent, for only then
        are they looked at."""
        while len(self._workers) < self._count:
            self._workers.append(self._start())
        while self._again or rest:
            worker = min(self._workers, key=lambda worker: len(worker.tasks))
            if len(worker.tasks) >= TASKS_PER_WORKER:
                return
            if self._again:
                number, task = self._again.popleft()
                if number not in self._results:  # nobody wants it any more
                    continue
            elif len(begun) >= 2 * TASKS_PER_WORKER * self._count:
                return
            else:
                self._number += 1
                number, task = self._number, rest.popleft()
                begun.append(number)
                self._results[number] = None
            worker.ask(number, task)

    def _receive(self) -> None:
        """Take in what is there, or wait for it; forget processes that have died, so that others take their place."""
        ready = wait([worker.link for worker in self._workers], CHECK_SECONDS)
        if not ready:
            for worker in self._workers:
                if worker.hangs():
                    worker.stalled = True
                    worker.process.kill()  # its link then says so
        for worker in [worker for worker in self._workers if worker.link in ready]:
            try:
                number, content = pickle.loads(worker.link.recv_bytes())
            except (EOFError, OSError):
                self._forget_dead(worker)
                continue
            self._deaths = 0
            del worker.tasks[number]
            if number not in self._results:  # nobody wants it any more, be it an error
                continue
            if isinstance(content, BaseException):
                raise content
            self._results[number] = content

    def _forget_dead(self, dead: _Worker) -> None:
        """Leave to others what a dead process had to do: the same bits, for they do not depend on who makes them."""
        self._workers.remove(dead)
        how = dead.end()
        self._again += dead.tasks.items()
        now = time.monotonic()
        same_stall = dead.stalled and now - self._last_stall <= HANG_SECONDS
        if dead.stalled and not same_stall:
            self._last_stall = now
        self._deaths += bool(dead.tasks) and not same_stall
        if self._deaths >= MAX_DEATHS:
            raise WorkersDiedError(how, next(iter(dead.tasks.values())))

    def _start(self) -> _Worker:
        try:
            return _Worker.start(self._make)
        except (OSError, RuntimeError) as error:  # RuntimeError: no thread for it
            raise UserError(
                f"workers={self._count}: the system refuses another process ({reason(error)}); give fewer, or 0."
            ) from error


@dataclass
class _Worker:
    """One process, as its parent sees it."""

    process: Any
    link: Connection
    silent_until: Any  # A number that it sets too: until then it may do nothing, by `time.monotonic`
    tasks: dict[int, Any] = field(default_factory=dict)  # What it has to do, by number, in this order
    seen: tuple[int | None, float] = (None, 0.0)
    """Its processor time when it was looked at, and since when it has been that."""
    stalled: bool = False  # Whether it was killed because it did nothing

    @staticmethod
    def start(make: Callable[[Any], Any]) -> _Worker:
        link, far = _PROCESSES.Pipe()
        silent_until = _PROCESSES.RawValue("d", 0.0)
        task = (make, far, link, os.getpid(), silent_until)
        process = _PROCESSES.Process(target=_work, args=task, daemon=True)
        try:
            with _signals_waiting():
                process.start()
        except BaseException:
            link.close()
            raise
        finally:
            far.close()
        return _Worker(process, link, silent_until)

    def ask(self, number: int, task: Any) -> None:
        self.tasks[number] = task
        with suppress(OSError):  # it has died: its link will say so
            self.link.send((number, task))

    def hangs(self) -> bool:
        """Whether it has something to do and does nothing, by the looks so far."""
        used, now = _processor_ticks(self.process.pid), time.monotonic()
        if used is None or used != self.seen[0] or not self.tasks:
            self.seen = used, now
        return bool(now - max(self.seen[1], self.silent_until.value) > HANG_SECONDS)

    def end(self) -> str:
        """Wait until it has ended, or see to it, and say how it did."""
        self.link.close()
        self.process.join(1.0)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        status: int = self.process.exitcode
        self.process.close()
        return f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"


def _processor_ticks(pid: int) -> int | None:
    """Processor time of a process, in the system's ticks; None where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])
    except (OSError, IndexError, ValueError):
        return None


def _end(workers: list[_Worker]) -> None:
    """End processes at once, whatever they are doing: they hold nothing that could be lost."""
    for worker in workers:
        worker.process.kill()
    while workers:
        workers.pop().end()


@contextmanager
def _signals_waiting() -> Iterator[None]:
    """Signals wait, in a process that is started within too, until it has said what it does about them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# In the process


def _work(make: Callable[[Any], Any], link: Connection, far: Connection, parent: int, silent_until: Any) -> None:
    global _silent_until
    far.close()
    _silent_until = silent_until
    _die_with(parent)
    torch.set_num_threads(1)
    os.nice(5)  # the processor only when training leaves it
    results: SimpleQueue[bytes] = SimpleQueue()
    Thread(target=_send, args=(link, results), daemon=True).start()
    with suppress(EOFError, OSError):
        while True:
            number, task = link.recv()
            results.put(pickle.dumps((number, _result_or_error(make, task)), protocol=pickle.HIGHEST_PROTOCOL))
    os._exit(0)


def _die_with(parent: int) -> None:
    """Leave it to the parent to heed signals, which a whole group gets, and die when it does."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG; elsewhere the end of the link has to do
        if os.getppid() != parent:  # it was faster
            os._exit(0)


def _result_or_error(make: Callable[[Any], Any], task: Any) -> Any:
    try:
        return make(task)
    except Exception as error:
        error.add_note(f"In the process that decodes:\n{traceback.format_exc()}")
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # an error of a kind that does not travel
            return RuntimeError(f"{type(error).__name__}: {error}")
        return error


def _send(link: Connection, results: SimpleQueue[bytes]) -> None:
    """Hand over results beside the making of the next: a pipe holds less than a batch."""
    with suppress(OSError):
        while True:
            link.send_bytes(results.get())
    os._exit(0)
