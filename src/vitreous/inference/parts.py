"""Predictions for many images as files in a folder, part by part: each is done once, by whichever process, and is then
a file that is whole, with a record that says so.

Rows have the columns of `vitreous.evaluation.prediction_file`.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vitreous.callbacks import Progress, no_progress
from vitreous.config.fields import from_fields
from vitreous.data.loader import check_unreadable
from vitreous.data.packed import ArraySource
from vitreous.data.source import Source
from vitreous.errors import UserError
from vitreous.evaluation.prediction_file import predicted_columns, prediction_bytes
from vitreous.inference.engine import InferenceModel
from vitreous.inference.memory_needs import check_inference_memory
from vitreous.inference.part_plan import RECORDS, ModelRequest, PartPlan, open_plan
from vitreous.inference.predict import Prediction, named_images, predict_images
from vitreous.inputs import read_json
from vitreous.storage.files import write_file
from vitreous.storage.manifest import sha256_file, sha256_json

if TYPE_CHECKING:
    from vitreous.inference.ray_cluster import Cluster

log = logging.getLogger("vitreous")


@dataclass(frozen=True)
class PredictedParts:
    """What one command added to a folder of predictions."""

    out: Path
    format: str
    parts: int  # of this command's slice of the work
    reused: int  # of these, the parts that were done already
    images: int
    unreadable: dict[str, str]  # path to reason; their rows say it too
    engines: dict[str, int]  # how many of the parts each engine computed, such as {"openvino-int8": 3}

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "out": str(self.out)}


def predict_to_folder(
    out: Path,
    request: ModelRequest,
    sources: Sequence[Source],
    *,
    top: int,
    embed: bool,
    work_slice: tuple[int, int] = (1, 1),
    batch_size: int | None = None,
    cluster: Cluster | None = None,
    progress: Progress = no_progress,
) -> PredictedParts:
    """Do the missing parts of a slice of the work, here or on a cluster.

    work_slice: (i, n) for the ith of n slices, of which each has every nth part.
    """
    plan, model = open_plan(out, request, sources, top, embed)
    folder, (number, of) = PartFolder(out, plan), work_slice
    parts = range(number - 1, plan.parts, of)
    total = sum(min(plan.part_size, plan.images - part * plan.part_size) for part in parts)
    records: list[PartRecord] = []
    unreadable: dict[str, str] = {}
    done = 0

    def add(record: PartRecord) -> None:
        nonlocal done
        records.append(record)
        unreadable.update(record.unreadable)
        check_unreadable(unreadable, total)
        done += record.images
        progress(done, total)

    missing = []
    for part in parts:
        if (record := folder.finished(part, plan.images_of(part, sources))) is not None:
            add(record)
        else:
            missing.append(part)
    reused = len(records)
    if cluster is not None:
        for record in cluster.do(folder, request.preferring(plan.engine, plan.precision), sources, missing, batch_size):
            add(record)
    elif missing:
        worker = PartWorker(folder, model, batch_size)
        for part in missing:
            images = plan.images_of(part, sources)
            add(
                folder.finished(part, images) or worker.do(part, images, lambda count, _: progress(done + count, total))
            )
    engines = dict(Counter(record.engine for record in records if record.engine))
    planned = f"{plan.engine}-{plan.precision}"
    if others := sum(count for engine, count in engines.items() if engine != planned):
        log.info(
            f"engine: {others:,} of {len(parts):,} parts were not computed by {planned}, which was not verified for "
            "this model on the machines that did them."
        )
    return PredictedParts(out, plan.format, len(parts), reused, done, unreadable, engines)


@dataclass(frozen=True)
class PartRecord:
    """What is known of a part that is done."""

    file: str
    bytes: int
    sha256: str
    images: int
    sizes: str  # what `digest_sizes` says of the images: if it says something else now, the part is done again
    unreadable: dict[str, str]  # path to reason
    temporary: bool = False
    """Whether an image could not be read for a reason that may pass: then the next command does the part again."""
    engine: str = ""  # what computed it, such as "openvino-int8"


@dataclass(frozen=True)
class PartFolder:
    """Where the parts of one plan are written, by any number of processes at once."""

    out: Path
    plan: PartPlan

    def finished(self, part: int, images: Sequence[Source]) -> PartRecord | None:
        """The record of a part that is done; None if it is not, if it is damaged, if an image could not be read for a
        reason that may have passed, or if `digest_sizes` of its images is another by now."""
        place = self._record(part)
        if not place.is_file():
            return None
        try:
            record = from_fields(PartRecord, read_json(place), place)
            file = self.out / record.file
            intact = file.stat().st_size == record.bytes and sha256_file(file) == record.sha256
        except (UserError, OSError):  # damaged, or removed
            return None
        if record.temporary:
            return None
        if intact and record.sizes == digest_sizes(images):
            return record
        log.info(f"{file}: {'its images have changed' if intact else 'damaged'} since, so it is done again.")
        return None

    def write(
        self, part: int, predictions: Sequence[Prediction], images: Sequence[Source], computed_by: str
    ) -> PartRecord:
        """Write a part: first its file, then the record that it is done."""
        plan = self.plan
        rows = [one.to_json() for one in predictions]
        content = prediction_bytes(f".{plan.format}", rows, predicted_columns(embed=plan.embed))
        record = PartRecord(
            file=f"part-{part:06d}.{plan.format}",  # names are in the order of the images
            bytes=len(content),
            sha256=sha256(content).hexdigest(),
            images=len(predictions),
            sizes=digest_sizes(images),
            unreadable={one.path: one.error for one in predictions if one.error is not None},
            temporary=any(one.temporary for one in predictions),
            engine=computed_by,
        )
        write_file(self.out / record.file, content)
        write_file(self._record(part), json.dumps(asdict(record), indent=2) + "\n")
        return record

    def _record(self, part: int) -> Path:
        return self.out / RECORDS / f"part-{part:06d}.json"


def digest_sizes(images: Sequence[Source]) -> str:
    """32 hexadecimal digits that differ if the size of an image's file does; of an array, any of its pixels."""
    known = [
        sha256(source.content(index)).hexdigest() if isinstance(source, ArraySource) else source.size(index)
        for source in images
        for index in range(len(source))
    ]
    return sha256_json(known)[:32]


class PartWorker:
    """Does parts, one after the other, with a model that it opened once."""

    def __init__(
        self, folder: PartFolder, model: InferenceModel, batch_size: int | None = None, threads: int | None = None
    ) -> None:
        """threads: that decode images, None for one per core."""
        self.folder, self.model, self.threads = folder, model, threads
        engine = model.engine
        self.batch_size = min(batch_size or engine.batch_size, folder.plan.part_size)
        check_inference_memory(model.config, engine.preprocess, self.batch_size)

    def do(self, part: int, images: Sequence[Source], progress: Progress = no_progress) -> PartRecord:
        plan = self.folder.plan
        for number, source in enumerate(images):
            source.expect(np.arange(len(source), dtype=np.int64), keep_pending=number > 0)
        predictions = predict_images(
            self.model,
            named_images(images),
            sum(map(len, images)),
            top=plan.top,
            batch_size=self.batch_size,
            embed=plan.embed,
            threads=self.threads,
            progress=progress,
        )
        return self.folder.write(part, list(predictions), images, self.model.computed_by)
