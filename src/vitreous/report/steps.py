"""The way of one image through the model on one page, step by step, with this image's own numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.config.data import Preprocess
from vitreous.explain.steps import Numbers, Steps
from vitreous.report import equations
from vitreous.report.html import Html, document, image, join, table, tag
from vitreous.report.maps import define_view, patch_grid, patch_map, small_map, weight_map
from vitreous.report.numbers import number, percent

TOP = 5
"""Tokens and classes that are listed."""
FIRST = 8
"""So many of a vector's numbers are written out."""
HEIGHT = 48
USUAL = 0.99
"""Bars are scaled to this share of the numbers; the few larger ones are cut."""
SIDE = 336
"""Pixels of the longer side of the image in the page."""


@dataclass(frozen=True)
class WalkthroughContent:
    """An image and its way."""

    name: str
    image: Image.Image
    """Upright and whole."""
    view: Image.Image
    """What the model was given of it."""
    preprocess: Preprocess
    labels: tuple[str, ...]
    steps: Steps


def steps_page(walk: WalkthroughContent) -> str:
    """The whole page as text."""
    sections = [
        tag("section", tag("h2", tag("span", str(i), class_="step"), title), *made)
        for i, (title, made) in enumerate(_sections(walk), 1)
    ]
    s = walk.steps
    answer = "its representation"
    if s.probabilities is not None:
        best = int(s.probabilities.argmax())
        label = walk.labels[best]
        answer = f"{'class ' if label.isdigit() else ''}{label}, {percent(s.probabilities[best])} sure"
    lede = (
        f"How a Vision Transformer gets from pixels to {answer}: every step, with this image's own numbers, in the "
        "order and the letters of “An Image is Worth 16×16 Words”."
    )
    body = [
        define_view(walk.view),
        tag(
            "header",
            tag("p", "vitreous walkthrough", class_="kind"),
            tag("h1", walk.name),
            tag("p", lede, class_="lede"),
        ),
        *sections,
    ]
    return document(f"{walk.name}, step by step · vitreous", body)


def _sections(walk: WalkthroughContent) -> Iterable[tuple[str, list[Html]]]:
    s = walk.steps
    yield "An image becomes patches", _patches(walk)
    yield "One patch, flattened", _flattened(walk)
    yield "Projected to a token", _projected(s)
    yield "The tokens learn where they are", _embedded(s)
    yield "A token asks: queries, keys, values", _queries(s)
    yield "Scores: how well does each key fit?", _scores(s)
    yield "Softmax: from scores to weights", _softmax(s)
    yield "The values, weighted and added", _values(s)
    yield "All heads side by side", _heads(s)
    yield "What a block adds", _block(s)
    yield f"{s.config.depth} blocks, one after another", _layers(s)
    yield "The representation", _representation(s)
    if s.probabilities is not None:
        yield "The classes", _classes(walk)


def _patches(walk: WalkthroughContent) -> list[Html]:
    s, c = walk.steps, walk.steps.config
    rows, columns = s.grid
    height, width = walk.view.height, walk.view.width
    row, column = divmod(s.cell, columns)
    said = (
        f"The image is resized, and {height}×{width} pixels of it are what the model sees. They are cut into "
        f"{rows} rows of {columns} squares, {c.patch}×{c.patch} pixels each. A Transformer reads words; these "
        f"{rows * columns} patches are its words, read row by row."
    )
    followed = f"The outlined one, row {row + 1} and column {column + 1}, is number {s.cell + 1}. We follow it."
    whole = tag("figure", image(walk.image, walk.name, SIDE), tag("figcaption", "The image, whole"))
    cut = tag("figure", patch_grid(s), tag("figcaption", "What the model sees, and its patches"))
    count = f"N = {rows} · {columns} = {rows * columns}"
    return [
        equations.FLATTENED,
        tag("p", said),
        tag("p", f"{followed} {count}."),
        tag("div", whole, cut, class_="figures two-up"),
    ]


def _flattened(walk: WalkthroughContent) -> list[Html]:
    s, c, p = walk.steps, walk.steps.config, walk.preprocess
    row, column = divmod(s.cell, s.grid[1])
    top, left = row * c.patch, column * c.patch
    square = walk.view.crop((left, top, left + c.patch, top + c.patch))
    byte = int(np.atleast_1d(np.asarray(square)[0, 0])[0])
    said = (
        f"A patch is {c.patch} · {c.patch} pixels of {c.channels} "
        f"{'channels' if c.channels > 1 else 'channel'}: {s.patch.size} numbers in a row, channel by channel and line "
        f"by line. Each byte x from 0 to 255 has become (x/255 − mean) / std: the first one, {byte}, is "
        f"({byte}/255 − {p.mean[0]:g}) / {p.std[0]:g} = {number(float(s.patch.flat[0]))}."
    )
    enlarged = tag("figure", image(square.resize((160, 160), Image.Resampling.NEAREST), "the patch", class_="cells"))
    shown = vectors({"patch": (Html("<b>x</b><sub>p</sub>"), s.patch.reshape(-1))})
    return [tag("p", said), tag("div", enlarged, shown, class_="aside")]


