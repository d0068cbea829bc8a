"""Whether a budget is kept: `vitreous fit DATA --budget TIME` as a person runs it, timed from outside.

    python benchmarks/budgets.py --pets DIR --cifar DIR --weights FILE [--busy] [--only pets/weights/20s ...] [--again]

For each dataset, with weights and without, and for each budget: the seconds until the process has ended, which should
be at most 5 % and 5 s more than was given, what became of them, and how many images were seen. 24 cells on an idle
machine, in about 22 minutes; with --busy 12 cells beside a process that spins on each core, in about 11. The table is
written after every cell, and cells that it has are not measured again (on another machine, start with --again). Writes
benchmarks/results/budgets.json.

--pets: a folder with train/ and test/; two of its breeds are the third dataset, 100 images of two classes. --cifar: the
official binary version, cifar-10-batches-bin. --weights: a ViT-Ti/16 in timm's naming whose preprocessing is mean = std
= 0.5, crop 0.9. --only: cells DATASET/WEIGHTS/BUDGET/LOAD by the beginning of their names, such as pets, or
two/scratch/20s.
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
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from measure import RESULTS, write_result

BUDGETS = {"idle": (20, 40, 60, 90), "busy": (20, 90)}
DATASETS = ("pets", "cifar-10", "two")
COMMAND = "from vitreous.cli import main; main()"
PREPROCESS = "mean=0.5,std=0.5,crop=0.9"


class Cell(NamedTuple):
    """One command to time."""

    dataset: str
    start: str
    budget: int
    load: str

    @property
    def name(self) -> str:
        """As `--only` takes it."""
        return f"{self.dataset}/{self.start}/{self.budget}s/{self.load}"


def two_breeds(pets: Path, place: Path) -> Path:
    """The first two breeds, 50 images each."""
    for breed in sorted(path.name for path in (pets / "train").iterdir())[:2]:
        (place / breed).mkdir(parents=True)
        for image in sorted([*(pets / "train" / breed).iterdir(), *(pets / "test" / breed).iterdir()])[:50]:
            shutil.copy(image, place / breed)
    return place


@contextmanager
def spinning(load: str) -> Iterator[None]:
    """Within, a process on each core does nothing as fast as it can, if the machine is to be busy."""
    count = (os.cpu_count() or 1) if load == "busy" else 0
    spinners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for one in spinners:
            one.kill()
            one.wait()


def measure(cell: Cell, data: Path, weights: str) -> dict[str, Any]:
    """One command, from its start to the end of its process."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        words = ["fit", str(data), "--budget", f"{cell.budget}s", "--out", str(run)]
        if cell.start == "weights":
            words += ["--weights", weights, "--preprocess", PREPROCESS]
        load = os.getloadavg()[0]
        with spinning(cell.load):
            began = time.monotonic()
            done = subprocess.run([sys.executable, "-c", COMMAND, *words], capture_output=True, text=True)
            wall = time.monotonic() - began
        if done.returncode:
            raise RuntimeError(f"{cell.name}: {done.stderr}")
        result = json.loads((run / "result.json").read_text())
        config = json.loads((run / "config.json").read_text())
    said = [line for line in done.stderr.splitlines() if line.startswith("A budget of ")]
    test, val, stages = result["test"] or {}, result["validation"] or {}, result["spent"]["stages"]
    return {
        "cell": cell.name,
        "wall": round(wall, 1),
        "kept": wall <= 1.05 * cell.budget + 5,
        "used": round(wall / cell.budget, 3),
        "in_steps": round(stages.get("steps", 0.0) / wall, 3),  # the fraction of the time
        "stages": {name: round(seconds, 1) for name, seconds in stages.items()},
        "said": said[0] if said else None,
        "steps": result["steps"],
        "best_step": result["best_step"],
        "images_seen": result["spent"]["images"],
        "subsets": config["subsets"],
        "n_train": result["images"],
        "n_val": val.get("n"),
        "val_accuracy": val.get("top1"),
        "n_test": test.get("n"),
        "test_accuracy": test.get("top1"),
        "interval": test.get("top1_interval"),
        "load_before": round(load, 2),
    }


def show(rows: list[dict[str, Any]]) -> Iterator[str]:
    """The table as text."""
    yield f"{'cell':28} {'wall':>6} kept  used % steps % {'steps':>6} {'images':>7} {'n val':>6} {'n test':>6} test %"
    for row in rows:
        right = "-" if row["test_accuracy"] is None else f"{100 * row['test_accuracy']:.1f}"
        counts = f"{row['steps']:6} {row['images_seen']:7} {row['n_val'] or 0:6} {row['n_test'] or 0:6}"
        fractions = f"{100 * row['used']:6.0f} {100 * row['in_steps']:7.0f}"
        yield f"{row['cell']:28} {row['wall']:6.1f} {row['kept']!s:5} {fractions} {counts} {right:>6}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pets", type=Path, required=True)
    parser.add_argument("--cifar", type=Path, required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--busy", action="store_true", help="the cells with a spinning process on each core")
    parser.add_argument("--only", nargs="*", default=[""])
    parser.add_argument("--again", action="store_true", help="measure cells that the table has already")
    args = parser.parse_args()

    starts = ("weights", "scratch")
    cells = [Cell(*row, load) for load in BUDGETS for row in product(DATASETS, starts, BUDGETS[load])]
    path = RESULTS / "budgets.json"
    rows = {row["cell"]: row for row in json.loads(path.read_text())["rows"]} if path.exists() else {}
    with tempfile.TemporaryDirectory() as place:
        folders = {"pets": args.pets, "cifar-10": args.cifar, "two": two_breeds(args.pets, Path(place) / "two")}
        for cell in cells:
            if (cell.load == "busy") != args.busy or not any(cell.name.startswith(part) for part in args.only):
                continue
            if cell.name in rows and not args.again:
                continue
            rows[cell.name] = measure(cell, folders[cell.dataset], args.weights)
            write_result("budgets", {"rows": [rows[one.name] for one in cells if one.name in rows]})
            print(*show([rows[cell.name]]), sep="\n", flush=True)
    found = [rows[one.name] for one in cells if one.name in rows]
    kept, used = sum(row["kept"] for row in found), sum(row["used"] >= 0.9 for row in found)
    print(*show(found), f"{kept} of {len(found)} kept, {used} used 90 % of the budget", sep="\n")


if __name__ == "__main__":
    main()
