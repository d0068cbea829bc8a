"""`report.html` of a training without labels: whether it went well, its curves, and what it is for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import NamedTuple

from PIL import Image

from vitreous.config.model import with_article
from vitreous.objectives.collapse import ALARM_STEPS
from vitreous.report.html import render
from vitreous.report.page import Run
from vitreous.report.plots import curves

CURVES = {
    "loss": "loss",
    "val_loss": "loss of images set aside",
    "val_knn": "k-NN accuracy",
    "entropy": "teacher's entropy, of ln K",
    "information": "what answers tell apart, of ln K",
    "val_information": "the same, of images set aside",
    "explained": "hidden patches explained",
    "colour_accuracy": "mean colours predicted",
    "feature_std": "standard deviation of the features",
    "centre": "norm of the centre",
}
DRAWN = frozenset({"step", "learning_rate", "norm"})
"""Keys of records that need no plot."""
FRACTIONS = ("val_knn", "entropy", "information", "val_information", "explained", "colour_accuracy")


class AttentionExample(NamedTuple):
    """An image, and what the heads of the last layer attend to in it."""

    image: Image.Image
    heads: list[tuple[str, Image.Image]]  # each with its name
    note: str  # on attention sinks, where there are some


def pretraining_page(
    name: str, run: Run, rebuilt: Image.Image | None = None, attention: Sequence[AttentionExample] = ()
) -> str:
    """The page of a finished run.

    rebuilt: rows of images, what is seen of them, and what a masked autoencoder makes of it.
    """
    objective, optimizer = run.training.objective, run.training.optimizer
    unsaid = {"crops"} | ({"centre_momentum"} if getattr(objective, "sinkhorn_iterations", 0) else set())
    return render(
        "pretraining.html",
        name=name,
        run=run,
        rebuilt=rebuilt,
        attention=attention,
        model=with_article(run.training.model.describe()),
        size=run.training.model.image_size,
        optimizer=optimizer,
        settings=[f"{key} {value}" for key, value in asdict(objective).items() if key not in unsaid],
        enough_steps=run.steps >= ALARM_STEPS,
        plots=[curves({name: found}, name, percent=key in FRACTIONS) for key, name, found in _series(run.records)],
    )


def _series(records: list[dict[str, float]]) -> Iterable[tuple[str, str, tuple[list[float], list[float]]]]:
    """Each metric that was recorded, its name, and its steps and values."""
    recorded = dict.fromkeys(key for record in records for key in record if key not in DRAWN)
    for key, name in {**CURVES, **{key: key.replace("_", " ") for key in recorded if key not in CURVES}}.items():
        found = [(record["step"], record[key]) for record in records if key in record]
        if found:
            steps, values = zip(*found, strict=True)
            yield key, name, (list(steps), list(values))