def _projected(s: Steps) -> list[Html]:
    said = (
        f"A learned matrix E turns the {s.patch.size} numbers into D = {s.config.width}, and a bias is added. Every "
        "patch goes through the same matrix; its columns are filters, which after training look like edges and colours."
    )
    shown = vectors({"projected": (Html("<b>x</b><sub>p</sub><b>E</b>"), s.projected)})
    return [equations.PROJECTED, tag("p", said), shown]


POSITIONS = {
    "learned-1d": "A vector for each place, learned like everything else, is added.",
    "learned-2d": "A vector for the column and one for the row, each half as long and learned, are joined and added.",
    "sincos-2d": "Sines and cosines of the column and the row are added: fixed, not learned.",
    "relative": "This model adds nothing here: its attention scores know how far patches are from each other.",
    "none": "This model adds nothing: it does not know where its patches are.",
}


def _embedded(s: Steps) -> list[Html]:
    c = s.config
    made = [equations.tokens(c)]
    said = "So far a token does not know where in the image it was, and attention takes tokens in any order. "
    made.append(tag("p", said + POSITIONS[c.position]))
    rows = {"projected": (Html("<b>x</b><sub>p</sub><b>E</b>"), s.projected)}
    if s.position is not None:
        rows["position"] = (Html("<b>E</b><sub>pos</sub>"), s.position)
    made.append(tag("h3", f"Patch {s.cell + 1}"))
    made.append(vectors({**rows, "token": (Html("<b>z</b><sub>0</sub>, the sum"), s.token)}))
    if s.class_token is not None:
        made.append(tag("h3", "The class token"))
        made.append(
            tag(
                "p",
                "One more token is put in front. It belongs to no patch and is the same for every image; in training "
                "it learned to collect what the answer needs.",
            )
        )
        rows = {"class_token": (Html("<b>x</b><sub>class</sub>"), s.class_token)}
        if s.class_position is not None:
            rows["class_position"] = (Html("<b>E</b><sub>pos</sub>"), s.class_position)
        if s.query_token == 0:
            rows["query_embedding"] = (Html("<b>z</b><sub>0</sub>, the sum"), s.query_embedding)
        made.append(vectors(rows))
    others = ["a distillation token"] * c.distilled + [f"{c.registers} registers"] * bool(c.registers)
    if others:
        made.append(tag("p", f"This model has {' and '.join(others)} besides: room to think, which no patch owns."))
    made.append(
        tag("p", f"Together T = {c.prefix + s.grid[0] * s.grid[1]} tokens of {c.width} numbers enter the first block.")
    )
    return made


def _queries(s: Steps) -> list[Html]:
    c, d = s.config, s.config.width // s.config.heads
    norm = "LayerNorm brings its numbers to mean 0 and variance 1, then rescales them."
    normed = "Its query, and the key and value of the followed patch" + (", normed" if c.qk_norm else "")
    said = (
        f"We open block {s.layer + 1} of {c.depth} (layer={s.layer}) and look at head {s.head + 1} of {c.heads} "
        f"(head={s.head}). Every token is turned into a query (what am I looking for?), a key (what do I have?) and "
        f"a value (what do I give?), d = {d} numbers each. The one that asks here is {s.name_of(s.query_token)}."
    )
    k = s.config.prefix + s.cell
    entering: dict[str, tuple[Html, Numbers]] = {"before": (Html(f"<b>z</b><sub>{s.layer}</sub>"), s.before)}
    if c.norm == "before":
        entering["normed"] = (Html(f"LN(<b>z</b><sub>{s.layer}</sub>)"), s.normed)
    return [
        equations.queries(c),
        tag("p", said),
        tag("h3", f"{s.name_of(s.query_token).capitalize()}, as it enters"),
        *([tag("p", norm)] if c.norm == "before" else []),
        vectors(entering, shared=False),
        tag("h3", normed),
        vectors(
            {
                "query": (Html("<b>q</b>"), s.query),
                "key": (Html(f"<b>k</b><sub>{s.cell + 1}</sub>"), s.keys[k]),
                "value": (Html(f"<b>v</b><sub>{s.cell + 1}</sub>"), s.values[k]),
            }
        ),
    ]


