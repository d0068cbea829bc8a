"""`vitreous transfer` with the real ViT-Ti/16 on Pets and CIFAR-10, four protocols, in less than 15 minutes.

    python benchmarks/transfer.py --weights FILE --pets DIR --cifar DIR [--budget 14m]

DIR: Pets in train and test folders with a folder for each class, and CIFAR-10's binary version. The command is run as a
person runs it, in a process of its own, with an empty cache: engines are converted and features computed within the
time. Writes benchmarks/results/transfer.json. It wants a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measure import write_result

PREPROCESS = "mean=0.5,std=0.5,crop=0.9,interpolation=bicubic"
PROTOCOLS = "vtab-1k,linear,knn,fewshot-5"
KEPT = ("optimizer.name", "optimizer.learning_rate", "batch_size", "steps", "k", "weight_decay")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", required=True, type=Path)
    parser.add_argument("--pets", required=True, type=Path)
    parser.add_argument("--cifar", required=True, type=Path)
    parser.add_argument("--budget", default="14m")
    parser.add_argument("--page", type=Path, help="copy transfer.html to this file")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        out, tasks = Path(folder) / "out", f"pets={args.pets},cifar10={args.cifar}"
        words = ["transfer", str(args.weights), "--tasks", tasks, "--protocols", PROTOCOLS, "--budget", args.budget]
        words += ["--preprocess", PREPROCESS, "--out", str(out)]
        load, began = os.getloadavg()[0], time.monotonic()
        environment = {**os.environ, "VITREOUS_CACHE": f"{folder}/cache"}
        subprocess.run([sys.executable, "-m", "vitreous", *words], check=True, env=environment)
        seconds = time.monotonic() - began
        found = json.loads((out / "transfer.json").read_text())
        if args.page is not None:
            shutil.copy(out / "transfer.html", args.page)
    rows = [
        {
            **{name: score[name] for name in ("task", "protocol", "accuracy", "interval", "n", "of", "trained_on")},
            **{name: score[name] for name in ("trained_of", "seconds", "flops", "engine", "digests")},
            "settings": {name: score["settings"][name] for name in KEPT if name in score["settings"]},
            "trials": score["trials"],
        }
        for score in found["scores"]
    ]
    result = {
        "weights": args.weights.name,
        "budget": args.budget,
        "seconds": round(seconds, 1),
        "load_before": round(load, 2),
        "rows": rows,
        "absent": found["absent"],
        "flops": found["flops"],
        "tpu_v3_core_days": found["tpu_v3_core_days"],
    }
    print(write_result("transfer", result))


if __name__ == "__main__":
    main()
