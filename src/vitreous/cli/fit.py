"""`vitreous fit`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import tyro

from vitreous.cli.listening import closing_text, listening
from vitreous.cli.terminal import Flag, print_json

if TYPE_CHECKING:
    from vitreous.jobs.run import FitResult


def fit(
    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")],
    weights: Annotated[str | None, tyro.conf.arg(metavar="MODEL")] = None,
    model: Annotated[str | None, tyro.conf.arg(metavar="SIZE/PATCH")] = None,
    image_size: Annotated[int | None, tyro.conf.arg(metavar="PIXELS")] = None,
    budget: Annotated[str | None, tyro.conf.arg(metavar="TIME")] = None,
    epochs: Annotated[float | None, tyro.conf.arg(metavar="COUNT")] = None,
    recipe: Annotated[str, tyro.conf.arg(metavar="NAME")] = "auto",
    out: Annotated[str | None, tyro.conf.arg(metavar="RUN")] = None,
    preprocess: Annotated[str | None, tyro.conf.arg(metavar="TEXT")] = None,
    seed: Annotated[int, tyro.conf.arg(metavar="NUMBER")] = 0,
    workers: Annotated[int | None, tyro.conf.arg(metavar="COUNT")] = None,
    changes: Annotated[
        tuple[str, ...], tyro.conf.arg(name="set", metavar="NAME=VALUE"), tyro.conf.UseAppendAction
    ] = (),
    json: Flag = False,
) -> int:
    """Train on pictures, from scratch or from given weights. Repeat the same command to go on after an interruption.

    Args:
        data: A folder with a folder for each class, a .csv, .jsonl or .npz, CIFAR or MNIST files, or `builtin`.
        weights: What to start from: a bundle, a run, or anything that `vitreous import` takes.
        model: From scratch: which model, such as S/16 or Ti/4@32; by default what suits the pictures.
        image_size: Side of the picture that the model sees; position embeddings are resampled to it.
        budget: How long all of it may take, such as 90s, 5m or 1h30m; the steps follow from it.
        epochs: How often to go through the pictures, instead of a budget.
        recipe: auto, notebook, paper-finetune, paper-pretrain, scratch, scratch-small, small-data or mae-finetune.
        out: The run folder; by default runs/ and the data's name.
        preprocess: What differs from the weights' own, such as "mean=0.5,std=0.5,crop=0.9,interpolation=bicubic".
        seed: All that is random follows from it.
        workers: Processes that decode pictures; by default one a core, four at most.
        changes: Set one field of the recipe otherwise, such as freeze=6, lora=8, class_weights=true, ema=0.99 or
            optimizer.rate=1e-4; may be repeated. The run folder's config.json shows all fields.
        json: Print the result as one JSON object, for programs.
    """
    from vitreous.config.change import parse_changes
    from vitreous.jobs.fit import fit as fit_model

    with listening() as listeners:
        result = fit_model(
            data,
            weights=weights,
            model=model,
            image_size=image_size,
            budget=budget,
            epochs=epochs,
            recipe=recipe,
            preprocess=preprocess,
            seed=seed,
            out=out,
            workers=workers,
            changes=parse_changes(changes),
            listeners=listeners,
        )
    if json:
        print_json(asdict(result))
    else:
        print(_text(result))
    return 0 if result.finished else 130


def _text(result: FitResult) -> str:
    found = []
    for name, part in (("test", result.test), ("validation", result.validation)):
        if part:
            low, high = part["top1_interval"]
            found.append(
                f"{part['top1']:.1%} of {part['n']:,} {name} pictures right (95 % interval {low:.1%} to {high:.1%})"
            )
    return closing_text(result, found, [f"use it: vitreous predict {result.run} PICTURE"])
