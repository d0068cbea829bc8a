"""Token labels for a training: the teacher is asked about every training picture once, and what it says is kept."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import torch

from vitreous.config.data import Preprocess
from vitreous.config.model import ViTConfig
from vitreous.config.objective import TokenLabel
from vitreous.config.train import Training
from vitreous.data.loader import Loader
from vitreous.data.source import Source
from vitreous.data.token_labels import ScoreMaps, TokenLabels
from vitreous.errors import UserError
from vitreous.evaluate.feature_cache import default_folder
from vitreous.evaluate.places import place_scores
from vitreous.evaluate.score_maps import FORMAT, Digest, MapStore, StoredMaps, picture_digests
from vitreous.inputs import read_json
from vitreous.model.family import inference_batch
from vitreous.run.clock import TELLING, Clock
from vitreous.run.looking import class_by_class
from vitreous.run.stages import say_budget
from vitreous.run.teacher import MissingTeacher, Teacher, present
from vitreous.weights.files import write_file

EXAMPLES = "token-labels.json"
SHOWN = 8
"""Training pictures whose token labels a page shows."""
SAID = 15.0
"""Seconds between two sentences about how far it is."""
MOST = 0.5
"""The share of a budget that may be gone when all token labels are made; the student needs the rest."""


def label_tokens(
    teacher: Teacher | MissingTeacher,
    source: Source,
    training: Training,
    *,
    workers: int,
    say: Callable[[str], None],
    clock: Clock | None,
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
        say(f"Token labels: {teacher.place} looks at {len(missing):,} training pictures once{known}.")
        making = _Making(here, source, missing, digests, workers, _Progress(len(missing), say, clock))
        store.write(making.batches())
        maps = StoredMaps(store, digests, source.name)
    store.touch()
    for remark in store.remarks:
        say(remark)
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


@dataclass(frozen=True)
class _Making:
    """The pictures that a teacher has yet to look at."""

    teacher: Teacher
    source: Source
    missing: list[int]
    digests: Sequence[Digest | None]
    workers: int
    progress: _Progress

    def batches(self) -> Iterator[tuple[list[Digest], torch.Tensor]]:
        """Digests and scores (B, h, w, K), batch by batch."""
        network, columns = self.teacher.network, self.teacher.columns
        loader = Loader(
            self.source.subset(self.missing),
            whole_view(self.teacher.preprocess),
            batch_size=inference_batch(network.config),
            workers=self.workers,
            unreadable_limit=1.0,
            cache_bytes=0,
        )
        with closing(loader):
            for batch in loader.batches():
                scores = place_scores(network, batch.images.to(columns.device))[..., columns].cpu()
                known = [self.digests[self.missing[number]] for number in batch.index.tolist()]
                yield [digest for digest in known if digest is not None], scores
                self.progress.add(len(known))


class _Progress:
    """Says now and then how far it is; ends what cannot be done within a budget."""

    def __init__(self, count: int, say: Callable[[str], None], clock: Clock | None) -> None:
        self.count, self.say, self.clock = count, say, clock
        self.done, self.began = 0, time.monotonic()
        self.said = self.began

    def add(self, done: int) -> None:
        """So many pictures more."""
        self.done += done
        now = time.monotonic()
        left = (now - self.began) / self.done * (self.count - self.done)
        if self.clock is not None and now - self.began >= TELLING:
            self._check(left, self.clock)
        if now - self.said > SAID:
            self.said = now
            self.say(f"Token labels: {self.done:,} of {self.count:,} pictures, about {left:.0f} s left.")

    def _check(self, left: float, clock: Clock) -> None:
        if left and clock.now() + left > MOST * clock.deadline:
            enough = say_budget((clock.now() + left) / MOST + 5)
            raise UserError(
                f"budget {clock.text}: the teacher needs about {left:.0f} s more for its token labels, which leaves "
                f"too little time to learn them; give {enough} or more. What it has said so far is kept."
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
