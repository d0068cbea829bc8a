"""`vitreous pretrain`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from vitreous.cli.listening import closing_text, listening
from vitreous.cli.terminal import Flag, print_json

if TYPE_CHECKING:
    from vitreous.jobs.pretrain_run import PretrainResult


def pretrain(
    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")],
    method: Annotated[
        Literal["mae", "dino", "dinov2", "supervised"], tyro.conf.arg(metavar="mae|dino|dinov2|supervised")
    ] = "mae",
    model: Annotated[str | None, tyro.conf.arg(metavar="SIZE/PATCH")] = None,
    image_size: Annotated[int | None, tyro.conf.arg(metavar="PIXELS")] = None,
    budget: Annotated[str | None, tyro.conf.arg(metavar="TIME")] = None,
    epochs: Annotated[float | None, tyro.conf.arg(metavar="COUNT")] = None,
    out: Annotated[str | None, tyro.conf.arg(metavar="RUN")] = None,
    seed: Annotated[int, tyro.conf.arg(metavar="NUMBER")] = 0,
    workers: Annotated[int | None, tyro.conf.arg(metavar="COUNT")] = None,
    changes: Annotated[
        tuple[str, ...], tyro.conf.arg(name="set", metavar="NAME=VALUE"), tyro.conf.UseAppendAction
    ] = (),
    json: Flag = False,
) -> int:
    """Learn features from pictures without labels. Repeat the same command to go on after an interruption.

    Args:
        data: Anything that fit takes, or a folder of pictures in any order. Labels, if there are any, are not learned
            from; they only serve to show how the features improve.
        method: mae rebuilds hidden patches; dino learns from its own average over many views; dinov2 adds registers,
            masked patches and a spread of the features; supervised learns from labels, to compare.
        model: Which model, such as S/16 or Ti/4@32; by default what suits the pictures and a few cores.
        image_size: Side of the picture that the model sees.
        budget: How long all of it may take, such as 90s, 30m or 1h30m; the steps follow from it.
        epochs: How often to go through the pictures, instead of a budget.
        out: The run folder; by default runs/, the data's name and the method.
        seed: All that is random follows from it.
        workers: Processes that decode pictures; by default one a core, four at most.
        changes: Set one field of the recipe otherwise, such as batch_size=64, optimizer.rate=1e-4,
            method.teacher_temperature=[0.04,0.05] or method.mask=0.6; may be repeated. The run folder's config.json
            shows all fields.
        json: Print the result as one JSON object, for programs.
    """
    from vitreous.config.change import parse_changes
    from vitreous.jobs.pretrain import pretrain as pretrain_model

    with listening() as listeners:
        result = pretrain_model(
            data,
            method=method,
            model=model,
            image_size=image_size,
            budget=budget,
            epochs=epochs,
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


def _text(result: PretrainResult) -> str:
    names = {
        "knn": "{:.1%} of some pictures that were set aside are like their neighbours (k-NN accuracy)",
        "loss": "loss of pictures that were set aside: {:.3f}",
        "information": "what the teacher tells apart of pictures that were set aside: {:.1%} of ln K (information)",
        "accuracy": "{:.1%} of the pictures right",
    }
    found = [names[name].format(value) for name, value in result.figures.items() if name in names]
    use = [f"use it: vitreous fit DATA --weights {result.run}"]
    if result.method == "mae":
        use.append(f"see it: vitreous explain {result.run} PICTURE --reconstruct")
    return closing_text(result, [*result.alarms, *found], use)
