"""`vitreous models`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import tyro

from vitreous.arguments import Count, Pixels
from vitreous.cli.terminal import Flag, console, option, print_json, table

if TYPE_CHECKING:
    from vitreous.jobs.models import ModelRow
    from vitreous.training.parallelism import GpuPlan


def models(
    names: Annotated[tuple[str, ...], tyro.conf.Positional, option("MODEL ...")] = (),
    image_size: Annotated[Pixels | None, option("PIXELS")] = None,
    gpus: Annotated[Count | None, option("COUNT")] = None,
    memory: Annotated[str | None, option("SIZE")] = None,
    batch_size: Annotated[Count | None, option("COUNT")] = None,
    json: Flag = False,
) -> None:
    """List the model presets with their parameters, GFLOPs and activation memory.

    With --gpus and --memory: which of them can be trained on these, how, and how many images per GPU fit.

    Args:
        names: Which models: SIZE/PATCH or SIZE/PATCH@PIXELS, such as B/16, L/16@384 or Ti/4@32x64; or the name of
            another, such as bit-r50x1 or efficientnet-b0@260. Default: all presets.
        image_size: Side of the input in pixels, instead of each model's own.
        gpus: How many GPUs there are to train on.
        memory: How much memory each of them has, such as 80GB.
        batch_size: How many images a step should have, over all GPUs. Default: as many as fit.
        json: Print one JSON list.
    """
    from vitreous.jobs.models import models as list_models

    rows = list_models(names, image_size=image_size, gpus=gpus, memory=memory, batch_size=batch_size)
    if json:
        print_json([asdict(row) for row in rows])
    elif gpus is None:
        _print_costs(rows)
    else:
        _print_fits(rows)


def _print_costs(rows: list[ModelRow]) -> None:
    listed = table(
        "model", "pixels#", "tokens#", "width#", "depth#", "heads#", "parameters#", "GFLOPs#", "training MB#"
    )
    for row in rows:
        shape = (_pixels(row), row.tokens, row.width, row.depth, row.heads)
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
        "For one image and 1,000 classes. GFLOPs: forward pass; a multiply-add counts as two operations.\n"
        "Training MB: activations that a float32 training step keeps for the backward pass."
    )


def _print_fits(rows: list[ModelRow]) -> None:
    """The largest batch per GPU of each way to divide a training, and which way to choose."""
    from vitreous.training.parallelism import RESERVE, WAYS

    ways = [str(way) for way in WAYS]
    listed = table("model", "pixels#", "weights GB#", "image MB#", *(f"{way}#" for way in ways), "choose")
    for row in rows:
        assert row.fit is not None
        batches = (row.fit.largest_batch.get(way) for way in ways)
        listed.add_row(
            row.name,
            _pixels(row),
            f"{row.fit.weights / 1e9:,.2f}",
            f"{row.fit.image / 1e6:,.1f}",
            *("" if most is None else f"{most:,}" if most else "-" for most in batches),
            _choice(row.fit),
        )
    page = console()
    page.print(listed)
    page.print(
        "Images per GPU at most, for each way to divide a training with AdamW in mixed precision (bfloat16).\n"
        "DDP: every GPU holds all weights, as many gradients, and twice as many moments. shard (--shard): its share\n"
        "of them. activation_checkpointing: blocks are computed again in the backward pass, a third more time.\n"
        f"{RESERVE:.0%} of the memory is left free. Computed; docs/scale.md says how far it agrees with measurements."
    )


def _choice(fit: GpuPlan) -> str:
    if fit.choice is None:
        return "does not fit"
    return fit.choice + (f", accumulate={fit.accumulate}" if fit.accumulate > 1 else "")


def _pixels(row: ModelRow) -> str:
    height, width = row.image_size
    return str(height) if height == width else f"{height}x{width}"
