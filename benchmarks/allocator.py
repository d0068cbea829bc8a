"""What it brings that a process keeps its memory (`vitreous.memory`): each way in fresh processes, in turns.

    python benchmarks/allocator.py [--rounds 5] [--seconds 6] [--threads 2]

ViT-Ti/16 at 224 pixels: forward passes of 8 and 64 images, a training step of 32, and a step of MAE of 32. The ways:

- default: glibc as it is, which is what other programs have;
- small pages: memory is kept, but no huge pages are asked for;
- vitreous: memory is kept, in huge pages where the system has them;
- tunables: what an expert sets in the environment, GLIBC_TUNABLES with hugetlb=1 and both thresholds.

Of every process: images a second by the clock and by its own processor time (which other programs disturb less),
user and system time, page faults per call, and peak memory. Medians over the rounds are printed, and written with every
round to benchmarks/results/allocator.json.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F

from measure import peak_megabytes, write_result
from vitreous import ViT, memory
from vitreous.config.objective import Mae
from vitreous.data.batch import Batch
from vitreous.objectives.build import build_objective
from vitreous.objectives.objective import Setting

TUNABLES = {
    "hugetlb": 1,
    "mmap_threshold": 2**30,
    "trim_threshold": 2**40,
}
WAYS: dict[str, dict[str, str]] = {
    "default": {memory.SWITCH: "off"},
    "small pages": {},
    "vitreous": {},
    "tunables": {"GLIBC_TUNABLES": ":".join(f"glibc.malloc.{name}={value}" for name, value in TUNABLES.items())},
}
"""What each has in its environment."""
WORK = {"forward 8": 8, "forward 64": 64, "training 32": 32, "MAE 32": 32}
"""And the images of a call."""
LEAST_CALLS = 3
DECODER = Mae(decoder_width=96, decoder_depth=2, decoder_heads=3)
"""As large as the recipe has it."""
FACTS = ("images_per_second", "images_per_cpu_second", "user", "system", "faults_per_call", "peak_megabytes")


def make_job(work: str) -> Callable[[], object]:
    """One call of this work on random images."""
    torch.manual_seed(0)
    network, images = ViT("Ti/16"), torch.randn(WORK[work], 3, 224, 224)
    if work.startswith("forward"):
        network.eval()
        return torch.inference_mode()(lambda: network(images))
    trained: torch.nn.Module = network
    if work.startswith("MAE"):
        trained, batch = build_objective(network, DECODER, Setting(0)), Batch.of(images)
    optimizer, targets = torch.optim.AdamW(trained.parameters(), lr=1e-4, fused=True), torch.arange(len(images))

    def step() -> None:
        loss = trained(batch, 0.5)[0] if work.startswith("MAE") else F.cross_entropy(trained(images), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def run(way: str, work: str, seconds: float, threads: int) -> dict[str, float]:
    """In this process: what so many seconds of this work came to, after two calls that are not counted."""
    torch.set_num_threads(threads)
    if way == "small pages":
        memory._reserve_addresses = lambda libc: None
    kept = memory.retain_memory()
    assert kept == (way in ("small pages", "vitreous")), "not glibc, or the environment has settings of its own"
    job = make_job(work)
    job(), job()
    before, start, calls = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter(), 0
    while calls < LEAST_CALLS or time.perf_counter() - start < seconds:
        job()
        calls += 1
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
    user, system = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    images, faults = calls * WORK[work], (after.ru_minflt - before.ru_minflt) / calls
    found = (images / wall, images / (user + system), user / wall, system / wall, faults, peak_megabytes())
    return {fact: round(value, 3) for fact, value in zip(FACTS, found, strict=True)}


def run_fresh(way: str, work: str, seconds: float, threads: int) -> dict[str, float]:
    """The same in a process of its own."""
    mine = ("MALLOC_", "GLIBC_TUNABLES", memory.SWITCH)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(mine)} | WAYS[way]
    asked = ["--run", way, work, "--seconds", str(seconds), "--threads", str(threads)]
    told = subprocess.run([sys.executable, __file__, *asked], env=environment, check=True, stdout=subprocess.PIPE)
    found: dict[str, float] = json.loads(told.stdout)
    return found


def measure(rounds: int, seconds: float, threads: int) -> dict[str, Any]:
    """For each work and way the medians, and all rounds."""
    found: dict[str, Any] = {}
    for work in WORK:
        each: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
        for turn in range(rounds):
            for way in WAYS if turn % 2 == 0 else reversed(WAYS):
                each[way].append(run_fresh(way, work, seconds, threads))
        found[work] = {
            way: {fact: median(one[fact] for one in told) for fact in FACTS} | {"rounds": told}
            for way, told in each.items()
        }
        for way, row in found[work].items():
            ratio = row["images_per_cpu_second"] / found[work]["default"]["images_per_cpu_second"]
            facts = ", ".join(f"{fact.replace('_', ' ')} {row[fact]:.3g}" for fact in FACTS)
            print(f"{work:12} {way:12} {ratio:.2f} times default ({facts})", flush=True)
    return found


def huge_pages() -> str:
    """When the system gives huge pages: the word in brackets."""
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return setting.read_text().strip() if setting.exists() else "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.run:
        way, work = asked.run
        print(json.dumps(run(way, work, asked.seconds, asked.threads)))
        return
    torch.set_num_threads(asked.threads)
    libc = os.confstr("CS_GNU_LIBC_VERSION")
    facts = {"libc": libc, "transparent_hugepage": huge_pages(), "seconds": asked.seconds}
    write_result("allocator", {**facts, "work": measure(asked.rounds, asked.seconds, asked.threads)})


if __name__ == "__main__":
    main()
