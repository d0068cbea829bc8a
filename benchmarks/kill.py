"""Does a training that is killed, ended or robbed of its workers at random moments end with the same bits?

    python benchmarks/kill.py                         # 100 SIGKILLs, 50 SIGTERMs to the group, 20 deaths of a worker
    python benchmarks/kill.py --kills 6 --terms 6 --deaths 4 --out FILE

A small training with two decoding processes and frequent checkpoints is begun, disturbed at a random moment, and begun
again by the same command, until it comes to its end; then its bundle, metrics, last checkpoint and result are compared
with those of a training that nobody disturbed. Without --out, writes benchmarks/results/kill.json.

Each command runs in a child of this process, which has everything imported: starting takes milliseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import pkgutil
import random
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import vitreous
from measure import write_result
from vitreous.cli import main
from vitreous.config.data import Preprocess
from vitreous.model.vit import ViT
from vitreous.weights.bundle import save_bundle

IN_TURN = 2
"""So often a training is disturbed before it is let come to its end."""
GRACE = 10.0
"""Seconds that processes of a command may take to follow it."""


def make_inputs(folder: Path) -> list[str]:
    """The command, without its run folder: a classifier on frozen features, then some seconds of training."""
    draw = np.random.default_rng(0)
    for level, name in enumerate(("dark", "light")):
        (folder / "data" / name).mkdir(parents=True)
        for i in range(60):
            pixels = draw.integers(0, 120, (64, 64, 3)) + 60 * level
            Image.fromarray(pixels.astype(np.uint8)).save(folder / "data" / name / f"{i}.png")
    network = ViT("N/4@16", depth=1, width=32, heads=2, mlp_width=32, classes=3, seed=7)
    save_bundle(folder / "weights", network, Preprocess(size=(16, 16)), list("abc"))
    fixed = ["--overrides", "save_seconds=0.2", "--overrides", "batch_size=12", "--epochs", "15", "--workers", "2"]
    return ["fit", str(folder / "data"), "--weights", str(folder / "weights"), *fixed]


class Command:
    """One command in a process and a group of its own."""

    def __init__(self, argv: list[str], log: Path) -> None:
        self.status: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _become(argv, log)

    def wait(self, seconds: float) -> int | None:
        """Its status, or None if it is still running then."""
        end = time.monotonic() + seconds
        while self.status is None:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                self.status = os.waitstatus_to_exitcode(status)
            elif time.monotonic() >= end:
                break
            else:
                time.sleep(0.005)
        return self.status

    def children(self) -> list[int]:
        try:
            return [int(word) for word in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]
        except OSError:  # it has ended
            return []

    def survivors(self) -> int:
        """How many of its processes outlived it; they are killed."""
        end = time.monotonic() + GRACE
        while (alive := _members(self.pid)) and time.monotonic() < end:
            time.sleep(0.02)
        for pid in alive:
            os.kill(pid, signal.SIGKILL)
        return len(alive)


def _become(argv: list[str], log: Path) -> None:
    """In the child: run the command, and never return."""
    status = 1
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for number, handle in enumerate((nothing, nothing, said)):
            os.dup2(handle, number)
        main(argv)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _members(group: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, _, its_group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            except OSError:  # it has just ended
                continue
            if int(its_group) == group and state != "Z":
                found.append(int(entry.name))
    return found


def digest(run: Path) -> str:
    """Of everything that a training leaves but what the clock says."""
    last = max(run.glob("checkpoints/step-*"))
    files = [run / "metrics.jsonl", run / "bundle/model.safetensors", *sorted(last.glob("*.safetensors"))]
    result = json.loads((run / "result.json").read_text())
    for clocked in ("run", "bundle", "spent", "probe"):
        result.pop(clocked)
    content = [last.name.encode(), json.dumps(result).encode(), *(path.read_bytes() for path in files)]
    return sha256(b"".join(sha256(part).digest() for part in content)).hexdigest()


Disturb = Callable[[Command, random.Random], bool]
"""Do harm, and say whether it came in time."""


def kill(command: Command, _: random.Random) -> bool:
    """The process alone: those that it started must notice by themselves."""
    os.kill(command.pid, signal.SIGKILL)
    return True


def terminate(command: Command, _: random.Random) -> bool:
    """The whole group, as `timeout`, systemd and SLURM do."""
    with suppress(ProcessLookupError):  # it is so young that it has no group yet
        os.killpg(command.pid, signal.SIGTERM)
        return True
    return False


def kill_a_worker(command: Command, chance: random.Random) -> bool:
    """One of the processes that decode, as a system without memory does."""
    while command.wait(0.005) is None:
        with suppress(IndexError, ProcessLookupError):  # there is none just now
            os.kill(chance.choice(command.children()), signal.SIGKILL)
            return True
    return False


@dataclass
class Tally:
    """What became of disturbances of one kind."""

    disturbances: int = 0
    trainings: int = 0
    """That came to their end, and were compared."""
    same_bits: int = 0
    tracebacks: int = 0
    said: str = ""
    """What the commands said around the first one."""
    left_behind: int = 0
    """Processes that outlived their command."""
    statuses: dict[str, int] = field(default_factory=dict)
    """Of disturbed commands."""
    slowest_seconds: float = 0.0
    """From a disturbance that ends a command to its end."""


class Experiment:
    """Trainings that are disturbed, beside one that was not."""

    def __init__(self, folder: Path, seed: int = 0) -> None:
        self.folder, self.chance = folder, random.Random(seed)
        self.argv = make_inputs(folder)
        began = time.monotonic()
        assert self._start("whole").wait(300) == 0, (folder / "log").read_text()
        self.seconds = time.monotonic() - began
        self.expected = digest(folder / "whole")

    def _start(self, name: str) -> Command:
        return Command([*self.argv, "--out", str(self.folder / name)], self.folder / "log")

    def run(self, disturb: Disturb, count: int) -> Tally:
        """Disturb trainings at random moments until it was done so often, and let each come to its end."""
        tally, run, done = Tally(), self.folder / "hurt", 0
        (self.folder / "log").write_text("")
        while tally.disturbances < count or run.exists():
            command = self._start("hurt")
            if tally.disturbances < min(count, done + IN_TURN):
                self._harm(command, disturb, tally)
            status = command.wait(300)
            if status is None:
                raise RuntimeError(f"a command hangs; it said: {(self.folder / 'log').read_text()}")
            tally.left_behind += command.survivors()
            if (run / "report.html").exists() and status == 0:
                tally.trainings += 1
                tally.same_bits += digest(run) == self.expected
                shutil.rmtree(run)
                done = tally.disturbances
        said = (self.folder / "log").read_text()
        if tracebacks := said.count("Traceback"):
            tally.tracebacks, tally.said = tracebacks, said[max(0, said.index("Traceback") - 200) :][:4000]
        return tally

    def _harm(self, command: Command, disturb: Disturb, tally: Tally) -> None:
        if command.wait(self.chance.uniform(0, self.seconds)) is not None or not disturb(command, self.chance):
            return
        began = time.monotonic()
        status = command.wait(300)
        if status == 0 and disturb is not kill_a_worker:  # it had just ended
            return
        tally.disturbances += 1
        if status != 0:
            tally.slowest_seconds = max(tally.slowest_seconds, round(time.monotonic() - began, 2))
        tally.statuses[str(status)] = tally.statuses.get(str(status), 0) + 1


def conduct(kills: int, terms: int, deaths: int) -> dict[str, Any]:
    """All three kinds, and how often each was done."""
    torch.set_num_threads(1)  # so that nothing but this thread is lost by a fork
    for module in pkgutil.walk_packages(vitreous.__path__, "vitreous."):
        import_module(module.name)
    wanted = {
        "SIGKILL to the process": (kill, kills),
        "SIGTERM to its group": (terminate, terms),
        "SIGKILL to one of its workers": (kill_a_worker, deaths),
    }
    with tempfile.TemporaryDirectory() as folder:
        experiment = Experiment(Path(folder))
        found = {name: asdict(experiment.run(*how)) for name, how in wanted.items()}
    return {"undisturbed_seconds": round(experiment.seconds, 2), **found}


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--terms", type=int, default=50)
    parser.add_argument("--deaths", type=int, default=20)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    options = read_options()
    result = conduct(options.kills, options.terms, options.deaths)
    print(json.dumps(result, indent=2))
    if options.out is None:
        print("written:", write_result("kill", result).name)
    else:
        options.out.write_text(json.dumps(result))
