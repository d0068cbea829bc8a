"""`report.html`: what was trained on what, how well it does, what it looks at, and how to use it, in one file."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping

from matplotlib.figure import Figure

from vitreous import __version__
from vitreous.config.model import ModelConfig
from vitreous.distributed.meter import Cost
from vitreous.model import family
from vitreous.model.family import count_flops, count_parameters
from vitreous.report.content import Content, Look, Run
from vitreous.report.html import Html, document, facts, tag
from vitreous.report.numbers import duration, operations, parameters, percent
from vitreous.report.plots import Series, curves, page_style, to_svg
from vitreous.report.scores import calibration, classes, examples, mistakes, scores
from vitreous.report.token_labels import token_labels

DRAWN = frozenset({"step", "loss", "accuracy", "standard_error", "learning_rate", "norm"})
"""Keys of records that have a plot of their own, or none."""


def page(content: Content) -> str:
    """The whole page as text."""
    sections = {name: made for name, made in _sections(content) if made}
    names = {name: name.lower().replace(" ", "-") for name in sections}
    body = [
        tag(
            "header",
            tag("p", "vitreous report", class_="kind"),
            tag("h1", content.name),
            tag("p", describe(content), class_="lede"),
        ),
        *scores(content.splits),
        tag("nav", *(tag("a", name, href=f"#{place}") for name, place in names.items())),
        *(tag("section", tag("h2", name), *made, id=names[name]) for name, made in sections.items()),
        tag("footer", f"Written by vitreous {__version__}. This file needs nothing else: it can be moved and mailed."),
    ]
    return document(f"{content.name} · vitreous", body)


def _sections(content: Content) -> Iterable[tuple[str, list[Html]]]:
    run, main = content.run, content.splits[0] if content.splits else None
    if run is not None:
        yield "Training", [*training_curves(run.records), facts(training_facts(run))]
    if main is not None:
        yield "Mistakes", mistakes(main)
        yield "Classes", classes(main)
        yield "Calibration", calibration(main)
        yield "Images", examples(main)
    if run is not None and run.teacher is not None:
        yield "Token labels", token_labels(run.teacher, content.taught)
    yield "Inside the model", inside(content.bundle.model.config, content.looks)
    yield "Cost", [facts(cost(content.bundle.model.config, content.spent))]
    yield "Left out", _left_out(content)
    yield "Use it", usage(content.place)
    if content.card is not None:
        yield "Model card", [tag("pre", content.card)]


def describe(content: Content) -> str:
    """One sentence or two: what was trained on what."""
    c = content.bundle.model.config
    size = "×".join(map(str, c.image_size))
    model = f"{family.called(c)} of {parameters(count_parameters(c))} for images of {size} pixels"
    if content.run is None:
        kinds = f", which tells {c.classes:,} classes apart" if c.classes else ", which gives representations"
        where = f" Measured on {content.data}." if content.data else ""
        trained = content.bundle.info.get("request", {}).get("data")
        return f"{model}{kinds}{f', trained on {trained}' if trained else ''}.{where}"
    run = content.run
    start = f"fine-tuned from {run.start}" if run.start else "trained from random weights"
    start += f" with {run.teacher} as its teacher" if run.teacher else ""
    other = content.data is not None and content.data != run.data
    where = f" Measured here on {content.data}." if other else ""
    return f"{model}, {start} on {run.images:,} images of {run.classes:,} classes from {run.data}.{where}"


def training_curves(records: list[dict[str, float]]) -> Iterable[Html]:
    """Loss, accuracy, learning rate, and whatever else the objective recorded, over the steps."""

    def series(**keys: str) -> dict[str, Series]:
        made: dict[str, Series] = {}
        for name, key in keys.items():
            found = [(record["step"], record[key]) for record in records if record.get(key) is not None]
            if found:
                made[name] = ([step for step, _ in found], [value for _, value in found])
        return made

    recorded = dict.fromkeys(key.removeprefix("val_") for record in records for key in record)
    others = [key for key in recorded if key not in DRAWN]
    plots = [
        curves(found, title, share=title == "Accuracy")
        for title, found in (
            ("Loss", series(training="loss", validation="val_loss")),
            ("Accuracy", series(training="accuracy", validation="val_accuracy")),
            *((key.replace("_", " ").capitalize(), series(training=key, validation=f"val_{key}")) for key in others),
            ("Learning rate", series(rate="learning_rate")),
        )
        if found
    ]
    yield tag("div", *(tag("figure", plot, class_="plot") for plot in plots), class_="figures")


def training_facts(run: Run) -> dict[str, str]:
    """How it was trained, for someone who would repeat it."""
    t, o = run.training, run.training.optimizer
    kept = "" if run.best_step is None or not run.steps else f"; the weights of step {run.best_step:,} are kept"
    found = {
        "Data": run.data,
        "Start": run.start or "random weights",
        **({} if run.teacher is None else {"Teacher": f"{run.teacher}: {t.objective.way}"}),
        "Recipe": run.way,
        "Steps": f"{run.steps_taken}{kept}",
        "Optimizer": f"{o.name}, learning rate {o.learning_rate:g}, weight decay {o.weight_decay:g}, {o.decay} decay",
        "Seed": str(t.seed),
    }
    if run.frozen is not None:
        accuracy, seconds = run.frozen
        part = "" if run.frozen_images is None else f", fitted to a random {run.frozen_images:,} training images,"
        found["Frozen features"] = (
            f"a classifier on them alone{part} had {percent(accuracy)} of the validation images right after "
            f"{seconds:.0f} s"
        )
    return found


LOOKS = {
    "filters": (
        "Filters of the first layer",
        "The principal components of what the first layer looks for, the strongest first. Trained on enough "
        "images, they look like waves and colours.",
    ),
    "positions": (
        "Positions",
        "For each patch a small map: how alike its position embedding is to every other. Neighbours, and patches of "
        "one row or column, become alike by training alone.",
    ),
    "distance": (
        "How far heads look",
        "For each head, how far from a patch the patches lie that it attends to. In large models the first blocks have "
        "heads that look near and heads that look far; the last look far.",
    ),
}


def looks(made: Mapping[str, Figure]) -> tuple[Look, ...]:
    """Figures of the weights, by name, with what they show."""
    with page_style():
        return tuple(Look(LOOKS[name][0], to_svg(figure), LOOKS[name][1]) for name, figure in made.items())


def inside(c: ModelConfig, looks: Iterable[Look]) -> list[Html]:
    """Images of the weights, and what the model is made of."""
    images = [
        tag("figure", tag("h3", look.title), look.figure, tag("figcaption", look.caption), class_="plot")
        for look in looks
    ]
    drawn = [tag("div", *images, class_="looks")] if images else []
    return [*drawn, tag("h3", "Architecture"), facts(family.facts(c))]


def cost(c: ModelConfig, spent: Cost | None) -> dict[str, str]:
    """What the training took, where it is known, and what an answer takes."""
    found = {}
    if spent is not None:
        found["Time"] = f"{duration(spent.seconds)}, {spent.core_hours:.3g} core-hours"
        work = f", {operations(spent.flops)}" if spent.flops else ""
        found["Training work"] = f"{spent.images:,} images seen{work}"
        if spent.joules is not None:
            found["Energy"] = f"{spent.joules / 3600:.3g} Wh of the processor"
    found["One answer"] = operations(count_flops(c))
    found["Parameters"] = f"{count_parameters(c):,}"
    return found


def _left_out(content: Content) -> list[Html]:
    if not content.left_out:
        return []
    shown = content.left_out[:50]
    more = len(content.left_out) - len(shown)
    lines = [tag("li", remark) for remark in shown] + ([tag("li", f"and {more:,} more")] if more else [])
    return [tag("ul", *lines)]


def usage(place: str) -> list[Html]:
    """Commands and Python, to be copied."""
    quoted = shlex.quote(place)
    return [
        tag("h3", "In a shell"),
        tag(
            "pre",
            f"vitreous predict {quoted} image.jpg\n"
            f"vitreous explain {quoted} image.jpg --out seen\n"
            f"vitreous evaluate {quoted} DATA",
        ),
        tag("h3", "In Python"),
        tag(
            "pre",
            "import vitreous\n\n"
            f"model = vitreous.load({place!r})\n"
            'answer = model.predict("image.jpg")\n'
            "print(answer.label, answer.score)",
        ),
    ]
