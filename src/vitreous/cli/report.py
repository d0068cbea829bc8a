"""`vitreous report`."""

from __future__ import annotations

from typing import Annotated, Literal

import tyro

from vitreous.cli.terminal import printable, progress


def report(
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|BUNDLE")],
    data: Annotated[str | None, tyro.conf.arg(metavar="DATA")] = None,
    split: Annotated[Literal["test", "val", "train"] | None, tyro.conf.arg(metavar="test|val|train")] = None,
    out: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None,
    preprocess: Annotated[str | None, tyro.conf.arg(metavar="TEXT")] = None,
) -> None:
    """Write a page about a model: what it was trained on, how well it does, what it looks at, and how to use it.

    The page is one HTML file that needs nothing else.

    Args:
        model: A run folder, whose training is then told, a bundle folder, or anything that `vitreous import` takes.
        data: Data to measure it on. Without, a run's own figures are shown, and of a bundle what its weights say.
        split: Which part of the data; if not given, test if there is one, else val, else all.
        out: The file to write; if not given, report.html in a run's folder, or NAME-report.html here.
        preprocess: What differs from the model's own, such as "mean=0.5,std=0.5,crop=0.9,interpolation=bicubic".
    """
    from vitreous.jobs.report import write_report

    with progress("measuring") as bar:
        path = write_report(model, data=data, split=split, out=out, preprocess=preprocess, progress=bar)
    print(f"{printable(str(path))} ({path.stat().st_size / 1e6:.1f} MB): open it in a browser.")
