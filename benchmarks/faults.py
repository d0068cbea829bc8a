"""Do trainings of two processes survive what happens in days, and does nothing ever hang?

    python benchmarks/faults.py                                     # everything, some in the hundreds: half an hour
    python benchmarks/faults.py --scale 0.03 --only kill-saving,nan --out FILE

Two processes train together with frequent checkpoints, replicated or sharded. One of them, or one of its decoding
processes, is killed or stopped, the disk is full, a bit of a checkpoint is flipped, a loss is not a number. Whatever is
left must end by itself or go on within 60 seconds; this program then does what torchrun does: it ends what was stopped
and starts both again. In the end the weights and the log must be those of a training that nobody disturbed.

Each process is forked from this one, which has everything imported: starting takes milliseconds. Without --out, writes
benchmarks/results/faults.json. The full disk is a small tmpfs, for which one must be root.
"""

from __future__ import annotations

import argparse
import json
import os
import pkgutil
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

import vitreous
from measure import write_result
from pair import (
    Harm,
    Pair,
    count_steps,
    digest,
    draw_images,
    is_stopped,
    kill,
    kill_saving,
    signal_worker,
    stop,
    stop_early,
)
from vitreous.distributed.world import World
from vitreous.objectives.supervised import Classification
from vitreous.training.checkpoint import Saver

LIMIT = 60.0
"""Seconds in which all must have ended or gone on."""
IN_TURN = 5
"""Disturbances of one training before it may run to its end."""
TIMES = {
    "kill": 40,
    "kill-saving": 100,
    "kill-saving-shards": 100,
    "kill-worker": 20,
    "stop-worker": 3,
    "stop": 10,
    "stop-early": 10,
    "full-disk": 3,
    "nan": 3,
    "flip": 100,
    "flip-shards": 100,
}
DESCRIPTIONS = {
    "kill": "SIGKILL to a process in training",
    "kill-saving": "SIGKILL to a process while a checkpoint is written",
    "kill-saving-shards": "the same, sharded",
    "kill-worker": "SIGKILL to a decoding process",
    "stop-worker": "a decoding process that hangs (SIGSTOP)",
    "stop": "a process that hangs (SIGSTOP) in training",
    "stop-early": "a process that hangs (SIGSTOP) while the two meet",
    "full-disk": "a full disk",
    "nan": "a loss that is not a number, in one process",
    "flip": "a flipped bit in any file of a checkpoint",
    "flip-shards": "the same, sharded",
}


@dataclass
class Tally:
    """What became of one kind of fault."""

    what: str
    faults: int = 0
    trainings: int = 0
    """That came to their end afterwards, and were compared."""
    same_bits: int = 0
    hangs: int = 0
    """Processes that neither ended nor went on in time."""
    slowest_seconds: float = 0.0
    """From a fault until all had ended, or until the next step."""
    sentences: list[str] = field(default_factory=list)
    """What was said, each once."""


@dataclass
class Flips:
    """What became of flipped bits."""

    what: str
    flips: int = 0
    refused: int = 0
    """Checkpoints that were found damaged, and named."""
    earlier_taken: int = 0
    seconds_each: float = 0.0


