"""`report.html` of a training without labels: whether it went well, its curves, and what it is for."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Any

from PIL import Image

from vitreous.model.family import config_from_json, describe
from vitreous.report.content import Run
from vitreous.report.html import Html, document, facts, image, tag
from vitreous.report.plots import curves

CURVES = {
    "loss": "loss",
    "val_loss": "loss of pictures set aside",
    "val_knn": "k-NN accuracy",
    "entropy": "teacher's entropy, of ln K",
    "information": "what answers tell apart, of ln K",
    "val_information": "the same, of pictures set aside",
    "explained": "hidden patches explained",
    "spread": "spread of the features",
    "centre": "norm of the centre",
}
SHARES = ("val_knn", "entropy", "information", "val_information", "explained")


def pretraining_page(name: str, run: Run, rebuilt: Image.Image | None = None) -> str:
    """The page of a finished run.

    rebuilt: rows of pictures, what is seen of them, and what a masked autoencoder makes of it.
    """
    return document(f"{name}: vitreous", _body(name, run, rebuilt))


def _body(name: str, run: Run, rebuilt: Image.Image | None) -> Iterable[Html]:
    config, result = run.config, run.result
    c, method = config_from_json(config["training"]["model"]), result["method"]
    yield tag(
        "header",
        tag("p", "vitreous report", class_="kind"),
        tag("h1", name),
        tag(
            "p",
            f"{describe(c)}, for pictures of {c.image_size[0]}×{c.image_size[1]} pixels, which learned by {method} "
            f"from {result['pictures']:,} pictures of {config['request']['data']}, without labels.",
            class_="lede",
        ),
    )
    for alarm in result["alarms"]:
        yield tag("p", tag("strong", alarm), class_="alarm")
    if not result["alarms"]:
        yield tag("p", "No sign of a collapse was seen.")
    yield tag("h2", "Training")
    plots = [curves({name: found}, name, share=key in SHARES) for key, name, found in _series(run.records)]
    yield tag("div", *(tag("figure", plot, class_="plot") for plot in plots), class_="figures")
    yield facts(_facts(run))
    if rebuilt is not None:
        caption = "Each row: a picture, the patches that the model saw of it, and what it made of them."
        yield tag("h2", "What it imagines")
        yield tag("figure", image(rebuilt, caption), tag("figcaption", caption))
    yield tag("h2", "Use it")
    place = shlex.quote(result["run"])
    yield tag("pre", f"vitreous fit DATA --weights {place}\nvitreous probe {place} DATA --protocol linear")
    if result["remarks"]:
        yield tag("h2", "Remarks")
        yield tag("ul", *(tag("li", remark) for remark in result["remarks"]))


def _series(records: list[dict[str, Any]]) -> Iterable[tuple[str, str, tuple[list[float], list[float]]]]:
    """Each figure that was recorded, its name, and its steps and values."""
    for key, name in CURVES.items():
        found = [(record["step"], record[key]) for record in records if key in record]
        if found:
            steps, values = zip(*found, strict=True)
            yield key, name, (list(steps), list(values))


def _facts(run: Run) -> dict[str, str]:
    config, result = run.config, run.result
    training, spent = config["training"], result["spent"]
    o = training["optimizer"]
    unsaid = {"kind", "crops"} | ({"centre_momentum"} if config["method"].get("balance") else set())
    settings = ", ".join(f"{name} {value}" for name, value in config["method"].items() if name not in unsaid)
    return {
        "Steps": run.steps_taken,
        "Optimizer": f"{o['name']}, rate {o['rate']:g}, weight decay {o['weight_decay']:g}",
        "Method": f"{result['method']}: {settings}",
        "Time": f"{spent['seconds']:.0f} s, {spent['core_hours']:.3g} core-hours, {spent['pictures']:,} pictures seen",
        "Seed": str(training["seed"]),
    }
