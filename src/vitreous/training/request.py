"""What a person asked for: the same request in the same run folder goes on where it was."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch

from vitreous.data.chance import derived_seed
from vitreous.data.datasets.place import PREFIX
from vitreous.data.loader import choose_workers
from vitreous.data.shards.opening import is_shards, shards_name
from vitreous.distributed.joining import join_world
from vitreous.distributed.launcher import launched, local_processes, refuse_many
from vitreous.distributed.world import World, find_device
from vitreous.errors import UserError
from vitreous.model.family import check_one_size


@dataclass(frozen=True)
class FitRequest:
    """Of a training with labels, or of any other that a recipe describes."""

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
    distill: str | None = None
    """The model whose answers are learned beside the labels."""
    token_labels: str | None = None
    """The model that gives every patch a label."""

    @property
    def teacher(self) -> str | None:
        """The model that it learns from beside the labels, in whichever way."""
        return self.distill if self.distill is not None else self.token_labels

    @property
    def learned_from(self) -> str:
        """What a page and a model card call the data."""
        return self.data


@dataclass(frozen=True)
class StudentRequest(FitRequest):
    """Of a noised student, one round of a self-training: `data` are the labelled images."""

    unlabelled: str = ""
    labels: str = "soft"
    """What is learned of the teacher's answers: "soft", its probabilities, or "hard", the likeliest class."""
    round: int = 1

    @property
    def learned_from(self) -> str:
        """Both, and who labelled the second."""
        return f"{self.data}, and {self.unlabelled} with labels that the teacher of round {self.round} gave,"


DIVIDING = ("validation", "split_seed", "share")
"""Fields of a training that say which images are learned from and which are set aside."""


@dataclass(frozen=True)
class SelfTrainRequest:
    """Of a self-training: a teacher, and rounds of students."""

    labelled: str
    unlabelled: str
    rounds: int
    teacher: str | None = None
    """The first teacher; None to train it on the labelled images."""
    student: str | None = None
    """The students' model; None for the same as the teacher's, or what the recipe makes of more images."""
    confidence: float = 0.3
    per_class: int | None = None
    labels: str = "soft"
    weights: str | None = None
    model: str | None = None
    image_size: int | None = None
    budget: str | None = None
    epochs: float | None = None
    recipe: str = "auto"
    preprocess: str | None = None
    seed: int = 0
    changes: dict[str, str] = field(default_factory=dict)

    def first_round(self, budget: str | None) -> FitRequest:
        """The training of the first teacher, in so much time; its images are divided already."""
        changes = {name: value for name, value in self.changes.items() if name not in DIVIDING}
        return FitRequest(
            data=self.labelled,
            weights=self.weights,
            model=self.model,
            image_size=self.image_size,
            budget=budget,
            epochs=self.epochs,
            recipe=self.recipe,
            preprocess=self.preprocess,
            seed=self.seed,
            changes=changes,
        )

    def dividing(self) -> FitRequest:
        """How the labelled images are divided for all rounds: as for the first teacher's, with all that was set."""
        return replace(self.first_round(self.budget), changes=self.changes)

    def student_round(self, number: int, budget: str | None) -> StudentRequest:
        """The same of a student, with a seed of its own."""
        fields = {**asdict(self.first_round(budget)), "model": self.student or self.model}
        fields["seed"] = derived_seed(self.seed, number)
        return StudentRequest(**fields, unlabelled=self.unlabelled, labels=self.labels, round=number)


@dataclass(frozen=True)
class PretrainRequest:
    """Of a training without labels."""

    data: str
    method: str
    model: str | None = None
    image_size: int | None = None
    budget: str | None = None
    epochs: float | None = None
    seed: int = 0
    changes: dict[str, str] = field(default_factory=dict)
    """Single fields of the recipe's training that were set otherwise."""


Request = FitRequest | PretrainRequest


@dataclass(frozen=True)
class Runtime:
    """How a run uses the machine; nothing here changes what is asked for."""

    workers: int
    """Processes that decode images, for each that trains."""
    world: World
    """The processes that train together, and the device of this one."""
    tensorboard: bool = False
    """Write curves for TensorBoard into the run folder."""

    @property
    def device(self) -> torch.device:
        """Where to compute."""
        return self.world.device


def local_runtime(workers: int | None, device: str, tensorboard: bool) -> Runtime:
    """What a person said of the machine, with what they left open filled in; for one process."""
    refuse_many("a training of this kind")
    return Runtime(choose_workers(workers), World(device=find_device(device)), tensorboard)


def join_runtime(workers: int | None, device: str, shard: bool, tensorboard: bool) -> Runtime:
    """The same for a training of as many processes as torchrun has started; `shard` divides the weights among them."""
    if shard and launched() == 1:
        raise UserError(
            "shard: there is one process, and nobody to share the weights with; leave it out, or start "
            "several with torchrun."
        )
    workers = choose_workers(workers, beside=local_processes())  # what is wrong here is said before anybody is met
    return Runtime(workers, replace(join_world(device), sharded=shard), tensorboard)


def check_request(budget: str | None, epochs: float | None, model: str | None, image_size: int | None) -> None:
    """Refuse what makes no sense in any training."""
    if budget is not None and epochs is not None:
        raise UserError("budget and epochs: give one of the two; the other follows from it.")
    check_one_size(model, image_size)


def same_place(path: str | Path) -> str:
    """A path as a request keeps it: however it was written, one place is one text. A name with a colon stays."""
    text = str(path)
    if not text:
        raise UserError("an empty path: give a folder or a file.")
    return text if ":" in text else str(Path(text))


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