class Experiment:
    """Trainings that are disturbed, beside ones that were not."""

    def __init__(self, folder: Path, seed: int = 0) -> None:
        self.folder, self.rng, self.log = folder, random.Random(seed), folder / "log"
        draw_images(folder / "images.npz")
        self.expected: dict[str, str] = {}
        self.seconds: dict[str, float] = {}

    def argv(self, name: str, *more: str) -> list[str]:
        overrides = "model.width=16 model.depth=2 model.heads=2 model.mlp_width=32 batch_size=12 save_seconds=0"
        fixed = [word for one in f"{overrides} augment.policy=trivial".split() for word in ("--overrides", one)]
        data = ["fit", str(self.folder / "images.npz"), "--model", "Ti/4@16", *fixed, "--epochs", "8", "--workers", "1"]
        return [*data, "--out", str(self.folder / name), *more]

    def undisturbed(self, *more: str) -> str:
        """The digest of a training that nobody disturbs; it is done once."""
        key = " ".join(more)
        if key not in self.expected:
            name, began = f"whole{len(self.expected)}", time.monotonic()
            assert Pair(self.argv(name, *more), self.log).wait(300) == [0, 0], self.log.read_text()
            self.expected[key], self.seconds[key] = digest(self.folder / name), time.monotonic() - began
        return self.expected[key]

    def disturb(self, what: str, times: int, harm: Harm, *more: str) -> Tally:
        """Harm trainings so often, some times in turn, and let each come to its end."""
        tally, run, expected = Tally(what), self.folder / "hurt", self.undisturbed(*more)
        while tally.faults < times:
            self.log.write_text("")
            pair = Pair(self.argv("hurt", *more), self.log)
            harmed = harm(pair, run, self.rng, self.seconds[" ".join(more)])
            if harmed:
                tally.faults += 1
                self._see_off(pair, run, tally)
            elif None in pair.wait(LIMIT):
                tally.hangs += 1
            pair.end()
            self._hear(tally)
            if harmed and tally.faults % IN_TURN and tally.faults < times:
                continue
            if self._come_to_an_end(run, *more):
                tally.trainings += 1
                tally.same_bits += digest(run) == expected
            else:
                tally.hangs += 1
            shutil.rmtree(run, ignore_errors=True)
        return tally

    def _see_off(self, pair: Pair, run: Path, tally: Tally) -> None:
        """Wait until all have ended, or the training goes on; what was stopped cannot end by itself."""
        began, steps = time.monotonic(), count_steps(run)
        while time.monotonic() - began < LIMIT:
            statuses = pair.wait(0.02)
            stopped = [is_stopped(command.pid) for command in pair.commands]
            if all(status is not None or held for status, held in zip(statuses, stopped, strict=True)):
                break
            if not any(stopped) and statuses == [None, None] and count_steps(run) > steps + 1:
                break
        else:
            tally.hangs += 1
        tally.slowest_seconds = max(tally.slowest_seconds, round(time.monotonic() - began, 1))
        if None not in pair.wait(0.0):
            return
        if not any(is_stopped(command.pid) for command in pair.commands):
            tally.hangs += None in pair.wait(120)

    def _come_to_an_end(self, run: Path, *more: str) -> bool:
        pair = Pair(self.argv(str(run.relative_to(self.folder)), *more), self.log)
        try:
            return pair.wait(300) == [0, 0]
        finally:
            pair.end()

    def _hear(self, tally: Tally) -> None:
        said = [line for line in self.log.read_text().splitlines() if line.startswith("vitreous: ")]
        for line in said:
            line = line.replace(str(self.folder), "").replace(socket.gethostname(), "HOST")
            if line not in tally.sentences and len(tally.sentences) < 6:
                tally.sentences.append(line)


@contextmanager
def not_a_number() -> Iterator[None]:
    """Of processes that are started within, the second one's loss is none in its seventh step."""
    whole, seen = Classification.forward, []

    def forward(self: Classification, batch: Any, progress: float) -> Any:
        loss, metrics = whole(self, batch, progress)
        seen.append(1)
        if self.training and os.environ["FAULT_RANK"] == "1" and len(seen) == 7:
            loss = loss * float("nan")
        return loss, metrics

    Classification.forward = forward  # type: ignore[method-assign]
    try:
        yield
    finally:
        Classification.forward = whole  # type: ignore[method-assign]


def diverge(experiment: Experiment, times: int) -> Tally:
    """No process takes the step, and the training goes on from before it where the cause is gone."""
    tally, run, expected = Tally(DESCRIPTIONS["nan"]), experiment.folder / "hurt", experiment.undisturbed()
    for _ in range(times):
        experiment.log.write_text("")
        with not_a_number():
            pair, began = Pair(experiment.argv("hurt"), experiment.log), time.monotonic()
        statuses = pair.wait(LIMIT)
        tally.faults += 1
        tally.hangs += statuses.count(None)
        tally.slowest_seconds = max(tally.slowest_seconds, round(time.monotonic() - began, 1))
        assert (count_steps(run), statuses) == (6, [2, 2]), experiment.log.read_text()
        pair.end()
        experiment._hear(tally)
        tally.trainings += experiment._come_to_an_end(run)
        tally.same_bits += digest(run) == expected
        shutil.rmtree(run)
    return tally


