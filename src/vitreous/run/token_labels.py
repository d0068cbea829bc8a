"""Token labels for a training: the teacher is asked about every training picture once, and what it says is kept."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import torch
from torch import Tensor

from vitreous.config.data import Preprocess
from vitreous.config.model import ViTConfig
from vitreous.config.objective import TokenLabel
from vitreous.config.train import Training
from vitreous.data.loader import Loader
from vitreous.data.source import Source
from vitreous.data.token_labels import ScoreMaps, TokenLabels
from vitreous.deploy.engine import check_numbers
from vitreous.errors import UserError
from vitreous.evaluate.feature_cache import default_folder
from vitreous.evaluate.places import place_scores
from vitreous.evaluate.score_maps import FORMAT, Digest, MapStore, StoredMaps, picture_digests
from vitreous.inputs import read_json
from vitreous.model.family import inference_batch
from vitreous.run.clock import TELLING, Clock
from vitreous.run.looking import class_by_class
from vitreous.run.request import Listeners
from vitreous.run.stages import say_budget
from vitreous.run.teacher import MissingTeacher, Teacher, present
from vitreous.weights.files import write_file

EXAMPLES = "token-labels.json"
SHOWN = 8
"""Training pictures whose token labels a page shows."""
MOST = 0.5
"""The share of a budget that may be gone when all token labels are made; the student needs the rest."""


def label_tokens(
    teacher: Teacher | MissingTeacher,
    training: Training,
    source: Source,
    workers: int,
    clock: Clock | None,
    listeners: Listeners,
) -> TokenLabels:
    """Labels for the patches of these pictures, made as far as they are not there yet."""
    objective, model = training.objective, training.model
    assert isinstance(objective, TokenLabel)
    assert isinstance(model, ViTConfig)
    store = MapStore(_folder(teacher.digest, source.classes, objective.top), len(source.classes), objective.top)
    digests = picture_digests(source)
    maps = StoredMaps(store, digests, source.name)
    if missing := _distinct(maps.missing(), digests):
        here = present(teacher, "not all of its token labels are kept any more")
        made = len(set(digests) - {None}) - len(missing)
        known = f" ({made:,} more are known already)" if made else ""
        listeners.say(f"Token labels: {teacher.place} looks at {len(missing):,} training pictures once{known}.")
        names = [digest for digest in (digests[index] for index in missing) if digest is not None]
        store.write(_scored(here, source.subset(missing), names, workers, clock, listeners))
        maps = StoredMaps(store, digests, source.name)
    store.touch()
    for remark in store.remarks:
        listeners.say(remark)
    return TokenLabels(maps, model.patch, reflected=training.augment.crop_scale is None)


def whole_view(preprocess: Preprocess) -> Preprocess:
    """How a teacher is shown a whole picture: squeezed to its input size, for crops may lie anywhere in the picture."""
    return replace(preprocess, resize="stretch", crop=1.0)


def _folder(teacher: str, classes: Sequence[str], kept: int) -> Path:
    """Where maps of the teacher with this digest are kept, for any data of these classes: beside cached features."""
    facts = json.dumps([FORMAT, teacher, list(classes), kept])
    return default_folder().with_name("token-labels") / sha256(facts.encode()).hexdigest()[:32]


def _distinct(missing: Sequence[int], digests: Sequence[Digest | None]) -> list[int]:
    """One picture of each digest; none of those that cannot be read, which no training sees."""
    found = {digests[index]: index for index in reversed(missing)}
    return sorted(index for digest, index in found.items() if digest is not None)


def _scored(
    teacher: Teacher,
    source: Source,
    digests: Sequence[Digest],
    workers: int,
    clock: Clock | None,
    listeners: Listeners,
) -> Iterator[tuple[list[Digest], Tensor]]:
    """Digests and scores (B, h, w, K) of all pictures that can be read, batch by batch."""
    began, done = 0.0 if clock is None else clock.now(), 0
    loader = Loader(
        source,
        whole_view(teacher.preprocess),
        batch_size=inference_batch(teacher.network.config),
        workers=workers,
        unreadable_limit=1.0,
        cache_bytes=0,
    )
    with closing(loader):
        for batch in loader.batches():
            scores = place_scores(teacher.network, batch.images.to(teacher.device))[..., teacher.columns].cpu()
            check_numbers(scores, "scores", Path(teacher.place))
            yield [digests[number] for number in batch.index.tolist()], scores
            done += len(batch.index)
            listeners.look("the teacher looks at the training pictures", done, len(source))
            if clock is not None and (taken := clock.now() - began) >= TELLING:
                _check_time(taken / done * (len(source) - done), clock)


def _check_time(left: float, clock: Clock) -> None:
    """Refuse to go on where the labels that are left would take so long that too little remains for the student."""
    if left and clock.now() + left > MOST * clock.deadline:
        raise UserError(
            f"budget {clock.text}: the teacher needs about {left:.0f} s more for its token labels, which leaves too "
            f"little time to learn them; give {say_budget((clock.now() + left) / MOST)} or more. What it has said so "
            "far is kept."
        )


@dataclass(frozen=True)
class Taught:
    """A training picture and what the teacher says of its places."""

    picture: str
    """Its name."""
    classes: list[list[int]]
    """(h, w) the likeliest class."""
    shares: list[list[float]]
    """(h, w) its probability."""


def write_examples(folder: Path, maps: ScoreMaps, source: Source, seed: int) -> None:
    """Keep a handful of training pictures with their token labels for the run's page."""
    found = []
    for index in class_by_class(source.labels, seed)[:SHOWN].tolist():
        try:
            likeliest = maps.read(torch.tensor([index]))[0].max(dim=-1)
        except UserError:  # it could not be read
            continue
        shares = [[round(share, 4) for share in row] for row in likeliest.values.tolist()]
        found.append({"picture": source.name(index), "classes": likeliest.indices.tolist(), "shares": shares})
    write_file(folder / EXAMPLES, json.dumps({"pictures": found}) + "\n")


def read_examples(folder: Path) -> tuple[Taught, ...]:
    """What `write_examples` kept; nothing where there is nothing, or nothing that is whole."""
    try:
        return tuple(Taught(**one) for one in read_json(folder / EXAMPLES)["pictures"])
    except (UserError, OSError, ValueError, KeyError, TypeError):
        return ()
