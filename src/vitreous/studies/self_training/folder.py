"""What the folder of a self-training holds beside its rounds: what was asked for, and what it came to."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from vitreous.data.source import Split
from vitreous.distributed.meter import Cost
from vitreous.errors import UserError
from vitreous.evaluate.paired import Paired
from vitreous.inputs import read_json
from vitreous.report.rounds import Round
from vitreous.storage.failures import readable_errors
from vitreous.storage.files import new_folder, write_file
from vitreous.storage.manifest import MANIFEST
from vitreous.storage.overwrite import GENERATOR
from vitreous.studies.self_training.request import SelfTrainRequest
from vitreous.training.folder import CONFIG, RESULT, open_run

KEY = "self_training"
"""Where config.json has the request; no other configuration of ours has this key."""


@dataclass(frozen=True)
class SelfTrainConfig:
    """What all rounds have in common."""

    request: SelfTrainRequest
    unlabelled: str
    """Digest of the names of the unlabelled images."""
    labelled: dict[Split, str]
    """Of each split of the labelled ones, as all rounds have them, a digest of names and labels."""

    def check_request(self, request: SelfTrainRequest, folder: Path) -> None:
        """Refuse to go on with another request than the one that began it."""
        ours, theirs = asdict(request), asdict(self.request)
        if differing := [name for name in ours if ours[name] != theirs[name]]:
            name = differing[0]
            raise UserError(
                f"{folder}: holds a self-training with {name.replace('_', '-')}={theirs[name]!r}, not {ours[name]!r}; "
                "repeat its command to go on with it, or write to another folder."
            )

    def check_images(self, now: SelfTrainConfig, folder: Path) -> None:
        """Refuse to go on with other images, or with others set aside for validation: rounds would not compare."""
        if self.unlabelled != now.unlabelled:
            raise UserError(
                f"{self.request.unlabelled}: has other images than when {folder} began, or others of them are "
                "labelled; bring those back to go on with it, or write to another folder."
            )
        if self.labelled != now.labelled:
            raise UserError(
                f"{self.request.labelled}: its images, or which of them are set aside for validation, are not those "
                f"of when {folder} began; bring those back, on the same device, or write to another folder."
            )

    def write(self, folder: Path) -> None:
        """Keep it."""
        asked = asdict(self.request)
        digests = {"unlabelled": self.unlabelled, "labelled": self.labelled}
        found = {"generator": GENERATOR, KEY: asked, **digests}
        write_file(folder / CONFIG, json.dumps(found, indent=2) + "\n")


def is_self_training(folder: Path) -> bool:
    """Whether a folder holds a self-training: its bundle is a model like any other, but it is no run of its own."""
    path = folder / CONFIG
    try:
        found = read_json(path) if path.is_file() else None
    except UserError:  # damaged, which whoever needs it will tell
        return False
    return isinstance(found, dict) and KEY in found


def open_self_training(folder: Path) -> SelfTrainConfig | None:
    """What the self-training in a folder was asked for; None if the folder is new or empty, and any other refused."""
    path = folder / CONFIG
    if not path.is_file():
        open_run(folder)  # which refuses what is not empty
        return None
    found = read_json(path)
    if not isinstance(found, dict) or KEY not in found:
        raise UserError(f"{folder}: holds a training of another kind, or of another program; write to another folder.")
    try:
        return SelfTrainConfig(SelfTrainRequest(**found[KEY]), found["unlabelled"], found["labelled"])
    except (KeyError, TypeError):
        raise UserError(
            f"{path}: damaged, or of another version of vitreous; write to another folder, or move {folder} away."
        ) from None


@dataclass(frozen=True)
class SelfTrainResult:
    """What a self-training came to."""

    run: str
    bundle: str
    """Of the kept round."""
    finished: bool
    classes: tuple[str, ...]
    labelled: int
    """Images with labels that were learned from, those for validation and test aside."""
    unlabelled: int
    copies: int
    """Unlabelled images that were left out, as they are among the labelled ones."""
    rounds: tuple[Round, ...]
    best: int
    """The number of the kept round: the one with the highest validation accuracy."""
    changed: int
    """Images that the kept model labels otherwise than the teacher it learned from, or than the last teacher where
    the first is kept."""
    spent: Cost
    against_teacher: Paired | None = None
    """The first teacher and the kept student on the same images; None where the teacher is kept."""
    remarks: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Every field, for `json.dumps`."""
        return asdict(self)

    def write(self, folder: Path) -> None:
        """Keep it."""
        write_file(folder / RESULT, json.dumps(self.to_json(), indent=2) + "\n")


def read_self_training(folder: Path) -> SelfTrainResult:
    """What a finished self-training came to."""
    path = folder / RESULT
    try:
        fields = read_json(path)
        rounds = tuple(
            replace(one, run=str(folder / f"round-{one.number}")) for one in map(Round.from_json, fields["rounds"])
        )
        places: dict[str, Any] = {"run": str(folder), "bundle": str(folder / "bundle")}  # it may have been moved
        paired = fields["against_teacher"]
        places["against_teacher"] = None if paired is None else Paired(**paired)
        lists = {name: tuple(fields[name]) for name in ("classes", "remarks")}
        return SelfTrainResult(**{**fields, **lists, **places, "rounds": rounds, "spent": Cost(**fields["spent"])})
    except (KeyError, TypeError):
        raise UserError(
            f"{path}: damaged, or of an older vitreous; delete it and repeat the command: what is trained is kept."
        ) from None


def copy_bundle(source: Path, target: Path) -> None:
    """The same bundle in another place, complete or not there."""
    with new_folder(target) as folder:
        for path in source.iterdir():
            if path.name != MANIFEST:
                shutil.copyfile(path, folder / path.name)


def make_folder(folder: Path) -> None:
    """The folder, with those above it."""
    try:
        with readable_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror}); write to another folder.") from None
