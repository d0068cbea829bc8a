"""How a large prediction is divided into parts, and what all processes that work on it must agree on.

The images have a fixed order, and each part is a number of them in a row. So any number of processes, one after the
other or at once, can do whichever parts are missing.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from vitreous.arguments import Count, Precision
from vitreous.config.data import Preprocess
from vitreous.config.fields import from_fields
from vitreous.data.source import Source
from vitreous.errors import UserError
from vitreous.inference.engine import InferenceModel
from vitreous.inference.engine_cache import EngineCache
from vitreous.inference.engine_folder import is_engine
from vitreous.inference.engines import Variant
from vitreous.inference.opening import open_engine, open_model
from vitreous.inputs import parse_json, read_text
from vitreous.storage.files import create_file
from vitreous.storage.manifest import MANIFEST, sha256_file
from vitreous.storage.overwrite import GENERATOR, output_folder
from vitreous.weights.bundle import bundle_digest

log = logging.getLogger("vitreous")

FileFormat = Literal["parquet", "jsonl"]

PLAN_READS, PLAN_READ_SECONDS = 20, 0.1  # how often, and at which interval, a plan that is not whole yet is read again
RECORDS = "_vitreous"
"""The folder of plan and records within that of the files. Readers of a whole folder of Parquet files skip names with
an underscore."""
PLAN = "plan.json"
MIN_PART_IMAGES, MAX_PART_IMAGES = 64, 4096
"""Few enough that little is lost with a process, and many enough that there are not too many files."""
PREFERRED_PARTS = 256  # while they are neither too small nor too large: enough for many workers


@dataclass(frozen=True)
class PartPlan:
    """What the predictions in one folder follow from, and how they are divided."""

    model: str  # A digest of its weights, its preprocessing and its labels
    preprocess: Preprocess
    engine: str
    precision: Precision
    merge: int | None
    top: Count
    embed: bool
    format: FileFormat
    images: Count
    names: str  # A digest of the names of all images, in their order
    part_size: Count
    generator: str = GENERATOR

    @property
    def parts(self) -> int:
        return math.ceil(self.images / self.part_size)

    def images_of(self, part: int, sources: Sequence[Source]) -> list[Source]:
        first, found = part * self.part_size, []
        for source in sources:
            start, stop = max(first, 0), min(first + self.part_size, len(source))
            if start < stop:
                found.append(source.subset(range(start, stop)))
            first -= len(source)
        return found


def parse_slice(text: str) -> tuple[int, int]:
    """(3, 8) of "3/8": the third of eight equal slices of the work."""
    number, _, of = text.partition("/")
    if number.isascii() and of.isascii() and number.isdigit() and of.isdigit() and 1 <= int(number) <= int(of):
        return int(number), int(of)
    raise UserError(f"part={text!r}: give a slice i/n of the work, from 1/n to n/n, such as 1/8.")


def read_plan(out: Path) -> PartPlan | None:
    """The plan of a folder; None if it is empty or not there. A folder that no prediction wrote is refused."""
    path = output_folder(out) / RECORDS / PLAN
    if path.is_file():
        for _ in range(PLAN_READS):  # on a disk without hard links, it is empty for a moment at first
            if (text := read_text(path)).endswith("\n"):
                break
            time.sleep(PLAN_READ_SECONDS)
        return from_fields(PartPlan, parse_json(text, path), path)
    held = [inside.name for inside in out.iterdir() if inside.name != RECORDS] if out.is_dir() else []
    if held:
        raise UserError(
            f"{out}: is not empty (it holds {', '.join(sorted(held)[:3])}) and no prediction wrote it; choose a folder "
            "that is new or empty."
        )
    return None


DIFFERENCES = {
    "preprocess": "with another preprocessing",
    "engine": "that {stored.engine} computes, not {requested.engine}",
    "precision": "in {stored.precision}, not in {requested.precision}",
    "merge": "with merge={stored.merge}, not {requested.merge}",
    "model": "of another model",
    "top": "with top_k={stored.top}, not {requested.top}",
    "embed": "with embed={stored.embed}, not {requested.embed}",
    "images": "for {stored.images:,} images, and there are {requested.images:,} now",
    "names": "for images with other names or in another order",
}
"""How the predictions in a folder may differ from what is asked for, the most telling difference first."""


@dataclass(frozen=True)
class ModelRequest:
    """How a model is opened, by whichever process."""

    model: str  # its path
    engine: str
    precision: Precision | None
    preprocess: Preprocess | str | None
    merge: int | None
    device: str
    classifier: bool  # refuse a model that has none
    engine_preferred: bool = False
    """The engine is what another process chose, not a person: if its int8 was not verified here, fp32 will do."""

    @property
    def exported(self) -> bool:
        return is_engine(Path(self.model))

    def preferring(self, engine: str, precision: Precision) -> ModelRequest:
        """The same with this engine, unless the person chose one."""
        if self.engine != "auto" or self.precision not in (None, precision) or self.exported:
            return self
        return replace(self, engine=engine, precision=precision, engine_preferred=self.precision is None)

    def open(self, images: int = 1) -> tuple[InferenceModel, str]:
        """The model, ready to be asked about this number of images, and a digest of weights, preprocessing, labels."""
        options: dict[str, Any] = {"engine": self.engine, "precision": self.precision, "classifier": self.classifier}
        if self.exported:
            found = open_engine(self.model, preprocess=self.preprocess, merge=self.merge, **options)
            return found, sha256_file(Path(self.model) / MANIFEST)
        bundle = open_model(self.model, self.preprocess, self.merge)
        int8 = Variant(self.engine, "int8")
        if self.engine_preferred and self.precision == "int8" and EngineCache(bundle).get(int8) is None:
            log.info("engine: int8 was not verified for this model on this processor, so fp32 computes here.")
            options["precision"] = "fp32"
        return open_engine(bundle, device=self.device, images=images, **options), bundle_digest(bundle)


def open_plan(
    out: Path, request: ModelRequest, sources: Sequence[Source], top: int, embed: bool
) -> tuple[PartPlan, InferenceModel]:
    """The folder's plan, written if there is none, and the model opened as it says; other predictions are refused."""
    stored, images = read_plan(out), sum(map(len, sources))
    preferred = request if stored is None else request.preferring(stored.engine, stored.precision)
    model, digest = preferred.open(images)
    engine = model.engine
    names = sha256()
    for source in sources:
        for index in range(len(source)):
            names.update(source.name(index).encode(errors="surrogateescape") + b"\0")
    plan = PartPlan(
        model=digest,
        preprocess=engine.preprocess,
        engine=engine.name,
        # of a preferred engine, the model may have fallen back to fp32
        precision=stored.precision if stored is not None and preferred.engine_preferred else engine.precision,
        merge=request.merge,
        top=top,
        embed=embed,
        format=stored.format if stored is not None else "parquet" if find_spec("pyarrow") is not None else "jsonl",
        images=images,
        names=names.hexdigest(),
        part_size=max(MIN_PART_IMAGES, min(MAX_PART_IMAGES, math.ceil(images / PREFERRED_PARTS))),
    )
    if stored is None:
        if not create_file(out / RECORDS / PLAN, json.dumps(asdict(plan), indent=2) + "\n"):
            return open_plan(out, request, sources, top, embed)  # another process was faster
        return plan, model
    for field, difference in DIFFERENCES.items():
        if getattr(stored, field) != getattr(plan, field):
            raise UserError(
                f"{out}: holds predictions {difference.format(stored=stored, requested=plan)}; repeat the command that "
                "began it, or choose another folder."
            )
    return stored, model
