"""`vitreous fit`."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from vitreous.cli.terminal import Flag, print_json, printable

if TYPE_CHECKING:
    from vitreous.jobs.run import FitResult, Listeners
    from vitreous.train.loop import Event


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
        weights: What to start from: a bundle, a run, or a .safetensors file in timm's naming with --preprocess.
        model: From scratch: which model, such as S/16 or Ti/4@32; by default what suits the pictures.
        image_size: Side of the picture that the model sees; position embeddings are resampled to it.
        budget: How long all of it may take, such as 90s, 5m or 1h30m; the training is planned to fit.
        epochs: How often to go through the pictures, instead of a budget.
        recipe: auto, notebook, paper-finetune, paper-pretrain, scratch, scratch-small or small-data.
        out: The run folder; by default runs/ and the data's name.
        preprocess: For a .safetensors file, such as "mean=0.5,std=0.5,crop=0.9,interpolation=bicubic".
        seed: All that is random follows from it.
        workers: Processes that decode pictures; by default one a core, four at most.
        changes: Set one field of the recipe otherwise, such as freeze=6, lora=8, class_weights=true, ema=0.99 or
            optimizer.rate=1e-4; may be repeated. The run folder's config.json shows all fields.
        json: Print the result as one JSON object, for programs.
    """
    from vitreous.config.change import parse_changes
    from vitreous.jobs.fit import fit as fit_model

    with _listeners() as listeners:
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


@contextmanager
def _listeners() -> Iterator[Listeners]:
    """Messages on stderr, a progress line on a terminal, and a first Ctrl-C that stops between two steps."""
    from vitreous.jobs.run import Listeners

    stopped = False

    def stop(*_: Any) -> None:
        nonlocal stopped
        stopped = True
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a second one stops at once

    previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with _bar() as (say, step):
            yield Listeners(say=say, step=step, stop=lambda: stopped)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def _bar() -> Iterator[tuple[Any, Any]]:
    """Functions that show a message and a step: on a terminal a live line, elsewhere the messages alone."""
    if not sys.stderr.isatty():
        yield lambda text: print(printable(text), file=sys.stderr, flush=True), lambda event: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None, visible=False)
        seen: dict[str, float] = {}

        def step(event: Event) -> None:
            seen["loss"] = 0.9 * seen.get("loss", event.record["loss"]) + 0.1 * event.record["loss"]
            seen.update(
                {f"val {name}": value for name, value in (event.evaluation or {}).items() if name == "accuracy"}
            )
            figures = "  ".join(f"{name} {value:.3f}" for name, value in seen.items())
            text = f"epoch {event.epoch + 1}  {figures}  {event.pictures_per_second:.0f} pictures/s"
            bar.update(task, completed=event.step, total=event.steps, description=text, visible=True)

        yield lambda text: bar.console.print(printable(text), highlight=False, markup=False), step


def _text(result: FitResult) -> str:
    """What a tired person wants to know."""
    if not result.finished:
        return f"Stopped. All is saved in {result.run}; repeat the same command to go on."
    lines = []
    for name, found in (("test", result.test), ("validation", result.validation)):
        if found:
            low, high = found["top1_interval"]
            lines.append(
                f"{found['top1']:.1%} of {found['n']:,} {name} pictures right (95 % interval {low:.1%} to {high:.1%})"
            )
    spent = result.spent
    lines += [
        f"after {spent['seconds']:.0f} s, {spent['pictures']:,} pictures seen",
        f"model:  {result.bundle}",
        f"report: {result.run}/report.html",
        f"use it: vitreous predict {result.run} PICTURE",
    ]
    if result.remarks:
        lines.append(f"{len(result.remarks)} remarks, such as: {printable(result.remarks[0])}")
    return "\n".join(lines)
