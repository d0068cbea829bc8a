"""Token labels for a training: the teacher predicts every training image once, and its score maps are stored."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from vitreous.callbacks import Callbacks
from vitreous.config.data import Preprocess
from vitreous.config.fields import from_fields
from vitreous.config.model import ViTConfig
from vitreous.config.objective import Distill, TokenLabel
from vitreous.config.train import Training
from vitreous.data.loader import Loader
from vitreous.data.rng import balanced_order
from vitreous.data.source import Source
from vitreous.data.token_labels import ScoreMaps, TokenLabels
from vitreous.errors import UserError
from vitreous.evaluation.score_maps import Digest, MapStore, StoredMaps, image_digest, image_digests, region_logits
from vitreous.inputs import read_json
from vitreous.objectives.objective import TeacherTargets
from vitreous.storage.files import write_file
from vitreous.training.deadline import Deadline
from vitreous.training.teaching.teacher import (
    MissingTeacher,
    Teacher,
    predict_batches,
    require_teacher,
    teacher_predictions,
)

EXAMPLES = "token-labels.json"
MAX_SHOWN_IMAGES = 8  # training images whose token labels a page shows


def prepare_teacher_targets(
    teacher: Teacher | MissingTeacher,
    training: Training,
    loader: Loader,
    workers: int,
    deadline: Deadline | None,
    callbacks: Callbacks,
) -> TeacherTargets | None:
    """The teacher's targets, in every step or once per image; None for token labels, which the loader gets."""
    objective, images, world = training.objective, loader.source, loader.world
    if not isinstance(objective, Distill | TokenLabel):
        return None
    callbacks.message(f"Learning from {teacher.place} too: {objective.description}.")
    how = (workers, deadline, callbacks)
    if isinstance(objective, Distill):
        return teacher_predictions(teacher, training, images, *how)
    if world.size > 1:  # each process makes its slice, which is stored for all
        own = images.subset(range(len(images))[world.rank_slice(len(images))])
        label_tokens(teacher, training, own, *how)
        world.any_rank(False)  # a barrier
    loader.token_labels = label_tokens(teacher, training, images, *how)
    return None


def label_tokens(
    teacher: Teacher | MissingTeacher,
    training: Training,
    source: Source,
    workers: int,
    deadline: Deadline | None,
    callbacks: Callbacks,
) -> TokenLabels:
    objective, model = training.objective, training.model
    assert isinstance(objective, TokenLabel)
    assert isinstance(model, ViTConfig)
    store = MapStore.of(teacher.digest, source.classes, objective.top)
    digests = image_digests(source, partial(callbacks.progress, "reading the training images"))
    known = store.index(partial(callbacks.progress, "reading the token labels that are kept"))
    new = {digest: index for index, digest in enumerate(digests) if digest is not None and digest not in known}
    if new:
        here = require_teacher(teacher, "not all of its token labels are kept any more")
        made = len(set(digests) - {None}) - len(new)
        more = f" ({made:,} more are known already)" if made else ""
        callbacks.message(f"Token labels: {teacher.place} looks at {len(new):,} training images once{more}.")
        found = _score_places(here, source.subset(list(new.values())), list(new), workers, deadline, callbacks)
        known |= store.write(found)
        # a file that can be read but not decoded is no image, and is stored as such
        tried = {digest: index for digest, index in new.items() if digest not in known}
        known |= store.write_unreadable([key for key, index in tried.items() if image_digest(source, index) == key])
    for remark in store.remarks:
        callbacks.message(remark)
    maps = StoredMaps(known, digests, len(source.classes), source.name)
    return TokenLabels(maps, model.patch, reflected=training.augment.crop_scale is None)


def whole_view(preprocess: Preprocess) -> Preprocess:
    """The teacher's view of a whole image, stretched to its input size: crops may lie anywhere in the image."""
    return replace(preprocess, resize="stretch", crop=1.0)


def _score_places(
    teacher: Teacher,
    source: Source,
    digests: Sequence[Digest],
    workers: int,
    deadline: Deadline | None,
    callbacks: Callbacks,
) -> Iterator[tuple[list[Digest], Tensor]]:
    """Digests and scores (B, h, w, K) of all images that can be read, batch by batch."""

    def predict(images: Tensor) -> Tensor:
        return region_logits(teacher.network, images)[..., teacher.columns]

    view, advice = whole_view(teacher.preprocess), "or a smaller teacher; what it has said so far is kept"
    found = predict_batches(
        teacher, source, predict, workers, deadline, callbacks, preprocess=view, unreadable_limit=None, advice=advice
    )
    for index, scores in found:
        yield [digests[number] for number in index.tolist()], scores


@dataclass(frozen=True)
class TokenLabelExample:
    """A training image and the teacher's prediction for each patch."""

    image: str  # its name
    classes: list[list[int]]  # (h, w) most probable class
    shares: list[list[float]]  # (h, w) its probability


def write_examples(folder: Path, maps: ScoreMaps, source: Source, seed: int) -> None:
    """Keep a handful of training images with their token labels for the run's page."""
    found = []
    for index in balanced_order(source.labels, seed)[:MAX_SHOWN_IMAGES].tolist():
        try:
            likeliest = maps.read(torch.tensor([index]))[0].max(dim=-1)
        except UserError:  # it could not be read
            continue
        shares = [[round(share, 4) for share in row] for row in likeliest.values.tolist()]
        found.append(TokenLabelExample(source.name(index), likeliest.indices.tolist(), shares))
    write_file(folder / EXAMPLES, json.dumps({"images": [asdict(one) for one in found]}) + "\n")


def read_examples(folder: Path) -> tuple[TokenLabelExample, ...]:
    """The examples of `write_examples`; none if the file is missing or damaged."""
    path = folder / EXAMPLES
    try:
        kept = read_json(path)
        images = kept.get("images") if isinstance(kept, dict) else None
        return tuple(from_fields(TokenLabelExample, one, path) for one in images) if isinstance(images, list) else ()
    except UserError:
        return ()
