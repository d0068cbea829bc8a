"""What a run folder says about its training: the request, and the configuration that came of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from vitreous.config.train import Training
from vitreous.data.datasets.place import PREFIX
from vitreous.data.shards.opening import is_shards, shards_name
from vitreous.data.source import Data, Source, Split
from vitreous.errors import UserError
from vitreous.inputs import read_json, reason
from vitreous.model.network import Network
from vitreous.storage.files import is_unfinished, write_file
from vitreous.storage.lock import LOCK
from vitreous.storage.overwrite import name_output, real_path
from vitreous.training.pace import Pace
from vitreous.training.request import FitRequest, PretrainRequest, Request, StudentRequest
from vitreous.training.result import FrozenProbe
from vitreous.training.saved import training_from_json, training_to_json
from vitreous.weights.bundle import weights_digest

CONFIG, RESULT, METRICS, REPORT = "config.json", "result.json", "metrics.jsonl", "report.html"
KINDS: dict[type[Request], str] = {
    PretrainRequest: "pretraining",
    StudentRequest: "round of a self-training",
    FitRequest: "training",
}
"""What a run is called by its request, a kind before those that it is derived from."""


@dataclass(frozen=True)
class RunConfig:
    """What a training needs to go on: what was asked for, what became of it, and what the data and weights were."""

    request: Request
    training: Training
    steps: int
    """As planned at first."""
    classes: tuple[str, ...]
    splits: dict[Split, int]
    """How many images each has."""
    digests: dict[Split, str]
    """Of the names and labels of each split's images."""
    weights: str | None = None
    """Digest of the tensors that the training began with; None from scratch."""
    teacher: str | None = None
    """Digest of the model that it learns from; None without one."""
    teacher_flops: float | None = None
    """Floating-point operations that this model takes for an image: they count even when it is gone."""
    probe: FrozenProbe | None = None
    bends: tuple[tuple[int, int], ...] = ()
    """Where the clock changed the pace: from this step on, so many steps in all."""
    parts: dict[Split, int] = field(default_factory=dict)
    """Of splits that there was no time to look at as a whole, how many images are, of a random order that the seed
    gives; of the train split, for the classifier on frozen features."""

    @staticmethod
    def of(request: Request, training: Training, steps: int, data: Data, **more: Any) -> RunConfig:
        """With what the data are now."""
        return RunConfig(request, training, steps, data.classes, count_images(data), digest_splits(data), **more)

    @property
    def pace(self) -> Pace:
        """It is kept to: the same steps as without an interruption, whatever the clock says now."""
        return Pace(self.steps, self.bends)

    def bent(self, bends: Sequence[tuple[int, int]]) -> RunConfig:
        """With the pace bent so."""
        return replace(self, bends=tuple(bends))

    def looking(self, parts: dict[Split, int]) -> RunConfig:
        """With so many images looked at."""
        return replace(self, parts=dict(parts))

    def check_data(self, data: Data, folder: Path) -> None:
        """Refuse to go on with other data than those that the training began with."""
        where = self.request.data
        if data.classes != self.classes:
            raise UserError(f"{where}: its classes have changed since {folder} began; write the run to another folder.")
        now = count_images(data)
        for split in {**self.splits, **now}:
            if self.splits.get(split, 0) != now.get(split, 0):
                raise UserError(
                    f"{where}: has {now.get(split, 0):,} {split} images, and had {self.splits.get(split, 0):,} when "
                    f"{folder} began; bring them back to go on with it, or write the run to another folder."
                )
        for split, digest in digest_splits(data).items():
            if self.digests[split] != digest:
                raise UserError(
                    f"{where}: has other {split} images, or other labels, than when {folder} began; bring those back "
                    "to go on with it, or write the run to another folder."
                )

    def check_weights(self, network: Network, folder: Path) -> None:
        """Refuse to go on from other weights than those that the training began with."""
        if weights_digest(network) != self.weights:
            assert isinstance(self.request, FitRequest)
            raise UserError(
                f"{self.request.weights}: other weights than when {folder} began; bring those back to go on with it, "
                "or write the run to another folder."
            )

    def check_teacher(self, digest: str, place: str, folder: Path) -> None:
        """Refuse to go on with another teacher than the one that the training began with."""
        if digest != self.teacher:
            raise UserError(
                f"{place}: another teacher than when {folder} began; bring that one back to go on with it, or write "
                "the run to another folder."
            )

    def write(self, folder: Path) -> None:
        """Keep it in the run folder."""
        fields = {**asdict(self), "training": training_to_json(self.training)}
        write_file(folder / CONFIG, json.dumps(fields, indent=2) + "\n")


