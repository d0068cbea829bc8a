"""Noisy Student on CIFAR-10 with a few of its labels: what the other images add, beside the same time without them.

    python benchmarks/noisy_student.py --cifar DIR [--seeds 0,1,2] [--rounds 1] [--only teacher,student,control]

DIR: the folder of CIFAR-10's binary version. Of the training images 5 % of each class, chosen by the seed, keep their
labels; the others are unlabelled. For each seed:

- teacher: `fit` with the labelled images.
- student: `self_train` with that teacher and both kinds of images; with several rounds, the last student counts.
- control: `fit` with the labelled images alone, for the time of teacher and student together.
- control-noised (only if asked for): the same with the students' RandAugment.

All are the same network with the same recipe (`ALIKE`): the student differs in its images, and in RandAugment unless
--policy is none.
The validation images are the same in all, a tenth of the labelled ones; they choose the weights within a training.
The test images choose nothing and are no part of the data that are trained with: every model is measured on all of
them afterwards, which takes none of its time. Headlines are "student minus teacher" and "student minus control", paired
by seed. As the true labels of the unlabelled images are known here, the accuracy of the teacher's labels is told too.

2 minutes for the teacher, 4 for the student and 6 for the control are 36 minutes for three seeds, and some more to
measure, on a machine that does nothing else; each cell has the load before it began. Runs are kept in --runs: repeat
the command to go on. Writes benchmarks/results/noisy_student.json after every cell, and cells that it has are not
measured again (with another setting, or on another machine, start with --again).
"""

from __future__ import annotations

import argparse
import csv
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from measure import RESULTS, write_result
from vitreous.callbacks import Callbacks
from vitreous.data.duplicates import without_duplicates
from vitreous.data.opening import open_data
from vitreous.data.source import Labels, Source
from vitreous.evaluation.intervals import Accuracies, difference
from vitreous.memory import retain_memory
from vitreous.model.family import named_config
from vitreous.verbs.evaluate import evaluate
from vitreous.verbs.fit import fit
from vitreous.verbs.studies import self_train

SAY = Callbacks(message=lambda text: print(text, flush=True))
RECIPE = "scratch-small"
ALIKE: dict[str, object] = {
    "whiten": True,
    "objective.keep_schedule": [[0.6, 0.375], [0.9, 0.625]],
    "objective.label_smoothing": 0.0,
    "batch_size": 128,
    "evaluations": 5,
    "validation": 0.1,
    "model.dropout": 0.0,
    "model.drop_path": 0.05,
}
"""What the recipe would choose by the number of images, the same for all; and weak noise, for minutes of training.
Beside it, images shift by up to an eighth of their side, as 4 of 32 pixels."""
HEADLINES = ("teacher", "control", "control-noised")
"""What the student is set beside."""


