"""Two processes that train together, as torchrun starts them, and what can be done to them."""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import numpy as np

from kill import Command


class Pair:
    """Two processes that train together, as torchrun starts them."""

    def __init__(self, argv: list[str], log: Path) -> None:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        self.commands = []
        for rank in range(2):
            names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": port}
            os.environ.update({name: str(value) for name, value in names.items()})
            os.environ.update(MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo", FAULT_RANK=str(rank))
            self.commands.append(Command(argv, log))

    def wait(self, seconds: float) -> list[int | None]:
        """Their statuses; None of one that is still there."""
        end = time.monotonic() + seconds
        return [command.wait(max(0.0, end - time.monotonic())) for command in self.commands]

    def end(self) -> None:
        for command in self.commands:
            with suppress(ProcessLookupError):
                os.kill(command.pid, signal.SIGKILL)
            command.wait(10)


Harm = Callable[[Pair, Path, random.Random, float], bool]
"""Do harm to one of two processes, and say whether it came in time."""


def kill(pair: Pair, run: Path, rng: random.Random, seconds: float) -> bool:
    """At a random moment after the first checkpoint."""
    if not until(lambda: any(run.glob("checkpoints/step-*")), pair):
        return False
    if None not in pair.wait(rng.uniform(0, 0.5 * seconds)):
        return False
    return send(rng.choice(pair.commands), signal.SIGKILL)


def kill_saving(pair: Pair, run: Path, rng: random.Random, seconds: float) -> bool:
    """While a checkpoint has its preliminary name, one of the first ten."""
    for _ in range(rng.randrange(1, 10)):
        if not until(lambda: any(run.glob("checkpoints/.step-*.new*")), pair):
            return False
        until(lambda: not any(run.glob("checkpoints/.step-*.new*")), pair)
    if not until(lambda: any(run.glob("checkpoints/.step-*.new*")), pair):
        return False
    time.sleep(rng.uniform(0, 0.004))
    return send(rng.choice(pair.commands), signal.SIGKILL)


def signal_worker(number: int) -> Harm:
    def harm(pair: Pair, run: Path, rng: random.Random, seconds: float) -> bool:
        if not until(lambda: count_steps(run) > 2, pair):
            return False
        command = rng.choice(pair.commands)
        children = command.children()
        with suppress(ProcessLookupError, IndexError):
            os.kill(rng.choice(children), number)
            return True
        return False

    return harm


def stop(pair: Pair, run: Path, rng: random.Random, seconds: float) -> bool:
    """As a machine does that swaps without end, or a file system that does not answer; after a few steps."""
    before = count_steps(run)
    return until(lambda: count_steps(run) > before + 2, pair) and send(rng.choice(pair.commands), signal.SIGSTOP)


def stop_early(pair: Pair, run: Path, rng: random.Random, seconds: float) -> bool:
    """The same before the first step: while the two meet, or soon after."""
    pair.wait(rng.uniform(0, 1))
    return send(rng.choice(pair.commands), signal.SIGSTOP)


def nothing_more(pair: Pair, run: Path, rng: random.Random, seconds: float) -> bool:
    """The harm is done already."""
    return True


def send(command: Command, number: int) -> bool:
    if command.wait(0) is not None:
        return False
    os.kill(command.pid, number)
    return True


def until(true: Callable[[], bool], pair: Pair) -> bool:
    """Wait for it; False if the training has ended before."""
    while not true():
        if None not in pair.wait(0.0005):
            return False
    return True


def is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False


def count_steps(run: Path) -> int:
    """Steps that were logged."""
    log = run / "metrics.jsonl"
    return log.read_text().count('"loss"') if log.exists() else 0


def digest(run: Path) -> str:
    """Of what a training leaves, but for what the clock says."""
    files = (run / "metrics.jsonl", run / "bundle/model.safetensors")
    return sha256(b"".join(sha256(path.read_bytes()).digest() for path in files)).hexdigest()


def draw_images(place: Path) -> None:
    """Two classes of small images."""
    draw = np.random.default_rng(0)
    labels = np.arange(48) % 2
    images = draw.integers(0, 120, (48, 16, 16, 3)) + 60 * labels[:, None, None, None]
    np.savez(place, images=images.astype(np.uint8), labels=labels)
