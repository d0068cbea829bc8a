"""Short runs of every kind of training, recorded to be compared: what should not change numbers can prove it.

    PYTHONPATH=OLD/src python benchmarks/unchanged.py record old.json --runs old-runs ...
    python benchmarks/unchanged.py record new.json --bundles old-runs ...
    python benchmarks/unchanged.py compare old.json new.json

Where the random numbers of a step are drawn otherwise, bits cannot agree; then compare the accuracy over --seeds 3.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from safetensors.torch import load_file

import vitreous

EPOCHS = {"cifar-keep-schedule": 0.15, "pets-finetune": 2, "pets-notebook": 1, "builtin": 2, "builtin-mixing": 6}

VARIANTS: dict[str, dict[str, Any]] = {
    "efficientnet": {"model": "efficientnet-b0", "image_size": 32, "epochs": 0.05},
    "bit": {"model": "bit-r11x0.5", "epochs": 0.2},
    "hybrid": {"model": "C+P/4@32", "epochs": 0.3},
    "relative": {"model": "F/7@28", "overrides": {"model.position": "relative", "model.mlp": "swiglu"}, "epochs": 1},
    "axial": {"model": "P/4@32", "overrides": {"model.attention": "axial", "model.pool": "attention"}, "epochs": 0.5},
    "dropout": {"model": "F/7@28", "overrides": {"model.patch_dropout": 0.3, "model.drop_path": 0.1}, "epochs": 1},
    "accumulate": {"model": "F/7@28", "overrides": {"micro_batch": 32, "ema": 0.9}, "epochs": 1},
    "merge": {"model": "P/4@32", "merge": 4, "epochs": 0.3},
    "plain": {"model": "F/7@28", "recipe": "plain", "epochs": 1},
    "lora": {"weights": "builtin", "overrides": {"lora": 4}, "epochs": 1},
    "freeze": {"weights": "builtin", "recipe": "small-data", "overrides": {"freeze": 2}, "epochs": 1},
    "larger": {"weights": "builtin", "recipe": "paper-finetune", "image_size": 35, "epochs": 0.5},
}
"""Trainings on the built-in images; weights: those of the run of that name."""
KINDS = (*EPOCHS, "mae", "dino", "dinov2", "masked-patch", "distill", "token-labels", "self-train", *VARIANTS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    record = commands.add_parser("record")
    record.add_argument("out", type=Path)
    record.add_argument("--pets", type=Path, required=True)
    record.add_argument("--weights", type=Path, required=True)
    record.add_argument("--cifar", type=Path, required=True)
    record.add_argument("--seeds", type=int, default=1)
    record.add_argument("--only", nargs="*", choices=KINDS, help="the trainings; those that take weights need builtin")
    record.add_argument("--runs", type=Path, help="keep the run folders here")
    record.add_argument("--bundles", type=Path, help="run folders of the other version: score with its bundles too")
    compare = commands.add_parser("compare")
    compare.add_argument("old", type=Path)
    compare.add_argument("new", type=Path)
    given = parser.parse_args()
    if given.command == "compare":
        show(json.loads(given.old.read_text()), json.loads(given.new.read_text()))
        return
    torch.set_num_threads(1)
    torch.cpu.get_capabilities = dict  # type: ignore[assignment]  # float32 on every processor
    with tempfile.TemporaryDirectory() as folder:
        place = given.runs or Path(folder)
        found = {
            f"{name}/{seed}": trained(name, seed, place / f"{name}-{seed}", given)
            for seed in range(given.seeds)
            for name in given.only or KINDS
        }
        images = sorted(given.pets.glob("test/*/*.jpg"))[::5]
        found["bundles"] = scores((given.bundles or place), images)
    given.out.write_text(json.dumps(found, indent=1) + "\n")


def trained(name: str, seed: int, run: Path, given: argparse.Namespace) -> dict[str, Any]:
    """The metrics of one short run, the digest of its weights, and its accuracy."""
    done: Any
    if name in ("mae", "dino", "dinov2", "masked-patch"):
        done = vitreous.pretrain("builtin", method=name, epochs=2, seed=seed, out=run, workers=0)
        probed = vitreous.probe(run, "builtin")
        accuracy = probed.scores[0].accuracy
    elif name == "self-train":
        unlabelled = given.pets / "test"  # no clothes, but enough to be labelled and learned from
        vitreous.self_train("builtin", unlabelled, rounds=1, confidence=0, epochs=2, seed=seed, out=run, workers=0)
        run = run / "round-1"
        accuracy = json.loads((run / "result.json").read_text())["test"]["top1"]
    elif name in ("distill", "token-labels"):
        teacher: dict[str, Any] = {name.replace("-", "_"): run.parent / f"builtin-{seed}"}
        done = vitreous.fit("builtin", epochs=2, seed=seed, out=run, workers=0, **teacher)
        accuracy = done.test.top1
    elif name in VARIANTS:
        options = dict(VARIANTS[name])
        if "weights" in options:
            options["weights"] = run.parent / f"{options['weights']}-{seed}"
        done = vitreous.fit("builtin", seed=seed, out=run, workers=0, **options)
        accuracy = done.test.top1
    else:
        data = {"cifar": given.cifar, "pets": given.pets}.get(name.split("-")[0], "builtin")
        weights = given.weights if name in ("pets-finetune", "pets-notebook") else None
        recipe = {"pets-notebook": "notebook", "builtin-mixing": "scratch"}.get(name, "auto")
        model = "F/7@28" if name == "builtin-mixing" else None
        done = vitreous.fit(
            data, weights=weights, model=model, recipe=recipe, epochs=EPOCHS[name], seed=seed, out=run, workers=0
        )
        result: Any = done.test or done.validation
        accuracy = result["top1"] if isinstance(result, dict) else result.top1  # a dict until version 0.1
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {"accuracy": accuracy, "digest": digest(run / "bundle"), "records": records}


def digest(bundle: Path) -> str:
    total = hashlib.sha256()
    for name, tensor in sorted(load_file(bundle / "model.safetensors").items()):
        total.update(name.encode() + tensor.contiguous().numpy().tobytes())
    return total.hexdigest()


def scores(runs: Path, images: list[Path]) -> dict[str, list[Any]]:
    """What the bundles of the fitted runs say of some images, to the last bit."""
    found = {}
    for run in sorted(runs.glob("pets-*-0")):
        said = vitreous.predict(run, images, top_k=3)
        found[run.name] = [[(one.label, one.score) for one in prediction.top] for prediction in said]
    return found


def show(old: dict[str, Any], new: dict[str, Any]) -> None:
    same = old.pop("bundles") == new.pop("bundles")
    print(f"bundles of the old version: {'the same scores to the bit' if same else 'OTHER SCORES'}")
    for kind in dict.fromkeys(name.split("/")[0] for name in old):
        pairs = [(old[name], new[name]) for name in old if name.split("/")[0] == kind]
        bits = sum(one["digest"] == other["digest"] for one, other in pairs)
        worst = max(_difference(one["records"], other["records"]) for one, other in pairs)
        print(
            f"{kind}: {bits} of {len(pairs)} with the same bits, metrics differ by at most {worst:.2g}; accuracy",
            end=" ",
        )
        print(" -> ".join(_spread([pair[side]["accuracy"] for pair in pairs]) for side in (0, 1)))


def _difference(one: list[dict[str, float]], other: list[dict[str, float]]) -> float:
    return max(abs(a[k] - b[k]) for a, b in zip(one, other, strict=True) for k in a.keys() & b.keys())


def _spread(values: list[float]) -> str:
    more = f" +- {stdev(values):.4f}" if len(values) > 1 else ""
    return f"{mean(values):.4f}{more}"


if __name__ == "__main__":
    main()
