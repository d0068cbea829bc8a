"""A newcomer's first commands, with a hub on this machine that serves the ViT-Ti/16 as `ti16`.

    python benchmarks/first_steps.py --pets DIR --weights FILE [--budget 2m] [--seeds 3]

In an environment without a cache: `vitreous explain ti16 IMAGE`, then `vitreous fit PETS --budget 2m` without another
option, once per seed. Each command is timed from outside. Writes benchmarks/results/first_steps.json.

--pets: a folder with train/ and test/. --weights: a ViT-Ti/16 in timm's naming, AugReg's (mean = std = 0.5, crop 0.9).
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
from statistics import mean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from measure import write_result
from support.hub import local_hub  # type: ignore[import-not-found]
from vitreous.weights.published import WEIGHTS

CONFIG = {
    "architecture": "vit_tiny_patch16_224",
    "num_classes": 1000,
    "num_features": 192,
    "pretrained_cfg": {
        "tag": "augreg_in21k_ft_in1k",
        "input_size": [3, 224, 224],
        "interpolation": "bicubic",
        "crop_pct": 0.9,
        "mean": [0.5, 0.5, 0.5],
        "std": [0.5, 0.5, 0.5],
        "num_classes": 1000,
    },
}
"""What timm's repository has as config.json, without what nobody reads."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pets", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--budget", default="2m")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        home, served = Path(place), Path(place) / "served"
        served.mkdir()
        (served / "config.json").write_text(json.dumps(CONFIG))
        shutil.copy(given.weights, served / "model.safetensors")
        with local_hub({WEIGHTS["ti16"].repository: served}) as hub:
            environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(home / "hub")}
            environment |= {"VITREOUS_CACHE": str(home / "cache"), "VITREOUS_OFFLINE": "0"}
            image = next(given.pets.glob("test/*/*.jpg"))
            steps = [run(["explain", "ti16", str(image), "--out", "seen"], home, environment)]
            for seed in range(given.seeds):
                fit = ["fit", str(given.pets), "--budget", given.budget, "--out", f"run{seed}", "--json"]
                step = run([*fit, *(["--seed", str(seed)] if seed else [])], home, environment)
                found = json.loads((home / f"run{seed}" / "result.json").read_text())
                steps.append({**step, "start": found["start"], "test": found["test"]["top1"], "steps": found["steps"]})
        accuracies = [step["test"] for step in steps if "test" in step]
        write_result("first_steps", {"budget": given.budget, "accuracy": mean(accuracies), "commands": steps})


def run(arguments: list[str], folder: Path, environment: dict[str, str]) -> dict[str, Any]:
    began = time.perf_counter()
    command = [sys.executable, "-m", "vitreous", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    seconds = time.perf_counter() - began
    print(f"$ vitreous {' '.join(arguments)}\n{done.stderr}{done.stdout[-500:]}\n{seconds:.1f} s", flush=True)
    if done.returncode:
        sys.exit(done.returncode)
    return {"command": arguments[0], "seconds": round(seconds, 1)}


if __name__ == "__main__":
    main()
