"""One fine-tuning on the images of a task: the same run as `fit`, on images that are open and divided already."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from vitreous.callbacks import Callbacks
from vitreous.config.train import Training
from vitreous.data.source import Data
from vitreous.evaluate.features import compute_features
from vitreous.evaluate.probe import Labelled
from vitreous.model.family import count_flops, inference_batch
from vitreous.training.folder import open_run
from vitreous.training.labelled import LabelledTraining
from vitreous.training.request import FitRequest
from vitreous.training.result import FitResult
from vitreous.training.runtime import Runtime
from vitreous.training.start import HOUR, choose_training
from vitreous.weights.bundle import Bundle, weights_digest


@dataclass
class StartFeatures:
    """Features of the frozen network that the trainings of a task begin with: the first of them computes them."""

    train: Labelled | None = None
    val: Labelled | None = None
    look: float = 0.0
    """Seconds that an image took."""


@dataclass(frozen=True)
class OpenedTask:
    """What a training on a task is given open, where `fit` would open it itself."""

    images: Data
    """Divided."""
    weights: Bundle
    warn: Callable[[str], None]
    """Told what a person should know before it starts."""
    start: StartFeatures
    """What it shares with the other trainings on the same images."""


class TaskTraining(LabelledTraining):
    """Without a page and without a test split: what is measured in the end is not its own to look at."""

    writing = 1.0

    def __init__(
        self, request: FitRequest, folder: Path, machine: Runtime, callbacks: Callbacks, opened: OpenedTask
    ) -> None:
        super().__init__(request, folder, machine, callbacks, lambda folder, seconds=None: None)
        self.opened = opened

    def open_data(self) -> Data:
        """They are open."""
        return self.opened.images

    def _open_weights(self) -> Bundle:
        """They are open, too."""
        self.weights = weights_digest(self.opened.weights.model)
        return self.opened.weights

    def choose_training(self, data: Data) -> Training:
        """What the recipe makes of these images, none of which is set aside."""
        self.base = self._open_weights()
        return choose_training(self.request, data, self.base, self.world.device.type, divided=True)

    def split_data(self, data: Data) -> Data:
        """They are divided already."""
        return data

    def say_start(self, steps: int) -> None:
        """That published settings are meant for accelerators, where there is none."""
        images = steps * self.training.batch_size
        hours = 3 * count_flops(self.training.model) * images / HOUR
        if self.request.budget is None and self.world.device.type == "cpu" and hours >= 1:
            self.opened.warn(
                f"{self.request.data}: {steps:,} steps, {images:,} images, are about {hours:,.0f} hours of two "
                "cores; a budget shortens that."
            )


class Vtab1kTraining(TaskTraining):
    """On 800 images that are judged by 200, or on all 1,000: however short the time, each of them is looked at."""

    def start_features(self, function: Callable[[Tensor], Tensor]) -> tuple[Labelled, Labelled | None]:
        """Those of an earlier training of the task, where there was one in this process."""
        self._open_validation()
        kept = self.opened.start
        if kept.train is None:
            began = time.perf_counter()
            kept.train = compute_features(
                function, self.loader.plain_batches(inference_batch(self.training.model)), len(self.data.train)
            )
            if self.validation is not None:
                kept.val = compute_features(function, self.validation.batches(), len(self.validation.source))
            kept.look = (time.perf_counter() - began) / sum(map(len, self.data.splits.values()))
        self.look = kept.look
        if self.validation is not None or kept.val is None:
            return kept.train, kept.val
        (x, y), (more_x, more_y) = kept.train, kept.val  # the final training learns from what chose, too
        return (torch.cat([x, more_x]), torch.cat([y, more_y])), None


@dataclass(frozen=True)
class TaskPlan:
    """How one training on a task is done."""

    recipe: str
    seconds: float | None = None
    """How long it may take; None for as long as it takes."""
    epochs: float | None = None
    """None for what the recipe says."""
    image_size: int | None = None
    """None for what was asked for all tasks."""
    overrides: Mapping[str, str] = field(default_factory=dict)
    """Fields of the recipe that are set otherwise, as `--set` writes them."""
    whole: bool = False
    """Images are made square by stretching, so that nothing of them is cut off."""


@dataclass(frozen=True)
class TaskTrainings:
    """How every training on tasks is done."""

    weights: str
    """Where they were read from."""
    given: Bundle
    preprocess: str | None
    image_size: int | None
    machine: Runtime
    callbacks: Callbacks

    def run(
        self, task: str, images: Data, place: Path, plan: TaskPlan, start: StartFeatures | None = None
    ) -> FitResult:
        """Train, or go on: one that was begun keeps to the time that it was given then.

        start: of VTAB-1k, what its trainings share; None for other images.
        """
        given = self.given
        if plan.whole:
            given = replace(given, preprocess=replace(given.preprocess, resize="stretch"))
        asked = FitRequest(
            data=task,
            weights=self.weights,
            image_size=plan.image_size or self.image_size,
            budget=None if plan.seconds is None else f"{plan.seconds:.1f}s",
            epochs=plan.epochs,
            recipe=plan.recipe,
            preprocess=self.preprocess,
            overrides=dict(plan.overrides),
        )
        begun = open_run(place)
        if begun is not None and isinstance(begun.request, FitRequest):
            asked = replace(asked, budget=begun.request.budget)
        quiet = replace(self.callbacks, message=lambda text: None, started=None)
        kind = TaskTraining if start is None else Vtab1kTraining
        opened = OpenedTask(images, given, self.callbacks.message, start or StartFeatures())
        return kind(asked, place, self.machine, quiet, opened).run()
