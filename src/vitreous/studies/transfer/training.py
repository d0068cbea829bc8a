"""One fine-tuning on the images of a task: the same run as `fit`, on images that are open and divided already."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from vitreous.callbacks import Callbacks
from vitreous.config.train import Training
from vitreous.data.source import Data
from vitreous.model.family import count_flops
from vitreous.training.context import Runtime
from vitreous.training.folder import open_run
from vitreous.training.labelled import Labelled
from vitreous.training.measure import StartFeatures
from vitreous.training.request import FitRequest
from vitreous.training.result import FitResult
from vitreous.training.start import HOUR
from vitreous.training.train import train
from vitreous.weights.bundle import Bundle


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

        def warn(training: Training, steps: int) -> None:
            seen = steps * training.batch_size
            hours = 3 * count_flops(training.model) * seen / HOUR
            if asked.budget is None and self.machine.device.type == "cpu" and hours >= 1:
                self.callbacks.message(
                    f"{task}: {steps:,} steps, {seen:,} images, are about {hours:,.0f} hours of two cores; a budget "
                    "shortens that."
                )

        method = Labelled(
            data=lambda context: images,
            is_split=True,
            weights=given,
            features=start,
            on_plan=warn,
            page=False,
            writing_seconds=1.0,
        )
        return train(asked, place, self.machine, quiet, method)
