"""The page of a self-training: how each round does, which labels it took, and which images to look at by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

import numpy as np
from PIL import Image

from vitreous.data.decode import ImageError
from vitreous.data.source import Labels, Source
from vitreous.report.html import render
from vitreous.studies.requests import SelfTrainRequest
from vitreous.studies.self_train.labelling import Labelling
from vitreous.studies.self_train.result import RoundLabels, SelfTrainResult

IMAGE_SIDE = 200  # pixels of the longer side of an image
SHOWN_IMAGES = 24  # of each kind on the page
SHOWN_CLASSES = 3  # that are named for each image
MAX_OPEN_CLASSES = 60  # whose labels are listed at once; of more, when the reader asks


@dataclass(frozen=True)
class UncertainImage:
    """An image whose label a person should look at."""

    name: str
    image: Image.Image
    candidates: tuple[tuple[str, float], ...]  # classes with their probabilities, the likeliest first
    before: str | None = None  # the class that an earlier teacher gave it, if it was another

    @property
    def file(self) -> str:
        return PurePath(self.name).name


def rounds_page(
    folder: Path,
    request: SelfTrainRequest,
    result: SelfTrainResult,
    source: Source,
    final: Labelling,
    earlier: Labelling | None,
    compared: int | None,
) -> str:
    """The page.

    final: what the kept model predicts of the unlabelled images of `source`; earlier: what the teacher of the round
        `compared` predicted, if another one did.
    """
    changed = final.changed(earlier)
    most_confident = changed[np.argsort(-final.margins()[changed], kind="stable")]
    uncertain = np.argsort(final.margins(), kind="stable")
    uncertain_images, changed_images = (
        tuple(_read_images(rows, final, earlier, source, result.classes)) for rows in (uncertain, most_confident)
    )
    name, count = folder.resolve().name, len(final.index)
    return self_training_page(name, str(folder), request, result, count, uncertain_images, changed_images, compared)


def self_training_page(
    name: str,
    place: str,
    request: SelfTrainRequest,
    result: SelfTrainResult,
    final_labels: int,
    uncertain: Sequence[UncertainImage],
    changed: Sequence[UncertainImage],
    compared: int | None,
) -> str:
    """The page of a finished self-training.

    place: the folder as a person would write it in a command. final_labels: images that the kept model labelled.
    compared: the round of the teacher that `changed` are about; None where the only one is the kept model itself.
    """
    labels = {one.number: one.labels for one in result.rounds if one.labels is not None}
    return render(
        "self_training.html",
        name=name,
        place=place,
        request=request,
        result=result,
        students=len(result.rounds) - 1,
        final_labels=final_labels,
        uncertain=uncertain,
        changed=changed,
        compared=compared,
        changes=[f"round {k}: {one.changed:,}" for k, one in labels.items() if one.changed is not None],
        label_rounds=[f"round {k}" for k in labels],
        taken=[(label, *(_taken(one, label) for one in labels.values())) for label in result.classes] if labels else [],
        max_open_classes=MAX_OPEN_CLASSES,
        side=IMAGE_SIDE,
    )


def _taken(labels: RoundLabels, label: str) -> str:
    taken, copies = labels.taken[label], labels.with_copies[label]
    often = f" × {copies / taken:.2g}" if copies > taken else ""
    return f"{taken:,} of {labels.sure[label]:,}{often}"


def _read_images(
    rows: Labels, final: Labelling, earlier: Labelling | None, source: Source, classes: tuple[str, ...]
) -> Iterable[UncertainImage]:
    """The first of these images, with the classes that they may be of."""
    before = final.before(earlier)
    for row in rows[:SHOWN_IMAGES].tolist():
        index, probabilities = int(final.index[row]), final.probabilities[row]
        try:
            image = source.read(index, at_least=IMAGE_SIDE)
        except ImageError:  # damaged since it was labelled
            continue
        best = np.argsort(-probabilities, kind="stable")[:SHOWN_CLASSES].tolist()
        candidates = tuple((classes[k], float(probabilities[k])) for k in best)
        other = before[row] >= 0 and before[row] != best[0]
        yield UncertainImage(source.name(index), image, candidates, classes[before[row]] if other else None)
