"""What a transfer to many tasks came to: every score, the means that follow from them, and its cost in the unit of
"An Image is Worth 16x16 Words", the TPUv3-core-day."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from vitreous.data.datasets.dataset import Group
from vitreous.studies.requests import Protocol

Setting = bool | int | float | str | None
GROUPS: tuple[Group, ...] = ("natural", "specialized", "structured")
VTAB_TASKS: dict[Group, int] = {"natural": 7, "specialized": 4, "structured": 8}  # how many tasks VTAB has
VTAB, SOME_OF_VTAB = "VTAB", "VTAB tasks"
PEAK_FLOPS = 61.5e12
"""Floating-point operations per second of a TPUv3 core in bfloat16: half of a chip's 123 teraflops, for a chip has two
cores (Google Cloud's page of TPU v3)."""
VIT_H_EXAFLOPS, VIT_H_CORE_DAYS = 4262, 2500  # ViT-H/14's pre-training: table 6's operations and table 2's core-days
DAY_SECONDS = 86_400
UTILISATION = VIT_H_EXAFLOPS * 1e18 / (VIT_H_CORE_DAYS * DAY_SECONDS * PEAK_FLOPS)
"""The fraction of the peak that follows from these two: 32 %. It is assumed for other trainings too."""


@dataclass(frozen=True)
class CoreDays:
    """Operations as TPUv3-core-days, and what they follow from."""

    flops: float
    peak: float
    utilisation: float
    value: float

    def __str__(self) -> str:
        return (
            f"{self.flops:.3g} FLOPs / ({self.peak / 1e12:g}e12 FLOPs per second of a TPUv3 core x "
            f"{self.utilisation:.0%} utilisation x 86,400 seconds per day) = {self.value:.2g} TPUv3-core-days"
        )


def core_days(flops: float) -> CoreDays:
    """How many days one TPUv3 core would compute on it."""
    return CoreDays(flops, PEAK_FLOPS, UTILISATION, flops / (PEAK_FLOPS * UTILISATION * DAY_SECONDS))


@dataclass(frozen=True)
class Task:
    """One task: its data, and what is known of them."""

    name: str  # what the results call it
    place: str  # where its data were read from
    dataset: str | None  # the row of the table of datasets that it is; None for other data
    group: Group | None  # of VTAB; None for what does not belong to it
    classes: int
    splits: dict[str, int]  # images of each split
    digests: dict[str, str]  # of each split: of the names and labels of its images
    as_published: bool | None  # whether there are as many images in each split as were published; None where nobody has
    published: dict[str, int] | None  # images of each split as they were published
    remarks: tuple[str, ...] = ()
    measured: str = "test"  # what accuracies are of: the test or val split, or "held-out" for images set aside
    own_draw: bool = False
    """Whether they are VTAB-1k's own 800 and 200 images, by its lists, with all of the published test split."""


@dataclass(frozen=True)
class Absent:
    """A task, or a protocol on a task, that was not measured: it counts nowhere."""

    task: str
    group: Group | None
    protocol: Protocol | None  # None: none of them
    reason: str


@dataclass(frozen=True)
class TransferTrial:
    """A training to choose hyper-parameters by, on VTAB-1k's 800 and 200 images."""

    settings: dict[str, Setting]
    accuracy: float
    n: int  # validation images


@dataclass(frozen=True)
class TaskScore:
    """How well one protocol did on one task."""

    task: str
    protocol: Protocol
    accuracy: float  # from 0 to 1
    interval: tuple[float, float]  # 95 %
    n: int  # images that were measured
    of: int
    """All images of the split; if more than measured and unreadable, a random subset was measured for lack of time."""
    trained_on: int  # images whose labels were learned from
    trained_of: int  # images that the protocol would learn from if there were time for all
    digests: dict[str, str]
    """Of the images that were learned from, chosen by and measured: hashes of their names and labels."""
    settings: dict[str, Setting]
    flops: float
    """Of the whole unit; features that several protocols share count for the first of them."""
    seconds: float
    engine: str  # what computed the answers, or the features
    trials: tuple[TransferTrial, ...] = ()
    draws: tuple[float, ...] = ()  # few-shot: the accuracies of which `accuracy` is the mean
    remarks: tuple[str, ...] = ()
    unreadable: int = 0  # images that could not be read, of those that were to be measured
    split: str = "test"  # which images were measured; see `Task.measured`

    @property
    def tested_all(self) -> bool:
        """Whether every image of the split was looked at, as far as it can be read."""
        return self.n + self.unreadable == self.of

    @property
    def tested(self) -> str:
        """How many images were measured, for people: "21,749 test, 1 unreadable"."""
        count = f"{self.n:,} {self.split}" if self.tested_all else f"a random {self.n:,} of {self.of:,} {self.split}"
        return f"{count}, {self.unreadable:,} unreadable" if self.unreadable else count


@dataclass(frozen=True)
class Mean:
    """The mean accuracy over tasks: of a group, or of all."""

    protocol: Protocol
    what: str  # a group's name, "VTAB" for its 19 tasks with all of their images, "VTAB tasks" for less, or "all"
    value: float
    interval: tuple[float, float]  # 95 %, as if the tasks were given and only their test images drawn
    tasks: int
    of: int  # tasks that belong to it; with fewer it is not the published figure's kind


@dataclass(frozen=True)
class TransferredModel:
    """What is transferred."""

    name: str
    description: str
    parameters: int
    image_size: tuple[int, int]
    forward_flops: int  # of one image
    digest: str  # of its weights
    training_flops: float | None  # what its own training took, where its bundle says so


@dataclass(frozen=True)
class TransferResult:
    """What `vitreous transfer` found."""

    out: str
    finished: bool
    model: TransferredModel
    protocols: tuple[Protocol, ...]
    budget: str | None
    image_size: int | None
    preprocess: dict[str, Any]  # how images become the frozen model's input
    tasks: tuple[Task, ...]
    scores: tuple[TaskScore, ...]
    absent: tuple[Absent, ...]
    machine: dict[str, Any]
    seconds: float  # of this command and of those before it that it goes on with: what the scores took
    remarks: tuple[str, ...] = field(default=())

    def score(self, task: str, protocol: Protocol) -> TaskScore | None:
        return next((one for one in self.scores if (one.task, one.protocol) == (task, protocol)), None)

    def is_whole(self, score: TaskScore) -> bool:
        """Whether it is of all images, those that were published where the task is one of the table."""
        task = next(one for one in self.tasks if one.name == score.task)
        published = task.as_published is not False or (task.own_draw and score.protocol == "vtab-1k")
        return published and score.tested_all and score.trained_on == score.trained_of

    @property
    def flops(self) -> float:
        return sum(score.flops for score in self.scores)

    @property
    def core_days(self) -> CoreDays:
        return core_days(self.flops)

    @property
    def means(self) -> tuple[Mean, ...]:
        """By protocol: of each group, of VTAB, and of all tasks, where these are not the same."""
        found: list[Mean] = []
        group_of = {task.name: task.group for task in self.tasks}
        for protocol in self.protocols:
            scores = [score for score in self.scores if score.protocol == protocol]
            for group in GROUPS:
                some = [score for score in scores if group_of[score.task] == group]
                found += _mean(protocol, group, some, VTAB_TASKS[group])
            vtab, every = [score for score in scores if group_of[score.task] is not None], sum(VTAB_TASKS.values())
            whole = len(vtab) == every and all(map(self.is_whole, vtab))
            found += _mean(protocol, VTAB if whole else SOME_OF_VTAB, vtab, every)
            if len(vtab) < len(scores):
                asked = len(self.tasks) + sum(one.protocol is None for one in self.absent)
                found += _mean(protocol, "all", scores, asked)
        return tuple(found)

    def to_json(self) -> dict[str, Any]:
        """Every field, the means, and the compute in TPUv3-core-days."""
        return {
            **asdict(self),
            "means": [asdict(mean) for mean in self.means],
            "flops": self.flops,
            "tpu_v3_core_days": asdict(self.core_days),
        }


def _mean(protocol: Protocol, what: str, scores: list[TaskScore], of: int) -> list[Mean]:
    if not scores:
        return []
    value = fmean(score.accuracy for score in scores)
    low = math.hypot(*(score.accuracy - score.interval[0] for score in scores)) / len(scores)
    high = math.hypot(*(score.interval[1] - score.accuracy for score in scores)) / len(scores)
    return [Mean(protocol, what, value, (value - low, value + high), len(scores), of)]
