"""`vitreous transfer`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import tyro

from vitreous.arguments import Budget, Pixels, Workers
from vitreous.cli.listening import ending_status, listening, stopped_text
from vitreous.cli.terminal import Flag, console, option, print_json, printable, table

if TYPE_CHECKING:
    from vitreous.report.transferred import Transfer


def transfer(
    model: Annotated[str, tyro.conf.Positional, option("MODEL")],
    tasks: Annotated[str, option("natural|specialized|structured|all|NAME,...")] = "all",
    protocol: Annotated[str, option("vtab-1k|full|linear|knn|fewshot-5,...")] = "vtab-1k",
    budget: Annotated[Budget | None, option("TIME")] = None,
    image_size: Annotated[Pixels | None, option("PIXELS")] = None,
    preprocess: Annotated[str | None, option("TEXT")] = None,
    out: Annotated[str | None, option("DIR")] = None,
    workers: Annotated[Workers | None, option("COUNT")] = None,
    device: Annotated[str, option("auto|cpu|cuda")] = "auto",
    json: Flag = False,
) -> int:
    """Transfer a model to many tasks, by the paper's yardsticks: VTAB-1k, full, linear, k-NN, few-shot.

    Writes DIR/transfer.html, with the results beside the paper's table 2, and DIR/transfer.json. Tasks whose data are
    not on this machine are listed as missing; `vitreous data get NAME` fetches them. If it is interrupted, repeat the
    same command: finished tasks are not done again, and more tasks and protocols may be added.

    Args:
        model: A bundle, a run folder, or anything that `vitreous import` reads.
        tasks: VTAB's groups, names that `vitreous data list` shows, or paths of data with labels; pets=PATH says that
            the data at PATH are Pets. Several with commas between them.
        protocol: vtab-1k: fine-tune on 1,000 images. full: on all. linear, knn, fewshot-5: on frozen features.
            Several with commas between them.
        budget: How long everything may take, such as 15m; it is divided fairly, and what does not fit is measured on a
            random part of the images. Default: the paper's settings, which take an accelerator.
        image_size: Side of the model's input in pixels. Default: the model's own; 384 for vtab-1k and full without a
            budget.
        preprocess: Changes to the model's preprocessing, such as "mean=0.5,std=0.5,crop=0.9,interpolation=bicubic".
        out: The folder to write to. Default: runs/ and the name of the model, with -transfer.
        workers: Processes that decode images. Default: one per core, at most 4.
        device: Where to compute; auto takes an accelerator if there is one.
        json: Print the contents of transfer.json.
    """
    from typing import cast

    from vitreous.jobs.transfer import transfer as transfer_model
    from vitreous.report.transferred import Protocol

    with listening(steps=False) as callbacks:  # one line per score is enough
        result = transfer_model(
            model,
            tasks=tasks.split(","),
            protocols=cast("list[Protocol]", protocol.split(",")),  # checked there
            budget=budget,
            image_size=image_size,
            preprocess=preprocess,
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


def _show(found: Transfer) -> None:
    if not found.finished:
        so_far = f" {found.out}/transfer.html shows the {len(found.scores)} scores so far." if found.scores else ""
        print(stopped_text(found.out) + so_far)
        return
    rows = table("task", "protocol", "accuracy#", "95 % interval#", "test images#", "learned from#", "time#")
    for score in found.scores:
        low, high = score.interval
        rows.add_row(
            printable(score.task),
            score.protocol,
            f"{100 * score.accuracy:.1f} %",
            f"{100 * low:.1f} to {100 * high:.1f}",
            score.tested.removeprefix("a random "),
            f"{score.trained_on:,}"
            if score.trained_on == score.trained_of
            else f"{score.trained_on:,} of {score.trained_of:,}",
            f"{score.seconds:.0f} s",
        )
    console().print(rows)
    print()
    for mean in found.means:
        low, high = mean.interval
        print(
            f"mean of {mean.what}, {mean.protocol}: {100 * mean.value:.1f} % ({100 * low:.1f} to {100 * high:.1f}), "
            f"{mean.tasks} of {mean.of} tasks"
        )
    print(printable(f"compute  {found.core_days}"))
    for one in found.absent:
        print(printable(f"missing  {one.task}{'' if one.protocol is None else f', {one.protocol}'}: {one.reason}"))
    print(f"page     {found.out}/transfer.html")
    print(f"numbers  {found.out}/transfer.json")
