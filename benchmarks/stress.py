"""Does a training with a budget on two processes ever hang, where each has a clock of its own?

    python benchmarks/stress.py                       # 100 trainings, and 100 beside a busy process: twenty minutes
    python benchmarks/stress.py --runs 4 --out FILE

What fits into a budget depends on the clock: how many images are looked at, and whether a step is taken. Processes that
decide differently would wait for each other in different collectives. Every second training compares each collective
(VITREOUS_DEBUG_COLLECTIVES), which finds what does not hang as well. Without --out, writes
benchmarks/results/stress.json.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import pkgutil
import random
import shutil
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path

import numpy as np
import torch

import vitreous
from measure import write_result
from pair import Pair
from vitreous.config.data import Preprocess
from vitreous.model.vit import ViT
from vitreous.weights.bundle import save_bundle

IMAGES = (300, 6000)
"""So few that steps are taken, and more than fit into the budget."""
BUDGET_SECONDS = (6, 14)
LIMIT_SECONDS = 60.0
"""In which both processes must have ended."""


@dataclass
class Tally:
    """What became of the trainings."""

    what: str
    runs: int = 0
    finished: int = 0
    hangs: int = 0
    slowest_seconds: float = 0.0
    messages: list[str] = field(default_factory=list)
    """Why those ended that did not finish."""


def write_inputs(folder: Path) -> None:
    """Images of two classes, and a network that takes a millisecond for each."""
    for count in IMAGES:
        rng, labels = np.random.default_rng(0), np.arange(count) % 2
        images = rng.integers(0, 120, (count, 16, 16, 3)) + 60 * labels[:, None, None, None]
        np.savez(folder / f"{count}.npz", images=images.astype(np.uint8), labels=labels)
    network = ViT("N/2@16", depth=4, width=192, heads=3, mlp_width=768, classes=3, seed=7)
    save_bundle(folder / "weights", network, Preprocess(size=(16, 16)), list("abc"))


def train_often(folder: Path, what: str, runs: int, busy: int) -> Tally:
    """Trainings on two processes, beside so many busy ones."""
    tally, log, rng = Tally(what), folder / "log", random.Random(0)
    with ExitStack() as ended:
        for _ in range(busy):
            process = multiprocessing.get_context("fork").Process(target=spin, daemon=True)
            process.start()
            ended.callback(process.kill)
        for run in range(runs):
            os.environ["VITREOUS_DEBUG_COLLECTIVES"] = str(run % 2)
            log.write_text("")
            data, budget = folder / f"{IMAGES[run // 2 % 2]}.npz", f"{rng.randint(*BUDGET_SECONDS)}s"
            argv = f"fit {data} --weights {folder}/weights --budget {budget} --workers 0 --out {folder}/run".split()
            pair, began = Pair(argv, log), time.monotonic()
            statuses = pair.wait(LIMIT_SECONDS)
            pair.end()
            tally.runs += 1
            tally.finished += statuses == [0, 0]
            tally.hangs += None in statuses
            tally.slowest_seconds = max(tally.slowest_seconds, round(time.monotonic() - began, 1))
            if statuses != [0, 0]:
                tally.messages.append(log.read_text()[-2000:])
            shutil.rmtree(folder / "run", ignore_errors=True)
    return tally


def spin() -> None:
    while True:
        pass


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100, help="trainings of each kind")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)  # so that nothing but this thread is lost by a fork
    for module in pkgutil.walk_packages(vitreous.__path__, "vitreous."):
        import_module(module.name)
    found = {}
    with tempfile.TemporaryDirectory() as place:
        write_inputs(Path(place))
        for busy, what in enumerate(("two processes", "two processes beside a busy one")):
            found[what] = asdict(train_often(Path(place), what, options.runs, busy))
            print(json.dumps(found[what]), flush=True)
    if options.out is None:
        print("written:", write_result("stress", found).name)
    else:
        options.out.write_text(json.dumps(found))
