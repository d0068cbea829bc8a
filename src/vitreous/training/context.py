"""The values that one training passes from step to step, and what differs between learning with labels and without."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import torch

from vitreous.callbacks import Callbacks, Event
from vitreous.config.train import Training
from vitreous.data.loader import Loader, choose_workers
from vitreous.data.source import Data, Split
from vitreous.distributed.launcher import local_world_size, refuse_many, world_size
from vitreous.distributed.meter import Meter
from vitreous.distributed.process_group import join_world
from vitreous.distributed.world import World, find_device
from vitreous.errors import UserError
from vitreous.model.network import Network
from vitreous.objectives.objective import Objective
from vitreous.training.deadline import Deadline, Reserved
from vitreous.training.folder import ConfigFile, RunConfig
from vitreous.training.loop import Evaluate, Outcome
from vitreous.training.request import FitRequest, PretrainRequest
from vitreous.training.result import FitResult, FrozenProbe, PretrainResult
from vitreous.training.teaching.teacher import MissingTeacher, Teacher
from vitreous.weights.bundle import Bundle


@dataclass(frozen=True)
class Runtime:
    """How a run uses the machine; nothing here overrides what is asked for."""

    workers: int  # processes that decode images, for each that trains
    world: World  # the processes that train together, and the device of this one
    tensorboard: bool = False  # write curves for TensorBoard into the run folder

    @property
    def device(self) -> torch.device:
        return self.world.device


def local_runtime(workers: int | None, device: str, tensorboard: bool) -> Runtime:
    """What a person said of the machine, with what they left open filled in; for one process."""
    refuse_many("a training of this kind")
    return Runtime(choose_workers(workers), World(device=find_device(device)), tensorboard)


def join_runtime(workers: int | None, device: str, shard: bool, tensorboard: bool) -> Runtime:
    """The same for a training of as many processes as torchrun has started; `shard` divides the weights among them."""
    if shard and world_size() == 1:
        raise UserError(
            "shard: there is one process, and nobody to share the weights with; leave it out, or start "
            "several with torchrun."
        )
    workers = choose_workers(workers, beside=local_world_size())  # what is wrong here is said before anybody is met
    return Runtime(workers, replace(join_world(device), sharded=shard), tensorboard)


RequestT = TypeVar("RequestT", bound=FitRequest | PretrainRequest)
Result = TypeVar("Result", bound=FitResult | PretrainResult)


@dataclass(frozen=True)
class TrainingContext(Generic[RequestT]):
    """What all steps of one training are done with."""

    request: RequestT
    folder: Path
    runtime: Runtime
    callbacks: Callbacks
    meter: Meter
    deadline: Deadline | None  # None without a budget, and in a training that is resumed: what was planned stays so
    loaders: ExitStack  # closes the loaders, whose processes then end

    @property
    def world(self) -> World:
        return self.runtime.world

    def keep_open(self, loader: Loader) -> Loader:
        """The loader, closed when the training has ended."""
        self.loaders.callback(loader.close)
        return loader


@dataclass(frozen=True)
class Opened:
    """What a training learns from and starts with."""

    data: Data  # in the splits that it is trained and measured on
    training: Training
    base: Bundle | None = None
    """The weights that it starts from; None from scratch, or where a checkpoint has all that is needed."""
    weights: str | None = None  # digest of these
    teacher: Teacher | MissingTeacher | None = None
    teacher_flops: float | None = None


@dataclass(frozen=True)
class Start:
    """Everything before the first step."""

    loader: Loader
    objective: Objective
    evaluate: Evaluate | None  # what is measured now and then on the val split
    validation: Loader | None = None
    probe: FrozenProbe | None = None
    subsets: dict[Split, int] = field(default_factory=dict)
    """Of splits that there is no time to look at as a whole, how many images are."""
    seconds_per_image: float = 0.0  # to look at one, where it was measured


@dataclass(frozen=True)
class Ending(Generic[Result]):
    """What a training came to."""

    result: Result
    labels: Sequence[str]
    card: str


class Method(Protocol[RequestT, Result]):
    """What differs between learning with labels and without."""

    @property
    def keep_last(self) -> bool:
        """Whether the last weights are kept, not the best by validation."""

    @property
    def writing_seconds(self) -> float:
        """What the bundle, the page and the end of the process take on two quiet cores."""

    @property
    def page(self) -> bool:
        """Whether the run gets a page."""

    def open_data(self, context: TrainingContext[RequestT]) -> Data:
        """The data that the request names."""

    def open(self, context: TrainingContext[RequestT], data: Data, saved: RunConfig | None) -> Opened:
        """The weights, the teacher, the recipe's training, and the data in its splits."""

    def start(
        self, context: TrainingContext[RequestT], opened: Opened, loader: Loader, saved: RunConfig | None, resumed: bool
    ) -> Start:
        """The objective before the first step; resumed: a checkpoint will take its place."""

    def reserve(self, opened: Opened, start: Start, deadline: Deadline) -> Reserved:
        """The time that is needed beside the steps."""

    def describe_start(self, context: TrainingContext[RequestT], opened: Opened, start: Start, steps: int) -> None:
        """Say what a person should know before the first step."""

    def watch(self, context: TrainingContext[RequestT]) -> Callable[[Event], None]:
        """The callback of each step."""

    def title(self, context: TrainingContext[RequestT], training: Training) -> str:
        """What it learns by, in a word or two."""

    def measure(
        self,
        context: TrainingContext[RequestT],
        opened: Opened,
        start: Start,
        config: ConfigFile,
        network: Network,
        outcome: Outcome,
    ) -> Ending[Result]:
        """Measure the kept network, and say what it all came to; it may still scale the network's classifier."""
