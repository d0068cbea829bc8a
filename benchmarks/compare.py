"""Which inductive bias helps, and when: four networks on 1 %, 10 % and 100 % of CIFAR-10, three seeds, equal time.

    python benchmarks/compare.py --cifar DATA [--budget 60m] [--image-size 16] [--out DIR]

A plain ViT, the same with convolutions before it, the same with attention to the neighbouring patches only, and a small
BiT. DATA: the official binary version, cifar-10-batches-bin. What is finished in DIR is not done again. Writes
benchmarks/results/compare.json.

Images are shrunk to 16x16 by default: a plain ViT costs 20 MFLOP for each, of 83 at 32x32 or with patches of 2x2,
and a cell of a minute sees four times as many. The grid is 4x4 patches, of which a 3x3 neighbourhood holds 4 in a
corner, 6 at a side and 9 inside: 39 % on average.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from measure import write_result
from vitreous.callbacks import Callbacks
from vitreous.explain.analysis.bias_result import summarise_bias
from vitreous.memory import retain_memory
from vitreous.studies.compare.result import Cell, Comparison
from vitreous.verbs.studies import compare

FRACTIONS = (0.01, 0.1, 1.0)
SEEDS = 3
CHANGES = {"validation": 0.02, "evaluations": 4}
"""Little of a short training is spent on validation: four times the same 1,000 images."""
ELSEWHERE = ("data", "out", "digests", "classes", "splits", "settings", "machine", "biases", "finished", "cells")
"""What `described` tells in its own way, or leaves out."""


def models_at(size: int) -> dict[str, str]:
    """The networks, and what to call them."""
    return {
        f"P/4@{size}": "plain ViT",
        f"C+P/4@{size}": "ViT with a convolutional stem",
        f"P/4@{size}:attention=neighbourhood:window=3": "ViT with neighbourhood attention, 3x3 patches",
        f"bit-r11x0.5@{size}": "BiT-small, a convolutional network",
    }


def main() -> None:
    retain_memory()  # as the command does
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cifar", required=True)
    parser.add_argument("--budget", default="60m")
    parser.add_argument("--image-size", type=int, default=16)
    parser.add_argument("--fractions", default=",".join(map(str, FRACTIONS)))
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--out", default="runs/compare-cifar10")
    parser.add_argument("--result", default="compare", help="name of the file in benchmarks/results")
    args = parser.parse_args()
    names, load = models_at(args.image_size), os.getloadavg()[0]
    found = compare(
        args.cifar,
        models=list(names),
        budget=args.budget,
        fractions=[float(share) for share in args.fractions.split(",")],
        repeats=args.seeds,
        overrides=CHANGES,
        out=args.out,
        callbacks=Callbacks(message=lambda text: print(text, flush=True)),
    )
    for fraction, verdict in found.verdicts.items():
        print(fraction, verdict)
    for closing in found.closing:
        print(closing)
    facts = {"image_size": args.image_size, "load_before": round(load, 2)}
    print("written:", write_result(args.result, {**described(found, names), **facts}).name)


def described(found: Comparison, names: dict[str, str]) -> dict[str, Any]:
    """What the documentation shows, and all that it follows from."""
    everything = found.to_json()
    bias = [
        {"measure": row.measure, "share": row.as_percent, "values": dict(zip(found.biases, row.values, strict=True))}
        for row in summarise_bias(list(found.biases.values()))
    ]
    cells = [
        {**{name: value for name, value in fields.items() if name != "place"}, "epochs": epochs_of(cell)}
        for fields, cell in zip(everything["cells"], found.cells, strict=True)
    ]
    return {
        "data": "CIFAR-10",
        "digests": found.digests,
        "names": names,
        "training": {name: found.settings[name] for name in ("recipe", "optimizer", "augment", "batch_size")},
        **{name: value for name, value in everything.items() if name not in ELSEWHERE},
        "bias": {"images": max(one.images for one in found.biases.values()), "rows": bias},
        "cells": cells,
    }


def epochs_of(cell: Cell) -> float | None:
    """How often a training saw each of its images; None where it diverged."""
    if cell.spent is None or cell.images is None:
        return None
    return round(cell.spent.images / cell.images, 2)


if __name__ == "__main__":
    main()
