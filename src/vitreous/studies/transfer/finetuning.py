"""The protocols that fine-tune: VTAB-1k and full, each measured on the test split."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from vitreous.data.datasets.vtab import vtab_1k
from vitreous.data.joined import join_sources
from vitreous.data.source import Data, Source, Split
from vitreous.data.subset import random_subset
from vitreous.errors import UserError
from vitreous.inference.choice import WORTH_SECONDS, deploy
from vitreous.inference.measuring import measure_classifier
from vitreous.model.family import count_flops
from vitreous.report.transferred import Protocol, Setting, TaskScore, TransferTrial
from vitreous.studies.transfer.folder import TransferFolder
from vitreous.studies.transfer.speed import seconds_per_look
from vitreous.studies.transfer.tasks import SEED, OpenTask
from vitreous.studies.transfer.training import TaskPlan, TaskTrainings
from vitreous.training.folder import read_config, source_digest, training_to_json
from vitreous.training.loop import DivergedError
from vitreous.training.measure import StartFeatures
from vitreous.training.recipes.supervised import published_side
from vitreous.training.result import FitResult

TUNED: tuple[Protocol, ...] = ("vtab-1k", "full")
RATES = (2e-4, 6e-4)
"""The light sweep: learning rates that are tried on 800 images and judged on 200."""
TRYING = 0.25
"""What each trial may take of the time for trainings; the rest is for the final one."""
TESTING = 0.4
"""What the test split may take at most of the time of a task."""
CONVERTING = 20.0
"""Seconds that an engine takes to be made and proved, where the test split is so large that it pays."""
ASIDE = 0.1
"""The share of the images that chooses the weights under the protocol full, where the data have no val split."""
FEW = 50
"""Test images that are measured at least."""
WHOLE = {
    "augment.crop_scale": "none",
    "augment.pad": "0",
    "augment.flip": "false",
    "preprocess.crop": "1.0",
    "objective.keep_schedule": "[]",
}
"""What is set where that which a crop, a mirror image or a missing patch takes away may be what the answer is about."""


@dataclass(frozen=True)
class _Trained:
    """The final training of a task, and those before it."""

    result: FitResult
    place: Path
    digests: dict[str, str]
    images: int
    """That are learned from."""
    trials: tuple[TransferTrial, ...] = ()
    tried: tuple[FitResult, ...] = ()


@dataclass
class FineTuning:
    """Trainings of a model on tasks, and what they come to."""

    trainings: TaskTrainings
    folder: TransferFolder
    looks: dict[str, float] = field(default_factory=dict)
    """By task: seconds in which the model looks at an image, where that is known."""

    def measure(self, task: OpenTask, protocol: Protocol, seconds: float | None) -> TaskScore | None:
        """The score, in about so many seconds; None where it was stopped between two steps."""
        began = time.perf_counter()
        testing = None if seconds is None else self._testing(task, seconds)
        time_to_train = None if seconds is None or testing is None else seconds - testing
        train = self._vtab_1k if protocol == "vtab-1k" else self._full
        trained = train(task, time_to_train)
        if trained is None:
            return None
        left = None
        if seconds is not None and testing is not None:
            left = max(seconds - (time.perf_counter() - began), testing / 2)
        return self._test(task, protocol, trained, left)

    def _testing(self, task: OpenTask, seconds: float) -> float:
        """Seconds to keep for the test split."""
        look = self.looks.get(task.named.name)
        if look is None:
            return TESTING * seconds
        whole = look * len(task.data.splits["test"])
        return min(TESTING * seconds, 1.2 * whole + (CONVERTING if whole > WORTH_SECONDS else 2.0))

    def _vtab_1k(self, task: OpenTask, seconds: float | None) -> _Trained | None:
        """On 800 images, judged on 200, to choose; then on all 1,000. The published choice needs no trial."""
        vtab = task.named.vtab
        cut = vtab_1k(task.data, task.named.name, None if vtab is None else vtab.train_percent)
        classes, start = task.data.classes, StartFeatures()
        labels = np.concatenate([cut.train.labels, cut.val.labels])
        every = Data({"train": join_sources([cut.train, cut.val], labels, classes)}, classes)
        digests = {"train": source_digest(cut.train), "val": source_digest(cut.val), "vtab-1k": cut.digest}
        if seconds is None:
            result, place = self._train(task, "vtab-1k", "final", every, TaskPlan("vtab"), start)
            return _Trained(result, place, digests, len(labels)) if result.finished else None
        divided = Data({"train": cut.train, "val": cut.val}, classes)
        swept = self._sweep(task, divided, start, TRYING * seconds)
        if swept is None:
            return None
        rate, trials, tried = swept
        share = (1 - TRYING * len(RATES)) * seconds
        result, place = self._train(task, "vtab-1k", "final", every, _at_rate(rate, share), start)
        return _Trained(result, place, digests, len(labels), trials, tried) if result.finished else None

    def _sweep(
        self, task: OpenTask, images: Data, start: StartFeatures, seconds: float
    ) -> tuple[float, tuple[TransferTrial, ...], tuple[FitResult, ...]] | None:
        """The learning rate with the best validation accuracy, of equal ones that with the lower loss; and all trials.

        seconds: for each. None where it was stopped.
        """
        trials: list[TransferTrial] = []
        tried: dict[float, FitResult] = {}
        for rate in RATES:
            try:
                plan = _at_rate(rate, seconds)
                result, _ = self._train(task, "vtab-1k", f"trial-{rate:g}", images, plan, start)
            except DivergedError:
                settings: dict[str, Setting] = {"optimizer.learning_rate": rate, "diverged": True}
                trials.append(TransferTrial(settings, 0.0, len(images.splits["val"])))
                continue
            if not result.finished:
                return None
            tried[rate] = result
            trials.append(_trial(result, rate))
        if not tried:
            raise UserError("its loss left the numbers at every learning rate that was tried.")
        best = max(tried, key=lambda rate: _quality(tried[rate]))
        return best, tuple(trials), tuple(tried.values())

    def _full(self, task: OpenTask, seconds: float | None) -> _Trained | None:
        """On all training images; the val split, or a tenth that is set aside, chooses the weights."""
        splits: dict[Split, Source] = {
            split: source for split, source in task.data.splits.items() if split in ("train", "val")
        }
        data = Data(splits, task.data.classes).with_validation(ASIDE, SEED)
        images = len(data.train)
        plan = TaskPlan("auto", seconds)
        if seconds is None:
            epochs = paper_steps(images) / max(1, images // 512)
            side = self.trainings.image_size or published_side(self.trainings.given.model.config)
            plan = TaskPlan("paper-finetune", epochs=epochs, image_size=side)
        result, place = self._train(task, "full", "final", data, plan)
        digests = {str(split): source_digest(source) for split, source in data.splits.items()}
        return _Trained(result, place, digests, images) if result.finished else None

    def _train(
        self,
        task: OpenTask,
        protocol: Protocol,
        name: str,
        images: Data,
        plan: TaskPlan,
        start: StartFeatures | None = None,
    ) -> tuple[FitResult, Path]:
        place = self.folder.run_place(task.named.name, protocol, name)
        if not task.named.varied:
            plan = replace(plan, overrides={**plan.overrides, **WHOLE}, whole=True)
        return self.trainings.run(task.named.place, images, place, plan, start), place

    def _test(self, task: OpenTask, protocol: Protocol, trained: _Trained, seconds: float | None) -> TaskScore:
        """How many of the test images the trained network has right; of as many as there is time for."""
        test, machine = task.data.splits["test"], self.trainings.machine
        began = time.perf_counter()
        look = self.looks.get(task.named.name)
        wanted = len(test) if seconds is None or look is None else min(len(test), int(seconds / look))
        model = deploy(trained.place / "bundle", precision="fp32", device=str(machine.device), images=wanted)
        if seconds is not None:
            look = seconds_per_look(lambda some: measure_classifier(model, some, workers=0), test)
            wanted = min(len(test), max(FEW, int((began + seconds - time.perf_counter()) / look)))
        part = test if wanted == len(test) else random_subset(test, SEED, wanted)
        what = f"{task.named.name}: {protocol}, test images"
        told = self.trainings.callbacks.progress
        found, unreadable = measure_classifier(
            model, part, workers=machine.workers, progress=lambda done: told(what, done, len(part))
        )
        saved = read_config(trained.place)
        assert saved is not None
        forward = count_flops(saved.training.model)
        flops = found.n * forward + sum(_flops(one, forward, saved.training.evaluations) for one in _all(trained))
        return TaskScore(
            task=task.named.name,
            protocol=protocol,
            accuracy=found.top1,
            interval=found.top1_interval,
            n=found.n,
            of=len(test),
            trained_on=trained.images,
            trained_of=trained.images,
            digests={**trained.digests, "test": source_digest(part)},
            settings={"steps": trained.result.steps, **dict(flattened(training_to_json(saved.training)))},
            flops=float(flops),
            seconds=time.perf_counter() - began + sum(one.spent.seconds for one in _all(trained)),
            engine=f"{model.engine.name} {model.engine.precision}",
            trials=trained.trials,
            unreadable=len(unreadable),
        )


def paper_steps(images: int) -> int:
    """Of a fine-tuning on so many: table 4 has 500 for Pets and Flowers, 10,000 for CIFAR, 20,000 for ImageNet; BiT's
    rule, which agrees with it, says where one ends and the next begins."""
    return 500 if images < 20_000 else 10_000 if images < 500_000 else 20_000


def _at_rate(rate: float, seconds: float) -> TaskPlan:
    return TaskPlan("small-data", seconds, overrides={"optimizer.learning_rate": f"{rate:g}"})


def _all(trained: _Trained) -> Iterator[FitResult]:
    yield from trained.tried
    yield trained.result


def _flops(result: FitResult, forward: int, evaluations: int) -> float:
    """Of a training: its steps; one pass over its images for a first classifier; and its evaluations."""
    start = result.images if result.probe is not None else 0
    looks = 0 if result.validation is None else (evaluations + 1) * result.validation.n
    return result.spent.flops + forward * (start + looks)


def _trial(result: FitResult, rate: float) -> TransferTrial:
    found = result.validation
    assert found is not None
    settings: dict[str, Setting] = {"optimizer.learning_rate": rate, "steps": result.steps}
    if result.probe is not None and result.probe.accuracy is not None:
        settings["accuracy before the first step"] = result.probe.accuracy
    return TransferTrial(settings, found.top1, found.n)


def _quality(result: FitResult) -> tuple[float, float]:
    """Accuracy, and then the loss that is lower."""
    assert result.validation is not None
    return result.validation.top1, -result.validation.loss


def flattened(fields: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Setting]]:
    """Every setting by its dotted name."""
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{prefix}{name}.")
        elif isinstance(value, Sequence) and not isinstance(value, str):
            yield f"{prefix}{name}", str(list(value))
        else:
            yield f"{prefix}{name}", value
