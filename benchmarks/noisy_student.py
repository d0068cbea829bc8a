"""Noisy Student on CIFAR-10 with a few of its labels: what the other pictures add, beside the same time without them.

    python benchmarks/noisy_student.py --cifar DIR [--budget 20m] [--rounds 3] [--seeds 0,1,2] [--only students,...]

DIR: the folder of CIFAR-10's binary version. Of the training pictures 5 % of each class, chosen by the seed, keep their
labels; the others are unlabelled. For each seed:

- students: `self_train` with both, all rounds within the budget. Round 0 is the teacher.
- control: `fit` with the labelled pictures alone and the whole budget: what the extra time is worth by itself.
- control-noised: the same with the students' network and noise: what these are worth without the other pictures.

The test pictures chose nothing: rounds and weights are chosen by validation pictures, a tenth of the labelled ones. As
the true labels of the unlabelled pictures are known here, the accuracy of the teachers' labels is told too. Each cell
takes the budget, nine cells in all. Runs are kept in --runs: repeat the command to go on. Writes
benchmarks/results/noisy_student.json after every cell, and cells that it has are not measured again (with another
budget, share or number of rounds, or on another machine, start with --again).
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import numpy as np
from measure import RESULTS, write_result

from vitreous.data.source import Labels, Source, open_data
from vitreous.jobs.fit import fit
from vitreous.jobs.self_train import self_train
from vitreous.recipes.noise import DROP_PATH, DROPOUT
from vitreous.run.request import Listeners
from vitreous.run.result import FitResult

SAY = Listeners(say=lambda text: print(text, flush=True))
STUDENT, RECIPE = "P/4@32", "scratch-small"
"""What `self_train` takes for a student of many small pictures."""
NOISE = {"augment.policy": "randaugment", "model.dropout": DROPOUT, "model.drop_path": DROP_PATH}


class Setting(NamedTuple):
    """What all cells have in common."""

    budget: str
    rounds: int
    share: float
    pictures: int
    """Training pictures in all."""
    labels: str
    confidence: float


class Parts(NamedTuple):
    """The two files of a seed, and where the unlabelled pictures were."""

    labelled: Path
    unlabelled: Path
    truth: Labels


def divide(cifar: Path, setting: Setting, runs: Path, seed: int) -> Parts:
    """Of each class its share with labels, by the seed; written as .npz, so that what is trained on is a plain file."""
    opened = open_data(cifar)
    train, test = opened.train, opened.splits["test"]
    order = np.random.default_rng(seed).permutation(len(train))[: setting.pictures]
    labels = train.labels[order]
    first = np.zeros(len(order), dtype=bool)
    for label in range(len(opened.classes)):
        own = np.flatnonzero(labels == label)
        first[own[: max(2, round(setting.share * len(own)))]] = True
    places = {name: runs / f"{name}-{seed}.npz" for name in ("labelled", "unlabelled")}
    names = np.array(opened.classes)
    _write(places["labelled"], {"train": train.subset(order[first]), "test": test}, names)
    _write(places["unlabelled"], {"train": train.subset(order[~first])}, names)
    return Parts(places["labelled"], places["unlabelled"], labels[~first])


def _write(path: Path, splits: dict[str, Source], names: np.ndarray) -> None:
    if path.exists():
        return
    found: dict[str, np.ndarray] = {"classes": names}
    for split, source in splits.items():
        found[f"x_{split}"] = np.stack([np.asarray(source.read(i)) for i in range(len(source))])
        found[f"y_{split}"] = source.labels
    np.savez(path, **found)  # type: ignore[arg-type]


def students(parts: Parts, setting: Setting, runs: Path, seed: int) -> dict[str, Any]:
    """The teacher and every round, on the test pictures, and how right the labels were that each learned from."""
    found = self_train(
        parts.labelled,
        parts.unlabelled,
        rounds=setting.rounds,
        budget=setting.budget,
        labels=setting.labels,  # type: ignore[arg-type]
        confidence=setting.confidence,
        seed=seed,
        out=runs / f"students-{seed}",
        listeners=SAY,
    )
    assert found.finished
    rows = []
    for one in found.rounds:
        assert one.test is not None
        assert one.validation is not None
        rows.append(
            {
                "round": one.number,
                "model": one.model,
                "parameters": one.parameters,
                "test_accuracy": one.test.accuracy,
                "interval": one.test.interval,
                "n_test": one.test.n,
                "val_accuracy": one.validation.accuracy,
                "n_val": one.validation.n,
                "seconds": round(one.spent.seconds, 1),
                "pictures_seen": one.spent.pictures,
                "labels": one.labels and right_labels(Path(found.run) / f"labels/round-{one.number}", parts.truth),
            }
        )
    kept = rows[found.best]
    return {
        "teacher": rows[0]["test_accuracy"],
        "test_accuracy": kept["test_accuracy"],
        "kept_round": found.best,
        "n_test": kept["n_test"],
        "n_labelled": found.labelled,
        "n_unlabelled": found.unlabelled,
        "left_out_as_copies": found.copies,
        "seconds": round(found.spent.seconds, 1),
        "rounds": rows,
    }


def right_labels(folder: Path, truth: Labels) -> dict[str, Any]:
    """How many of a teacher's labels were right: of all, and of those that were taken."""
    names = json.loads((folder.parents[1] / "result.json").read_text())["classes"]
    with (folder / "labels.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    right = np.array([names[truth[int(row["path"].rpartition("#")[2])]] == row["label"] for row in rows])
    taken = np.array([int(row["taken"]) > 0 for row in rows])
    return {
        "n": len(rows),
        "accuracy": float(right.mean()),
        "n_taken": int(taken.sum()),
        "accuracy_taken": float(right[taken].mean()),
    }


def control(parts: Parts, setting: Setting, runs: Path, seed: int) -> dict[str, Any]:
    """The labelled pictures alone, for the whole time."""
    return _fitted(fit(parts.labelled, budget=setting.budget, seed=seed, out=runs / f"control-{seed}", listeners=SAY))


def control_noised(parts: Parts, setting: Setting, runs: Path, seed: int) -> dict[str, Any]:
    """The same with the students' network and noise."""
    found = fit(
        parts.labelled,
        model=STUDENT,
        recipe=RECIPE,
        changes=NOISE,
        budget=setting.budget,
        seed=seed,
        out=runs / f"control-noised-{seed}",
        listeners=SAY,
    )
    return _fitted(found)


def _fitted(found: FitResult) -> dict[str, Any]:
    assert found.test is not None
    return {
        "test_accuracy": found.test.top1,
        "interval": found.test.top1_interval,
        "n_test": found.test.n,
        "n_labelled": found.pictures,
        "seconds": round(found.spent.seconds, 1),
        "pictures_seen": found.spent.pictures,
        "steps": found.steps,
    }


CELLS: dict[str, Callable[[Parts, Setting, Path, int], dict[str, Any]]] = {
    "students": students,
    "control": control,
    "control-noised": control_noised,
}


def summary(cells: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Mean and standard deviation over the seeds, and of each seed what the students are ahead of."""
    accuracy: dict[str, dict[str, float]] = {}
    for name, row in cells.items():
        kind, seed = name.rsplit("/", 1)
        accuracy.setdefault(kind, {})[seed] = row["test_accuracy"]
        if "teacher" in row:
            accuracy.setdefault("teacher", {})[seed] = row["teacher"]
    found: dict[str, Any] = {kind: _spread(list(values.values())) for kind, values in accuracy.items()}
    for other in ("teacher", "control", "control-noised"):
        both = sorted(accuracy.get("students", {}).keys() & accuracy.get(other, {}).keys())
        if both:
            found[f"students minus {other}"] = _spread([accuracy["students"][s] - accuracy[other][s] for s in both])
    return found


def _spread(values: list[float]) -> dict[str, Any]:
    deviation = round(stdev(values), 4) if len(values) > 1 else None
    return {"mean": round(fmean(values), 4), "deviation": deviation, "n": len(values), "values": values}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cifar", type=Path, required=True)
    parser.add_argument("--budget", default="20m", help="time for each cell, all rounds together")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--share", type=float, default=0.05, help="of the training pictures that keep their label")
    parser.add_argument("--pictures", type=int, default=50_000, help="training pictures in all; fewer to try it")
    parser.add_argument("--labels", choices=("soft", "hard"), default="soft")
    parser.add_argument("--confidence", type=float, default=0.3)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--only", default=",".join(CELLS))
    parser.add_argument("--runs", type=Path, default=Path("runs/noisy_student"))
    parser.add_argument("--name", default="noisy_student", help="of the result file")
    parser.add_argument("--again", action="store_true", help="forget the cells that the result has")
    args = parser.parse_args()

    setting = Setting(args.budget, args.rounds, args.share, args.pictures, args.labels, args.confidence)
    args.runs.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{args.name}.json"
    known = json.loads(path.read_text()) if path.exists() and not args.again else {"cells": {}}
    if known.get("setting", setting._asdict()) != setting._asdict():
        raise SystemExit(f"{path}: has cells of another setting, {known['setting']}; give --again or another --name.")
    cells = known["cells"]
    for seed in map(int, args.seeds.split(",")):
        for kind in args.only.split(","):
            if (name := f"{kind}/{seed}") in cells:
                continue
            parts = divide(args.cifar, setting, args.runs, seed)
            cells[name] = CELLS[kind](parts, setting, args.runs, seed)
            write_result(args.name, {"setting": setting._asdict(), "summary": summary(cells), "cells": cells})
            print(name, json.dumps(cells[name]), flush=True)
    print(json.dumps(summary(cells), indent=2))


if __name__ == "__main__":
    main()
