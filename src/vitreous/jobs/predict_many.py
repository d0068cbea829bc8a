"""`vitreous predict --out`: what is on millions of images, in parts that are each done once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from vitreous.arguments import Count, Merge, Part, checked
from vitreous.config.data import Preprocess
from vitreous.config.engine import EngineChoice, Precision
from vitreous.data.source import Source
from vitreous.data.unreadable import check_unreadable
from vitreous.inference.opening import check_found, open_all
from vitreous.inference.prediction.answers import Progress
from vitreous.inference.prediction.cluster import Cluster, open_cluster, require_ray
from vitreous.inference.prediction.parts import IdentifiedModel, ModelRequest, PartFolder, PartRecord, PartWorker
from vitreous.inference.prediction.plan import (
    Format,
    Plan,
    Share,
    check_plan,
    choose_part_size,
    create_plan,
    cut_out,
    digest_names,
    read_plan,
)
from vitreous.inference.prediction.table import choose_format
from vitreous.storage.overwrite import output_folder


@dataclass(frozen=True)
class PredictedParts:
    """What one command added to a folder of answers."""

    out: Path
    format: Format
    parts: int
    """Of this command's share."""
    kept: int
    """Of these, the parts that were done already."""
    images: int
    unreadable: dict[str, str]
    """Path to reason; their rows say it too."""


@checked
def predict_many(
    model: str | Path,
    images: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    embed: bool = False,
    part: Part | None = None,
    ray: bool | str = False,
    top: Count = 5,
    batch_size: Count | None = None,
    preprocess: Preprocess | str | None = None,
    engine: EngineChoice = "auto",
    precision: Precision | None = None,
    merge: Merge | None = None,
    progress: Progress | None = None,
) -> PredictedParts:
    """Write what the model says of all images into files of a folder, one row per image, in their order.

    The files are Parquet where pyarrow is installed, else JSON lines. Each is complete or not there, and one that is
    there is not made again: repeat the command to go on after an interruption.

    model: a bundle, a run, an exported model, or anything else that `open_weights` takes, by its path.
    images: files of images, folders, or any other data that `open_data` takes; several too.
    out: the folder; one that holds answers of another model, of other images or with other settings is refused.
    embed: add each image's representation, which a model without a classifier has too.
    part: "3/8" does the third of eight shares; eight processes may do theirs at once, on several machines.
    ray: True does it on all processors or GPUs of a Ray cluster, or of this machine where there is none; or the
        cluster's address.
    top: how many labels to give for each.
    engine, precision, merge: as `predict` has them; what "auto" finds is kept for whoever goes on.
    progress: called with images done and images in all, of this share.
    """
    if ray:
        require_ray()
    share = Share.parse(part) if part is not None else Share()
    out = output_folder(out).absolute()  # a worker may be in another folder
    sources = _open(images)
    read_plan(out)  # refuses a folder that is somebody else's before anything large is opened
    path = Path(model)
    given = str(path.absolute()) if path.exists() else str(model)
    request = ModelRequest(given, engine, precision, preprocess, merge, classifier=not embed)
    if ray:
        request.open()  # what is wrong with the model is said before a cluster is waited for
    with open_cluster(ray if isinstance(ray, str) else None) if ray else nullcontext() as cluster:
        if cluster is not None and cluster.gpus and read_plan(out) is None:
            request = request.preferring("torch", "fp32")
        agreed = _agree(out, request, sources, top, embed)
        return _do_share(agreed, PartFolder(out, agreed.plan), share, sources, batch_size, cluster, progress)


def _do_share(
    agreed: _Agreed,
    folder: PartFolder,
    share: Share,
    sources: Sequence[Source],
    batch_size: int | None,
    cluster: Cluster | None,
    progress: Progress | None,
) -> PredictedParts:
    """Do what is missing of a share, here or on the cluster."""
    plan = agreed.plan
    parts = {number: cut_out(sources, plan.range_of(number)) for number in plan.parts_of(share)}
    records = {number: record for number in parts if (record := folder.finished(number, parts[number])) is not None}
    missing = {number: images for number, images in parts.items() if number not in records}
    work = _Work(sum(len(plan.range_of(number)) for number in parts), progress)
    for record in records.values():
        work.add(record)
    if cluster is not None:
        for record in cluster.do(folder, agreed.request, sources, list(missing), batch_size):
            work.add(record)
    elif missing:
        worker = PartWorker(folder, agreed.model, batch_size)
        for number, images in missing.items():
            work.add(folder.finished(number, images) or worker.do(number, images, work.within))
    return PredictedParts(folder.out, plan.format, len(parts), len(records), work.images, work.unreadable)


def _open(images: str | Path | Sequence[str | Path]) -> list[Source]:
    sources: list[Source] = []
    notes: list[str] = []
    for place in [images] if isinstance(images, str | Path) else images:
        found, remarks = open_all(place)
        sources += found
        notes += remarks
    check_found(sum(map(len, sources)), notes)
    return sources


class _Agreed(NamedTuple):
    """What this process does as all others do that write to the folder."""

    request: ModelRequest
    plan: Plan
    model: IdentifiedModel


def _agree(out: Path, asked: ModelRequest, sources: Sequence[Source], top: int, embed: bool) -> _Agreed:
    """Open the model as the folder's plan says, where there is one, or make one."""
    there, images = read_plan(out), sum(map(len, sources))
    if there is not None:
        asked = asked.preferring(there.engine, there.precision)
    opened = asked.open(images)
    engine = opened.deployed.engine
    plan = Plan(
        model=opened.digest,
        preprocess=engine.preprocess,
        engine=engine.name,
        precision=engine.precision,
        merge=asked.merge,
        top=top,
        embed=embed,
        format=choose_format() if there is None else there.format,
        images=images,
        names=digest_names(sources),
        part_size=choose_part_size(images),
    )
    if there is not None:
        check_plan(out, there, plan)
    elif not create_plan(out, plan):  # another process was faster
        return _agree(out, asked, sources, top, embed)
    return _Agreed(replace(asked, engine=engine.name, precision=engine.precision), there or plan, opened)


@dataclass
class _Work:
    """What is done of a share; too many unreadable images are refused as soon as they are known."""

    total: int
    progress: Progress | None
    images: int = 0

    def __post_init__(self) -> None:
        self.unreadable: dict[str, str] = {}

    def add(self, record: PartRecord) -> None:
        """One more part is done."""
        self.images += record.images
        self.unreadable |= record.unreadable
        check_unreadable(self.unreadable, self.total)
        self.within(0, 0)

    def within(self, done: int, _: int) -> None:
        """So many images of the next part are done."""
        if self.progress is not None:
            self.progress(self.images + done, self.total)
