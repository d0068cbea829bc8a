"""What two processes gain over one, what talking to each other costs, and what that says of many.

    python benchmarks/scaling.py     # on two quiet cores; about a minute

Measured in one run, on a ViT-Ti/16 that learns from labels, 32 images of 224 pixels a step: one process with two
threads, two processes with one thread each (replicated, and sharded), and one with one thread. Beside it an all-reduce
of as many bytes as the gradients have, and of one number: bandwidth and latency between the two. From these parts
`docs/measured_scale.py` makes a model of the time of a step for more processes, on paper. Writes
benchmarks/results/scaling.json.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from measure import write_result
from vitreous import ViT
from vitreous.config.data import Preprocess
from vitreous.config.objective import Supervised as Settings
from vitreous.config.train import Optimizer, Training
from vitreous.data.batch import Batch
from vitreous.distributed.world import World
from vitreous.objectives.supervised import Classification
from vitreous.training.step import Learner, train_step

BATCH, SIDE = 32, 224
ROUNDS = 3


def make_learner(world: World) -> tuple[Learner, Batch]:
    """A network and this process's part of a batch."""
    model = ViT("Ti/16", classes=1000)
    training = Training(model.config, Preprocess(size=(SIDE, SIDE)), optimizer=Optimizer(), batch_size=BATCH)
    images = torch.randn(BATCH, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    own = world.rank_slice(BATCH)
    batch = Batch.of(images[own], torch.arange(BATCH)[own] % 1000, torch.arange(BATCH)[own])
    return Learner(Classification(model, Settings()), training, world), batch


def seconds_of(job: Callable[[], object], rounds: int = ROUNDS) -> float:
    """The median of some calls, after one that warms up."""
    job()
    found = []
    for _ in range(rounds):
        start = time.perf_counter()
        job()
        found.append(time.perf_counter() - start)
    return median(found)


def step_seconds(world: World) -> float:
    learner, batch = make_learner(world)
    return seconds_of(lambda: train_step(learner, batch, 0, 0.5, 0.5))


def measure_two(rank: int, port: int, link: Any) -> None:
    """In each of two processes, with one thread."""
    os.environ.update(GLOO_SOCKET_IFNAME="lo", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    gradients = torch.zeros(sum(p.numel() for p in ViT("Ti/16", classes=1000, seed=None).parameters()))
    found = {
        "replicated": step_seconds(World(rank, 2)),
        "sharded": step_seconds(World(rank, 2, sharded=True)),
        "all_reduce": seconds_of(lambda: dist.all_reduce(gradients), 10),
        "latency": seconds_of(lambda: dist.all_reduce(torch.zeros(1)), 50),
        "bytes": gradients.numel() * gradients.element_size(),
    }
    if rank == 0:
        link.send(found)
    dist.destroy_process_group()


def run_two() -> dict[str, float]:
    spawn = multiprocessing.get_context("spawn")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    here, there = spawn.Pipe()
    processes = [spawn.Process(target=measure_two, args=(rank, port, there)) for rank in range(2)]
    for process in processes:
        process.start()
    measured: dict[str, float] = here.recv()
    for process in processes:
        process.join()
    return measured


def conduct() -> dict[str, Any]:
    torch.set_num_threads(2)
    two_threads = step_seconds(World())
    torch.set_num_threads(1)
    one_thread = step_seconds(World())
    two = run_two()
    torch.set_num_threads(2)
    two_threads = min(two_threads, step_seconds(World()))  # before and after: the machine is never quite quiet
    rates = {
        "one process, one thread": BATCH / one_thread,
        "one process, two threads": BATCH / two_threads,
        "two processes, one thread each": BATCH / two["replicated"],
        "two processes, one thread each, sharded": BATCH / two["sharded"],
    }
    latency = two["latency"] / 2  # two messages
    bandwidth = two["bytes"] / max(1e-9, two["all_reduce"] - two["latency"])
    return {
        "images_per_second": {name: round(rate, 2) for name, rate in rates.items()},
        "all_reduce": {
            "bytes": two["bytes"],
            "seconds": round(two["all_reduce"], 4),
            "share_of_step": round(two["all_reduce"] / two["replicated"], 3),
            "bytes_per_second": round(bandwidth),
            "latency_seconds": round(latency, 6),
        },
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result = conduct()
    print(json.dumps(result, indent=2))
    if options.out is None:
        print("written:", write_result("scaling", result).name)
    else:
        options.out.write_text(json.dumps(result))
