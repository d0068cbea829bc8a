"""`vitreous probe`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from vitreous.cli.terminal import Flag, console, print_json, printable, progress, say_left_out, table
from vitreous.errors import UserError

if TYPE_CHECKING:
    from vitreous.jobs.probe import Probed

WORDS = {
    "knn": "weighted vote of the k nearest training pictures (cosine similarity, temperature 0.07)",
    "linear": "linear classifier on standardised features, by L-BFGS, regularisation chosen by validation",
    "fewshot": "regularised least squares from a few training pictures a class, mean of 5 draws",
}


def probe(
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")],
    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")],
    protocol: Annotated[Literal["knn", "linear", "fewshot"], tyro.conf.arg(metavar="knn|linear|fewshot")] = "knn",
    shots: Annotated[str | None, tyro.conf.arg(metavar="N,N,...")] = None,
    seed: Annotated[int, tyro.conf.arg(metavar="NUMBER")] = 0,
    batch_size: Annotated[int | None, tyro.conf.arg(metavar="COUNT")] = None,
    workers: Annotated[int | None, tyro.conf.arg(metavar="COUNT")] = None,
    preprocess: Annotated[str | None, tyro.conf.arg(metavar="TEXT")] = None,
    json: Flag = False,
) -> None:
    """Measure what a model's frozen features are worth on labelled data; the model needs no classifier.

    Features are computed once and kept, by content, below $VITREOUS_CACHE or ~/.cache/vitreous.

    Args:
        model: A bundle folder, a run folder, or anything that `vitreous import` takes.
        data: A folder with a folder for each class, a list in CSV or JSONL, packed data, or the word builtin. The test
            part is judged; without one the val part, or a fifth of the pictures.
        protocol: How: the vote of the nearest neighbours, a linear classifier, or least squares from a few pictures.
        shots: For fewshot, how many pictures of each class; if not given, 1,5,10.
        seed: Draws the shots and what is set aside.
        batch_size: How many pictures the model sees at once; by default as many as is fastest.
        workers: Processes that decode pictures; if not given, one a core up to 4, or none for a few pictures.
        preprocess: What differs from the model's own, such as "mean=0.5,std=0.5,crop=0.9,interpolation=bicubic".
        json: Print one JSON object, for programs.
    """
    from vitreous.jobs.probe import probe as measure

    if shots is not None and protocol != "fewshot":
        raise UserError(f"--shots {shots}: only --protocol fewshot takes it; add that, or leave --shots out.")
    with progress("computing features") as bar:
        found = measure(
            model,
            data,
            protocol=protocol,
            shots=None if shots is None else _numbers(shots),
            seed=seed,
            batch_size=batch_size,
            workers=workers,
            preprocess=preprocess,
            progress=bar,
        )
    if json:
        print_json(found.to_json())
        return
    _show(found)
    say_left_out(found.unreadable)


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"--shots {text}: write whole numbers with commas between, such as 1,5,10.") from None


def _show(found: Probed) -> None:
    page = console()
    page.print(WORDS[found.protocol])
    source = "from the cache" if not found.computed else f"{found.computed:,} pictures looked at"
    page.print(
        f"{found.n:,} pictures judged ({found.judged}), {found.known:,} to learn from, {found.classes} classes; "
        f"{found.width} features ({source}), {found.seconds:.1f} s"
    )
    page.print()
    name = next(iter(found.scores[0].setting))
    columns = [f"{name.replace('_', ' ')}#", "accuracy#", "95 % interval#"]
    few = found.protocol == "fewshot"
    scores = table(*columns, "spread of the draws#") if few else table(*columns)
    for score in found.scores:
        low, high = score.interval
        row = [f"{score.setting[name]:g}", f"{score.accuracy:.2%}", f"{low:.1%} to {high:.1%}"]
        scores.add_row(*row, *([f"{score.spread:.2%}"] if few else []))
    page.print(scores)
    for remark in found.remarks:
        page.print(f"note: {printable(remark)}")
