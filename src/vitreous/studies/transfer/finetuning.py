"""The protocols that fine-tune: VTAB-1k and full, each measured on the test split."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vitreous.config.train import Training
from vitreous.data.datasets.vtab import vtab_1k
from vitreous.data.joined import JoinedSource
from vitreous.data.source import Data, Source, Split, random_subset
from vitreous.errors import UserError
from vitreous.inference.engine import open_in_torch
from vitreous.inference.evaluation import measure_classifier
from vitreous.inference.opening import CONVERSION_PAYS_SECONDS, open_engine
from vitreous.inference.probing import FeatureReader
from vitreous.model.family import count_flops
from vitreous.studies.folder import Study
from vitreous.studies.requests import Protocol, TransferRequest
from vitreous.studies.timing import seconds_per_image
from vitreous.studies.transfer.result import Setting, TaskScore, TransferTrial
from vitreous.studies.transfer.tasks import SEED, OpenTask
from vitreous.training.folder import open_run, read_config, source_digest, training_to_json
from vitreous.training.labelled import Labelled
from vitreous.training.loop import DivergedError
from vitreous.training.measuring import StartFeatures
from vitreous.training.recipes.supervised import published_side
from vitreous.training.request import FitRequest
from vitreous.training.result import FitResult
from vitreous.training.start import CPU_HOUR_FLOPS
from vitreous.weights.bundle import Bundle

FINE_TUNED: tuple[Protocol, ...] = ("vtab-1k", "full")
LEARNING_RATES = (2e-4, 6e-4)  # the light sweep: trained on 800 images and validated on 200
TRIAL_FRACTION = 0.25  # the fraction of the time for trainings that each trial may take; the rest is for the final one
TESTING_FRACTION = 0.4  # the fraction of a task's time that the test split may take
CONVERSION_SECONDS = 20.0  # to convert the model and verify it, if the test split is large enough for that to pay
HELD_OUT_FRACTION = 0.1  # of the images, which chooses the weights under the protocol full without a val split
MIN_IMAGES = 50  # test images that are measured at least
WHOLE_IMAGE_OVERRIDES = {
    "augment.crop_scale": "none",
    "augment.pad": "0",
    "augment.flip": "false",
    "preprocess.crop": "1.0",
    "objective.keep_schedule": "[]",
}
"""For tasks whose label may depend on what a crop, a flip or a missing patch removes."""


@dataclass(frozen=True)
class TransferContext(Study):
    """The request and the model of a transfer."""

    request: TransferRequest
    given: Bundle  # the model as it was opened


@dataclass(frozen=True)
class FineTuned:
    """The final training of a task, and those before it."""

    results: tuple[FitResult, ...]  # the final one last
    place: Path
    digests: dict[str, str]
    images: int  # that are learned from
    trials: tuple[TransferTrial, ...] = ()


def measure_fine_tuned(
    context: TransferContext, task: OpenTask, protocol: Protocol, seconds: float | None
) -> TaskScore:
    """The score, in about `seconds`."""
    began, test = time.perf_counter(), task.data.splits["test"]
    tune = _fine_tune_1k if protocol == "vtab-1k" else _fine_tune_full
    if seconds is None:
        return _test(context, task, protocol, tune(context, task, None), None, len(test))
    reader = FeatureReader(open_in_torch(context.given, str(context.runtime.device)), workers=0)
    image = seconds_per_image(reader.compute, test, SEED)
    testing = 1.2 * image * len(test) + (CONVERSION_SECONDS if image * len(test) > CONVERSION_PAYS_SECONDS else 2.0)
    testing = min(TESTING_FRACTION * seconds, testing)
    tuned = tune(context, task, seconds - testing - (time.perf_counter() - began))
    left = max(seconds - (time.perf_counter() - began), testing / 2)
    return _test(context, task, protocol, tuned, left, min(len(test), int(left / image)))


def _fine_tune_1k(context: TransferContext, task: OpenTask, seconds: float | None) -> FineTuned:
    """Trials on 800 images, validated on 200, choose; then all 1,000 are learned. No trial without a budget."""
    vtab, classes = task.vtab, task.data.classes
    cut = vtab_1k(task.data, task.name, None if vtab is None else vtab.train_percent)
    every = Data({"train": JoinedSource([cut.train, cut.val])}, classes)
    digests = {"train": source_digest(cut.train), "val": source_digest(cut.val), "vtab-1k": cut.digest}
    place, start = context.folder / "runs" / f"{task.name}-vtab-1k", StartFeatures()
    if seconds is None:
        result = _train(context, task, place / "final", every, recipe="vtab", features=start)
        return FineTuned((result,), place / "final", digests, len(every.train))
    tried: dict[float, FitResult] = {}
    quality: dict[float, tuple[float, float]] = {}
    trials: list[TransferTrial] = []
    for rate in LEARNING_RATES:
        images = Data({"train": cut.train, "val": cut.val}, classes)
        try:
            result = _train(
                context, task, place / f"trial-{rate:g}", images, rate, TRIAL_FRACTION * seconds, features=start
            )
        except DivergedError:
            lost: dict[str, Setting] = {"optimizer.learning_rate": rate, "diverged": True}
            trials.append(TransferTrial(lost, 0.0, len(cut.val)))
            continue
        tried[rate] = result
        assert result.validation is not None
        quality[rate] = result.validation.top1, -result.validation.loss
        settings: dict[str, Setting] = {"optimizer.learning_rate": rate, "steps": result.steps}
        if result.probe is not None and result.probe.accuracy is not None:
            settings["accuracy before the first step"] = result.probe.accuracy
        trials.append(TransferTrial(settings, result.validation.top1, result.validation.n))
    if not tried:
        raise UserError("its loss left the numbers at every learning rate that was tried.")
    best = max(tried, key=quality.__getitem__)
    left = (1 - TRIAL_FRACTION * len(LEARNING_RATES)) * seconds
    result = _train(context, task, place / "final", every, best, left, features=start)
    return FineTuned((*tried.values(), result), place / "final", digests, len(every.train), tuple(trials))


def _fine_tune_full(context: TransferContext, task: OpenTask, seconds: float | None) -> FineTuned:
    """On all training images; the val split, or a tenth that is set aside, chooses the weights."""
    splits: dict[Split, Source] = {
        split: source for split, source in task.data.splits.items() if split in ("train", "val")
    }
    data = Data(splits, task.data.classes).with_validation(HELD_OUT_FRACTION, SEED)
    place, images = context.folder / "runs" / f"{task.name}-full" / "final", len(data.train)
    if seconds is None:
        epochs = paper_steps(images) / max(1, images // 512)
        side = context.request.image_size or published_side(context.given.model.config)
        result = _train(context, task, place, data, recipe="paper-finetune", epochs=epochs, image_size=side)
    else:
        result = _train(context, task, place, data, seconds=seconds, recipe="auto")
    digests = {str(split): source_digest(source) for split, source in data.splits.items()}
    return FineTuned((result,), place, digests, images)


def _train(
    context: TransferContext,
    task: OpenTask,
    place: Path,
    images: Data,
    rate: float | None = None,
    seconds: float | None = None,
    *,
    recipe: str = "small-data",
    epochs: float | None = None,
    image_size: int | None = None,
    features: StartFeatures | None = None,
) -> FitResult:
    """Train, or go on: one that was begun keeps to the time that it was given then. Nothing is cut off the images of a
    task whose label that could change."""
    request, given, overrides = context.request, context.given, dict[str, str]()
    if rate is not None:
        overrides["optimizer.learning_rate"] = f"{rate:g}"
    if not task.varied:
        overrides |= WHOLE_IMAGE_OVERRIDES
        given = replace(given, preprocess=replace(given.preprocess, resize="stretch"))
    begun = open_run(place)
    budget = f"{seconds:.1f}s" if seconds is not None else None
    asked = FitRequest(
        task.place,
        weights=request.model,
        image_size=image_size or request.image_size,
        budget=budget if begun is None else begun.request.budget,
        epochs=epochs,
        recipe=recipe,
        preprocess=request.preprocess,
        overrides=overrides,
    )

    def warn(training: Training, steps: int) -> None:
        seen = steps * training.batch_size
        hours = 3 * count_flops(training.model) * seen / CPU_HOUR_FLOPS
        if asked.budget is None and context.runtime.device.type == "cpu" and hours >= 1:
            context.callbacks.message(
                f"{task.place}: {steps:,} steps, {seen:,} images, are about {hours:,.0f} hours of two cores; a "
                "budget shortens that."
            )

    method = Labelled(
        data=lambda _: images,
        is_split=True,
        weights=given,
        features=features,
        on_plan=warn,
        page=False,
        writing_seconds=1.0,
    )
    return context.train(asked, place, method)


def _test(
    context: TransferContext, task: OpenTask, protocol: Protocol, tuned: FineTuned, seconds: float | None, count: int
) -> TaskScore:
    """The test accuracy of the trained network, on about `count` images, or as many as there is time for."""
    test, runtime, name = task.data.splits["test"], context.runtime, task.name
    began = time.perf_counter()
    model = open_engine(tuned.place / "bundle", precision="fp32", device=str(runtime.device), images=count)
    if seconds is not None:
        image = seconds_per_image(lambda some: measure_classifier(model, some, workers=0), test, SEED)
        count = min(len(test), max(MIN_IMAGES, int((began + seconds - time.perf_counter()) / image)))
    part = test if count == len(test) else random_subset(test, SEED, count)
    what = f"{name}: {protocol}, test images"
    found, unreadable = measure_classifier(
        model, part, workers=runtime.workers, progress=lambda done, total: context.callbacks.progress(what, done, total)
    )
    saved = read_config(tuned.place)
    assert saved is not None
    forward = count_flops(saved.training.model)
    flops = found.n * forward + sum(_flops(one, forward, saved.training.evaluations) for one in tuned.results)
    return TaskScore(
        task=name,
        protocol=protocol,
        accuracy=found.top1,
        interval=found.top1_interval,
        n=found.n,
        of=len(test),
        trained_on=tuned.images,
        trained_of=tuned.images,
        digests={**tuned.digests, "test": source_digest(part)},
        settings={"steps": tuned.results[-1].steps, **dict(flattened(training_to_json(saved.training)))},
        flops=float(flops),
        seconds=time.perf_counter() - began + sum(one.spent.seconds for one in tuned.results),
        engine=f"{model.engine.name} {model.engine.precision}",
        trials=tuned.trials,
        unreadable=len(unreadable),
        split=task.summary.measured,
    )


def paper_steps(images: int) -> int:
    """Table 4 has 500 for Pets and Flowers, 10,000 for CIFAR, 20,000 for ImageNet; the limits between them are those
    of BiT's rule, which agrees with it."""
    return 500 if images < 20_000 else 10_000 if images < 500_000 else 20_000


def _flops(result: FitResult, forward: int, evaluations: int) -> float:
    """Of a training: its steps, one pass over its images for a first classifier, and its evaluations."""
    start = result.images if result.probe is not None else 0
    looks = 0 if result.validation is None else (evaluations + 1) * result.validation.n
    return result.spent.flops + forward * (start + looks)


def flattened(fields: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Setting]]:
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{prefix}{name}.")
        elif isinstance(value, Sequence) and not isinstance(value, str):
            yield f"{prefix}{name}", str(list(value))
        else:
            yield f"{prefix}{name}", value
