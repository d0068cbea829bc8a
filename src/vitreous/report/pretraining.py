"""`report.html` of a training without labels: whether it went well, its curves, and what it is for."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import asdict

from PIL import Image

from vitreous.model.family import described
from vitreous.objectives.collapse import WINDOW
from vitreous.report.content import Run
from vitreous.report.html import Html, document, facts, image, tag
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
SHARES = ("val_knn", "entropy", "information", "val_information", "explained", "colour_accuracy")


def pretraining_page(name: str, run: Run, rebuilt: Image.Image | None = None) -> str:
    """The page of a finished run.

    rebuilt: rows of images, what is seen of them, and what a masked autoencoder makes of it.
    """
    return document(f"{name}: vitreous", _body(name, run, rebuilt))


def _body(name: str, run: Run, rebuilt: Image.Image | None) -> Iterable[Html]:
    c = run.training.model
    yield tag(
        "header",
        tag("p", "vitreous report", class_="kind"),
        tag("h1", name),
        tag(
            "p",
            f"{described(c)} for images of {c.image_size[0]}×{c.image_size[1]} pixels, which learned by {run.way} "
            f"from {run.images:,} images of {run.data}, without labels.",
            class_="lede",
        ),
    )
    for alarm in run.alarms:
        yield tag("p", tag("strong", alarm), class_="alarm")
    if not run.alarms:
        unseen = "No sign of a collapse was seen."
        yield tag("p", unseen if run.steps >= WINDOW else "Too few steps to tell whether features collapse.")
    yield tag("h2", "Training")
    plots = [curves({name: found}, name, share=key in SHARES) for key, name, found in _series(run.records)]
    yield tag("div", *(tag("figure", plot, class_="plot") for plot in plots), class_="figures")
    yield facts(_facts(run))
    if rebuilt is not None:
        caption = "Each row: an image, the patches that the model saw of it, and what it made of them."
        yield tag("h2", "Reconstructions")
        yield tag("figure", image(rebuilt, caption), tag("figcaption", caption))
    yield tag("h2", "Use it")
    place = shlex.quote(run.place)
    yield tag("pre", f"vitreous fit DATA --weights {place}\nvitreous probe {place} DATA --protocol linear")
    if run.remarks:
        yield tag("h2", "Remarks")
        yield tag("ul", *(tag("li", remark) for remark in run.remarks))


def _series(records: list[dict[str, float]]) -> Iterable[tuple[str, str, tuple[list[float], list[float]]]]:
    """Each metric that was recorded, its name, and its steps and values."""
    recorded = dict.fromkeys(key for record in records for key in record if key not in DRAWN)
    for key, name in {**CURVES, **{key: key.replace("_", " ") for key in recorded if key not in CURVES}}.items():
        found = [(record["step"], record[key]) for record in records if key in record]
        if found:
            steps, values = zip(*found, strict=True)
            yield key, name, (list(steps), list(values))


def _facts(run: Run) -> dict[str, str]:
    t, o, spent = run.training, run.training.optimizer, run.spent
    unsaid = {"crops"} | ({"centre_momentum"} if getattr(t.objective, "sinkhorn_iterations", 0) else set())
    settings = (f"{name} {value}" for name, value in asdict(t.objective).items() if name not in unsaid)
    return {
        "Steps": run.steps_taken,
        "Optimizer": f"{o.name}, learning rate {o.learning_rate:g}, weight decay {o.weight_decay:g}",
        "Method": f"{run.way}: {', '.join(settings)}",
        "Time": f"{spent.seconds:.0f} s, {spent.core_hours:.3g} core-hours, {spent.images:,} images seen",
        "Seed": str(t.seed),
    }
