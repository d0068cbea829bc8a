"""Fine-tuning on Oxford-IIIT Pets: the lecture notes' recipe and the default, on the same machine in the same hour.

The default has a minute, then as long as the lecture notes' recipe took; then as many images at 288 pixels.

    python benchmarks/finetune.py DATA WEIGHTS

DATA: a folder with train/ and test/, a folder for each class in each. WEIGHTS: a ViT-Ti/16 in timm's naming whose
preprocessing is mean = std = 0.5, crop 0.9. Writes benchmarks/results/finetune.json.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from measure import peak_megabytes, write_result
from vitreous.callbacks import Callbacks
from vitreous.memory import retain_memory
from vitreous.verbs.fit import fit

PREPROCESS = "mean=0.5,std=0.5,crop=0.9"


def run(data: str, weights: str, **ways: Any) -> dict[str, Any]:
    """One training: accuracy on the test part with its interval, and how long it took."""
    steps: list[float] = []
    start = time.monotonic()

    def note(_: object) -> None:
        steps.append(time.monotonic() - start)

    with tempfile.TemporaryDirectory() as folder:
        result = fit(
            data,
            weights=weights,
            preprocess=PREPROCESS,
            out=Path(folder) / "run",
            callbacks=Callbacks(step=note),
            **ways,
        )
    assert result.test is not None
    row = {
        **ways,
        "test_accuracy": result.test.top1,
        "interval": result.test.top1_interval,
        "n": result.test.n,
        "validation_accuracy": None if result.validation is None else result.validation.top1,
        "frozen_features": None if result.probe is None else asdict(result.probe),
        "seconds": round(time.monotonic() - start, 1),
        "seconds_to_first_step": round(steps[0], 1),
        "seconds_to_last_step": round(steps[-1], 1),
        "images": result.images,
        "images_seen": result.spent.images,
        "best_step": result.best_step,
        "steps": result.steps,
        "peak_megabytes_of_main_process": round(peak_megabytes()),
    }
    print(row, flush=True)
    return row


def main() -> None:
    retain_memory()  # as the command does
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("weights")
    args = parser.parse_args()

    rows = [run(args.data, args.weights, budget="60s")]
    notebook = run(args.data, args.weights, recipe="notebook")
    rows.append(notebook)
    as_long = f"{round(notebook['seconds'])}s"
    default = run(args.data, args.weights, budget=as_long)
    rows.append(default)
    as_often = round(default["images_seen"] / default["images"], 1)
    rows.append(run(args.data, args.weights, epochs=as_often, image_size=288))
    print("written:", write_result("finetune", {"rows": rows}).name)


if __name__ == "__main__":
    main()
