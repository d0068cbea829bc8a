"""The page of a self-training, with the images that a person should look at."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from vitreous.data.decode import ImageError
from vitreous.data.source import Labels, Source
from vitreous.report.rounds import DoubtfulImage, LikelyClass, SelfTrainingContent
from vitreous.report.self_training import SIDE, self_training_page
from vitreous.storage.files import write_file
from vitreous.studies.self_training.folder import SelfTrainResult
from vitreous.studies.self_training.labelling import Labelling
from vitreous.studies.self_training.request import SelfTrainRequest

SHOWN = 24
"""Images of each kind on the page."""
CANDIDATES = 3
"""Classes that are named for each."""


def write_rounds_page(
    path: Path,
    request: SelfTrainRequest,
    result: SelfTrainResult,
    source: Source,
    final: Labelling,
    earlier: Labelling | None,
    compared: int | None,
) -> Path:
    """Write the page.

    final: what the kept model says of the unlabelled images of `source`; earlier: what the teacher of the round
        `compared` said, if another one did.
    """
    changed = final.changed(earlier)
    surest = changed[np.argsort(-final.margins()[changed], kind="stable")]
    doubtful = np.argsort(final.margins(), kind="stable")
    content = SelfTrainingContent(
        name=path.parent.resolve().name,
        place=str(path.parent),
        labelled=str(request.labelled),
        unlabelled=str(request.unlabelled),
        classes=result.classes,
        rounds=result.rounds,
        best=result.best,
        confidence=request.confidence,
        kind=request.labels,
        labelled_count=result.labelled,
        unlabelled_count=result.unlabelled,
        copies=result.copies,
        doubtful=tuple(_shown(doubtful, final, earlier, source, result.classes)),
        doubtful_of=len(final.index),
        changed=tuple(_shown(surest, final, earlier, source, result.classes)),
        changed_of=len(changed),
        compared=compared,
        against_teacher=result.against_teacher,
        notes=result.remarks,
    )
    return write_file(path, self_training_page(content))


def _shown(
    rows: Labels, final: Labelling, earlier: Labelling | None, source: Source, classes: tuple[str, ...]
) -> Iterable[DoubtfulImage]:
    """The first of these images, with the classes that they may be of."""
    before = final.before(earlier)
    for row in rows[:SHOWN].tolist():
        index, shares = int(final.index[row]), final.probabilities[row]
        try:
            image = source.read(index, at_least=SIDE)
        except ImageError:  # damaged since it was labelled
            continue
        best = np.argsort(-shares, kind="stable")[:CANDIDATES].tolist()
        candidates = tuple(LikelyClass(classes[k], float(shares[k])) for k in best)
        other = before[row] >= 0 and before[row] != best[0]
        yield DoubtfulImage(source.name(index), image, candidates, classes[before[row]] if other else None)