def fill_disk(experiment: Experiment, times: int) -> Tally:
    """On a file system with room for a few steps; then it gets more."""
    tally, place, expected = Tally(DESCRIPTIONS["full-disk"]), experiment.folder / "small", experiment.undisturbed()
    place.mkdir()
    for turn in range(times):
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={240 + 30 * turn}k", "tmpfs", place], check=True)
        try:
            experiment.log.write_text("")
            pair, began = Pair(experiment.argv("small/run"), experiment.log), time.monotonic()
            statuses = pair.wait(LIMIT)
            tally.faults += 1
            tally.hangs += statuses.count(None)
            tally.slowest_seconds = max(tally.slowest_seconds, round(time.monotonic() - began, 1))
            pair.end()
            assert 0 not in statuses, "the disk was not full"
            experiment._hear(tally)
            subprocess.run(["mount", "-o", "remount,size=100m", place], check=True)
            tally.trainings += experiment._come_to_an_end(place / "run")
            tally.same_bits += digest(place / "run") == expected
        finally:
            subprocess.run(["umount", "-l", place], check=True)
    return tally


def flip_bits(experiment: Experiment, what: str, times: int, *more: str) -> Flips:
    """In the newest of two checkpoints: it must be refused, and the earlier one taken."""
    tally, run = Flips(what), experiment.folder / "flipped"
    pair = Pair(experiment.argv("flipped", *more), experiment.log)
    assert pair.wait(300) == [0, 0], experiment.log.read_text()
    earlier, newest = sorted((run / "checkpoints").glob("step-*"))[-2:]
    files = sorted(path for path in newest.rglob("*") if path.is_file())
    began = time.monotonic()
    for turn in range(times):
        file = files[turn % len(files)]
        content, at = bytearray(file.read_bytes()), experiment.rng.randrange(8 * file.stat().st_size)
        content[at // 8] ^= 1 << at % 8
        file.write_bytes(content)
        point, remarks, _ = Saver(run / "checkpoints", World()).load(with_start=False)
        tally.flips += 1
        tally.refused += len(remarks) == 1 and newest.name in remarks[0]
        tally.earlier_taken += point is not None and point.step == int(earlier.name.removeprefix("step-"))
        content[at // 8] ^= 1 << at % 8
        file.write_bytes(content)
    tally.seconds_each = round((time.monotonic() - began) / max(1, times), 2)
    shutil.rmtree(run)
    return tally


def conduct(folder: Path, wanted: dict[str, int]) -> dict[str, Any]:
    """All kinds that are wanted, each so often."""
    experiment = Experiment(folder)
    simple: dict[str, tuple[Harm, tuple[str, ...]]] = {
        "kill": (kill, ()),
        "kill-saving": (kill_saving, ()),
        "kill-saving-shards": (kill_saving, ("--fsdp",)),
        "kill-worker": (signal_worker(signal.SIGKILL), ()),
        "stop-worker": (signal_worker(signal.SIGSTOP), ()),
        "stop": (stop, ()),
        "stop-early": (stop_early, ()),
    }
    found = {}
    tally: Tally | Flips
    for name, times in wanted.items():
        if name in simple:
            harm, more = simple[name]
            tally = experiment.disturb(DESCRIPTIONS[name], times, harm, *more)
        elif name == "nan":
            tally = diverge(experiment, times)
        elif name == "full-disk":
            tally = fill_disk(experiment, times)
        else:
            tally = flip_bits(experiment, DESCRIPTIONS[name], times, *(["--fsdp"] if name.endswith("shards") else []))
        found[name] = asdict(tally)
        print(json.dumps(found[name]), flush=True)
    return found


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="how often, as a share of the usual")
    parser.add_argument("--only", default=",".join(TIMES), help="kinds of faults, with commas between")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    options = read_options()
    torch.set_num_threads(1)  # so that nothing but this thread is lost by a fork
    for module in pkgutil.walk_packages(vitreous.__path__, "vitreous."):
        import_module(module.name)
    times = {name: max(1, round(options.scale * TIMES[name])) for name in options.only.split(",")}
    with tempfile.TemporaryDirectory() as folder:
        result = conduct(Path(folder), times)
    if options.out is None:
        print("written:", write_result("faults", result).name)
    else:
        options.out.write_text(json.dumps(result))
