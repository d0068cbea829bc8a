"""A run folder: its config.json with the request and the configuration, what it may hold, and its lock."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from vitreous.config.data import Augment, Preprocess
from vitreous.config.model import model_to_json
from vitreous.config.train import Optimizer, Training
from vitreous.data.datasets.store import PREFIX
from vitreous.data.shards.opening import is_shards, shards_name
from vitreous.data.source import Data, Source, Split
from vitreous.errors import UserError
from vitreous.inputs import read_json, reason
from vitreous.model.family import config_from_json
from vitreous.objectives.build import objective_from_json, objective_to_json
from vitreous.storage.files import is_unfinished, new_folder, write_file, write_tensors
from vitreous.storage.lock import LOCK, hold_folder
from vitreous.storage.overwrite import check_folder, name_output, readable_errors, real_path
from vitreous.training.checkpoint import has_checkpoint
from vitreous.training.request import FitRequest, PretrainRequest, Request, StudentRequest, comparable
from vitreous.training.result import FrozenProbe
from vitreous.training.step import StepSchedule

CONFIG, RESULT, METRICS, REPORT = "config.json", "result.json", "metrics.jsonl", "report.html"
REQUESTS: dict[str, type[Request]] = {"fit": FitRequest, "student": StudentRequest, "pretrain": PretrainRequest}
"""Kinds of runs, as config.json names them."""


@dataclass(frozen=True)
class DataIdentity:
    """What identifies data."""

    classes: tuple[str, ...]
    splits: dict[Split, int]  # how many images each has
    digests: dict[Split, str]  # of the names, sizes and labels of each split's images

    @staticmethod
    def of(data: Data) -> DataIdentity:
        return DataIdentity(data.classes, count_images(data), digest_splits(data))

    def what_changed(self, now: DataIdentity) -> str | None:
        if now.classes != self.classes:
            return "has other classes than when"
        for split in {**self.splits, **now.splits}:
            if self.splits.get(split, 0) != now.splits.get(split, 0):
                return f"has {now.splits.get(split, 0):,} {split} images, and had {self.splits.get(split, 0):,} when"
        for split, digest in now.digests.items():
            if self.digests[split] != digest:
                return f"has other {split} images, or other labels, than when"
        return None


@dataclass(frozen=True)
class RunConfig:
    """config.json: the request, the training that came of it, and what identifies data and weights."""

    request: Request
    training: Training
    steps: int  # before any replanning
    classes: tuple[str, ...]
    splits: dict[Split, int]  # how many images each has
    digests: dict[Split, str]  # of the names and labels of each split's images
    weights: str | None = None  # digest of the tensors that the training began with; None from scratch
    start: str | None = None  # where these came from: what the request names, or the name that was chosen
    teacher: str | None = None  # digest of the model that it learns from; None without one
    teacher_flops: float | None = None
    """Floating-point operations that this model takes for an image: they count even when it is gone."""
    probe: FrozenProbe | None = None
    replans: tuple[tuple[int, int], ...] = ()
    """Where the deadline changed the number of steps: from this step on, this many in all."""
    subsets: dict[Split, int] = field(default_factory=dict)
    """Of splits that there was no time to look at as a whole, how many images are, of a random order that the seed
    gives; of the train split, for the classifier on frozen features."""

    @staticmethod
    def of(request: Request, training: Training, steps: int, data: Data, **more: Any) -> RunConfig:
        return RunConfig(request, training, steps, data.classes, count_images(data), digest_splits(data), **more)

    @property
    def schedule(self) -> StepSchedule:
        """It is kept to: the same steps as without an interruption, whatever the clock says now."""
        return StepSchedule(self.steps, self.replans)

    def what_changed(self, data: Data) -> str | None:
        return DataIdentity(self.classes, self.splits, self.digests).what_changed(DataIdentity.of(data))

    def check_data(self, data: Data, folder: Path, *, finished: bool = False) -> None:
        """Refuse other data than those of the training."""
        if (change := self.what_changed(data)) is not None:
            then = "was trained;" if finished else "began; bring those back to go on with it,"
            raise UserError(
                f"{self.request.data}: {change} {folder} {then} train anew with --overwrite, or write the run to "
                "another folder (--out)."
            )

    def check_digest(self, what: Literal["weights", "teacher"], digest: str, place: object, folder: Path) -> None:
        """Refuse to resume with other weights, or another teacher."""
        if digest != getattr(self, what):
            other, those = ("other", "those") if what == "weights" else ("another", "that one")
            raise UserError(
                f"{place}: {other} {what} than when {folder} began; bring {those} back to go on with it, or write the "
                "run to another folder."
            )

    def write(self, folder: Path) -> None:
        kind = next(name for name, one in REQUESTS.items() if type(self.request) is one)
        fields = {"kind": kind, **asdict(self), "training": training_to_json(self.training)}
        write_file(folder / CONFIG, json.dumps(fields, indent=2) + "\n")


def folder_kind(folder: Path) -> str | None:
    """The kind of training or study in a folder, by its config.json; None without one."""
    path = folder / CONFIG
    found = read_json(path) if path.is_file() else None
    return found.get("kind") if isinstance(found, dict) else None


def read_config(folder: Path) -> RunConfig | None:
    path = folder / CONFIG
    try:
        if not path.exists():
            return None
    except (OSError, ValueError) as error:
        raise UserError(f"{folder}: cannot be read ({reason(error)}); write to another folder.") from None
    fields: dict[str, Any] = read_json(path)
    try:
        request: Request = REQUESTS[fields.pop("kind")](**fields["request"])
        training = training_from_json(fields["training"], path)
        lists = {"classes": tuple(fields["classes"]), "replans": tuple((a, b) for a, b in fields["replans"])}
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
    """The configuration of the training that was begun here; None if the folder is new or empty. A folder that holds
    anything else is refused: a training writes its files over others of the same names. A run that was killed before it
    had a configuration has left a lock, perhaps a file half-written, and nothing that counts."""
    if (saved := read_config(folder)) is not None:
        return saved
    try:
        inside = sorted(folder.iterdir()) if folder.is_dir() else []
        others = [path.name for path in inside if not _is_leftover(path)]
    except OSError as error:
        raise UserError(f"{folder}: cannot be read ({reason(error)}); write to another folder.") from None
    if others:
        raise UserError(
            f"{folder}: is not empty (it holds {', '.join(others[:3])}), and no training of vitreous began it; write "
            "to a folder that is new or empty."
        )
    return None


def _is_leftover(path: Path) -> bool:
    """Whether a training that was killed at its start may have left this."""
    if path.name == "checkpoints":
        return path.is_dir() and not any(path.iterdir())
    return path.name == LOCK or is_unfinished(path)


def run_folder(out: str | Path | None, data: str | Path, name: str) -> Path:
    """The run folder that a person named, or runs/NAME; the data themselves are no place for it."""
    place, images = Path("runs") / name if out is None else name_output(out, "run folder"), Path(data)
    if images.is_dir() and real_path(place).is_relative_to(real_path(images)):
        raise UserError(
            f"out {place}: is the folder of the images, or in it, and a run's files would lie among them; write to a "
            "folder elsewhere (--out)."
        )
    return place


def check_same_request(saved: RunConfig, request: Request, folder: Path) -> None:
    if type(request) is not type(saved.request):
        raise UserError(f"{folder}: holds a training of another kind; write to another folder.")
    ours, theirs = comparable(request), comparable(saved.request)
    if differing := [name for name in ours if ours[name] != theirs[name]]:
        name = differing[0]
        raise UserError(
            f"{folder}: holds a training with {name.replace('_', '-')}={getattr(saved.request, name)!r}, not "
            f"{getattr(request, name)!r}; repeat its command to go on with it, train anew with --overwrite, or write "
            "the run to another folder (--out)."
        )


def remove_run(folder: Path) -> None:
    """Delete the files of a training in its folder, and nothing else."""
    for name in (CONFIG, RESULT, METRICS, REPORT, "token-labels.json"):
        (folder / name).unlink(missing_ok=True)
    for name in ("checkpoints", "bundle", "decoder", "tensorboard"):
        shutil.rmtree(folder / name, ignore_errors=True)


def make_run_folder(folder: Path) -> None:
    try:
        with readable_errors(folder):
            (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror}); write to another folder.") from None


def lock_run_folder(
    folder: Path, saved: RunConfig | None, held: ExitStack, message: Callable[[str], None], overwrite: bool
) -> bool:
    """Create and lock the run folder; whether it has a checkpoint. Refused if it holds anything else, or if another
    training runs in it."""
    check_folder(folder / "bundle")
    make_run_folder(folder)
    held.enter_context(hold_folder(folder, message))
    if overwrite and open_run(folder) is not None:
        remove_run(folder)
        make_run_folder(folder)
    if open_run(folder) != saved or (folder / RESULT).exists():
        raise UserError(f"{folder}: another process has just trained in it; repeat the command.")
    return has_checkpoint(folder / "checkpoints")


def count_images(data: Data) -> dict[Split, int]:
    return {split: len(source) for split, source in data.splits.items()}


def digest_splits(data: Data) -> dict[Split, str]:
    return {split: source_digest(source) for split, source in data.splits.items()}


def source_digest(source: Source) -> str:
    """16 hexadecimal digits that differ if an image's name, size or label does."""
    digest = hashlib.sha256(source.labels.astype("<i8").tobytes())
    if source.soft is not None:
        digest.update(source.soft.astype("<f4").tobytes())
    for index in range(len(source)):  # an image that was encoded anew under its name has another size
        digest.update(f"{source.key(index)}\n{source.size(index)}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()[:16]


def read_metrics(folder: Path) -> list[dict[str, float]]:
    path = folder / METRICS
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def run_name(data: str | Path) -> str:
    """What the run folder of these data is called. The folder's whole name, a file's without its ending, NAME of
    data:NAME, or what the names of shards share."""
    if isinstance(data, str) and data.startswith(PREFIX):
        return data.removeprefix(PREFIX) or "data"
    if is_shards(data) and not Path(data).is_dir():
        return shards_name(str(data)) or "data"
    place = Path(data).resolve()
    return (place.stem if place.is_file() else place.name) or "data"


def training_to_json(training: Training) -> dict[str, Any]:
    return {
        **asdict(training),
        "model": model_to_json(training.model),
        "objective": objective_to_json(training.objective),
    }


def training_from_json(fields: dict[str, Any], where: Path) -> Training:
    readers: dict[str, Callable[[Any], Any]] = {
        "model": config_from_json,
        "objective": objective_from_json,
        "preprocess": lambda found: Preprocess(**found),
        "augment": lambda found: Augment(**found),
        "optimizer": lambda found: Optimizer(**found),
    }
    if fields.get("accumulate") == 1:  # a count of parts, until version 0.1
        fields = {name: value for name, value in fields.items() if name != "accumulate"}
    try:
        if missing := sorted(readers.keys() - fields.keys()):
            raise KeyError(missing[0])
        return Training(**{name: readers[name](value) if name in readers else value for name, value in fields.items()})
    except (TypeError, KeyError, AttributeError):
        raise UserError(
            f"{where}: its training has other fields than this version of vitreous knows; go on with the version that "
            "began it, or write the run to another folder."
        ) from None
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def save_extra(folder: Path, tensors: Mapping[str, Tensor], training: Training) -> None:
    """Save tensors of the objective that are not the network's in a folder of that name."""
    with new_folder(folder) as place:
        write_tensors(place / f"{folder.name}.safetensors", {key: t.contiguous() for key, t in tensors.items()})
        described = {"seed": training.seed, "objective": objective_to_json(training.objective)}
        (place / "config.json").write_text(json.dumps(described, indent=2) + "\n")