class Setting(NamedTuple):
    """What all cells have in common."""

    model: str
    rounds: int
    share: float
    images: int
    """Training images in all."""
    labels: str
    confidence: float
    teacher_minutes: float
    student_minutes: float
    """Of all rounds together."""
    policy: str
    """Of the students' images: "randaugment", or "none" for the crops and shifts that the teacher has."""

    @property
    def alike(self) -> dict[str, object]:
        """What is set for every training."""
        return {**ALIKE, "augment.pad": named_config(self.model).image_size[0] // 8}

    @property
    def noised(self) -> dict[str, object]:
        """The same for students."""
        return {**self.alike, "augment.policy": self.policy}

    @property
    def data_name(self) -> str:
        """Of the folder of the divided images: one for each way to divide them."""
        return f"share-{self.share:g}-of-{self.images}"

    @property
    def runs_name(self) -> str:
        """Of the folder of the trainings."""
        return "-".join(str(value).replace("/", "") for value in self)


class Parts(NamedTuple):
    """The files of a seed, and what the unlabelled images are."""

    labelled: Path
    unlabelled: Path
    test: Path
    truth: Labels


class Place(NamedTuple):
    """Where a seed's images and trainings are."""

    parts: Parts
    runs: Path
    seed: int

    def run(self, way: str) -> Path:
        """The folder of a training."""
        return self.runs / f"{way}-{self.seed}"


def divide(cifar: Path, setting: Setting, runs: Path, seed: int) -> Parts:
    """Of each class its share with labels, by the seed; written as .npz, so that what is trained on is a plain file.

    Copies of test images are not among the unlabelled ones.
    """
    opened = open_data(cifar)
    train, test = opened.train, opened.splits["test"]
    order = np.random.default_rng(seed).permutation(len(train))[: setting.images]
    labels = train.labels[order]
    first = np.zeros(len(order), dtype=bool)
    for label in range(len(opened.classes)):
        own = np.flatnonzero(labels == label)
        first[own[: max(2, round(setting.share * len(own)))]] = True
    folder = runs / setting.data_name
    folder.mkdir(parents=True, exist_ok=True)
    others = without_duplicates(train.subset(order[~first]), [test])
    parts = Parts(
        folder / f"labelled-{seed}.npz", folder / f"unlabelled-{seed}.npz", folder / "test.npz", others.labels
    )
    names = np.array(opened.classes)
    _write(parts.labelled, "train", train.subset(order[first]), names)
    _write(parts.unlabelled, "train", others, names)
    _write(parts.test, "test", test, names)
    return parts


def _write(path: Path, split: str, source: Source, names: np.ndarray) -> None:
    if path.exists():
        return
    found: dict[str, np.ndarray] = {"classes": names}
    found[f"x_{split}"] = np.stack([np.asarray(source.read(i)) for i in range(len(source))])
    found[f"y_{split}"] = source.labels
    part = path.with_suffix(".part.npz")  # an interruption leaves no half of a file under the right name
    np.savez(part, **found)  # type: ignore[arg-type]
    part.rename(path)


def measured(run: Path, test: Path) -> dict[str, Any]:
    """A model on all test images."""
    found: Any = evaluate(run, test, split="test").result
    return {"test_accuracy": found.top1, "interval": found.top1_interval, "n_test": found.n}


def _fitted(place: Place, way: str, setting: Setting, minutes: float, **more: object) -> dict[str, Any]:
    """The labelled images alone."""
    found = fit(
        place.parts.labelled,
        model=setting.model,
        recipe=RECIPE,
        overrides={**setting.alike, **more},
        budget=_budget(minutes),
        seed=place.seed,
        out=place.run(way),
        callbacks=SAY,
    )
    assert found.finished
    return {
        **measured(place.run(way), place.parts.test),
        "val_accuracy": found.validation and found.validation.top1,
        "n_labelled": found.images,
        "seconds": round(found.spent.seconds, 1),
        "images_seen": found.spent.images,
        "steps": found.steps,
    }


def _budget(minutes: float) -> str:
    return f"{60 * minutes:.0f}s"


def teacher(place: Place, setting: Setting) -> dict[str, Any]:
    """The model that labels the others."""
    return _fitted(place, "teacher", setting, setting.teacher_minutes)


def control(place: Place, setting: Setting) -> dict[str, Any]:
    """The time of teacher and students, without the other images."""
    return _fitted(place, "control", setting, setting.teacher_minutes + setting.student_minutes)


def control_noised(place: Place, setting: Setting) -> dict[str, Any]:
    """The same with RandAugment."""
    minutes = setting.teacher_minutes + setting.student_minutes
    return _fitted(place, "control-noised", setting, minutes, **{"augment.policy": "randaugment"})


def student(place: Place, setting: Setting) -> dict[str, Any]:
    """The last student, and of each round how right the labels were that it learned from."""
    found = self_train(
        place.parts.labelled,
        place.parts.unlabelled,
        teacher=place.run("teacher"),
        student=setting.model,
        recipe=RECIPE,
        overrides=setting.noised,
        rounds=setting.rounds,
        budget=_budget(setting.student_minutes),
        pseudo_labels=setting.labels,  # type: ignore[arg-type]
        confidence=setting.confidence,
        seed=place.seed,
        out=place.run("student"),
        callbacks=SAY,
    )
    assert found.finished
    rounds = [
        {
            "round": one.number,
            "val_accuracy": one.validation and one.validation.accuracy,
            "seconds": round(one.spent.seconds, 1),
            "images": one.images,
            "images_seen": one.spent.images,
            "labels": right_labels(place.run("student") / f"labels/round-{one.number}", place.parts.truth),
        }
        for one in found.rounds[1:]
    ]
    return {
        **measured(place.run("student") / f"round-{setting.rounds}", place.parts.test),
        "kept_round": found.best,
        "n_labelled": found.labelled,
        "n_unlabelled": found.unlabelled,
        "left_out_as_copies": found.duplicates,
        "seconds": round(found.spent.seconds, 1),
        "rounds": rounds,
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


WAYS: dict[str, Callable[[Place, Setting], dict[str, Any]]] = {
    "teacher": teacher,
    "student": student,
    "control": control,
    "control-noised": control_noised,
}


def summary(cells: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Of each way its mean over seeds; of the student, by how much it is ahead, and whether that can be told.

    cells: by "way/seed".
    """
    ways: dict[str, dict[int, float]] = {}
    images: dict[str, int] = {}
    for name, row in cells.items():
        way, seed = name.rsplit("/", 1)
        ways.setdefault(way, {})[int(seed)] = row["test_accuracy"]
        images[way] = min(row["n_test"], images.get(way, row["n_test"]))
    accuracies = {way: Accuracies(by_seed, images[way]) for way, by_seed in ways.items()}
    found: dict[str, Any] = {
        "ways": {
            way: {"mean": one.mean, "deviation": one.deviation, "seeds": len(one.by_seed), "n_test": one.n}
            for way, one in accuracies.items()
        },
        "differences": {},
    }
    for other in HEADLINES:
        if "student" in ways and ways["student"].keys() & ways.get(other, {}).keys():
            told = difference(accuracies["student"], accuracies[other])
            row = {"value": told.value, "margin": told.margin, "told_apart": told.significant}
            found["differences"][f"student minus {other}"] = row
    return found


def main() -> None:
    retain_memory()  # as the command does
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cifar", type=Path, required=True)
    parser.add_argument("--model", default="P/4@32")
    parser.add_argument("--teacher-minutes", type=float, default=2.0)
    parser.add_argument("--student-minutes", type=float, default=4.0, help="of all rounds together")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--share", type=float, default=0.05, help="of the training images that keep their label")
    parser.add_argument("--images", type=int, default=50_000, help="training images in all; fewer to try it")
    parser.add_argument("--labels", choices=("soft", "hard"), default="soft")
    parser.add_argument("--policy", choices=("randaugment", "none"), default="randaugment", help="of the students")
    parser.add_argument("--confidence", type=float, default=0.3)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--only", default="teacher,student,control", help=f"of {', '.join(WAYS)}")
    parser.add_argument("--runs", type=Path, default=Path("runs/noisy_student"))
    parser.add_argument("--name", default="noisy_student", help="of the result file")
    parser.add_argument("--again", action="store_true", help="forget the cells that the result has")
    args = parser.parse_args()

    setting = Setting(
        args.model,
        args.rounds,
        args.share,
        args.images,
        args.labels,
        args.confidence,
        args.teacher_minutes,
        args.student_minutes,
        args.policy,
    )
    path = RESULTS / f"{args.name}.json"
    known = json.loads(path.read_text()) if path.exists() and not args.again else {"cells": {}}
    if known.get("setting", setting._asdict()) != setting._asdict():
        raise SystemExit(f"{path}: has cells of another setting, {known['setting']}; give --again or another --name.")
    cells = known["cells"]
    for seed in map(int, args.seeds.split(",")):
        for way in sorted(args.only.split(","), key=list(WAYS).index):  # a teacher before its student
            if (name := f"{way}/{seed}") in cells:
                continue
            place = Place(divide(args.cifar, setting, args.runs, seed), args.runs / setting.runs_name, seed)
            load = os.getloadavg()[0]
            cells[name] = {**WAYS[way](place, setting), "load_before": round(load, 2)}
            result = {"setting": setting._asdict(), "alike": setting.alike, "summary": summary(cells), "cells": cells}
            write_result(args.name, result)
            print(name, json.dumps(cells[name]), flush=True)
    print(json.dumps(summary(cells), indent=2))


if __name__ == "__main__":
    main()
