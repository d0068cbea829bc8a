"""The command `vitreous`: parses, calls a job, prints. Heavy things are imported when a verb runs, not before."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import tyro

from vitreous import __version__
from vitreous.errors import UserError

Flag = tyro.conf.FlagCreatePairsOff[bool]


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
        print(json_format.dumps([asdict(row) for row in rows], indent=2))
        return

    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("model")
    for heading in ("pixels", "tokens", "width", "depth", "heads", "parameters", "GFLOPs", "training MB"):
        table.add_column(heading, justify="right")
    for row in rows:
        height, width = row.image_size
        pixels = str(height) if height == width else f"{height}x{width}"
        shape = (pixels, row.tokens, row.width, row.depth, row.heads)
        table.add_row(
            row.name, *map(str, shape), f"{row.parameters:,}", f"{row.gflops:,.2f}", f"{row.activation_mb:,.1f}"
        )
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table)
    console.print(
        "With 1,000 classes, for one picture. GFLOPs: forward, a multiplication and an addition counted as two.\n"
        "Training MB: activations that a float32 step keeps for the backward pass."
    )


VERBS = {"models": models}


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command; a person's mistake ends with one sentence on stderr and status 2."""
    args = list(sys.argv[1:] if argv is None else argv)
    if args in (["--version"], ["-V"]):
        print(f"vitreous {__version__}")
        return
    try:
        tyro.extras.subcommand_cli_from_dict(
            VERBS, prog="vitreous", description="A Vision Transformer you can see through.", args=args
        )
    except UserError as error:
        print(f"vitreous: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
