"""`vitreous models`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import tyro

from vitreous.cli.terminal import Flag, console, print_json, table


def models(
    names: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="MODEL ...")] = (),
    image_size: Annotated[int | None, tyro.conf.arg(metavar="PIXELS")] = None,
    json: Flag = False,
) -> None:
    """List the models with their parameters, GFLOPs and activation memory for one picture.

    Args:
        names: Which ones, as SIZE/PATCH or SIZE/PATCH@PIXELS ("B/16", "L/16@384", "Ti/4@32x64"); all presets if none.
        image_size: Side of the picture in pixels, instead of each model's own.
        json: Print one JSON list, for programs.
    """
    from vitreous.jobs.models import models as list_models

    rows = list_models(names, image_size=image_size)
    if json:
        print_json([asdict(row) for row in rows])
        return

    listed = table(
        "model", "pixels#", "tokens#", "width#", "depth#", "heads#", "parameters#", "GFLOPs#", "training MB#"
    )
    for row in rows:
        height, width = row.image_size
        pixels = str(height) if height == width else f"{height}x{width}"
        shape = (pixels, row.tokens, row.width, row.depth, row.heads)
        listed.add_row(
            row.name,
            *("" if one is None else str(one) for one in shape),
            f"{row.parameters:,}",
            f"{row.gflops:,.2f}",
            f"{row.activation_mb:,.1f}",
        )
    page = console()
    page.print(listed)
    page.print(
        "With 1,000 classes, for one picture. GFLOPs: forward, a multiplication and an addition counted as two.\n"
        "Training MB: activations that a float32 step keeps for the backward pass."
    )
