"""`vitreous bench`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import tyro

from vitreous.cli.terminal import Flag, console, option, print_json, printable, table, whole_numbers
from vitreous.wording import Range

if TYPE_CHECKING:
    from vitreous.jobs.bench import Bench


def bench(
    model: Annotated[str, tyro.conf.Positional, option("MODEL")],
    data: Annotated[str | None, option("DATA")] = None,
    merge: Annotated[str | None, option("N,N,...")] = None,
    batch_sizes: Annotated[str, option("N,N,...")] = "1,8",
    max_drop: Annotated[Annotated[float, Range(0, 100)] | None, option("POINTS")] = None,
    preprocess: Annotated[str | None, option("TEXT")] = None,
    out: Annotated[str | None, option("FOLDER")] = None,
    json: Flag = False,
) -> None:
    """Measure how fast a model answers on this machine, in each engine that is installed.

    What is converted on the way is kept, and so are the speeds: other commands' --engine auto then takes the fastest.

    Args:
        model: A bundle, a run folder, an exported model, or anything that `vitreous import` reads.
        data: Labelled images. With them the model is quantised to int8 too, and each engine's accuracy is measured.
        merge: How many similar tokens to merge in each block of a Vision Transformer, such as 0,4,8,13; each number is
            measured by itself. Default: as the model has it.
        batch_sizes: Numbers of images at once for which latency is measured.
        max_drop: Points of accuracy that int8 may lose. Default: 0.5.
        preprocess: Changes to the model's preprocessing, such as "size=384".
        out: A folder for bench.json and bench.svg, a plot of accuracy against speed.
        json: Print one JSON object.
    """
    from vitreous.jobs.bench import bench as measure

    found = measure(
        model,
        data=data,
        merge=None if merge is None else whole_numbers("merge", merge),
        batch_sizes=whole_numbers("batch-sizes", batch_sizes),
        max_drop=max_drop,
        preprocess=preprocess,
        out=out,
        say=lambda text: print(f"vitreous: {text}", file=sys.stderr),
    )
    if json:
        print_json(found.to_json())
        return
    _show(found)


def _show(found: Bench) -> None:
    from vitreous.report.speeds import name_row

    page = console()
    latencies = [f"ms for {one.batch} (p50, p99)#" for one in found.rows[0].latencies]
    judged = found.rows[0].judged
    accuracy = [f"right of {judged:,}#"] if judged else []
    rows = table("engine", "images a second#", *latencies, "MB#", *accuracy)
    for row in found.rows:
        rows.add_row(
            name_row(row),
            f"{row.images_per_second:,.1f}",
            *(f"{1e3 * one.median:.1f}, {1e3 * one.p99:.1f}" for one in row.latencies),
            "" if row.megabytes is None else f"{row.megabytes:,.0f}",
            *([] if row.accuracy is None else [f"{row.accuracy:.2%}"]),
        )
    page.print(rows)
    page.print(found.machine)
    for remark in found.remarks:
        page.print(printable(remark))
