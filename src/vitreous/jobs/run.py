"""What a run folder says about its training: the request, the configuration that came of it, and the result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitreous.config.saved import training_to_json
from vitreous.config.train import Training
from vitreous.data.source import Data
from vitreous.errors import UserError
from vitreous.train.loop import Event
from vitreous.weights.files import readable_errors

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(frozen=True)
class Request:
    """What a person asked for, all of it; the same request in the same run folder goes on where it was."""

    data: str
    weights: str | None = None
    model: str | None = None
    image_size: int | None = None
    budget: str | None = None
    epochs: float | None = None
    recipe: str = "auto"
    preprocess: str | None = None
    seed: int = 0
    changes: dict[str, str] = field(default_factory=dict)
    """Single fields of the recipe's training that were set otherwise."""


@dataclass(frozen=True)
class FitResult:
    """What a training came to."""

    run: str
    bundle: str
    finished: bool
    classes: tuple[str, ...]
    pictures: int
    """In the training part."""
    steps: int
    best_step: int
    validation: dict[str, Any] | None
    """n, top1 and more of the kept weights on the validation part."""
    test: dict[str, Any] | None
    probe: dict[str, float] | None
    """Figures of the classifier on frozen features, where the recipe has one: validation accuracy and seconds."""
    spent: dict[str, Any]
    remarks: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class Listeners:
    """Who is told what while it happens."""

    say: Callable[[str], None] = lambda text: None
    step: Callable[[Event], None] = lambda event: None
    stop: Callable[[], bool] = lambda: False


def check_request(budget: str | None, epochs: float | None, image_size: int | None) -> None:
    """Refuse what makes no sense in any training."""
    if budget is not None and epochs is not None:
        raise UserError("--budget and --epochs: give one of the two; the other follows from it.")
    if image_size is not None and image_size < 1:
        raise UserError(f"--image-size {image_size}: give the side of the picture in pixels, for example 224.")


def make_run_folder(folder: Path) -> None:
    """The folder, with a place for checkpoints."""
    try:
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror}); give another --out.") from None


def read_config(folder: Path, request: DataclassInstance) -> dict[str, Any] | None:
    """The configuration of a training that was begun here, None if none was; refused if it was another one."""
    path = folder / "config.json"
    if not path.exists():
        return None
    try:
        saved: dict[str, Any] = json.loads(path.read_text())
        theirs = saved["request"]
    except (ValueError, KeyError):
        raise UserError(f"{path}: damaged; move {folder} away and repeat the command.") from None
    ours = asdict(request)
    if set(theirs) - set(ours):
        kind = "pretraining" if "method" in theirs else "training"
        raise UserError(f"{folder}: holds a {kind} of another kind than this one; give another --out.")
    if differing := [name for name in ours if ours[name] != theirs.get(name, getattr(type(request), name, {}))]:
        name = differing[0]
        raise UserError(
            f"{folder}: holds a training with {name.replace('_', '-')}={theirs.get(name)!r}, not {ours[name]!r}; "
            "repeat its command to go on with it, or give another --out."
        )
    return saved


def write_config(
    folder: Path, request: DataclassInstance, training: Training, steps: int, data: Data, **more: object
) -> None:
    """Keep what a training needs to go on: what was asked for, what became of it, and what the data were."""
    config = {
        "request": asdict(request),
        "training": training_to_json(training),
        "steps": steps,
        "classes": list(data.classes),
        "parts": _counts(data),
        "pictures": _digests(data),
        **more,
    }
    write_json(folder / "config.json", config)


def update_config(folder: Path, **changes: object) -> None:
    """Change what a training's configuration says."""
    path = folder / "config.json"
    write_json(path, {**json.loads(path.read_text()), **changes})


def check_data(saved: dict[str, Any], data: Data, folder: Path) -> None:
    """Refuse to go on with other data than those that `write_config` heard of."""
    where = saved["request"]["data"]
    if list(data.classes) != saved["classes"]:
        raise UserError(f"{where}: its classes have changed since {folder} began; give another --out.")
    now = _counts(data)
    before: dict[str, int] = saved.get("parts", now)  # early versions did not keep them
    for part in {**before, **now}:
        if before.get(part, 0) != now.get(part, 0):
            raise UserError(
                f"{where}: has {now.get(part, 0):,} {part} pictures, and had {before.get(part, 0):,} when {folder} "
                "began; bring them back to go on with it, or give another --out."
            )
    for part, digest in _digests(data).items():
        if saved.get("pictures", {}).get(part, digest) != digest:
            raise UserError(
                f"{where}: has other {part} pictures, or other labels, than when {folder} began; bring those back to "
                "go on with it, or give another --out."
            )


def _counts(data: Data) -> dict[str, int]:
    return {part: len(source) for part, source in data.splits.items()}


def _digests(data: Data) -> dict[str, str]:
    """Of each part the names and labels of its pictures, in short."""
    found: dict[str, str] = {}
    for part, source in data.splits.items():
        digest = hashlib.sha256(source.labels.astype("<i8").tobytes())
        for index in range(len(source)):
            digest.update(source.key(index).encode(errors="surrogateescape") + b"\n")
        found[part] = digest.hexdigest()[:16]
    return found


def read_result(folder: Path) -> FitResult:
    """What a finished training came to."""
    path = folder / "result.json"
    try:
        fields = json.loads(path.read_text())
        return FitResult(**{**fields, "classes": tuple(fields["classes"]), "remarks": tuple(fields["remarks"])})
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path}: damaged; delete it and repeat the command: the training is not done again.") from None


def write_json(path: Path, content: object) -> None:
    """Write a file that is whole or not there."""
    partial = path.with_suffix(".partial")
    with readable_errors(path):
        partial.write_text(json.dumps(content, indent=2) + "\n")
        partial.replace(path)
