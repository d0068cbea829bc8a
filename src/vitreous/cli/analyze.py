"""`vitreous analyze`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import tyro

from vitreous.cli.terminal import Flag, console, print_json, printable, progress, table

if TYPE_CHECKING:
    from vitreous.jobs.analyze import Analysis


def analyze(
    models: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="MODEL ...")],
    data: Annotated[str, tyro.conf.arg(metavar="DATA")],
    out: Annotated[str, tyro.conf.arg(metavar="DIR")],
    pictures: Annotated[int, tyro.conf.arg(metavar="COUNT")] = 500,
    seed: Annotated[int, tyro.conf.arg(metavar="NUMBER")] = 0,
    workers: Annotated[int | None, tyro.conf.arg(metavar="COUNT")] = None,
    preprocess: Annotated[str | None, tyro.conf.arg(metavar="TEXT")] = None,
    json: Flag = False,
) -> None:
    """Show what models learned, depth by depth and side by side: where they look, what tokens hold, what it is worth.

    Writes DIR/analysis.html, a page with plots, and DIR/analysis.json, their numbers.

    Args:
        models: Bundle folders, run folders, or anything that `vitreous import` takes, with or without a classifier.
        data: A folder with a folder for each class, a list in CSV or JSONL, packed data, or the word builtin. A folder
            of pictures without classes will do; what needs labels is then left out.
        out: The folder to write to.
        pictures: How many are measured, of the test part if there is one, and how many of the training part the linear
            probes learn from.
        seed: Draws the pictures and the noise.
        workers: Processes that decode pictures; if not given, one a core up to 4, or none for a few pictures.
        preprocess: For weights that do not say it, such as "mean=0.5,std=0.5,crop=0.9,interpolation=bicubic".
        json: Print what analysis.json has, for programs.
    """
    from vitreous.jobs.analyze import analyze as measure

    with progress("analyzing") as bar:
        found = measure(
            models, data, out, pictures=pictures, seed=seed, workers=workers, preprocess=preprocess, progress=bar
        )
    if json:
        print_json(found.numbers)
    else:
        _show(found)


def _show(found: Analysis) -> None:
    page, data = console(), found.numbers["data"]
    page.print(f"{data['pictures']:,} pictures ({data['part']}); by depth, the mean of the last third of the layers")
    page.print()
    names = [printable(model["name"]) for model in found.numbers["models"]]
    rows = table("", *(f"{name}#" for name in names))
    for row in found.numbers["summary"]:
        rows.add_row(row["measure"], *(f"{v:.1%}" if row["share"] else f"{v:.3f}" for v in row["values"]))
    page.print(rows)
    page.print()
    for remark in found.numbers["remarks"]:
        page.print(f"note: {printable(remark)}")
    page.print(f"page     {found.page}")
    page.print(f"numbers  {found.json}")
