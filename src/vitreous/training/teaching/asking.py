"""A teacher's logits: asked in every step, or once for each image and kept with cached features."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from vitreous.callbacks import Callbacks
from vitreous.config.data import Preprocess
from vitreous.config.objective import Distill
from vitreous.config.train import Training
from vitreous.data.loader import Loader
from vitreous.data.source import Source
from vitreous.errors import UserError
from vitreous.evaluation.features import FeatureCache, StoredFeatures, logits_key
from vitreous.memory import check_memory
from vitreous.model.family import inference_batch
from vitreous.model.network import check_numbers
from vitreous.objectives.answers import Answers, ImageAnswers, ViewAnswers
from vitreous.training.deadline import Deadline, format_budget
from vitreous.training.image_plan import TIMING_SECONDS
from vitreous.training.teaching.teacher import MissingTeacher, Teacher, present

MAX_TEACHER_FRACTION = 0.5
"""The share of a budget that may be gone when a teacher has looked at all images; the student needs the rest."""


@dataclass(frozen=True)
class Asking:
    """How a teacher is asked: by whom, until when, and what to do where the time is too short for it."""

    workers: int
    deadline: Deadline | None = None
    callbacks: Callbacks = field(default_factory=Callbacks)
    advice: str = "or a smaller teacher"  # ends the sentence "give 10m or more, ..."


def ask(
    teacher: Teacher,
    source: Source,
    predict: Callable[[Tensor], Tensor],
    how: Asking,
    *,
    preprocess: Preprocess | None = None,
    unreadable_limit: float | None = 1.0,
) -> Iterator[tuple[Tensor, Tensor]]:
    """(B,) int64 numbers of images and (B, ...) what `predict` says of them, batch by batch, on the processor.

    Images that cannot be read are left out. predict: of (B, C, H, W) on the teacher's device, normalised by
    `preprocess`, which is the teacher's own if None is given.
    """
    began, done = 0.0 if how.deadline is None else how.deadline.now(), 0
    loader = Loader(
        source,
        preprocess or teacher.preprocess,
        batch_size=inference_batch(teacher.network.config),
        workers=how.workers,
        cache_bytes=0,
        unreadable_limit=unreadable_limit,
    )
    with closing(loader):
        for batch in loader.batches():
            predictions = predict(batch.images.to(teacher.device)).float().cpu()
            check_numbers(predictions, "scores", Path(teacher.place))
            yield batch.index, predictions
            done += len(batch.index)
            how.callbacks.progress("the teacher looks at the training images", done, len(source))
            if how.deadline is not None and (taken := how.deadline.now() - began) >= TIMING_SECONDS:
                check_time(taken / done * (len(source) - done), how.deadline, teacher.place, how.advice)


def check_time(left: float, deadline: Deadline, place: str, advice: str) -> None:
    """Refuse a teacher that needs so many more seconds that too little time remains for the student."""
    if left and (end := deadline.now() + left) > MAX_TEACHER_FRACTION * deadline.seconds:
        raise UserError(
            f"budget {deadline.text}: the teacher {place} needs about {left:.0f} s more to look at all images "
            "once, which leaves too little time to learn from it; give "
            f"{format_budget(end / MAX_TEACHER_FRACTION)} or more, {advice}."
        )


def teacher_predictions(
    teacher: Teacher | MissingTeacher,
    training: Training,
    source: Source,
    workers: int,
    deadline: Deadline | None,
    callbacks: Callbacks,
) -> Answers:
    assert isinstance(training.objective, Distill)
    if training.objective.answers == "view":
        here = present(teacher, "it is asked in every step")
        return ViewAnswers(here.logits, here.preprocess, training.preprocess)
    cache = FeatureCache()
    told = partial(callbacks.progress, "reading the training images")
    key = logits_key(teacher.digest, source, told)
    if (stored := cache.get(key)) is None:
        here = present(teacher, "its answers are not kept any more")
        how = Asking(workers, deadline, callbacks, "a smaller teacher, or set objective.answers=view")
        stored = StoredFeatures(_predict_all(here, source, how), torch.arange(len(source)))
        cache.put(key, stored)
    for remark in cache.remarks:
        callbacks.message(remark)
    return ImageAnswers(stored.features.to(teacher.device))


def _predict_all(teacher: Teacher, source: Source, how: Asking) -> Tensor:
    """(n, K) float32: its scores of each image as evaluation sees it; zeros where one cannot be read."""
    count, classes = len(source), len(teacher.columns)
    check_memory(4 * count * classes, f"a teacher's answers for {count:,} images", "set objective.answers=view")
    scores = torch.zeros(count, classes)
    for index, found in ask(teacher, source, teacher.logits, how):
        scores[index] = found
    return scores
