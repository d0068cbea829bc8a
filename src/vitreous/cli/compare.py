"""`vitreous compare`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from vitreous.arguments import Budget, Count, Pixels, Workers
from vitreous.cli.listening import ending_status, listening, stopped_text
from vitreous.cli.terminal import Flag, console, option, print_json, printable, table
from vitreous.errors import UserError

if TYPE_CHECKING:
    from vitreous.report.compared import Comparison


def compare(
    data: Annotated[str, tyro.conf.Positional, option("DATA")],
    models: Annotated[str, option("NAME,NAME,...")],
    budget: Annotated[Budget | None, option("TIME")] = None,
    fractions: Annotated[str, option("SHARE,SHARE,...")] = "1",
    seeds: Annotated[Count, option("COUNT")] = 3,
    equal: Annotated[Literal["time", "flops"], option("time|flops")] = "time",
    image_size: Annotated[Pixels | None, option("PIXELS")] = None,
    out: Annotated[str | None, option("DIR")] = None,
    workers: Annotated[Workers | None, option("COUNT")] = None,
    device: Annotated[str, option("auto|cpu|cuda")] = "auto",
    overrides: Annotated[tuple[str, ...], option("NAME=VALUE", name="overrides"), tyro.conf.UseAppendAction] = (),
    json: Flag = False,
) -> int:
    """Compare models fairly: the same data, splits, augmentation, tuning, and time or FLOPs.

    Each model is trained with each share of the images and each seed. Writes DIR/compare.html and DIR/compare.json.
    If it is interrupted, repeat the same command: what is finished is not done again.

    Args:
        data: A folder with one subfolder per class, a .csv, .jsonl or .npz, CIFAR or MNIST files, data:NAME, or the
            word builtin.
        models: Models to train, such as Ti/16,R+Ti/16,bit-r50x1,efficientnet-b0, with fields after colons where wanted:
            P/4@32:attention=neighbourhood:window=3. Paths of runs, bundles or foreign weights are measured as they are.
        budget: How long everything may take, such as 10m or 2h; each training gets the same share of it.
        fractions: Shares of the training images to train with, such as 0.01,0.1,1; smaller ones are part of larger.
        seeds: How many trainings of each model with each share.
        equal: What each training has the same of: time, or floating-point operations.
        image_size: Side of every model's input in pixels, where its name does not say it.
        out: The folder to write to. Default: runs/ and the name of the data, with -compare.
        workers: Processes that decode images. Default: one per core, at most 4.
        device: Where to compute; auto takes an accelerator if there is one.
        overrides: Change one field of every training, such as batch_size=128; may be repeated.
        json: Print the contents of compare.json.
    """

    from vitreous.config.overrides import parse_overrides
    from vitreous.jobs.compare import compare as compare_models

    with listening(steps=False) as callbacks:  # one line per cell is enough
        result = compare_models(
            data,
            models.split(","),
            budget=budget,
            fractions=_numbers(fractions),
            seeds=seeds,
            equal=equal,
            image_size=image_size,
            overrides=parse_overrides(overrides),
            out=out,
            workers=workers,
            device=device,
            callbacks=callbacks,
        )
    if json:
        print_json(result.to_json())
    else:
        _show(result)
    return ending_status(result.finished)


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"--fractions {text}: give numbers with commas between them, such as 0.01,0.1,1.") from None


def _show(found: Comparison) -> None:
    from vitreous.report.compared import share_text

    if not found.finished:
        so_far = f" {found.out}/compare.html shows the {len(found.cells)} cells so far." if found.cells else ""
        print(stopped_text(found.out) + so_far)
        return
    rows = table("model", "share#", "images#", "accuracy#", "95 % interval#", "training FLOPs#", "core-hours#")
    for row in found.rows:
        spread = "" if row.accuracies.deviation is None else f" ± {100 * row.accuracies.deviation:.1f}"
        low, high = row.accuracies.interval
        rows.add_row(
            printable(row.model),
            share_text(row.fraction),
            "" if row.images is None else f"{row.images:,}",
            f"{100 * row.accuracies.mean:.1f}{spread} %",
            f"{100 * low:.1f} to {100 * high:.1f}",
            "" if row.flops is None else f"{row.flops:.3g}",
            "" if row.core_hours is None else f"{row.core_hours:.3g}",
        )
    console().print(rows)
    print()
    for fraction, verdict in found.verdicts.items():
        what = "" if fraction is None else f"with {share_text(fraction)} of the images: "
        print(printable(f"{what}{verdict}"))
    for closing in found.closing:
        print(printable(f"{closing}"))
    for remark in found.remarks:
        print(f"note: {printable(remark)}")
    print(f"page     {found.out}/compare.html")
    print(f"numbers  {found.out}/compare.json")
