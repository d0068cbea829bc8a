"""A Vision Transformer from nothing on CIFAR-10, within a chosen time: `vitreous fit DATA --budget 20m`.

    python benchmarks/scratch.py DATA [--budget 20m] [--out RUN]

DATA: the official binary version, cifar-10-batches-bin. A run that is there already is not done again. Writes
benchmarks/results/scratch.json.
"""

from __future__ import annotations

import argparse

from measure import write_result
from vitreous.callbacks import Callbacks
from vitreous.memory import retain_memory
from vitreous.verbs.fit import fit


def main() -> None:
    retain_memory()  # as the command does
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--budget", default="20m")
    parser.add_argument("--out", default="runs/cifar10")
    args = parser.parse_args()
    result = fit(args.data, budget=args.budget, out=args.out, callbacks=Callbacks(message=print))
    assert result.test is not None
    row = {
        "data": "CIFAR-10",
        "budget": args.budget,
        "seed": 0,
        "seconds": round(result.spent.seconds),
        "images_seen": result.spent.images,
        "steps": result.steps,
        "flops": result.spent.flops,
        "test_accuracy": result.test.top1,
        "interval": result.test.top1_interval,
        "n": result.test.n,
    }
    print(row)
    print("written:", write_result("scratch", row).name)


if __name__ == "__main__":
    main()
