"""Memory and time of a training step from Ti to g: measured on this processor where it fits, computed elsewhere.

python benchmarks/scale_table.py [--out benchmarks/results/scale_table.json]

Each measurement is a process of its own (two for `shard`), with one thread, in float32: the most memory that it held
beyond what it held before the network was built, and the least processor time of two steps. Beside it stands what
`vitreous.training.parallelism` computes. The rest of the table is computed only, and says so.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from measure import RESULTS, machine
from vitreous.config.data import Preprocess
from vitreous.config.model import preset
from vitreous.config.objective import Supervised as Settings
from vitreous.config.train import Optimizer, Training
from vitreous.data.batch import Batch
from vitreous.distributed.world import World
from vitreous.memory import resident_bytes
from vitreous.model.family import count_flops
from vitreous.model.vit import ViT
from vitreous.objectives.supervised import Classification
from vitreous.training.parallelism import PARALLELISMS, Parallelism, fit_on_gpus, step_memory
from vitreous.training.step import Learner, train_step

MEASURED = {"Ti/16": 8, "S/16": 4, "B/16": 2}
"""With so many images at once, per process."""
COMPUTED = ("Ti/16", "S/16", "B/16", "L/16", "H/14", "g/14")
GPUS, MEMORY = 8, 80 * 10**9
PEAK, USED = 312e12, 0.4
"""Operations a second of a GPU in bfloat16 (NVIDIA's figure for the A100), and the share of it that is taken to be
used: an assumption, not a measurement."""
STEPS = 2


def measure_here(name: str, way: Parallelism, batch: int) -> dict[str, float]:
    """Bytes at most and seconds of a step in this process, which is one of those that torch.distributed was told of."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    train("F/7@28", way, 2)  # libraries take memory when they are first used
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the most held so far is forgotten
    before = resident_bytes()
    seconds = train(name, way, batch)
    held = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    dist.destroy_process_group()
    return {"bytes": 1024 * int(held.split()[1]) - before, "seconds": seconds}


def train(name: str, way: Parallelism, batch: int) -> float:
    """Seconds of processor time of the fastest of some steps, taken as every training takes them."""
    config = preset(name, classes=1000)
    training = Training(
        config,
        Preprocess(size=config.image_size),
        optimizer=Optimizer(),
        activation_checkpointing=way.activation_checkpointing,
    )
    world = World(dist.get_rank(), dist.get_world_size(), sharded=way.shard)
    learner = Learner(Classification(ViT(config), Settings()), training, world)
    seconds = []
    for number in range(STEPS):
        start = time.process_time()
        images = torch.randn(batch, config.channels, *config.image_size)
        seen = Batch.of(images, torch.zeros(batch, dtype=torch.long), torch.arange(batch))
        train_step(learner, seen, number, 0.5, 0.5)
        seconds.append(time.process_time() - start)
    return min(seconds)


def measure(name: str, way: Parallelism, batch: int) -> dict[str, float]:
    """The same in new processes: one, or two where weights are shared out."""
    size = 2 if way.shard else 1
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size), "OMP_NUM_THREADS": "1"}
    asked = [name, str(int(way.shard)), str(int(way.activation_checkpointing)), str(batch)]
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, "--one", *asked],
            env={**os.environ, **place, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    said = [process.communicate()[0] for process in processes]
    found: dict[str, float] = json.loads(said[0].splitlines()[-1])
    return found


def measured_row(name: str, way: Parallelism, batch: int) -> dict[str, Any]:
    computed = step_memory(preset(name), way, 2 if way.shard else 1, mixed=False)
    assert computed is not None
    found = measure(name, way, batch)
    row: dict[str, Any] = {
        "model": name,
        "way": str(way),
        "processes": 2 if way.shard else 1,
        "batch": batch,
        "measured_bytes": round(found["bytes"]),
        "computed_bytes": round(computed.total(batch)),
        "seconds": round(found["seconds"], 3),
    }
    print(f"{name} {way}: {row['measured_bytes'] / 1e6:,.0f} MB, computed {row['computed_bytes'] / 1e6:,.0f} MB")
    return row


def computed_row(name: str) -> dict[str, Any]:
    flops = 3 * count_flops(preset(name))
    return {
        "model": name,
        "step_gflops": round(flops / 1e9, 1),
        "images_per_second_per_gpu": round(USED * PEAK / flops),
        "fit": asdict(fit_on_gpus(preset(name), GPUS, MEMORY)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS / "scale_table.json")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        name, shard, saving, batch = given.one
        print(json.dumps(measure_here(name, Parallelism(shard == "1", saving == "1"), int(batch))))
        return
    found: dict[str, Any] = {
        "machine": machine(),
        "measured": [],
        "computed": [computed_row(name) for name in COMPUTED],
        "assumed": {"gpu_peak_flops": PEAK, "share_used": USED, "gpus": GPUS, "memory": MEMORY},
    }
    given.out.write_text(json.dumps(found, indent=2) + "\n")
    for way in PARALLELISMS:
        for name, batch in MEASURED.items():
            found["measured"].append(measured_row(name, way, batch))
            given.out.write_text(json.dumps(found, indent=2) + "\n")  # each takes a while


if __name__ == "__main__":
    main()
