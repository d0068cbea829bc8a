"""How long it takes to open a ViT-B/16 in a .safetensors file, beside `safetensors.torch.load_file` alone.

    python benchmarks/load_speed.py [--rounds 40]

Both map the file. "All read" touches every page once, for only then has a mapped file been loaded; without it, what is
measured is on one side the mapping of 152 tensors and on the other that and the making of the model's 164 modules. Each
runs in turn, on one thread with the file in the system's cache. What counts is the best round, in seconds of the
processor, which other programs on the machine disturb less than the clock. The goal, everything read, is 1.3 times
`load_file`; whether it is met is in the result. "From the disk" is the first opening after a start, by the clock: the
file is dropped from the system's cache before each round. Writes benchmarks/results/load_speed.json.
"""

from __future__ import annotations

import argparse
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from measure import write_result
from vitreous import ViT
from vitreous.weights.source import open_weights

GOAL = 1.3


def touch(tensors: Iterable[Tensor]) -> float:
    """Read every page once."""
    return sum(float(tensor.detach().sum()) for tensor in tensors)


def by_hand(path: Path) -> ViT:
    """What one would write without us, for a model that one knows."""
    model = ViT("B/16", seed=None)
    model.load_state_dict(load_file(path), assign=True)
    return model


def measure(jobs: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Processor seconds of each job, in turns: the best round."""
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(rounds + 2):
        for name in jobs if turn % 2 == 0 else reversed(jobs):
            start = time.process_time()
            held = jobs[name]()
            if turn >= 2:  # the first rounds fill caches
                seconds[name].append(time.process_time() - start)
            del held
    return {name: min(values) for name, values in seconds.items()}


def measure_cold(path: Path, jobs: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Seconds by the clock of each job when the file must come from the disk: the median of some rounds, in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, job in jobs.items():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            start = time.perf_counter()
            job()
            seconds[name].append(time.perf_counter() - start)
    return {name: median(values) for name, values in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    logging.getLogger("vitreous").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "b16.safetensors"
        save_file(ViT("B/16").state_dict(), path)
        os.sync()  # a page that is not yet on the disk cannot be dropped from memory
        read: dict[str, Callable[[], object]] = {
            "load_file, all read": lambda: touch(load_file(path).values()),
            "open_weights, all read": lambda: touch(open_weights(path).model.parameters()),
        }
        plain: dict[str, Callable[[], object]] = {
            "load_file": lambda: load_file(path),
            "load_file into a model": lambda: by_hand(path),
            "open_weights": lambda: open_weights(path),
        }
        found = measure({**plain, **read}, rounds)
        cold = measure_cold(path, read, rounds=7)
        megabytes = path.stat().st_size / 1e6
    ratio = found["open_weights"] / found["load_file"]
    ratio_by_hand = found["open_weights"] / found["load_file into a model"]
    ratio_read = found["open_weights, all read"] / found["load_file, all read"]
    ratio_cold = cold["open_weights, all read"] / cold["load_file, all read"]
    for name, seconds in found.items():
        print(f"{name:24} {1000 * seconds:8.1f} ms")
    print(f"goal {GOAL}: {'met' if ratio_read <= GOAL else 'missed'}")
    print(f"from the disk: {cold}, ratio {ratio_cold:.2f}")
    print(f"ratio with everything read {ratio_read:.2f}; with nothing read {ratio:.2f}, by hand {ratio_by_hand:.2f}")
    result = {
        "model": "B/16",
        "megabytes": megabytes,
        "rounds": rounds,
        "processor_seconds": found,
        "seconds_from_disk": cold,
    }
    print(
        write_result(
            "load_speed",
            {
                **result,
                "goal": GOAL,
                "ratio_all_read": ratio_read,
                "ratio_nothing_read": ratio,
                "ratio_from_disk": ratio_cold,
                "ratio_by_hand": ratio_by_hand,
            },
        )
    )


if __name__ == "__main__":
    main()