def _scores(s: Steps) -> list[Html]:
    c, d, k = s.config, s.config.width // s.config.heads, s.config.prefix + s.cell
    bias = (
        ""
        if s.bias is None
        else f", and the bias for this distance, {number(s.bias[k])}, is added: {number(s.scores[k])}"
    )
    said = (
        f"Query and key are multiplied number by number and added up. For patch {s.cell + 1} that gives "
        f"q · k = {number(s.products[k])}. Divided by √d = √{d} = {number(d**0.5)} it is "
        f"{number(s.products[k] / d**0.5)}{bias}. Without the division, long vectors would give extreme scores, and "
        "the softmax would learn badly."
    )
    patches = s.scores[c.prefix :]
    caption = f"The score of every patch: bright fits best. From {number(patches.min())} to {number(patches.max())}"
    figure = tag("figure", patch_map(s, patches), tag("figcaption", caption))
    return [equations.scores(c), tag("div", tag("div", tag("p", said)), figure, class_="beside")]


def _softmax(s: Steps) -> list[Html]:
    c = s.config
    best = np.argsort(-s.weights, kind="stable")[:TOP]
    rows = [(s.name_of(t), number(s.scores[t]), percent(s.weights[t])) for t in best]
    shares = {"the patches together": s.weights[c.prefix :].sum()}
    if c.prefix:
        shares["tokens without a place"] = s.weights[: c.prefix].sum()
    total = " and ".join(f"{percent(share)} to {name}" for name, share in shares.items())
    near = "" if s.seen is None else f"Only the {int(s.seen.sum())} tokens within reach take part. "
    said = (
        f"{near}e is raised to each score, and all are divided by their sum: the weights are positive and add up to 1, "
        f"so a better fit takes attention from the others. Here it goes {total}."
    )
    caption = f"The weights of the patches; the brightest has {percent(s.weights[c.prefix :].max())}"
    figure = tag("figure", weight_map(s, s.weights, outlined=True), tag("figcaption", caption))
    listed = table(("attends most to", "score", "weight"), rows, numbers=2)
    return [equations.attention(c), tag("div", tag("div", tag("p", said), listed), figure, class_="beside")]


def _values(s: Steps) -> list[Html]:
    best = int(s.weights.argmax())
    said = (
        f"What the head hands on is the sum of all values, each times its weight. The largest part, "
        f"{percent(s.weights[best])}, is the value of {s.name_of(best)}."
    )
    label = Html(f"<b>v</b> of {s.name_of(best)}")
    shown = {
        "best_value": (label, s.values[best]),
        "summed": (Html("Σ <var>A</var><sub>i</sub><b>v</b><sub>i</sub>"), s.summed),
    }
    return [equations.SUMMED, tag("p", said), vectors(shown)]


def _heads(s: Steps) -> list[Html]:
    c = s.config
    said = (
        f"The same happens in {c.heads} heads at once, each with its own queries, keys and values: each may look for "
        f"something else. Their {c.heads} · {c.width // c.heads} = {c.width} numbers are joined, and one more matrix "
        "mixes them."
        if c.heads > 1
        else "This model has one head only; one more matrix mixes its numbers."
    )
    maps = [
        small_map(s, weights, f"Head {i + 1}, at most {percent(weights[c.prefix :].max())}")
        for i, weights in enumerate(s.heads)
    ]
    return [
        tag("p", said),
        tag("div", *maps, class_="maps"),
        vectors({"attended": (Html("MSA, what attention adds"), s.attended)}),
    ]


def _block(s: Steps) -> list[Html]:
    c = s.config
    activation = {"gelu": "GELU", "relu": "ReLU", "swiglu": "SwiGLU"}[c.mlp]
    said = (
        f"Attention does not replace the token, it adds to it: a residual connection. Then two layers with "
        f"{activation} between, {c.width} → {c.mlp_width} → {c.width}, work on every token alone, and add to it again. "
        "So each block changes the token a little; the lengths show how much."
    )
    own = [
        *(["This model norms after each sum, as the first Transformer did."] if c.norm == "after" else []),
        *(
            ["A learned scale of each number (LayerScale) is part of both branches."]
            if c.layer_scale is not None
            else []
        ),
    ]
    equal = "=" if c.norm == "before" else "LN of it:"
    shown = {
        "before": (Html(f"<b>z</b><sub>{s.layer}</sub>"), s.before),
        "attended": (Html("+ MSA"), s.attended),
        "middle": (Html(f"{equal} <b>z</b>′<sub>{s.layer + 1}</sub>"), s.middle),
        "mlp": (Html("+ MLP"), s.mlp),
        "after": (Html(f"{equal} <b>z</b><sub>{s.layer + 1}</sub>"), s.after),
    }
    return [equations.block(c), tag("p", " ".join([said, *own])), vectors(shown)]


