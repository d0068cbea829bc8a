"""What a training is done with, and what differs between learning with labels and without: its `Method`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from vitreous.callbacks import Callbacks, Event
from vitreous.config.train import Training
from vitreous.data.loader import Loader
from vitreous.data.source import Data, Split
from vitreous.distributed.meter import Meter
from vitreous.distributed.world import World
from vitreous.model.network import Network
from vitreous.objectives.objective import Objective
from vitreous.training.deadline import Deadline, Reserved
from vitreous.training.folder import RunConfig
from vitreous.training.loop import Evaluate, Outcome
from vitreous.training.request import FitRequest, PretrainRequest
from vitreous.training.result import FitResult, FrozenProbe, PretrainResult
from vitreous.training.start import Runtime
from vitreous.training.teaching.teacher import MissingTeacher, Teacher
from vitreous.weights.bundle import Bundle

RequestT = TypeVar("RequestT", bound=FitRequest | PretrainRequest)
Result = TypeVar("Result", bound=FitResult | PretrainResult, covariant=True)


@dataclass(frozen=True)
class TrainingContext(Generic[RequestT]):
    """What all steps of one training are done with."""

    request: RequestT
    folder: Path
    runtime: Runtime
    world: World
    callbacks: Callbacks
    meter: Meter
    deadline: Deadline | None  # None without a budget, and in a training that is resumed: what was planned stays so
    loaders: ExitStack  # closes what enters it when the training has ended


@dataclass(frozen=True)
class Opened:
    """What a training learns from and starts with."""

    title: str  # what it learns by, in a word or two
    data: Data  # in the splits that it is trained and measured on
    training: Training
    base: Bundle | None = None  # the weights that it starts from, if it does and needs them
    weights: str | None = None  # digest of these
    teacher: Teacher | MissingTeacher | None = None
    teacher_flops: float | None = None
    start: str | None = None  # the name of the weights that it starts from


@dataclass(frozen=True)
class Start:
    """Everything before the first step."""

    training: Training  # that of `Opened`, or without steps if there is no time for any
    loader: Loader
    objective: Objective
    evaluate: Evaluate | None  # what is measured now and then on the val split
    on_step: Callable[[Event], None]
    reserved: Reserved | None  # with a deadline
    on_plan: Callable[[Training, int], None] | None = None  # told the training and its number of steps
    validation: Loader | None = None
    probe: FrozenProbe | None = None
    subsets: dict[Split, int] = field(default_factory=dict)  # images of splits that there is no time to see as a whole


class Method(Protocol[RequestT, Result]):
    """What differs between learning with labels and without."""

    keep_last: bool  # whether the last weights are kept, not the best by validation
    writing_seconds: float  # what the bundle, the page and the end of the process take on two quiet cores
    page: bool

    def open_data(self, context: TrainingContext[RequestT]) -> Data: ...

    def open(self, context: TrainingContext[RequestT], data: Data, saved: RunConfig | None) -> Opened: ...

    def start(
        self, context: TrainingContext[RequestT], opened: Opened, loader: Loader, saved: RunConfig | None, resumed: bool
    ) -> Start:
        """The objective before the first step; resumed: a checkpoint will take its place."""

    def measure(
        self,
        context: TrainingContext[RequestT],
        opened: Opened,
        start: Start,
        config: RunConfig,
        network: Network,
        outcome: Outcome,
    ) -> tuple[Result, Sequence[str], str]:
        """The result, the labels and the model card; it may still scale the network's classifier."""
