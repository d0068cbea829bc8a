"""The folder of a study: what was asked for and of which data, a lock, the units that are done, a result, a page.

config.json names the kind of study. The same request in the same folder goes on: units that are finished stay. A unit
is a run folder of its own, or a file.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from vitreous.callbacks import Callbacks
from vitreous.config.fields import from_fields
from vitreous.distributed.meter import Meter
from vitreous.errors import UserError
from vitreous.inputs import read_json, reason
from vitreous.storage.files import is_unfinished, write_file, write_output
from vitreous.storage.lock import LOCK, lock_run_folder
from vitreous.storage.overwrite import GENERATOR
from vitreous.studies.requests import CompareRequest, SelfTrainRequest, TransferRequest
from vitreous.training.deadline import Deadline
from vitreous.training.folder import CONFIG, DataIdentity, folder_kind
from vitreous.training.labelled import Labelled
from vitreous.training.request import FitRequest, comparable, request_of
from vitreous.training.result import FitResult
from vitreous.training.start import Runtime
from vitreous.training.train import train

StudyRequest = CompareRequest | TransferRequest | SelfTrainRequest


@dataclass(frozen=True)
class StudyKind:
    """What a kind of study writes to its folder, beside config.json."""

    request: type[StudyRequest]
    result: str
    page: str
    units: tuple[str, ...]  # patterns of all other names


KINDS = {
    "compare": StudyKind(CompareRequest, "compare.json", "compare.html", ("cells", "tuning", "bias")),
    "transfer": StudyKind(TransferRequest, "transfer.json", "transfer.html", ("scores", "runs")),
    "self-train": StudyKind(SelfTrainRequest, "result.json", "report.html", ("round-*", "labels", "bundle")),
}
"""Kinds of studies, as config.json names them."""


@dataclass(frozen=True)
class StudyConfig:
    """What config.json keeps of a study."""

    request: StudyRequest
    data: dict[str, DataIdentity]  # by what the study calls them
    plan: dict[str, Any] = field(default_factory=dict)
    """Decided when the study began; holds for all further units."""

    @property
    def kind(self) -> str:
        return next(name for name, kind in KINDS.items() if type(self.request) is kind.request)

    def write(self, folder: Path) -> None:
        write_file(folder / CONFIG, json.dumps({"kind": self.kind, **asdict(self)}, indent=2) + "\n")

    def check_same(
        self, now: StudyConfig, locations: Mapping[str, str], folder: Path, free: Sequence[str] = ()
    ) -> None:
        """Refuse to go on with another request, or with other data, than those that began the study.

        locations: where the data lie. free: fields of the request that may differ.
        """
        ways = "begin anew with --overwrite, or write to another folder (--out)."
        ours, theirs = comparable(now.request), comparable(self.request)
        if differing := [name for name in ours if name not in free and ours[name] != theirs[name]]:
            name = differing[0]
            raise UserError(
                f"{folder}: holds a {self.kind} with {name.replace('_', '-')}={getattr(self.request, name)!r}, not "
                f"{getattr(now.request, name)!r}; repeat its command to go on with it, {ways}"
            )
        for name in self.data.keys() & now.data.keys():
            if (change := self.data[name].what_changed(now.data[name])) is not None:
                raise UserError(
                    f"{locations[name]}: {change} {folder} began; bring those back to go on with it, {ways}"
                )


def read_study(folder: Path, kind: str) -> StudyConfig | None:
    """The study that was begun here; None if the folder is new or empty. What holds other things is refused."""
    path = folder / CONFIG
    try:
        inside = sorted(one.name for one in folder.iterdir() if one.name != LOCK and not is_unfinished(one))
    except FileNotFoundError:
        inside = []
    except (OSError, ValueError) as error:
        raise UserError(f"{folder}: cannot be read ({reason(error)}); write to another folder.") from None
    if not inside:
        return None
    if (found_kind := folder_kind(folder)) != kind:
        holds = f"holds {', '.join(inside[:3])}" if found_kind not in KINDS else f"holds a {found_kind}"
        raise UserError(f"{folder}: is not empty (it {holds}), and no {kind} began it; write to another folder.")
    fields = read_json(path)
    try:
        data = {name: from_fields(DataIdentity, one, path) for name, one in fields["data"].items()}
        request = from_fields(KINDS[kind].request, fields["request"], path)
        return StudyConfig(request_of(KINDS[kind].request, request), data, dict(fields["plan"]))
    except (KeyError, TypeError, ValueError, AttributeError, UserError) as error:
        raise UserError(
            f"{path}: damaged, or of another vitreous ({error}); begin anew with --overwrite, or write to another "
            "folder."
        ) from None


def open_study(
    folder: Path, now: StudyConfig, locations: Mapping[str, str], free: Sequence[str] = (), *, overwrite: bool
) -> StudyConfig | None:
    """The study that the folder holds and that goes on with `now`; None to begin one. See `StudyConfig.check_same`."""
    if overwrite and folder_kind(folder) == now.kind:
        return None
    saved = read_study(folder, now.kind)
    if saved is not None:
        saved.check_same(now, locations, folder, free)
    return saved


@contextmanager
def hold_study(
    folder: Path, kind: str, saved: StudyConfig | None, callbacks: Callbacks, overwrite: bool
) -> Iterator[None]:
    """Lock the folder, made if it is missing; refused if it is not what was read from it any more.

    Called after all other checks, so that a refused command leaves nothing behind. overwrite: the study that the
    folder holds is deleted.
    """
    with lock_run_folder(folder, (KINDS[kind].result, KINDS[kind].page), callbacks.message):
        if overwrite:
            if folder_kind(folder) == kind:  # what a study of this kind left is deleted, and nothing else
                for place in (one for pattern in KINDS[kind].units for one in folder.glob(pattern)):
                    shutil.rmtree(place)
                for name in (KINDS[kind].result, KINDS[kind].page, CONFIG):
                    (folder / name).unlink(missing_ok=True)
        elif read_study(folder, kind) != saved:
            raise UserError(f"{folder}: another process has just worked in it; repeat the command.")
        yield


def write_result(folder: Path, kind: str, result: Mapping[str, Any], page: str) -> None:
    """Write the page, then the result: the result of a self-training marks it as finished."""
    write_output(folder / KINDS[kind].page, page)
    fields = {"generator": GENERATOR, **result}
    write_output(folder / KINDS[kind].result, json.dumps(fields, allow_nan=False) + "\n")


class StoppedError(Exception):
    """A training was stopped between two steps; the same study goes on with it."""


@dataclass(frozen=True)
class Study:
    """What all trainings and measurements of a study are done with."""

    folder: Path
    runtime: Runtime
    callbacks: Callbacks

    def train(self, request: FitRequest, place: Path, method: Labelled) -> FitResult:
        """The result of one training, without its messages; `StoppedError` if it was stopped before its end."""
        quiet = replace(self.callbacks, message=lambda text: None, started=None)
        result = train(request, place, self.runtime, quiet, method)
        if not result.finished:
            raise StoppedError
        return result


def open_deadline(budget: str | None, writing: float, runtime: Runtime, callbacks: Callbacks) -> Deadline | None:
    """The clock of a whole study, from when the person began to wait; None without a budget.

    writing: seconds that the page takes on two quiet cores.
    """
    return None if budget is None else Deadline(budget, writing, Meter(began=callbacks.started), runtime.world)