def _layers(s: Steps) -> list[Html]:
    said = (
        f"What {s.name_of(s.query_token)} attends to in every block, the mean of the heads. First blocks look for "
        "simple things, some near and some far; later ones for what matters to the answer."
    )
    maps = [small_map(s, weights, f"Block {i + 1}") for i, weights in enumerate(s.layers)]
    return [tag("p", said), tag("div", *maps, class_="maps")]


def _representation(s: Steps) -> list[Html]:
    c = s.config
    said = {
        "class": f"After the last block only {'these two tokens are' if c.distilled else 'the class token is'} read.",
        "mean": "After the last block, this model takes the mean of all patch tokens.",
        "class+mean": "After the last block, the class token and the mean of the patch tokens stand side by side.",
        "attention": "After the last block, a learned query attends to all patches and collects the answer.",
    }[c.pool]
    more = f" These {s.representation.size} numbers are all that the model knows of the image from here on."
    shown = vectors({"representation": (Html("<b>y</b>"), s.representation)})
    made = [equations.representation(c), tag("p", said + more), shown]
    if s.pooled is not None:
        none = np.zeros((s.pooled.shape[0], c.prefix), np.float32)
        weights = np.concatenate([none, s.pooled], axis=1).mean(axis=0)
        made.append(tag("div", small_map(s, weights, "What the pooling attends to"), class_="maps"))
    return made


def _classes(walk: WalkthroughContent) -> list[Html]:
    s, c = walk.steps, walk.steps.config
    assert s.logits is not None
    assert s.probabilities is not None
    hidden = "one hidden layer with tanh and " if c.classifier == "mlp" else ""
    said = (
        f"The classifier is {hidden}one matrix, {s.representation.size} × {c.classes:,}: a score for each class. A "
        "softmax makes shares of them that add up to 1."
        + (" The distillation token has a classifier too, and the mean of both counts." if c.distilled else "")
    )
    best = np.argsort(-s.probabilities, kind="stable")[: min(TOP, c.classes)]

    def bar(share: float) -> Html:
        return tag("span", tag("i", style=f"width: {100 * share:.2f}%"), class_="bar")

    rows = [
        (walk.labels[k], number(s.logits[k]), join([percent(s.probabilities[k]), bar(s.probabilities[k])]))
        for k in best
    ]
    return [equations.classes(c), tag("p", said), table(("class", "score", "share"), rows, numbers=2)]


def vectors(rows: dict[str, tuple[Html, NDArray[np.float32]]], *, shared: bool = True) -> Html:
    """Vectors below each other: all their numbers as bars, the first few written out, and their length.

    rows: what each is, for a program, and then its label and numbers. shared: all bars on one scale.
    """
    largest = max(_usual(values) for _, values in rows.values())
    made = []
    for name, (label, values) in rows.items():
        scale = largest if shared else _usual(values)
        written = " ".join(number(value) for value in values[:FIRST]) + (" …" if len(values) > FIRST else "")
        length = f"{len(values)} numbers, length {number(float(np.linalg.norm(values)))}"
        made.append(
            tag(
                "div",
                tag("div", label, class_="label"),
                _bars(values, scale),
                tag("div", tag("span", written, class_="written"), tag("span", length, class_="length"), class_="said"),
                class_="vector",
                data_name=name,
            )
        )
    return tag("div", *made, class_="vectors")


def _usual(values: NDArray[np.float32]) -> float:
    return float(np.quantile(np.abs(values), USUAL)) or 1.0


def _bars(values: NDArray[np.float32], scale: float) -> Html:
    """A bar for each number, up or down."""
    middle = HEIGHT / 2
    ends = middle - middle * np.clip(values / scale, -1, 1)
    path = join(f"M{i + 0.5} {middle:g}V{end:.1f}" for i, end in enumerate(ends))
    zero = tag("path", d=f"M0 {middle:g}H{len(values)}", class_="zero")
    return tag("svg", zero, tag("path", d=path), viewBox=f"0 0 {len(values)} {HEIGHT}", preserveAspectRatio="none")
