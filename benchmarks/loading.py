"""Does loading keep up with training, and what does a training need: memory, and time until its first step?

    python benchmarks/loading.py DATA WEIGHTS

DATA: Oxford-IIIT Pets, a folder with train/ and test/. WEIGHTS: a ViT-Ti/16 in timm's naming whose preprocessing is
mean = std = 0.5, crop 0.9. Writes benchmarks/results/loading.json.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import chain, count, islice, repeat
from pathlib import Path
from statistics import median
from typing import Any

import torch

from measure import write_result
from vitreous.config.train import Training
from vitreous.data.batch import Batch
from vitreous.data.loader import Loader
from vitreous.data.opening import open_data
from vitreous.distributed.world import World
from vitreous.objectives.build import build_objective
from vitreous.objectives.objective import Setting
from vitreous.training.request import FitRequest
from vitreous.training.start import choose_training, starting_network
from vitreous.training.step import Learner, train_step
from vitreous.weights.source import open_weights

PREPROCESS = "mean=0.5,std=0.5,crop=0.9"
BATCH, STEPS, ROUNDS = 32, 6, 12


class Trainer:
    """Training steps of a Ti/16 as the recipe `notebook` takes them, with a batch of 32."""

    def __init__(self, data: str, weights: str) -> None:
        opened, base = open_data(data), open_weights(weights, PREPROCESS)
        changes = {"batch_size": str(BATCH)}
        self.training: Training = choose_training(FitRequest(data, recipe="notebook", overrides=changes), opened, base)
        t = self.training
        objective = build_objective(starting_network(t, base), t.objective, Setting(t.seed))
        self.learner = Learner(objective, t, World())
        # without the cache, as in a first epoch
        self.loader = Loader(opened.train, t.preprocess, t.augment, batch_size=BATCH, workers=2, cache_bytes=0)

    def seconds(self, batches: Iterator[Batch]) -> float:
        """Of a step, over some of them; the first few only fill the queues."""
        for batch in islice(batches, 3):
            self.step(batch)
        start = time.perf_counter()
        for batch in islice(batches, STEPS):
            self.step(batch)
        return (time.perf_counter() - start) / STEPS

    def step(self, batch: Batch) -> None:
        """Forward, backward, update: the step that the training loop takes."""
        train_step(self.learner, batch, number=0, progress=0.0, after=0.01)


def speeds(data: str, weights: str) -> dict[str, Any]:
    """Images a second with real images and with constant tensors, in turns; the best turn of each counts."""
    trainer = Trainer(data, weights)
    constant = Batch.of(torch.zeros(BATCH, 3, 224, 224), torch.zeros(BATCH, dtype=torch.long))
    real: list[float] = []
    flat: list[float] = []
    for turn in range(ROUNDS):
        trainer.loader.close()  # no batch is waiting from the last turn
        flat.append(trainer.seconds(repeat(constant)))
        real.append(trainer.seconds(chain.from_iterable(trainer.loader.batches(turn + more) for more in count())))
    trainer.loader.close()
    ratios = sorted(a / b for a, b in zip(flat, real, strict=True))
    return {
        "batch": BATCH,
        "real_images_per_second": round(BATCH / min(real), 2),
        "constant_images_per_second": round(BATCH / min(flat), 2),
        "ratio": round(min(flat) / min(real), 3),
        "median_ratio_of_turns": round(median(ratios), 3),
        "ratios_of_turns": [round(ratio, 3) for ratio in ratios],
    }


def command(data: str, weights: str) -> dict[str, Any]:
    """`vitreous fit` with a batch of 32 and two workers: time to the first step, and memory of all its processes."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        args = ["fit", data, "--weights", weights, "--preprocess", PREPROCESS, "--recipe", "notebook", "--epochs", "1"]
        args += ["--overrides", f"batch_size={BATCH}", "--workers", "2", "--out", str(run)]
        start = time.monotonic()
        process = subprocess.Popen([Path(sys.executable).with_name("vitreous"), *args], stdout=subprocess.DEVNULL)
        first, most = 0.0, 0.0
        while process.poll() is None:
            log = run / "metrics.jsonl"
            if not first and log.exists() and log.stat().st_size:
                first = time.monotonic() - start
            most = max(most, sum(_megabytes(pid) for pid in _family(process.pid)))
            time.sleep(0.2)
        assert process.returncode == 0
    return {"first_step_seconds": round(first, 1), "peak_megabytes": round(most)}


def _family(pid: int) -> list[int]:
    """A process and its descendants."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return [pid]
    return [pid, *chain.from_iterable(_family(int(child)) for child in children)]


def _megabytes(pid: int) -> float:
    """Memory of a process, what it shares with others divided among them."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has just ended
        return 0.0
    return next((int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("Pss:")), 0.0)


def index(files: int = 200_000) -> dict[str, Any]:
    """Time and memory to index a tree of many files, in a process of its own."""
    code = (
        "import sys, time; from measure import peak_megabytes; from vitreous.data.opening import open_data;"
        "start = time.perf_counter(); data = open_data(sys.argv[1]);"
        "print(len(data.train), time.perf_counter() - start, peak_megabytes())"
    )
    with tempfile.TemporaryDirectory() as folder:
        for number in range(files):
            place = Path(folder) / f"class{number % 100:02d}"
            if number < 100:
                place.mkdir()
            os.close(os.open(place / f"image{number:06d}.jpg", os.O_CREAT))
        command = [sys.executable, "-c", code, folder]
        found = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent)
    count_, seconds, megabytes = found.stdout.split()
    return {"files": int(count_), "seconds": round(float(seconds), 2), "peak_megabytes": round(float(megabytes))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("weights")
    args = parser.parse_args()
    result = {
        "speed": speeds(args.data, args.weights),
        "command": command(args.data, args.weights),
        "index": index(),
    }
    print(result)
    print("written:", write_result("loading", result).name)


if __name__ == "__main__":
    main()
