"""What a person can ask of a training: each field is an option of the commands and an argument in Python.

The run folder keeps the request; the same request in the same folder resumes. This file needs no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

from vitreous.arguments import Budget, Epochs, Seed, SideLength, TokenMerge
from vitreous.config.overrides import FREE, override_texts
from vitreous.errors import UserError
from vitreous.weights.published import hub_name

RequestT = TypeVar("RequestT")

PATH_FIELDS = ("data", "weights", "distill", "token_labels", "labelled", "unlabelled", "teacher")
"""Fields that name a place."""


@dataclass(frozen=True, kw_only=True)
class TrainingRequest:
    """What every training can be asked for."""

    model: str | None = None
    """SIZE/PATCH: Train this model from scratch, such as S/16, Ti/4@32, bit-r50x1 or efficientnet-b0. Default: what
    suits the images."""
    image_size: SideLength | None = None
    """PIXELS: Side of the model's input in pixels; position embeddings are resampled to it."""
    budget: Budget | None = None
    """TIME: How long everything may take, such as 90s, 5m or 1h30m; the number of steps follows from it."""
    epochs: Epochs | None = None
    """COUNT: How many times to go through the images, instead of a budget."""
    seed: Seed = 0
    """NUMBER: Seed for everything random."""
    overrides: Mapping[str, object] = field(default_factory=dict)
    """NAME=VALUE: Set one field of the recipe, such as lr=1e-4 (the learning rate),
    batch_size=64, freeze=6 or ema=0.99; may be repeated. config.json in the run folder lists all fields."""

    def check(self) -> None:
        from vitreous.model.family import check_one_size
        from vitreous.training.deadline import parse_budget

        if self.budget is not None and self.epochs is not None:
            raise UserError("budget and epochs: give one of the two; the other follows from it.")
        if self.budget is not None:
            parse_budget(self.budget)
        check_one_size(self.model, self.image_size)


@dataclass(frozen=True, kw_only=True)
class LabelledRequest(TrainingRequest):
    """What every training with labels can be asked for."""

    weights: str | Path | None = None
    """MODEL: Start from this model: a bundle, a run folder, a name that `vitreous models --weights` lists, such as s16,
    or anything else that `vitreous import` reads; none: train from scratch. Default of fit: published weights for
    photographs, none for tiny images and where --model, --recipe or a teacher is given."""
    recipe: str = "auto"
    """NAME: auto, bit, notebook, paper-finetune, paper-pretrain, plain, scratch, scratch-small, small-data,
    mae-finetune, or vtab."""
    preprocess: str | None = None
    """TEXT: Changes to the weights' preprocessing, such as "mean=0.5,std=0.5,crop=0.9,interpolation=bicubic"."""

    @property
    def start(self) -> str | None:
        """The weights that it asks for."""
        return None if self.weights in (None, "none") else str(self.weights)

    def check(self) -> None:
        super().check()
        if self.start is not None and self.model is not None:
            raise UserError("model and weights: the weights say which model it is; give one of the two.")
        if self.start is None and self.preprocess is not None:
            raise UserError(
                "preprocess: changes how images are prepared for given weights; give weights too, or leave it out."
            )


