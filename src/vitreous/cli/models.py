"""`vitreous models`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import tyro

from vitreous.arguments import Pixels
from vitreous.cli.terminal import Flag, console, option, print_json, table


def models(
    names: Annotated[tuple[str, ...], tyro.conf.Positional, option("MODEL ...")] = (),
    image_size: Annotated[Pixels | None, option("PIXELS")] = None,
    json: Flag = False,
) -> None:
    """List the model presets with their parameters, GFLOPs and activation memory.

    Args:
        names: Which models: SIZE/PATCH or SIZE/PATCH@PIXELS, such as B/16, L/16@384 or Ti/4@32x64; or the name of
            another, such as bit-r50x1 or efficientnet-b0@260. Default: all presets.
        image_size: Side of the input in pixels, instead of each model's own.
        json: Print one JSON list.
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
        "For one picture and 1,000 classes. GFLOPs: forward pass; a multiply-add counts as two operations.\n"
        "Training MB: activations that a float32 training step keeps for the backward pass."
    )
