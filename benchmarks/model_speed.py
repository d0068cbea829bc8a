"""Forward passes and training steps of ours and of its peers, in turns, on this machine.

    python benchmarks/model_speed.py [--rounds 7] [--rows Ti/16] [--compile]

Prints images a second, the ratio to each peer, the share of the measured matrix-multiply peak and the peak memory,
and writes benchmarks/results/model_speed.json. `--compile` gives every contender `torch.compile` as well, and counts
the faster of the two for each.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from measure import best_seconds, matmul_job, peak_megabytes, write_result
from peers import CONTENDERS, ours_half_the_patches
from vitreous import ViTConfig, preset
from vitreous.model.family import count_flops

MODELS: dict[str, tuple[ViTConfig, int]] = {
    "Ti/16": (preset("Ti/16"), 32),
    "S/16": (preset("S/16"), 16),
    "32x32/4": (preset("Ti/4@32", depth=9, classes=10), 128),
}  # and the batch of a training step


def forward_job(model: nn.Module, c: ViTConfig, batch: int) -> Callable[[], object]:
    images = torch.randn(batch, c.channels, *c.image_size)
    model.eval()

    def job() -> object:
        with torch.inference_mode():
            return model(images)

    return job


def training_job(model: nn.Module, c: ViTConfig, batch: int) -> Callable[[], object]:
    """Forward, backward and AdamW."""
    images = torch.randn(batch, c.channels, *c.image_size)
    targets = torch.randint(c.classes, (batch,))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    model.train()

    def job() -> object:
        loss = F.cross_entropy(model(images), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return job


def rows(only: str | None) -> list[tuple[str, ViTConfig, str, int]]:
    """Every row to measure: model, its configuration, forward or training, batch."""
    return [
        (name, c, kind, batch)
        for name, (c, training_batch) in MODELS.items()
        for kind, batch in [("forward", 1), ("forward", 8), ("forward", 32), ("training", training_batch)]
        if only in (None, name)
    ]


def measure_row(c: ViTConfig, kind: str, batch: int, rounds: int, compiled: bool) -> dict[str, Any]:
    """Images a second and share of the peak of every contender in one row."""
    make = forward_job if kind == "forward" else training_job
    jobs = {name: make(build(c), c, batch) for name, build in CONTENDERS.items()}
    if compiled:
        jobs |= {f"{name} compiled": make(torch.compile(build(c)), c, batch) for name, build in CONTENDERS.items()}  # type: ignore[arg-type]
    if kind == "training":
        jobs["half the patches"] = training_job(ours_half_the_patches(c), c, batch)
    jobs["matmul"], matmul_flops = matmul_job()
    seconds = best_seconds(jobs, rounds)
    peak = matmul_flops / seconds["matmul"]

    # Ours computes only what is read of the last block; the peers compute all of it.
    work = {"vitreous": count_flops(c)}
    whole = count_flops(replace(c, pool="mean"))
    row: dict[str, Any] = {"peak_gflops": round(peak / 1e9, 1)}
    for name in CONTENDERS:
        best = min(seconds[name], seconds.get(f"{name} compiled", float("inf")))
        flops = work.get(name, whole) * (3 if kind == "training" else 1)
        row[name] = {"images_per_second": batch / best, "share_of_peak": flops * batch / best / peak}
        if compiled:
            row[name]["compiled"] = best < seconds[name]
    mine = row["vitreous"]["images_per_second"]
    row["ratio"] = {name: mine / row[name]["images_per_second"] for name in CONTENDERS if name != "vitreous"}
    if kind == "training":
        row["half_the_patches_ratio"] = seconds["vitreous"] / seconds["half the patches"]
    return row


def peak_memory(contender: str, model: str, kind: str, batch: int) -> float:
    """Megabytes that a row adds to a fresh process at its highest."""
    words = ["--memory", contender, model, kind, str(batch)]
    out = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True, check=True).stdout
    return float(json.loads(out))


def measure_memory(contender: str, model: str, kind: str, batch: str) -> None:
    """What `peak_memory` runs: print the growth of the process's peak, in megabytes."""
    c = MODELS[model][0]
    small = replace(c, image_size=(c.patch, c.patch), depth=1)  # load all code first
    (forward_job if kind == "forward" else training_job)(CONTENDERS[contender](small), small, 1)()
    before = peak_megabytes()
    job = (forward_job if kind == "forward" else training_job)(CONTENDERS[contender](c), c, int(batch))
    for _ in range(3):
        job()
    print(round(peak_megabytes() - before, 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rows", choices=MODELS, help="only this model")
    parser.add_argument("--compile", action="store_true", help="measure torch.compile too")
    parser.add_argument("--memory", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.memory:
        measure_memory(*args.memory)
        return

    peers = [name for name in CONTENDERS if name != "vitreous"]
    print(
        f"{'':10}{'':10}{'batch':>6}  {'vitreous':>10}  {'of peak':>8}  {'MB':>6}" + "".join(f"{p:>34}" for p in peers)
    )
    results = []
    for name, c, kind, batch in rows(args.rows):
        row = measure_row(c, kind, batch, args.rounds, args.compile)
        for contender in CONTENDERS:
            row[contender]["peak_megabytes"] = peak_memory(contender, name, kind, batch)
        results.append({"model": name, "kind": kind, "batch": batch, **row})
        mine = row["vitreous"]
        line = f"{name:10}{kind:10}{batch:>6}  {mine['images_per_second']:>10.1f}  {mine['share_of_peak']:>8.0%}"
        line += f"  {mine['peak_megabytes']:>6.0f}"
        for peer in peers:
            theirs = row[peer]
            figures = f"{theirs['images_per_second']:.1f} ({row['ratio'][peer]:.2f}x)"
            line += f"{figures:>19} {theirs['share_of_peak']:>5.0%} {theirs['peak_megabytes']:>5.0f} MB"
        if "half_the_patches_ratio" in row:
            line += f"   half the patches: {row['half_the_patches_ratio']:.2f}x"
        print(line, flush=True)
    print("(1.05x: ours does 1.05 times the images of that peer)")
    suffix = "_compiled" if args.compile else ""
    print("written:", write_result(f"model_speed{suffix}", {"rounds": args.rounds, "rows": results}).name)


if __name__ == "__main__":
    main()
