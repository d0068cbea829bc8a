"""`vitreous report`."""

from __future__ import annotations

from typing import Annotated, Literal

import tyro

from vitreous.cli.terminal import option, printable, progress


def report(
    model: Annotated[str, tyro.conf.Positional, option("RUN|BUNDLE")],
    data: Annotated[str | None, option("DATA")] = None,
    split: Annotated[Literal["test", "val", "train"] | None, option("test|val|train")] = None,
    out: Annotated[str | None, option("FILE")] = None,
    preprocess: Annotated[str | None, option("TEXT")] = None,
) -> None:
    """Write a web page about a model: its training, its accuracy, what it looks at, how to use it.

    The page is one HTML file that works offline.

    Args:
        model: A run folder (the page then tells about its training), a bundle, or anything that `vitreous import`
            reads.
        data: Data to measure the model on. Default: the results of the run, or none for a bundle.
        split: Which split of the data to use. Default: test if there is one, else val, else all.
        out: The file to write. Default: report.html in the run folder, or NAME-report.html in the current folder.
        preprocess: Changes to the model's preprocessing, such as "mean=0.5,std=0.5,crop=0.9,interpolation=bicubic".
    """
    from vitreous.training.page import write_report

    with progress("measuring") as bar:
        path = write_report(model, data=data, split=split, out=out, preprocess=preprocess, progress=bar)
    print(f"{printable(str(path))} ({path.stat().st_size / 1e6:.1f} MB): open it in a browser.")
