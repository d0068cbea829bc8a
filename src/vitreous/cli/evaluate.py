"""`vitreous evaluate`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from vitreous.arguments import Count, Workers
from vitreous.cli.terminal import Flag, console, option, print_json, printable, progress, say_left_out, table

if TYPE_CHECKING:
    from vitreous.jobs.evaluate import Evaluation

SHOWN = 10


def evaluate(
    model: Annotated[str, tyro.conf.Positional, option("MODEL")],
    data: Annotated[str, tyro.conf.Positional, option("DATA")],
    split: Annotated[Literal["test", "val", "train"] | None, option("test|val|train")] = None,
    batch_size: Annotated[Count | None, option("COUNT")] = None,
    workers: Annotated[Workers | None, option("COUNT")] = None,
    preprocess: Annotated[str | None, option("TEXT")] = None,
    json: Flag = False,
) -> None:
    """Measure a model on labelled data: accuracy, calibration, each class, what is confused with what.

    Args:
        model: A bundle, a run folder, or anything that `vitreous import` reads, such as a .safetensors file.
        data: A folder with one subfolder per class, a CSV or JSONL list, packed data, data:NAME, or the word builtin.
            Classes are matched to the model's labels by name.
        split: Which split of the data to use. Default: test if there is one, else val, else all.
        batch_size: How many pictures to pass through the model at once. Default: what is fastest.
        workers: Processes that decode pictures. Default: one per core, at most 4; none for a few pictures.
        preprocess: Changes to the model's preprocessing, such as "mean=0.5,std=0.5,crop=0.9,interpolation=bicubic".
        json: Print one JSON object.
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
    from vitreous.evaluate.classify import ENOUGH

    result, page = found.result, console()
    low, high = result.top1_interval
    seen = {name: entry for name, entry in result.per_class.items() if entry["n"]}
    page.print(f"{result.n:,} pictures of {len(seen)} classes ({found.split}), in {found.seconds:.1f} s")
    page.print()
    rows = table("", "", "")
    rows.show_header = False
    rows.add_row("top-1 accuracy", f"{result.top1:.2%}", f"95 % interval: {low:.1%} to {high:.1%}")
    if len(result.labels) > 5:
        rows.add_row("top-5 accuracy", f"{result.top5:.2%}")
    rows.add_row("calibration error", f"{result.ece:.2%}", "ECE, 15 bins")
    rows.add_row("cross-entropy", f"{result.loss:.3f}")
    page.print(rows)

    few = len(seen) <= SHOWN
    worst = result.hardest(SHOWN, least=1 if few else ENOUGH)
    classes = table("class" if few else f"the {len(worst)} hardest classes", "pictures#", "accuracy#")
    for name, entry in worst:
        classes.add_row(printable(name), f"{entry['n']:,}", f"{entry['accuracy']:.1%}")
    page.print()
    page.print(
        classes if worst else f"No class has {ENOUGH} pictures, too few to say which are hard; --json lists all."
    )

    if pairs := result.most_confused(SHOWN):
        confused = table("true class", "predicted as", "pictures#", "share of class#")
        for pair in pairs:
            confused.add_row(printable(pair.true), printable(pair.predicted), f"{pair.pictures:,}", f"{pair.share:.1%}")
        page.print()
        page.print(confused)
