"""How a training ends: what a verb makes of it, and what is written of that."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from vitreous.config.train import Training
from vitreous.model.network import Network
from vitreous.storage.files import write_file
from vitreous.training.folder import RESULT
from vitreous.training.loop import Outcome
from vitreous.training.request import Request
from vitreous.training.result import FitResult, PretrainResult
from vitreous.training.saved import save_extra, training_to_json
from vitreous.weights.bundle import save_bundle

Result = TypeVar("Result", bound=FitResult | PretrainResult)


@dataclass(frozen=True)
class Ending(Generic[Result]):
    """What a verb makes of a training that has ended."""

    result: Result
    labels: Sequence[str]
    card: str


class WriteReport(Protocol):
    """Writes a run's page, in about so many seconds if they are given."""

    def __call__(self, folder: Path, /, *, seconds: float | None = None) -> object:
        """Of the run in this folder."""


def write_ending(
    folder: Path, request: Request, training: Training, network: Network, outcome: Outcome, ending: Ending[Result]
) -> None:
    """The bundle, what is saved beside it, and of a training that has come to its end the result."""
    for name, tensors in outcome.best.items():
        if name != "model":
            save_extra(folder / name, tensors, training)
    info = {
        "request": asdict(request),
        "training": training_to_json(training),
        "spent": asdict(ending.result.spent),
    }
    save_bundle(folder / "bundle", network, training.preprocess, ending.labels, card=ending.card, info=info)
    if outcome.finished:
        write_file(folder / RESULT, json.dumps(ending.result.to_json(), indent=2) + "\n")
