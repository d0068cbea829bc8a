"""What a teacher is worth at equal time: a small ViT on CIFAR-10, trained plainly and with a teacher's answers.

    python benchmarks/teachers.py --cifar DATA [--budget 10m] [--teacher-budget 20m] [--seeds 3] [--only "A;B"]

DATA: the folder of CIFAR-10's binary version. First a teacher is trained, once: a hybrid of the student's size, whose
time is not counted in the students'. Then every way trains the same student within the same time, once per seed. Each
training is a cell with a run folder and a cache of its own in --runs, so that each pays for its teacher's looking:
repeat the command to go on, and to add cells. After every cell benchmarks/results/teachers.json is written again, with
all cells that are finished.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from measure import write_result
from vitreous.callbacks import Callbacks
from vitreous.data.opening import open_data
from vitreous.data.source import Source
from vitreous.memory import retain_memory
from vitreous.training.result import FitResult
from vitreous.verbs.fit import fit

SAY = Callbacks(message=lambda text: print(text, flush=True))
WAYS: dict[str, tuple[str | None, dict[str, object]]] = {
    "plain": (None, {}),
    "plain, class token": (None, {"model.class_token": True, "model.pool": "class"}),
    "distill": ("distill", {"objective.targets": "hard", "objective.answers": "view"}),
    "distill, soft": ("distill", {"objective.targets": "soft", "objective.answers": "view"}),
    "distill, one classifier": (
        "distill",
        {"model.distilled": False, "objective.targets": "hard", "objective.answers": "view"},
    ),
    "distill, one classifier, soft": (
        "distill",
        {"model.distilled": False, "objective.targets": "soft", "objective.answers": "view"},
    ),
    "distill, once per image": ("distill", {"objective.targets": "soft", "objective.answers": "image"}),
    "token labels": ("token_labels", {}),
}
"""By name: which argument of `fit` names the teacher, and what is changed. The second is a control: the same tokens as
with distillation but for one, and no teacher."""


def main() -> None:
    retain_memory()  # as the command does
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cifar", required=True, type=Path)
    parser.add_argument("--budget", default="10m", help="of each student")
    parser.add_argument("--teacher-budget", default="20m")
    parser.add_argument("--teacher", default="C+P/4@32", help="the teacher's model")
    parser.add_argument("--student", default=None, help="the student's model; by default the recipe's own")
    parser.add_argument("--seeds", default=3, type=int)
    parser.add_argument("--only", default=None, help="some ways, separated by semicolons")
    parser.add_argument("--images", default=None, type=int, help="so many training images, every class alike")
    parser.add_argument("--runs", default="runs/teachers", type=Path)
    args = parser.parse_args()
    ways = chosen(args.only)
    data = args.cifar if args.images is None else some_images(args.cifar, args.images, args.runs)
    teacher = args.runs / "teacher"
    taught = train(data, teacher, args.teacher_budget, 0, model=args.teacher)
    facts = {
        "data": "CIFAR-10",
        "training_images": taught.images,
        "teacher": {"model": args.teacher, "budget": args.teacher_budget, **cell(taught)},
        "budget": args.budget,
        "seeds": args.seeds,
    }
    cells: dict[str, list[dict[str, Any]]] = {name: [] for name in ways}
    for seed in range(args.seeds):  # seed by seed, so that an early end leaves a comparison
        for name, (argument, changes) in ways.items():
            given = {} if argument is None else {argument: teacher}
            place = args.runs / f"{name.replace(', ', '-').replace(' ', '-')}-{seed}"
            found = train(data, place, args.budget, seed, model=args.student, overrides=changes, **given)
            cells[name].append({"seed": seed, **cell(found)})
            print(name, cells[name][-1], flush=True)
            rows = {name: summary(some) for name, some in cells.items() if some}
            written = write_result("teachers", {**facts, "ways": rows})
    print("written:", written.name)


def chosen(only: str | None) -> Mapping[str, tuple[str | None, dict[str, object]]]:
    """The ways that are asked for."""
    if only is None:
        return WAYS
    asked = [name.strip() for name in only.split(";")]
    if unknown := [name for name in asked if name not in WAYS]:
        raise SystemExit(f"--only {unknown[0]!r}: choose among {'; '.join(WAYS)}.")
    return {name: WAYS[name] for name in asked}


def train(data: Path, place: Path, budget: str, seed: int, **more: Any) -> FitResult:
    """One cell: trained, gone on with, or read where it is finished."""
    os.environ["VITREOUS_CACHE"] = str(place.with_name(f"{place.name}-cache"))
    result = fit(data, recipe="scratch-small", budget=budget, seed=seed, out=place, callbacks=SAY, **more)
    if not result.finished:
        raise SystemExit("interrupted; repeat the command to go on.")
    return result


def cell(result: FitResult) -> dict[str, Any]:
    """What is kept of a training."""
    assert result.test is not None
    return {
        "test_accuracy": round(result.test.top1, 4),
        "n": result.test.n,
        "steps": result.steps,
        "images_seen": result.spent.images,
        "flops": result.spent.flops,
        "seconds": round(result.spent.seconds),
    }


def summary(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """The mean over seeds, its spread, and all that it is of."""
    accuracies = [one["test_accuracy"] for one in cells]
    spread = round(stdev(accuracies), 4) if len(accuracies) > 1 else None
    return {"mean": round(fmean(accuracies), 4), "std": spread, "seeds": len(cells), "cells": cells}


def some_images(cifar: Path, count: int, runs: Path) -> Path:
    """An .npz with the first training images of each class, so many in all, and a tenth as many of the test part.

    There are at least 1,000 to test on.
    """
    place = runs / f"cifar-{count}.npz"
    if place.exists():
        return place
    data = open_data(cifar)
    runs.mkdir(parents=True, exist_ok=True)
    arrays = {}
    for split, most in (("train", count), ("test", max(1000, count // 10))):
        source = data.splits[split]  # type: ignore[index]
        index = first_of_each(source, most // len(data.classes))
        arrays[f"x_{split}"] = np.stack([np.asarray(source.read(int(i))) for i in index])
        arrays[f"y_{split}"] = source.labels[index]
    np.savez(place, **arrays)  # type: ignore[arg-type]
    return place


def first_of_each(source: Source, count: int) -> list[int]:
    """The first so many images of each class."""
    found = [i for label in range(len(source.classes)) for i in np.flatnonzero(source.labels == label)[:count]]
    return sorted(int(i) for i in found)


if __name__ == "__main__":
    main()
