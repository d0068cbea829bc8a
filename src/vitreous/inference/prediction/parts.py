"""The parts of a large prediction: each is done once, and is then a file that is whole, with a record that says so."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vitreous.config.data import Preprocess
from vitreous.config.engine import EngineChoice, EngineName, Precision
from vitreous.config.fields import from_fields
from vitreous.data.packed import ArraySource
from vitreous.data.source import Source
from vitreous.data.view import Sample
from vitreous.errors import UserError
from vitreous.inference.choice import deploy
from vitreous.inference.engine import Deployed
from vitreous.inference.folder import is_engine
from vitreous.inference.needs import check_inference_memory
from vitreous.inference.opening import open_model
from vitreous.inference.prediction.answers import NamedImage, Progress, answer_each
from vitreous.inference.prediction.plan import NOTES, Plan
from vitreous.inference.prediction.table import encode_answers
from vitreous.inputs import read_json
from vitreous.storage.digest import sha256_file, sha256_json
from vitreous.storage.files import write_file
from vitreous.storage.manifest import MANIFEST
from vitreous.weights.bundle import bundle_digest

log = logging.getLogger("vitreous")


@dataclass(frozen=True)
class PartRecord:
    """What is known of a part that is done."""

    file: str
    bytes: int
    sha256: str
    images: int
    sizes: str
    """What `digest_sizes` says of the images: where it says something else now, the part is done again."""
    unreadable: dict[str, str]
    """Path to reason."""


@dataclass(frozen=True)
class PartFolder:
    """Where the parts of one plan are written, by any number of processes at once."""

    out: Path
    plan: Plan

    def finished(self, part: int, images: Sequence[Source]) -> PartRecord | None:
        """The record of a part that is done; None if it is not, or if its file, or `digest_sizes` of its images, is
        another by now."""
        place = self._record(part)
        if not place.is_file():
            return None
        try:
            record = from_fields(PartRecord, read_json(place), place)
            file = self.out / record.file
            whole = file.stat().st_size == record.bytes and sha256_file(file) == record.sha256
        except (UserError, OSError):  # damaged, or removed
            return None
        if whole and record.sizes == digest_sizes(images):
            return record
        log.info(f"{file}: {'its images have changed' if whole else 'damaged'} since, so it is done again.")
        return None

    def keep(self, part: int, content: bytes, images: Sequence[Source], unreadable: dict[str, str]) -> PartRecord:
        """Write a part: first its file, then the record that it is done."""
        record = PartRecord(
            file=self.plan.file_of(part),
            bytes=len(content),
            sha256=sha256(content).hexdigest(),
            images=sum(map(len, images)),
            sizes=digest_sizes(images),
            unreadable=unreadable,
        )
        write_file(self.out / record.file, content)
        write_file(self._record(part), json.dumps(asdict(record), indent=2) + "\n")
        return record

    def _record(self, part: int) -> Path:
        return self.out / NOTES / f"part-{part:06d}.json"


def digest_sizes(images: Sequence[Source]) -> str:
    """32 hexadecimal digits that differ if the size of an image's file does; of an array, any of its pixels."""
    known = [_known(source, index) for source in images for index in range(len(source))]
    return sha256_json(known)[:32]


def _known(source: Source, index: int) -> int | str:
    """What tells an image from another in its place, at little cost: those of an array have all the same size."""
    return sha256(source.content(index)).hexdigest() if isinstance(source, ArraySource) else source.size(index)


class IdentifiedModel(NamedTuple):
    """A model that is ready to be asked, and a digest of it: of its weights, its preprocessing and its labels."""

    deployed: Deployed
    digest: str


@dataclass(frozen=True)
class ModelRequest:
    """How a model is opened, by whichever process."""

    model: str
    """Its path."""
    engine: EngineChoice
    precision: Precision | None
    preprocess: Preprocess | str | None
    merge: int | None
    classifier: bool
    """Refuse a model that has none."""

    @property
    def exported(self) -> bool:
        """Whether it is an exported model, which has its own engine."""
        return is_engine(Path(self.model))

    def preferring(self, engine: EngineName, precision: Precision) -> ModelRequest:
        """The same with this engine, where that is left open; what was asked for stays."""
        if self.engine != "auto" or self.precision not in (None, precision) or self.exported:
            return self
        return replace(self, engine=engine, precision=precision)

    def open(self, images: int = 1) -> IdentifiedModel:
        """The model, ready to be asked about so many images."""
        path, exported = Path(self.model), self.exported
        bundle = None if exported else open_model(self.model, self.preprocess, self.merge)
        deployed = deploy(
            path if bundle is None else bundle,
            engine=self.engine,
            precision=self.precision,
            preprocess=self.preprocess if exported else None,
            merge=self.merge if exported else None,
            images=images,
            classifier=self.classifier,
        )
        return IdentifiedModel(deployed, sha256_file(path / MANIFEST) if bundle is None else bundle_digest(bundle))


class PartWorker:
    """Does parts, one after the other, with a model that it opened once."""

    def __init__(
        self, folder: PartFolder, model: IdentifiedModel, batch_size: int | None = None, threads: int | None = None
    ) -> None:
        """threads: that decode images; None for one per core."""
        self.folder, self.deployed, self.threads = folder, model.deployed, threads
        if model.digest != folder.plan.model:
            raise UserError(f"{self.deployed.path}: not the model that {folder.out} holds answers of; give that one.")
        engine = self.deployed.engine
        self.batch_size = min(batch_size or engine.batch_size, folder.plan.part_size)
        check_inference_memory(self.deployed.config, engine.preprocess, self.batch_size)

    def do(self, part: int, images: Sequence[Source], progress: Progress | None = None) -> PartRecord:
        """Answer for the images of a part, and write it."""
        plan = self.folder.plan
        for number, source in enumerate(images):
            source.expect(np.arange(len(source), dtype=np.int64), besides=number > 0)
        named = [
            NamedImage(source.name(index), Sample(source, index)) for source in images for index in range(len(source))
        ]
        answers = list(
            answer_each(
                self.deployed,
                named,
                top=plan.top,
                batch_size=self.batch_size,
                embed=plan.embed,
                threads=self.threads,
                progress=progress,
            )
        )
        found = [answer.prediction for answer in answers]
        unreadable = {one.path: one.error for one in found if one.error is not None}
        content = encode_answers(answers, plan.format, embed=plan.embed)
        return self.folder.keep(part, content, images, unreadable)
