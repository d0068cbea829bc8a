"""`vitreous evaluate`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from vitreous.cli.terminal import Flag, console, print_json, printable, progress, say_left_out, table

if TYPE_CHECKING:
    from vitreous.jobs.evaluate import Evaluation

SHOWN = 10


def evaluate(
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")],
    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")],
    split: Annotated[Literal["test", "val", "train"] | None, tyro.conf.arg(metavar="test|val|train")] = None,
    batch_size: Annotated[int | None, tyro.conf.arg(metavar="COUNT")] = None,
    workers: Annotated[int | None, tyro.conf.arg(metavar="COUNT")] = None,
    preprocess: Annotated[str | None, tyro.conf.arg(metavar="TEXT")] = None,
    json: Flag = False,
) -> None:
    """Measure how well a model does on data: accuracy, calibration, each class, and what is taken for what.

    Args:
        model: A bundle folder, a run folder, or anything that `vitreous import` takes, such as a .safetensors file.
        data: A folder with a folder for each class, a list in CSV or JSONL, packed data, or the word builtin. Classes
            are matched to the model's labels by name.
        split: Which part of the data; if not given, test if there is one, else val, else all.
        batch_size: How many pictures the model sees at once; by default as many as is fastest.
        workers: Processes that decode pictures; if not given, one a core up to 4, or none for a few pictures.
        preprocess: What differs from the model's own, such as "mean=0.5,std=0.5,crop=0.9,interpolation=bicubic".
        json: Print one JSON object, for programs.
    """
    from vitreous.jobs.evaluate import evaluate as measure

    with progress("evaluating") as bar:
        found = measure(
            model, data, split=split, batch_size=batch_size, workers=workers, preprocess=preprocess, progress=bar
        )
    if json:
        print_json(found.to_json())
        return
    _show(found)
    say_left_out(found.unreadable)


def _show(found: Evaluation) -> None:
    result, page = found.result, console()
    low, high = result.top1_interval
    seen = {name: entry for name, entry in result.per_class.items() if entry["n"]}
    page.print(f"{result.n:,} pictures of {len(seen)} classes ({found.split}), in {found.seconds:.1f} s")
    page.print()
    figures = table("", "", "")
    figures.show_header = False
    figures.add_row("top-1 accuracy", f"{result.top1:.2%}", f"95 % confidence: {low:.1%} to {high:.1%}")
    if len(result.labels) > 5:
        figures.add_row("top-5 accuracy", f"{result.top5:.2%}")
    figures.add_row("calibration error", f"{result.ece:.2%}", "of 15 bins")
    figures.add_row("cross-entropy", f"{result.loss:.3f}")
    page.print(figures)

    worst = sorted(seen.items(), key=lambda item: (item[1]["accuracy"], item[0]))[:SHOWN]
    classes = table("class" if len(worst) == len(seen) else f"the {SHOWN} hardest classes", "pictures#", "accuracy#")
    for name, entry in worst:
        classes.add_row(printable(name), f"{entry['n']:,}", f"{entry['accuracy']:.1%}")
    page.print()
    page.print(classes)

    if pairs := result.most_confused(SHOWN):
        confused = table("most confused", "taken for", "pictures#", "of the class#")
        for pair in pairs:
            confused.add_row(printable(pair.true), printable(pair.predicted), f"{pair.pictures:,}", f"{pair.share:.1%}")
        page.print()
        page.print(confused)
