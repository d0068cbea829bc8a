"""Which inductive bias helps, and when: four networks on 1 %, 10 % and 100 % of CIFAR-10, three seeds, equal time.

    python benchmarks/compare.py --cifar DATA [--budget 90m] [--out DIR]

A plain ViT, the same with convolutions before it, the same with attention to the neighbouring patches only, and a small
BiT. DATA: the official binary version, cifar-10-batches-bin. What is finished in DIR is not done again. Writes
benchmarks/results/compare.json.
"""

from __future__ import annotations

import argparse
from typing import Any

from measure import write_result

from vitreous.explain.analysis.bias_summary import summarise_bias
from vitreous.jobs.compare import compare
from vitreous.report.compared import Comparison
from vitreous.run.request import Listeners

MODELS = {
    "P/4@32": "plain ViT",
    "C+P/4@32": "ViT with a convolutional stem",
    "P/4@32:attention=neighbourhood:window=3": "ViT with neighbourhood attention, 3x3 patches",
    "bit-r11x0.5@32": "BiT-small, a convolutional network",
}
FRACTIONS = (0.01, 0.1, 1.0)
SEEDS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cifar", required=True)
    parser.add_argument("--budget", default="90m")
    parser.add_argument("--fractions", default=",".join(map(str, FRACTIONS)))
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--out", default="runs/compare-cifar10")
    parser.add_argument("--result", default="compare", help="name of the file in benchmarks/results")
    args = parser.parse_args()
    found = compare(
        args.cifar,
        list(MODELS),
        budget=args.budget,
        fractions=[float(share) for share in args.fractions.split(",")],
        seeds=args.seeds,
        out=args.out,
        listeners=Listeners(say=lambda text: print(text, flush=True)),
    )
    for fraction, verdict in found.verdicts.items():
        print(fraction, verdict)
    print("written:", write_result(args.result, described(found)).name)


def described(found: Comparison) -> dict[str, Any]:
    """What the documentation shows, and all that it follows from."""
    kept = ("data", "out", "digests", "classes", "splits", "settings", "machine", "biases", "finished")
    all_of_it = {name: value for name, value in found.to_json().items() if name not in kept}
    bias = [
        {"measure": row.measure, "share": row.share, "values": dict(zip(found.biases, row.values, strict=True))}
        for row in summarise_bias(list(found.biases.values()))
    ]
    cells = [{name: value for name, value in cell.items() if name != "place"} for cell in all_of_it.pop("cells")]
    return {
        "data": "CIFAR-10",
        "digests": found.digests,
        "names": MODELS,
        "training": {name: found.settings[name] for name in ("recipe", "optimizer", "augment", "batch_size")},
        **all_of_it,
        "bias": {"pictures": max(one.pictures for one in found.biases.values()), "rows": bias},
        "cells": cells,
    }


if __name__ == "__main__":
    main()
