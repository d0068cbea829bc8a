"""A teacher: a trained model whose predictions a student learns from, with its classes matched to the data's.

It predicts in every step, or once per image; these predictions are cached with the features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
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
from vitreous.model.network import Network, check_numbers
from vitreous.objectives.distill import image_targets, view_targets
from vitreous.objectives.objective import TeacherTargets
from vitreous.training.deadline import Deadline, format_budget
from vitreous.training.folder import RunConfig
from vitreous.training.image_plan import TIMING_SECONDS
from vitreous.weights.bundle import Bundle, bundle_digest
from vitreous.weights.source import open_weights

MAX_TEACHER_FRACTION = 0.5
"""The fraction of a budget that may be spent when a teacher has predicted all images; the student needs the rest."""


@dataclass(frozen=True)
class Teacher:
    """A frozen network that knows the data's classes, and its preprocessing."""

    place: str  # where it was opened, as given
    network: Network  # in evaluation mode, without gradients
    preprocess: Preprocess
    columns: Tensor  # (K,) int64: for each of the data's classes, the index of the network's output
    digest: str  # 32 hexadecimal digits that differ if its configuration, weights, preprocessing or labels do
    device: torch.device | None = None  # None for the CPU

    def logits(self, images: Tensor) -> Tensor:
        """(B, K) logits of the data's classes, in their order, of images (B, C, H, W) normalised as it has them."""
        with torch.no_grad():
            found: Tensor = self.network(images)[:, self.columns]
        return found


@dataclass(frozen=True)
class MissingTeacher:
    """The teacher of a resumed run that cannot be opened any more; its predictions may still be cached."""

    place: str
    digest: str
    folder: Path  # the run's
    why: str
    device: torch.device | None = None


def open_teacher(place: str | Path, classes: Sequence[str], device: torch.device | None = None) -> Teacher:
    """The model at `place` as a teacher of these classes: all that `open_weights` takes, with a classifier."""
    return teacher_from_bundle(open_weights(place), classes, place, device)


def teacher_from_bundle(
    bundle: Bundle, classes: Sequence[str], place: str | Path, device: torch.device | None = None
) -> Teacher:
    if not bundle.model.config.classes:
        raise UserError(
            f"{place}: it has no classifier and so nothing to teach; train one first: vitreous fit DATA --weights "
            "TEACHER."
        )
    columns = match_classes(bundle.labels, classes, place)
    network = bundle.model.eval().requires_grad_(False)
    for (
        parameter
    ) in network.parameters():  # memory-mapped tensors are not aligned, and kernels round differently on them
        parameter.data = parameter.data.clone()
    digest = bundle_digest(bundle)
    return Teacher(str(place), network.to(device), bundle.preprocess, columns.to(device), digest, device)


def reopen_teacher(
    place: str, classes: Sequence[str], saved: RunConfig, folder: Path, device: torch.device | None = None
) -> Teacher | MissingTeacher:
    """The same for a resumed run; any other teacher than its own is refused."""
    assert saved.teacher is not None
    try:
        bundle = open_weights(place)
    except UserError as error:
        return MissingTeacher(place, saved.teacher, folder, str(error), device)
    saved.check_digest("teacher", bundle_digest(bundle), place, folder)
    return teacher_from_bundle(bundle, classes, place, device)


def require_teacher(teacher: Teacher | MissingTeacher, why: str) -> Teacher:
    """The teacher, or an error that it is missing. why: what it is needed for."""
    if isinstance(teacher, Teacher):
        return teacher
    raise UserError(
        f"{teacher.place}: the teacher of {teacher.folder}, and {why}; bring it back to go on "
        f"({teacher.why.rstrip('.')})."
    )


