"""What may stand in a comparison: a model to train, by its name, or one that is finished, by its path."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vitreous.config.overrides import parse_overrides
from vitreous.errors import UserError
from vitreous.model.family import check_one_size, named_config


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
        """A name for its folder."""
        return re.sub(r"[^\w.+@=-]", "_", self.name.strip("/").replace("/", "-"))


def read_candidates(models: Sequence[str | Path], image_size: int | None) -> tuple[Candidate, ...]:
    """The models, each once: presets such as "Ti/16", with fields as in "P/4@32:attention=axial", or paths."""
    if not models:
        raise UserError("models: none given; name some, such as Ti/16 and bit-r50x1, or give paths of runs or bundles.")
    found = [_read(str(model), image_size) for model in models]
    folders = [candidate.folder for candidate in found]
    for candidate in found:
        if folders.count(candidate.folder) > 1:
            raise UserError(f"models: {candidate.name} is given twice; name each model once.")
    return tuple(found)


def _read(text: str, image_size: int | None) -> Candidate:
    if not text.strip():
        raise UserError("models: an empty name; give names and paths with single commas between them.")
    if _exists(text):
        return Candidate(str(Path(text)), None)
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


def _exists(text: str) -> bool:
    try:
        return Path(text).exists()
    except (OSError, ValueError):  # too long a name, or a null byte
        return False
