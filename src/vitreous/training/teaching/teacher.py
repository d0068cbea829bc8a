"""A teacher: a trained model that a student learns from, opened and matched to the data's classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from vitreous.config.data import Preprocess
from vitreous.errors import UserError
from vitreous.model.network import Network
from vitreous.training.folder import RunConfig
from vitreous.weights.bundle import Bundle, bundle_digest
from vitreous.weights.source import open_weights


@dataclass(frozen=True)
class Teacher:
    """A frozen network that knows the data's classes, and how it wants to see images."""

    place: str  # where it was opened, as the person wrote it
    network: Network  # in evaluation mode; none of its parameters wants a gradient
    preprocess: Preprocess
    columns: Tensor  # (K,) int64: for each of the data's classes, which of the network's outputs it is
    digest: str  # 32 hexadecimal digits that differ if its configuration, weights, preprocessing or labels do

    device: torch.device | None = None  # where it computes; None: on the processor

    def logits(self, images: Tensor) -> Tensor:
        """(B, K) logits of the data's classes, in their order, of images (B, C, H, W) normalised as it has them."""
        with torch.no_grad():
            found: Tensor = self.network(images)[:, self.columns]
        return found


@dataclass(frozen=True)
class MissingTeacher:
    """The teacher of a run that goes on, where it cannot be opened any more: what it said may still be known."""

    place: str
    digest: str
    folder: Path  # the run's
    why: str
    device: torch.device | None = None


def open_teacher(place: str | Path, classes: Sequence[str], device: torch.device | None = None) -> Teacher:
    """The model at `place` as a teacher of these classes: all that `open_weights` takes, with a classifier."""
    return teacher_of(open_weights(place), classes, place, device)


def teacher_of(
    bundle: Bundle, classes: Sequence[str], place: str | Path, device: torch.device | None = None
) -> Teacher:
    if not bundle.model.config.classes:
        raise UserError(
            f"{place}: it has no classifier and so nothing to teach; train one first: vitreous fit DATA --weights "
            "TEACHER."
        )
    columns = match_classes(bundle.labels, classes, place)
    network = bundle.model.eval().requires_grad_(False)
    for parameter in network.parameters():  # mapped memory is not aligned, and rounds differently than a copy of it
        parameter.data = parameter.data.clone()
    digest = bundle_digest(bundle)
    return Teacher(str(place), network.to(device), bundle.preprocess, columns.to(device), digest, device)


def reopen_teacher(
    place: str, classes: Sequence[str], saved: RunConfig, folder: Path, device: torch.device | None = None
) -> Teacher | MissingTeacher:
    """The same for a run that goes on; a teacher other than its own is refused, whatever it knows."""
    assert saved.teacher is not None
    try:
        bundle = open_weights(place)
    except UserError as error:
        return MissingTeacher(place, saved.teacher, folder, str(error), device)
    saved.check_teacher(bundle_digest(bundle), place, folder)
    return teacher_of(bundle, classes, place, device)


def present(teacher: Teacher | MissingTeacher, why: str) -> Teacher:
    """The teacher, or a sentence that it is gone. why: what it is needed for."""
    if isinstance(teacher, Teacher):
        return teacher
    raise UserError(
        f"{teacher.place}: the teacher of {teacher.folder}, and {why}; bring it back to go on "
        f"({teacher.why.rstrip('.')})."
    )


def match_classes(labels: Sequence[str], classes: Sequence[str], place: object = "the teacher") -> Tensor:
    """(K,) int64: where each of the classes is among a teacher's labels, by its name."""
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
