"""`vitreous walkthrough`."""

from __future__ import annotations

from typing import Annotated

import tyro

from vitreous.cli.images import name_outputs, parse_point, say_unreadable
from vitreous.cli.terminal import option, printable


def walkthrough(
    model: Annotated[str, tyro.conf.Positional, option("MODEL")],
    images: Annotated[tuple[str, ...], tyro.conf.Positional, option("IMAGE|FOLDER ...")],
    layer: Annotated[int, option("N")] = -1,
    head: Annotated[int, option("N")] = 0,
    query: Annotated[str | None, option("X,Y")] = None,
    out: Annotated[str, option("DIR")] = "walkthroughs",
    preprocess: Annotated[str | None, option("TEXT")] = None,
) -> int:
    """Follow an image through the paper's equations, step by step, on a web page.

    The page shows the image's own numbers: patches, tokens, queries and keys of one head, attention, classes.

    The exit status is 1 if an image could not be read.

    Args:
        model: A bundle, a run folder, or anything that `vitreous import` reads.
        images: Image files, and folders of images; each gets a page of its own.
        layer: The block to open, counted from 0, or from the end if negative.
        head: The attention head to open, counted from 0.
        query: A point in the image, in pixels: follow the patch there. Default: the patch in the middle.
        out: Folder for the pages, NAME-walkthrough.html.
        preprocess: Changes to the model's preprocessing, such as "mean=0.5,std=0.5,crop=0.9,interpolation=bicubic".
    """
    from vitreous.data.decode import ImageError
    from vitreous.inference.opening import list_images
    from vitreous.jobs.walkthrough import write_walkthrough
    from vitreous.weights.source import open_weights

    point, paths, failed = parse_point(query), list_images(images), False
    bundle = open_weights(model, preprocess)
    for path, (file,) in zip(paths, name_outputs(out, paths, "-walkthrough.html"), strict=True):
        try:
            made = write_walkthrough(bundle, path, out=file, layer=layer, head=head, query=point)
            print(f"{printable(str(path))}: {printable(str(made))}: open it in a browser.", flush=True)
        except ImageError as error:
            failed = True
            say_unreadable(error)
    return int(failed)
