"""What a person can ask of a comparison. This file needs no torch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Annotated

from vitreous.arguments import Budget, Count, Range, SideLength
from vitreous.config.overrides import parse_overrides
from vitreous.config.study import Equal
from vitreous.errors import UserError

OWN = ("optimizer.learning_rate", "share", "split_seed")
"""Fields of a training that a comparison sets itself."""


@dataclass(frozen=True)
class CompareRequest:
    """Models to train, or to measure as they are, on the same data."""

    data: str | Path
    """DATA: A folder with one subfolder per class, a .csv, .jsonl or .npz, CIFAR or MNIST files, shards, data:NAME, or
    the word builtin."""
    _: KW_ONLY
    models: Sequence[str | Path]
    """NAME,NAME,...: Models to train, such as Ti/16,R+Ti/16,bit-r50x1,efficientnet-b0, with fields after colons where
    wanted: P/4@32:attention=neighbourhood:window=3. Paths of runs, bundles or foreign weights are measured as they
    are."""
    budget: Budget | None = None
    """TIME: How long everything may take, such as 10m or 2h; each training gets the same share of it."""
    fractions: Sequence[Annotated[float, Range(above=0, most=1)]] = (1.0,)
    """FRACTION,FRACTION,...: Fractions of the training images to train with, such as 0.01,0.1,1; smaller ones are part
    of larger."""
    seeds: Count = 3
    """COUNT: How many trainings of each model with each fraction."""
    equal: Equal = "time"
    """What each training has the same of: time, or floating-point operations."""
    image_size: SideLength | None = None
    """PIXELS: Side of every model's input in pixels, where its name does not say it."""
    overrides: Mapping[str, object] = field(default_factory=dict)
    """NAME=VALUE: Set one field of every training, such as batch_size=128; may be repeated."""

    def check(self) -> None:
        if not self.fractions:
            raise UserError("fractions: none given; give some, such as 0.1 and 1.")
        for fraction in self.fractions:
            if list(self.fractions).count(fraction) > 1:
                raise UserError(f"fractions: {fraction:g} is given twice; give each once.")
        if owned := [name for name in OWN if name in self.overrides]:
            raise UserError(f"{owned[0]}: a comparison chooses it itself, for all models alike; leave it out.")


@dataclass(frozen=True)
class Candidate:
    """One model of a comparison."""

    name: str
    """As the person wrote it."""
    model: str | None
    """The preset to train; None for a finished model."""
    overrides: dict[str, str] = field(default_factory=dict)
    """Fields of its configuration that were set otherwise, such as {"model.window": "3"}."""

    @property
    def folder(self) -> str:
        return re.sub(r"[^\w.+@=-]", "_", self.name.strip("/").replace("/", "-"))


def read_candidates(models: Sequence[str | Path], image_size: int | None) -> tuple[Candidate, ...]:
    """The models, each once: presets such as "Ti/16", with fields as in "P/4@32:attention=axial", or paths."""
    if not models:
        raise UserError("models: none given; name some, such as Ti/16 and bit-r50x1, or give paths of runs or bundles.")
    found = [_read_candidate(str(model), image_size) for model in models]
    folders = [candidate.folder for candidate in found]
    for candidate in found:
        if folders.count(candidate.folder) > 1:
            raise UserError(f"models: {candidate.name} is given twice; name each model once.")
    return tuple(found)


def _read_candidate(text: str, image_size: int | None) -> Candidate:
    if not text.strip():
        raise UserError("models: an empty name; give names and paths with single commas between them.")
    try:
        if Path(text).exists():
            return Candidate(str(Path(text)), None)
    except (OSError, ValueError):  # too long a name, or a null byte
        pass
    from vitreous.model.family import check_one_size, named_config

    name, *settings = text.split(":")
    try:
        config = named_config(name)
    except UserError as error:
        if text.startswith("hf:"):
            return Candidate(text, None)
        raise UserError(
            f"{str(error).rstrip('.?')}, or the path of a run or a bundle; nothing lies at {text}."
        ) from None
    check_one_size(name, image_size)
    overrides = {f"model.{field}": value for field, value in parse_overrides(settings).items()}
    for change in overrides:
        if not hasattr(config, change.removeprefix("model.")):
            raise UserError(f"model {text!r}: {name} has no field {change.removeprefix('model.')!r}; leave it out.")
    return Candidate(text, name, overrides)
