"""The folder of a transfer: what was asked for, and every score that is done, so that a repeated command goes on."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from vitreous.config.fields import from_fields
from vitreous.errors import UserError
from vitreous.inputs import read_json, reason
from vitreous.report.transferred import Protocol, Task, TaskScore
from vitreous.storage.files import is_unfinished, write_file
from vitreous.storage.lock import LOCK

CONFIG, RESULT, PAGE = "config.json", "transfer.json", "transfer.html"
SCORES, RUNS = "scores", "runs"


@dataclass(frozen=True)
class TransferRequest:
    """What a person asked for."""

    model: str
    digest: str
    """Of its weights: at the same path there may lie others by now."""
    protocols: tuple[Protocol, ...]
    budget: str | None
    image_size: int | None
    preprocess: str | None


@dataclass(frozen=True)
class TransferFolder:
    """Where everything lies."""

    path: Path

    def score_place(self, task: str, protocol: Protocol) -> Path:
        """The file of a score."""
        return self.path / SCORES / f"{task}-{protocol}.json"

    def run_place(self, task: str, protocol: Protocol, training: str) -> Path:
        """The run folder of one of a task's trainings."""
        return self.path / RUNS / f"{task}-{protocol}" / training

    def read_score(self, task: str, protocol: Protocol) -> TaskScore | None:
        """What was measured before; None if nothing was yet."""
        place = self.score_place(task, protocol)
        if not place.exists():
            return None
        found: Any = read_json(place)
        try:
            return TaskScore.from_json(found)
        except (KeyError, TypeError, ValueError):
            raise UserError(f"{place}: damaged, or of another vitreous; delete it and repeat the command.") from None

    def tasks(self) -> tuple[Task, ...]:
        """All that this command and those before it were given."""
        before = self._read()
        return () if before is None else tuple(before[1].values())

    def scores(self) -> tuple[TaskScore, ...]:
        """All that this command and those before it measured."""
        found = (self.read_score(task.name, protocol) for task in self.tasks() for protocol in get_args(Protocol))
        return tuple(score for score in found if score is not None)

    def write_score(self, score: TaskScore) -> None:
        """Keep it."""
        place = self.score_place(score.task, score.protocol)
        place.parent.mkdir(exist_ok=True)
        write_file(place, json.dumps(asdict(score), indent=2, allow_nan=False) + "\n")

    def begin(self, request: TransferRequest, tasks: tuple[Task, ...]) -> None:
        """Keep what was asked for, and what is known of the tasks, with those of earlier commands."""
        known = {task.name: asdict(task) for task in (*self.tasks(), *tasks)}
        fields = {"transfer": {"request": asdict(request), "tasks": known}}
        write_file(self.path / CONFIG, json.dumps(fields, indent=2) + "\n")

    def check(self, request: TransferRequest, tasks: tuple[Task, ...]) -> None:
        """Refuse a folder that holds other things, or a transfer with other settings; tasks may be added."""
        before = self._read()
        if before is None:
            return
        theirs, known = before
        ours = asdict(request)
        for name, value in ours.items():
            if name == "protocols" or value == theirs[name]:
                continue  # protocols may be added, too
            shown = "other weights" if name == "digest" else f"{name.replace('_', '-')}={theirs[name]!r}, not {value!r}"
            raise UserError(
                f"{self.path}: holds a transfer with {shown}; repeat its command to go on with it, or write to another "
                "folder."
            )
        for task in tasks:
            if known.get(task.name, task).digests != task.digests:
                raise UserError(
                    f"{task.place}: has other images, or other labels, than when {self.path} began; bring those back "
                    "to go on with it, or write to another folder."
                )

    def _read(self) -> tuple[dict[str, Any], dict[str, Task]] | None:
        """The request and the tasks by name; None if the folder is new or empty."""
        try:
            inside = sorted(self.path.iterdir()) if self.path.is_dir() else []
            others = [one.name for one in inside if one.name != LOCK and not is_unfinished(one)]
            in_the_way = self.path.exists() and not self.path.is_dir()
        except (OSError, ValueError) as error:
            raise UserError(f"{self.path}: cannot be read ({reason(error)}); write to another folder.") from None
        if not others and not in_the_way:
            return None
        found: Any = read_json(self.path / CONFIG) if CONFIG in others else {}
        if not isinstance(found, dict) or "transfer" not in found:
            what = f"is not empty (it holds {', '.join(others[:3])})" if others else "is a file"
            raise UserError(
                f"{self.path}: {what}, and no transfer of vitreous began it; write to a folder that is new or empty."
            )
        try:
            asked = dict(found["transfer"]["request"])
            if set(asked) != set(TransferRequest.__dataclass_fields__):
                raise KeyError(CONFIG)
            tasks = found["transfer"]["tasks"].items()
            return asked, {str(name): from_fields(Task, one, self.path / CONFIG) for name, one in tasks}
        except (KeyError, TypeError, ValueError, AttributeError):
            raise UserError(f"{self.path / CONFIG}: damaged, or of another vitreous; use another folder.") from None