def match_classes(labels: Sequence[str], classes: Sequence[str], place: object = "the teacher") -> Tensor:
    """(K,) int64: the index of each class among a teacher's labels, by name."""
    columns: dict[str, list[int]] = {}
    for column, label in enumerate(labels):
        columns.setdefault(label, []).append(column)
    if missing := [name for name in classes if name not in columns]:
        unknown = f"{missing[0]!r}" + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
        known = ", ".join(labels[:8]) + (", ..." if len(labels) > 8 else "")
        raise UserError(
            f"{place}: does not know the class {unknown}, which the data have (its {len(labels):,} classes: {known}); "
            "give a teacher of the same classes, or name its classes: vitreous import TEACHER --labels FILE."
        )
    if shared := [name for name in classes if len(columns[name]) > 1]:
        raise UserError(
            f"{place}: calls more than one of its classes {shared[0]!r}, so nobody can tell which one the data mean; "
            "give each a name of its own: vitreous import TEACHER --labels FILE."
        )
    return torch.tensor([columns[name][0] for name in classes], dtype=torch.long)


def predict_batches(
    teacher: Teacher,
    source: Source,
    predict: Callable[[Tensor], Tensor],
    workers: int,
    deadline: Deadline | None = None,
    callbacks: Callbacks | None = None,
    *,
    preprocess: Preprocess | None = None,
    unreadable_limit: float | None = 1.0,
    advice: str = "or a smaller teacher",
) -> Iterator[tuple[Tensor, Tensor]]:
    """(B,) int64 indices of images and (B, ...) the output of `predict`, batch by batch, on the CPU.

    Images that cannot be read are left out. predict: of (B, C, H, W) on the teacher's device, normalised by
    `preprocess`, which is the teacher's own if None is given. Refused if less than half of the budget would be left
    for the student; advice: the end of the message "give 10m or more, ...".
    """
    began, done = 0.0 if deadline is None else deadline.now(), 0
    loader = Loader(
        source,
        preprocess or teacher.preprocess,
        batch_size=inference_batch(teacher.network.config),
        workers=workers,
        cache_bytes=0,
        unreadable_limit=unreadable_limit,
        device=teacher.device,
    )
    with closing(loader):
        for batch in loader.batches():
            predictions = predict(batch.images).float().cpu()
            check_numbers(predictions, "scores", Path(teacher.place))
            yield batch.index, predictions
            done += len(batch.index)
            if callbacks is not None:
                callbacks.progress("the teacher looks at the training images", done, len(source))
            if deadline is None or (taken := deadline.now() - began) < TIMING_SECONDS:
                continue
            left = taken / done * (len(source) - done)
            if left and (end := deadline.now() + left) > MAX_TEACHER_FRACTION * deadline.seconds:
                raise UserError(
                    f"budget {deadline.text}: the teacher {teacher.place} needs about {left:.0f} s more to look at all "
                    "images once, which leaves too little time to learn from it; give "
                    f"{format_budget(end / MAX_TEACHER_FRACTION)} or more, {advice}."
                )


def teacher_predictions(
    teacher: Teacher | MissingTeacher,
    training: Training,
    source: Source,
    workers: int,
    deadline: Deadline | None,
    callbacks: Callbacks,
) -> TeacherTargets:
    """The teacher itself, or its logits (n, K) for each image as evaluation sees it; zeros for unreadable ones."""
    assert isinstance(training.objective, Distill)
    if training.objective.answers == "view":
        here = require_teacher(teacher, "it is asked in every step")
        return view_targets(here.logits, here.preprocess, training.preprocess)
    cache = FeatureCache()
    key = logits_key(teacher.digest, source, partial(callbacks.progress, "reading the training images"))
    if (stored := cache.get(key)) is None:
        here = require_teacher(teacher, "its answers are not kept any more")
        count, classes = len(source), len(here.columns)
        check_memory(4 * count * classes, f"a teacher's answers for {count:,} images", "set objective.answers=view")
        logits = torch.zeros(count, classes)
        advice = "a smaller teacher, or set objective.answers=view"
        for index, found in predict_batches(here, source, here.logits, workers, deadline, callbacks, advice=advice):
            logits[index] = found
        stored = StoredFeatures(logits, torch.arange(count))
        cache.put(key, stored)
    for remark in cache.remarks:
        callbacks.message(remark)
    return image_targets(stored.features.to(teacher.device))