def read_config(folder: Path) -> RunConfig | None:
    """The configuration of a training that was begun here; None if none was."""
    path = folder / CONFIG
    try:
        if not path.exists():
            return None
    except (OSError, ValueError) as error:
        raise UserError(f"{folder}: cannot be read ({reason(error)}); write to another folder.") from None
    fields: dict[str, Any] = read_json(path)
    try:
        asked = fields["request"]
        kind = PretrainRequest if "method" in asked else StudentRequest if "unlabelled" in asked else FitRequest
        request: Request = kind(**asked)
        training = training_from_json(fields["training"], path)
        lists = {"classes": tuple(fields["classes"]), "bends": tuple((a, b) for a, b in fields["bends"])}
        probe = None if fields["probe"] is None else FrozenProbe(**fields["probe"])
        return RunConfig(**{**fields, **lists, "request": request, "training": training, "probe": probe})
    except UserError:
        raise
    except (ValueError, KeyError, TypeError):
        raise UserError(
            f"{path}: damaged, of an older vitreous, or of another program; write to another folder, or move {folder} "
            "away and repeat the command."
        ) from None


def open_run(folder: Path) -> RunConfig | None:
    """The configuration of the training that was begun here; None if the folder is new or empty.

    A folder that holds anything else is refused: a training writes its files over others of the same names. A run that
    was killed before it had a configuration has left a lock, perhaps a file half-written, and nothing that counts.
    """
    if (saved := read_config(folder)) is not None:
        return saved
    try:
        inside = sorted(folder.iterdir()) if folder.is_dir() else []
        others = [path.name for path in inside if not _counts_for_nothing(path)]
    except OSError as error:
        raise UserError(f"{folder}: cannot be read ({reason(error)}); write to another folder.") from None
    if others:
        raise UserError(
            f"{folder}: is not empty (it holds {', '.join(others[:3])}), and no training of vitreous began it; write "
            "to a folder that is new or empty."
        )
    return None


def _counts_for_nothing(path: Path) -> bool:
    """Whether this is all that a training leaves that was killed in its first moments."""
    if path.name == "checkpoints":
        return path.is_dir() and not any(path.iterdir())
    return path.name == LOCK or is_unfinished(path)


def run_place(out: str | Path | None, data: str | Path, name: str) -> Path:
    """The run folder that a person named, or runs/NAME; the data themselves are no place for it."""
    if out is None:
        return Path("runs") / name
    place, images = name_output(out, "run folder"), Path(data)
    if images.is_dir() and real_path(place).is_relative_to(real_path(images)):
        raise UserError(
            f"out {place}: is the folder of the images, or in it, and a run's files would lie among them; write to a "
            "folder elsewhere."
        )
    return place


def check_same_request(saved: RunConfig, request: Request, folder: Path) -> None:
    """Refuse to go on with another request than the one that began the run."""
    if type(request) is not type(saved.request):
        kind = next(name for kind, name in KINDS.items() if isinstance(saved.request, kind))
        raise UserError(f"{folder}: holds a {kind}, which is another kind than this one; write to another folder.")
    ours, theirs = asdict(request), asdict(saved.request)
    if differing := [name for name in ours if ours[name] != theirs[name]]:
        name = differing[0]
        raise UserError(
            f"{folder}: holds a training with {name.replace('_', '-')}={theirs[name]!r}, not {ours[name]!r}; repeat "
            "its command to go on with it, or write the run to another folder."
        )


def make_run_folder(folder: Path) -> None:
    """The folder, with a place for checkpoints."""
    try:
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror}); write to another folder.") from None


def count_images(data: Data) -> dict[Split, int]:
    """How many each split has."""
    return {split: len(source) for split, source in data.splits.items()}


def digest_splits(data: Data) -> dict[Split, str]:
    """Of each split the names and labels of its images, in short."""
    return {split: source_digest(source) for split, source in data.splits.items()}


def source_digest(source: Source) -> str:
    """16 hexadecimal digits that differ if an image's name or label does."""
    digest = hashlib.sha256(source.labels.astype("<i8").tobytes())
    if source.soft is not None:
        digest.update(source.soft.astype("<f4").tobytes())
    for index in range(len(source)):
        digest.update(source.key(index).encode(errors="surrogateescape") + b"\n")
    return digest.hexdigest()[:16]


def records_of(folder: Path) -> list[dict[str, float]]:
    """What a run logged: one record per step, and one per evaluation."""
    path = folder / METRICS
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def run_name(data: str | Path) -> str:
    """What the run folder of these data is called.

    The folder's whole name, a file's without its ending, NAME of data:NAME, or what the names of shards share.
    """
    if isinstance(data, str) and data.startswith(PREFIX):
        return data.removeprefix(PREFIX) or "data"
    if is_shards(data) and not Path(data).is_dir():
        return shards_name(str(data)) or "data"
    place = Path(data).resolve()
    return (place.stem if place.is_file() else place.name) or "data"
