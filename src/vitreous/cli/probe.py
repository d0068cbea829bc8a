"""`vitreous probe`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from vitreous.arguments import Count, Seed, Workers
from vitreous.cli.engines import EngineOption, PrecisionOption
from vitreous.cli.terminal import (
    Flag,
    console,
    option,
    print_json,
    printable,
    progress,
    say_left_out,
    table,
    whole_numbers,
)

if TYPE_CHECKING:
    from vitreous.jobs.probe import Probed

WORDS = {
    "knn": "weighted vote of the k nearest training images (cosine similarity, temperature 0.07)",
    "linear": "linear classifier on standardised features, by L-BFGS, regularisation chosen on validation data",
    "fewshot": "regularised least squares from a few training images per class, mean of 5 draws",
}


def probe(
    model: Annotated[str, tyro.conf.Positional, option("MODEL")],
    data: Annotated[str, tyro.conf.Positional, option("DATA")],
    protocol: Annotated[Literal["knn", "linear", "fewshot"], option("knn|linear|fewshot")] = "knn",
    shots: Annotated[str | None, option("N,N,...")] = None,
    seed: Annotated[Seed | None, option("NUMBER")] = None,
    batch_size: Annotated[Count | None, option("COUNT")] = None,
    workers: Annotated[Workers | None, option("COUNT")] = None,
    preprocess: Annotated[str | None, option("TEXT")] = None,
    engine: EngineOption = "auto",
    precision: PrecisionOption = None,
    json: Flag = False,
) -> None:
    """Measure what a model's frozen features are worth: k-NN, linear probe, few-shot.

    The model needs no classifier. Features are computed once and cached under $VITREOUS_CACHE or ~/.cache/vitreous.

    Args:
        model: A bundle, a run folder, an exported model, or anything that `vitreous import` reads.
        data: A folder with one subfolder per class, a CSV or JSONL list, packed data, shards, data:NAME, or builtin.
            Accuracy is measured on the test split; if there is none, on val, or on a fifth of the images.
        protocol: knn: weighted vote of the nearest neighbours. linear: a linear classifier. fewshot: least squares from
            a few images per class.
        shots: Images per class, for fewshot. Default: 1,5,10.
        seed: Seed for drawing the shots and the held-out images. Default: 0.
        batch_size: How many images to pass through the model at once. Default: what is fastest.
        workers: Processes that decode images. Default: one per core, at most 4; none for a few images.
        preprocess: Changes to the model's preprocessing, such as "mean=0.5,std=0.5,crop=0.9,interpolation=bicubic".
        engine: What computes. auto takes the fastest that was verified for this model here, and says which.
        precision: fp32 or int8. Default: fp32, as int8 was judged by a classifier and not by features.
        json: Print one JSON object.
    """
    from vitreous.jobs.probe import probe as measure

    with progress("computing features") as bar:
        found = measure(
            model,
            data,
            protocol=protocol,
            shots=None if shots is None else whole_numbers("shots", shots),
            seed=seed,
            batch_size=batch_size,
            workers=workers,
            preprocess=preprocess,
            engine=engine,
            precision=precision,
            progress=bar,
        )
    if json:
        print_json(found.to_json())
        return
    _show(found)
    say_left_out(found.unreadable)


def _show(found: Probed) -> None:
    page = console()
    page.print(WORDS[found.protocol])
    source = "from the cache" if not found.computed else f"computed for {found.computed:,} images"
    page.print(
        f"{found.n:,} images measured ({found.judged}), {found.known:,} to learn from, {found.classes} classes; "
        f"{found.width} features ({source}) of {found.engine}, {found.seconds:.1f} s"
    )
    page.print()
    name = next(iter(found.scores[0].setting))
    columns = [f"{name.replace('_', ' ')}#", "accuracy#", "95 % interval#"]
    few = found.protocol == "fewshot"
    scores = table(*columns, "std of the draws#") if few else table(*columns)
    for score in found.scores:
        low, high = score.interval
        row = [f"{score.setting[name]:g}", f"{score.accuracy:.2%}", f"{low:.1%} to {high:.1%}"]
        scores.add_row(*row, *([f"{score.std:.2%}"] if few else []))
    page.print(scores)
    for remark in found.remarks:
        page.print(f"note: {printable(remark)}")
