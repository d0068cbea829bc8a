"""A teacher's answers for a training: asked in every step, or once for each picture and kept with cached features."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import torch
from torch import Tensor

from vitreous.config.objective import Distill
from vitreous.config.train import Training
from vitreous.data.loader import Loader
from vitreous.data.source import Source
from vitreous.deploy.engine import check_numbers
from vitreous.errors import UserError
from vitreous.evaluate.feature_cache import FeatureCache, StoredFeatures, answers_key, default_folder
from vitreous.memory import check_memory
from vitreous.model.family import inference_batch
from vitreous.objectives.answers import Answers, PictureAnswers, ViewAnswers
from vitreous.run.clock import TELLING, Clock
from vitreous.run.request import Listeners
from vitreous.run.stages import say_budget
from vitreous.run.teacher import MissingTeacher, Teacher, present

MOST = 0.5
"""The share of a budget that the teacher may take for looking at all pictures; the student needs the rest."""


def teacher_answers(
    teacher: Teacher | MissingTeacher,
    training: Training,
    source: Source,
    workers: int,
    clock: Clock | None,
    listeners: Listeners,
) -> Answers:
    """What a student asks: the teacher itself, or what it said of each picture of the source."""
    assert isinstance(training.objective, Distill)
    if training.objective.answers == "view":
        here = present(teacher, "it is asked in every step")
        return ViewAnswers(here.scores, here.preprocess, training.preprocess)
    cache = FeatureCache(default_folder())
    key = answers_key(teacher.digest, source)
    if (stored := cache.get(key)) is None:
        here = present(teacher, "its answers are not kept any more")
        stored = StoredFeatures(_look(here, source, workers, clock, listeners), torch.arange(len(source)))
        cache.put(key, stored)
    for remark in cache.remarks:
        listeners.say(remark)
    return PictureAnswers(stored.features.to(teacher.device))


def _look(teacher: Teacher, source: Source, workers: int, clock: Clock | None, listeners: Listeners) -> Tensor:
    """(n, K) float32: its scores of each picture as evaluation sees it; zeros where one cannot be read."""
    count, classes = len(source), len(teacher.columns)
    check_memory(4 * count * classes, f"a teacher's answers for {count:,} pictures", "set objective.answers=view")
    scores, done = torch.zeros(count, classes), 0
    began = 0.0 if clock is None else clock.now()
    loader = Loader(
        source,
        teacher.preprocess,
        batch_size=inference_batch(teacher.network.config),
        workers=workers,
        cache_bytes=0,
        unreadable_limit=1.0,
    )
    with closing(loader):
        for batch in loader.batches():
            scores[batch.index] = teacher.scores(batch.images.to(teacher.device)).float().cpu()
            done += len(batch.index)
            listeners.look("the teacher looks at the training pictures", done, count)
            if clock is not None and (taken := clock.now() - began) >= TELLING:
                _check_time(taken / done * count, clock, teacher.place)
    check_numbers(scores, "scores", Path(teacher.place))
    return scores


def _check_time(seconds: float, clock: Clock, place: str) -> None:
    """Refuse a teacher that would take so long for all pictures that next to nothing is left for the student."""
    if seconds > MOST * clock.deadline:
        raise UserError(
            f"{place}: takes about {say_budget(seconds)} to look at all pictures once, and the budget is {clock.text}; "
            f"give {say_budget(seconds / MOST)} or more, a smaller teacher, or set objective.answers=view."
        )
