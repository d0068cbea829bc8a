"""Servers under load, for benchmarks/serve.py: started, asked, watched and ended."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from load import Outcome, Plan

HERE = Path(__file__).parent
START_SECONDS = 180.0
"""In which a server must answer; converting a model for the first time takes some of it."""


@dataclass(frozen=True)
class Server:
    """One that answers."""

    process: subprocess.Popen[bytes]
    port: int

    def megabytes(self) -> float:
        """Memory that its processes hold now, together."""
        return sum(resident_megabytes(number) for number in group(self.process.pid))


@contextmanager
def running(command: Sequence[str], log: Path, **environment: str) -> Iterator[Server]:
    """A server by its command, in which PORT stands for a free port, once it takes connections; ended afterwards."""
    port = free_port()
    words = [str(port) if word == "PORT" else word for word in command]
    with log.open("wb") as written:
        process = subprocess.Popen(
            words, stdout=written, stderr=written, env={**os.environ, **environment}, start_new_session=True
        )
    try:
        wait_until_ready(process, port, log)
        yield Server(process, port)
    finally:
        end(process)


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def wait_until_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Until it answers anything at all over HTTP."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with status {process.returncode}:\n{log.read_text()}")
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=2) as asked:
                asked.sendall(b"GET /v2/health/ready HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
                if asked.recv(1):
                    return
        except OSError:
            pass
        time.sleep(0.1)
    raise RuntimeError(f"the server did not answer within {START_SECONDS:.0f} s:\n{log.read_text()}")


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask it to end, then, if it must be, make it; it and all that it started are in a session of their own."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(15)
    for number in group(process.pid):
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
    process.wait()


def group(leader: int) -> list[int]:
    """The processes of a session."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == leader and fields[0] != "Z":
            found.append(int(folder.name))
    return found


def resident_megabytes(number: int) -> float:
    try:
        status = Path(f"/proc/{number}/status").read_text()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) * 1024 / 1e6 for line in status.splitlines() if line.startswith("VmRSS:")), 0.0)


def start_load(plan: Plan) -> subprocess.Popen[bytes]:
    """The clients, in a process of their own, which begin at once."""
    process = subprocess.Popen(
        [sys.executable, str(HERE / "load.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(os.environ)
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(asdict(plan)).encode())
    process.stdin.close()
    process.stdin = None
    return process


def apply_load(plan: Plan) -> list[Outcome]:
    """What became of each request of the plan."""
    return finish_load(start_load(plan))


def finish_load(process: subprocess.Popen[bytes]) -> list[Outcome]:
    written, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"the clients ended with status {process.returncode}")
    return [Outcome(*one) for one in json.loads(written)]


@dataclass(frozen=True)
class Summary:
    """Requests of one run."""

    per_second: float
    """Answered with 200."""
    p50: float
    """Seconds, of those answered with 200."""
    p99: float
    statuses: dict[str, int]


def summarise(outcomes: Sequence[Outcome]) -> Summary:
    """Speed between the first request and the last answer."""
    good = [one for one in outcomes if one.status == 200]
    statuses = {str(status): sum(one.status == status for one in outcomes) for status in {o.status for o in outcomes}}
    if not good:
        return Summary(0.0, float("nan"), float("nan"), statuses)
    begun, done = min(one.began for one in good), max(one.began + one.seconds for one in good)
    p50, p99 = np.quantile([one.seconds for one in good], [0.5, 0.99])
    return Summary(round(len(good) / (done - begun), 1), round(float(p50), 4), round(float(p99), 4), statuses)
