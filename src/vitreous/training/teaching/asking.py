"""A teacher asked about many images, each once, as long as enough time is left for whoever learns from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from vitreous.callbacks import Callbacks
from vitreous.config.data import Preprocess
from vitreous.data.loader import Loader
from vitreous.data.source import Source
from vitreous.errors import UserError
from vitreous.model.family import inference_batch
from vitreous.model.network import check_numbers
from vitreous.training.deadline import Deadline, format_budget
from vitreous.training.image_plan import TIMING_SECONDS
from vitreous.training.teaching.teacher import Teacher

MOST = 0.5
"""The share of a budget that may be gone when a teacher has looked at all images; the student needs the rest."""


@dataclass(frozen=True)
class Asking:
    """How a teacher is asked: by whom, until when, and what to do where the time is too short for it."""

    workers: int
    deadline: Deadline | None = None
    callbacks: Callbacks = field(default_factory=Callbacks)
    advice: str = "or a smaller teacher"
    """Ends the sentence "give 10m or more, ..."."""


def ask(
    teacher: Teacher,
    source: Source,
    answer: Callable[[Tensor], Tensor],
    how: Asking,
    *,
    preprocess: Preprocess | None = None,
    unreadable_limit: float | None = 1.0,
) -> Iterator[tuple[Tensor, Tensor]]:
    """(B,) int64 numbers of images and (B, ...) what `answer` says of them, batch by batch, on the processor.

    Images that cannot be read are left out. answer: of (B, C, H, W) on the teacher's device, normalised by
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
            answers = answer(batch.images.to(teacher.device)).float().cpu()
            check_numbers(answers, "scores", Path(teacher.place))
            yield batch.index, answers
            done += len(batch.index)
            how.callbacks.progress("the teacher looks at the training images", done, len(source))
            if how.deadline is not None and (taken := how.deadline.now() - began) >= TIMING_SECONDS:
                check_time(taken / done * (len(source) - done), how.deadline, teacher.place, how.advice)


def check_time(left: float, deadline: Deadline, place: str, advice: str) -> None:
    """Refuse a teacher that needs so many more seconds that too little time remains for the student."""
    if left and (end := deadline.now() + left) > MOST * deadline.seconds:
        raise UserError(
            f"budget {deadline.text}: the teacher {place} needs about {left:.0f} s more to look at all images "
            f"once, which leaves too little time to learn from it; give {format_budget(end / MOST)} or more, {advice}."
        )
