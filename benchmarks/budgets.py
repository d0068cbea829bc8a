"""Whether a budget is kept: `vitreous fit DATA --budget TIME` as a person runs it, timed from outside.

    python benchmarks/budgets.py --pets DIR --cifar DIR --weights FILE [--only pets/weights/20s ...] [--again]

For each dataset, with weights and without, and for budgets of 20, 60, 120 and 300 s: the seconds until the process has
ended, which should be at most 5 % and 5 s more than was given, and whether it said at the start what does not fit. The
third dataset is made here: 20,000 JPEG files of 16 classes. The table is written after every cell, and cells that it
has are not measured again (on another machine, start with --again). All of it takes about 55 minutes, on a machine that
does nothing else. Writes benchmarks/results/budgets.json.

--pets: a folder with train/ and test/. --cifar: the official binary version, cifar-10-batches-bin. Without one of them,
its cells are left out. --weights: a ViT-Ti/16 in timm's naming whose preprocessing is mean = std = 0.5, crop 0.9.
--only: cells DATASET/WEIGHTS/BUDGET by the beginning of their names, such as pets, or generated/scratch/20s.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from measure import RESULTS, write_result

BUDGETS = (20, 60, 120, 300)
CLASSES, EACH = 16, 1250
COMMAND = "from vitreous.cli import main; main()"
PREPROCESS = "mean=0.5,std=0.5,crop=0.9"


class Cell(NamedTuple):
    """One command to time."""

    dataset: str
    start: str
    budget: int

    @property
    def name(self) -> str:
        """As `--only` takes it."""
        return f"{self.dataset}/{self.start}/{self.budget}s"


def draw_class(place: Path, label: int) -> None:
    """One class of the generated images: stripes of an own direction and colour, at random sizes, under noise."""
    rng = np.random.default_rng(label)
    angle = np.pi * (label % 8) / 8
    place.mkdir(parents=True, exist_ok=True)  # left by a run that was stopped
    for number in range(EACH):
        height, width = rng.integers(128, 257, 2)
        y, x = np.mgrid[:height, :width]
        wave = np.sin((x * np.cos(angle) + y * np.sin(angle)) / rng.uniform(4, 8) + rng.uniform(0, 6.3))
        colour = np.array([1.0, 0.6, 0.2] if label < 8 else [0.2, 0.6, 1.0])
        pixels = 128 + 50 * wave[:, :, None] * colour + rng.normal(0, 40, (height, width, 3))
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(place / f"{number}.jpg", quality=85)


def generate(folder: Path) -> Path:
    """20,000 images in folders by class, made once."""
    if not (folder / "done").exists():
        with ProcessPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(draw_class, [folder / "images" / f"{k:02}" for k in range(CLASSES)], range(CLASSES)))
        (folder / "done").touch()
    return folder / "images"


def measure(cell: Cell, data: Path, weights: str) -> dict[str, Any]:
    """One command, from its start to the end of its process."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        words = ["fit", str(data), "--budget", f"{cell.budget}s", "--out", str(run)]
        if cell.start == "weights":
            words += ["--weights", weights, "--preprocess", PREPROCESS]
        load, began = os.getloadavg()[0], time.monotonic()
        done = subprocess.run([sys.executable, "-c", COMMAND, *words], capture_output=True, text=True)
        wall = time.monotonic() - began
        if done.returncode:
            raise RuntimeError(f"{cell.name}: {done.stderr}")
        result = json.loads((run / "result.json").read_text())
        config = json.loads((run / "config.json").read_text())
    said = [line for line in done.stderr.splitlines() if line.startswith("A budget of ")]
    test, val = result["test"] or {}, result["validation"] or {}
    return {
        "cell": cell.name,
        "wall": round(wall, 1),
        "kept": wall <= 1.05 * cell.budget + 5,
        "said": said[0] if said else None,
        "steps": result["steps"],
        "best_step": result["best_step"],
        "parts": config["parts"],
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
    yield f"{'cell':26} {'wall':>7} kept  said {'steps':>6} {'n val':>6} {'n test':>6} {'val %':>6} {'test %':>6}"
    for row in rows:
        shares = (row["val_accuracy"], row["test_accuracy"])
        right = " ".join(f"{100 * share:6.1f}" if share is not None else f"{'-':>6}" for share in shares)
        counts = f"{row['steps']:6} {row['n_val'] or 0:6} {row['n_test'] or 0:6}"
        yield f"{row['cell']:26} {row['wall']:7.1f} {row['kept']!s:5} {bool(row['said'])!s:5} {counts} {right}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pets", type=Path)
    parser.add_argument("--cifar", type=Path)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--generated", type=Path, default=Path(tempfile.gettempdir()) / "vitreous-20000")
    parser.add_argument("--only", nargs="*", default=[""])
    parser.add_argument("--again", action="store_true", help="measure cells that the table has already")
    args = parser.parse_args()

    folders: dict[str, Path | None] = {"pets": args.pets, "cifar-10": args.cifar, "generated": args.generated}
    cells = [Cell(data, start, b) for data in folders for start in ("weights", "scratch") for b in BUDGETS]
    path = RESULTS / "budgets.json"
    rows = {row["cell"]: row for row in json.loads(path.read_text())["rows"]} if path.exists() else {}
    for cell in cells:
        folder = folders[cell.dataset]
        if folder is None or not any(cell.name.startswith(part) for part in args.only):
            continue
        if cell.name in rows and not args.again:
            continue
        data = generate(folder) if cell.dataset == "generated" else folder
        rows[cell.name] = measure(cell, data, args.weights)
        table = [rows[one.name] for one in cells if one.name in rows]
        write_result("budgets", {"rows": table})
        print(*show([rows[cell.name]]), sep="\n", flush=True)
    print("\n".join(show(list(rows.values()))))


if __name__ == "__main__":
    main()