@dataclass(frozen=True)
class FitRequest(LabelledRequest):
    """What a training with labels, or any other that a recipe describes, can be asked for."""

    data: str | Path
    """DATA: A folder with one subfolder per class, {formats}, shards, data:NAME, or
    the word builtin."""
    _: KW_ONLY
    distill: str | Path | None = None
    """TEACHER: Learn from this model's predictions beside the labels: a bundle, a run folder, or anything that
    `vitreous import` reads. Its classes are matched to the data's by name."""
    token_labels: str | Path | None = None
    """TEACHER: Also learn this model's label of every patch (token labelling): a bundle, a run folder, or anything that
    `vitreous import` reads. Its classes are matched to the data's by name."""
    merge: TokenMerge | None = None
    """COUNT: Merge this many similar tokens per block (token merging): the model becomes faster, and training goes
    through the images more often in the same time."""

    @property
    def teacher(self) -> str | None:
        """The model that it learns from beside the labels, in whichever way."""
        found = self.distill if self.distill is not None else self.token_labels
        return None if found is None else str(found)

    @property
    def may_choose_weights(self) -> bool:
        """Whether nothing is asked for that decides what to start from, or that given weights would refuse."""
        new = [n for n in self.all_overrides if n == "whiten" or (n.startswith("model.") and n[6:] not in FREE)]
        return not (self.weights or self.model or self.teacher or new) and self.recipe == "auto"

    @property
    def data_description(self) -> str:
        """What a page and a model card call the data."""
        return str(self.data)

    @property
    def all_overrides(self) -> dict[str, str]:
        """The overrides, with `merge` as the field that it is."""
        merge = {} if self.merge is None else {"model.merge": str(self.merge)}
        return {**override_texts(self.overrides), **merge}

    def check(self) -> None:
        super().check()
        if self.distill is not None and self.token_labels is not None:
            raise UserError(
                "distill and token_labels: a training learns from one teacher in one way; give one of the two."
            )
        if self.merge is not None and "model.merge" in self.overrides:
            raise UserError("merge and model.merge: they are the same field; give one of the two.")


@dataclass(frozen=True)
class StudentRequest(FitRequest):
    """One round of a self-training, a noised student: `data` are the labelled images."""

    _: KW_ONLY
    unlabelled: str = ""
    pseudo_labels: Literal["soft", "hard"] = "soft"
    """What is learned of the teacher's predictions: "soft", its probabilities, or "hard", the likeliest class."""
    round: int = 1

    @property
    def data_description(self) -> str:
        """Both, and who labelled the second."""
        return f"{self.data}, and {self.unlabelled} with labels that the teacher of round {self.round} gave,"


@dataclass(frozen=True)
class PretrainRequest(TrainingRequest):
    """What a training without labels can be asked for."""

    data: str | Path
    """DATA: A folder of images, with or without class folders, {formats}, shards,
    data:NAME, or the word builtin. Labels are not learned from."""
    _: KW_ONLY
    method: str = "mae"
    """mae|dino|dinov2|masked-patch|supervised: mae: reconstruct hidden patches. dino: match the output of a teacher,
    the moving average of the model, over many views. dinov2: dino with registers, masked patches (iBOT) and
    spread-out features (KoLeo). masked-patch: predict the mean colour of corrupted patches, as in the ViT paper.
    supervised: learn from labels, for comparison."""

    def check(self) -> None:
        from vitreous.training.recipes.pretrain import PRETRAINING

        super().check()
        if self.method not in (*PRETRAINING, "supervised"):
            raise UserError(f"method {self.method!r}: choose one of {', '.join(PRETRAINING)} or supervised.")


def request_of(kind: type[RequestT], options: RequestT) -> RequestT:
    """The request among the options of a verb, as its folder keeps it: paths as texts, overrides as texts."""
    values: dict[str, Any] = {}
    for one in fields(kind):  # type: ignore[arg-type]
        value = getattr(options, one.name)
        if isinstance(value, Path) or one.name in PATH_FIELDS:
            value = None if value is None else normalised_path(value)
        elif isinstance(value, Sequence) and not isinstance(value, str):
            value = tuple(str(item) if isinstance(item, Path) else item for item in value)
        values[one.name] = override_texts(value) if one.name == "overrides" else value
    return kind(**values)


def comparable(request: Any) -> dict[str, Any]:
    """Every field of a request, with one text for one thing: however a time or a place was written."""
    from vitreous.training.deadline import parse_budget

    found: dict[str, Any] = asdict(request)
    if found.get("overrides") is not None:
        found["overrides"] = override_texts(found["overrides"])
    if found.get("budget") is not None:
        found["budget"] = parse_budget(found["budget"])
    for name in PATH_FIELDS:
        if found.get(name) is not None and ":" not in str(found[name]) and hub_name(found[name]) is None:
            found[name] = str(Path(found[name]).resolve())
    return found


Request = FitRequest | PretrainRequest


def normalised_path(path: str | Path) -> str:
    """A path as a request keeps it: however it was written, one place is one text. A name with a colon stays."""
    text = str(path)
    if not text:
        raise UserError("an empty path: give a folder or a file.")
    return text if ":" in text else str(Path(text))
