"""A teacher's answers for a training: asked in every step, or once for each image and kept with cached features."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from vitreous.callbacks import Callbacks
from vitreous.config.objective import Distill
from vitreous.config.train import Training
from vitreous.data.source import Source
from vitreous.evaluate.feature_cache import FeatureCache, StoredFeatures, answers_key, default_folder
from vitreous.memory import check_memory
from vitreous.objectives.answers import Answers, ImageAnswers, ViewAnswers
from vitreous.training.deadline import Deadline
from vitreous.training.teaching.asking import Asking, ask
from vitreous.training.teaching.teacher import MissingTeacher, Teacher, present


def teacher_answers(
    teacher: Teacher | MissingTeacher,
    training: Training,
    source: Source,
    workers: int,
    deadline: Deadline | None,
    callbacks: Callbacks,
) -> Answers:
    """What a student asks: the teacher itself, or what it said of each image of the source."""
    assert isinstance(training.objective, Distill)
    if training.objective.answers == "view":
        here = present(teacher, "it is asked in every step")
        return ViewAnswers(here.scores, here.preprocess, training.preprocess)
    cache = FeatureCache(default_folder())
    told = partial(callbacks.progress, "reading the training images")
    key = answers_key(teacher.digest, source, told)
    if (stored := cache.get(key)) is None:
        here = present(teacher, "its answers are not kept any more")
        how = Asking(workers, deadline, callbacks, "a smaller teacher, or set objective.answers=view")
        stored = StoredFeatures(_look(here, source, how), torch.arange(len(source)))
        cache.put(key, stored)
    for remark in cache.remarks:
        callbacks.message(remark)
    return ImageAnswers(stored.features.to(teacher.device))


def _look(teacher: Teacher, source: Source, how: Asking) -> Tensor:
    """(n, K) float32: its scores of each image as evaluation sees it; zeros where one cannot be read."""
    count, classes = len(source), len(teacher.columns)
    check_memory(4 * count * classes, f"a teacher's answers for {count:,} images", "set objective.answers=view")
    scores = torch.zeros(count, classes)
    for index, found in ask(teacher, source, teacher.scores, how):
        scores[index] = found
    return scores
