"""The page of a self-training: how each round does, which labels it took, and which images to look at by hand."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import PurePath

from vitreous import __version__
from vitreous.report.html import Html, document, image, table, tag
from vitreous.report.numbers import duration, interval, parameters, percent
from vitreous.report.rounds import DoubtfulImage, Round, RoundScore, SelfTrainingContent

SIDE = 200
"""Pixels of the longer side of an image."""
FEW_CLASSES = 60
"""Classes whose labels are listed at once; of more, when the reader asks."""


def self_training_page(content: SelfTrainingContent) -> str:
    """The whole page as text."""
    sections = {name: made for name, made in _sections(content) if made}
    names = {name: name.lower().replace(" ", "-") for name in sections}
    body = [
        tag(
            "header",
            tag("p", "vitreous self-training", class_="kind"),
            tag("h1", content.name),
            tag("p", _lede(content), class_="lede"),
        ),
        tag("div", *_scores(content), class_="scores"),
        tag("nav", *(tag("a", name, href=f"#{place}") for name, place in names.items())),
        *(tag("section", tag("h2", name), *made, id=names[name]) for name, made in sections.items()),
        tag("footer", f"Written by vitreous {__version__}. This file needs nothing else: it can be moved and mailed."),
    ]
    return document(f"{content.name} · vitreous", body)


def _sections(content: SelfTrainingContent) -> Iterable[tuple[str, list[Html]]]:
    yield "Rounds", _rounds(content)
    yield "Doubtful images", _doubtful(content)
    yield "Changed labels", _changed(content)
    yield "Labels taken", _taken(content)
    if content.notes:
        yield "Notes", [tag("ul", *(tag("li", note) for note in content.notes))]
    yield "Use it", _usage(content)


def _lede(content: SelfTrainingContent) -> str:
    students = len(content.rounds) - 1
    left_out = f" {content.duplicates:,} more were left out, for they are among the labelled ones."
    duplicates = left_out if content.duplicates else ""
    return (
        f"A teacher learned from {content.labelled_count:,} labelled images ({content.labelled}) and labelled "
        f"{content.unlabelled_count:,} others ({content.unlabelled}); {students} noised "
        f"{'student' if students == 1 else 'students'}, one after the other, learned from both.{duplicates}"
    )


def _scores(content: SelfTrainingContent) -> Iterable[Html]:
    """The large numbers: the first teacher beside the kept round."""
    first, best = content.rounds[0], content.rounds[content.best]
    for title, one in {"Teacher, round 0": first, f"Kept, round {best.number}": best}.items():
        found, split = (one.test, "test") if one.test is not None else (one.validation, "validation")
        if found is not None:
            yield tag(
                "div",
                tag("div", f"{title}: accuracy, {split}", class_="name"),
                tag("div", percent(found.accuracy), class_="value"),
                tag("div", f"of {found.n:,} images; 95 % interval {interval(*found.interval)}", class_="note"),
                class_="score",
            )


def _rounds(content: SelfTrainingContent) -> list[Html]:
    head = ("round", "labels taken", "changed", "validation", "test")
    chosen = any(one.validation is not None for one in content.rounds)
    how = (
        "The round with the highest validation accuracy is kept; of equals, the last. The "
        "validation images are labelled ones, the same in all rounds; no student learned from them. They chose the "
        "weights and the round, so expect somewhat less on new images. The test images chose nothing: they were "
        "looked at once in each round, for this table. In brackets, 95 % intervals."
        if chosen
        else "There are no validation images, so the last round is kept."
    )
    return [
        _wide(table(head, [_row(one, one.number == content.best) for one in content.rounds], numbers=4)),
        tag("p", how, class_="quiet"),
        *_against_teacher(content),
        tag("h3", "What each round learned from"),
        _wide(table(("round", "model", "images", "time"), map(_cost, content.rounds), numbers=2)),
        tag("p", "Images are counted as often as they come in an epoch.", class_="quiet"),
    ]


def _against_teacher(content: SelfTrainingContent) -> list[Html]:
    """Whether the kept student is better than the first teacher: both saw the same images."""
    paired = content.against_teacher
    if paired is None:
        return []
    low, high = (f"{100 * value:+.1f}" for value in paired.interval)
    images = "test" if paired.split == "test" else "validation"
    chosen = "" if paired.split == "test" else " These images chose the round, which flatters the student."
    verdict = (
        "So the two can be told apart."
        if paired.significant
        else "That includes 0: on these images the two cannot be told apart."
    )
    said = (
        f"Of {paired.n:,} {images} images, {paired.only_second:,} are right by round {content.best} only and "
        f"{paired.only_first:,} by the teacher of round 0 only: a difference of {100 * paired.difference:+.1f} "
        f"percentage points, 95 % interval {low} to {high} (McNemar's). {verdict}{chosen} The intervals in the table "
        "are of one round each and say less: whether they overlap decides nothing."
    )
    return [tag("h3", "Teacher and kept student on the same images"), tag("p", said)]


def _wide(made: Html) -> Html:
    """A table that a narrow screen can be moved along: there may be many rounds."""
    return tag("div", made, style="overflow-x: auto")


def _row(one: Round, best: bool) -> tuple[str, ...]:
    """How well a round does, in brackets the 95 % interval."""
    labels = one.labels
    taken = "" if labels is None else f"{sum(labels.taken.values()):,} of {labels.looked_at:,}"
    changed = "" if labels is None or labels.changed is None else f"{labels.changed:,}"
    who = f"{one.number}, {'teacher' if one.number == 0 else 'student'}{', kept' if best else ''}"
    return who, taken, changed, _share(one.validation), _share(one.test)


def _cost(one: Round) -> tuple[str, ...]:
    learned = f"{one.images:,}" if one.images else "given"
    return str(one.number), f"{one.model}, {parameters(one.parameters)}", learned, duration(one.spent.seconds)


def _share(score: RoundScore | None) -> str:
    return "" if score is None else f"{percent(score.accuracy)} ({interval(*score.interval)})"


def _doubtful(content: SelfTrainingContent) -> list[Html]:
    if not content.doubtful:
        return []
    said = (
        f"Of the {content.doubtful_of:,} images that the kept model labelled in the end, those whose two likeliest "
        "classes are closest, the most doubtful first: look at these by hand. labels/final/labels.csv lists all."
    )
    return [tag("p", said, class_="quiet"), tag("div", *map(_image, content.doubtful), class_="examples")]


def _changed(content: SelfTrainingContent) -> list[Html]:
    labels = {one.number: one.labels for one in content.rounds if one.labels is not None}
    counts = [f"round {k}: {found.changed:,}" for k, found in labels.items() if found.changed is not None]
    between = f" Labels that changed from one teacher to the next: {', '.join(counts)}." if counts else ""
    if content.compared is None:
        return []
    said = (
        f"The kept model and the teacher of round {content.compared} call {content.changed_of:,} images by different "
        f"names; those that the kept model is surest of are first.{between}"
    )
    return [tag("p", said, class_="quiet"), tag("div", *map(_image, content.changed), class_="examples")]


def _image(one: DoubtfulImage) -> Html:
    name = PurePath(one.name).name
    first, *others = (f"{candidate.label} {percent(candidate.probability)}" for candidate in one.candidates)
    before = f"The teacher said {one.before}." if one.before is not None else ""
    return tag(
        "figure",
        tag("div", image(one.image, name, SIDE), class_="two"),
        tag(
            "figcaption",
            tag("span", first, class_="said"),
            tag("span", f"or {', '.join(others)}" if others else "", class_="truth"),
            tag("span", before, class_="truth"),
            tag("span", name, class_="file", title=one.name),
        ),
    )


def _taken(content: SelfTrainingContent) -> list[Html]:
    rounds = [one for one in content.rounds if one.labels is not None]
    if not rounds:
        return []
    head = ("class", *(f"round {one.number}" for one in rounds))
    rows = [(label, *(_cell(one, label) for one in rounds)) for label in content.classes]
    made = _wide(table(head, rows, numbers=len(rounds)))
    said = (
        f"Of each class, the images that were taken, of those labelled with a probability of at least "
        f"{content.confidence:g}; × shows how often each comes where a class has too few. Labels are "
        f"{'probabilities' if content.kind == 'soft' else 'the likeliest class alone'}."
    )
    if len(rows) > FEW_CLASSES:
        made = tag("details", tag("summary", f"All {len(rows):,} classes"), made)
    return [tag("p", said, class_="quiet"), made]


def _cell(one: Round, label: str) -> str:
    labels = one.labels
    assert labels is not None
    taken, copies = labels.taken[label], labels.with_copies[label]
    often = f" × {copies / taken:.2g}" if copies > taken else ""
    return f"{taken:,} of {labels.sure[label]:,}{often}"


def _usage(content: SelfTrainingContent) -> list[Html]:
    quoted = shlex.quote(content.place)
    return [
        tag(
            "pre",
            f"vitreous predict {quoted} image.jpg\n"
            f"vitreous report {quoted}/round-{content.best}\n"
            f"vitreous evaluate {quoted} DATA",
        )
    ]
