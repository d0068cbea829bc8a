"""How `vitreous evaluate --corruptions` shows what it found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitreous.cli.terminal import console, printable, say_left_out, table

if TYPE_CHECKING:
    from rich.table import Table

    from vitreous.evaluate.corruptions import MeanError
    from vitreous.jobs.evaluate_corruptions import CorruptionEvaluation


def show_corruptions(found: CorruptionEvaluation) -> None:
    """Accuracy and calibration of each kind and strength, and what they come to."""
    result, page = found.result, console()
    drawn = f" of {found.of:,}, drawn at random by seed {found.seed}" if result.n < found.of else ""
    page.print(
        f"{result.n:,} images{drawn} ({found.split}), each as it is and in {len(result.scores)} corruptions of what "
        f"the model sees, {found.size[0]}x{found.size[1]} pixels; in {found.seconds:.1f} s"
    )
    for remark in found.remarks:
        page.print(f"note: {remark}")
    for title, measure in (("accuracy at strength", "accuracy"), ("calibration error (ECE)", "ece")):
        page.print()
        page.print(_table(found, title, measure))
    low, high = result.clean.interval
    page.print()
    rows = table("", "", "")
    rows.show_header = False
    rows.add_row("accuracy as they are", f"{result.clean.accuracy:.1%}", f"95 % interval: {low:.1%} to {high:.1%}")
    rows.add_row("mean corruption error", *_mean(result.error))
    rows.add_row("less the error as they are", *_mean(result.relative_error))
    page.print(rows)
    page.print()
    page.print("Kinds and strengths are like ImageNet-C's, not equal: --json and --out say what differs.")
    if found.page is not None:
        page.print(f"page: {printable(str(found.page))}")
    say_left_out(found.unreadable)


def _table(found: CorruptionEvaluation, title: str, measure: str) -> Table:
    result = found.result
    made = table(title, *(f"{k}#" for k in result.strengths), "mean#")
    clean = [""] * len(result.strengths)
    made.add_row("as they are", *clean, f"{getattr(result.clean, measure):.1%}")
    for kind in result.kinds:
        values = [getattr(score, measure) for score in result.of(kind)]
        made.add_row(kind, *(f"{value:.1%}" for value in values), f"{getattr(result, measure)(kind):.1%}")
    return made


def _mean(error: MeanError) -> tuple[str, str]:
    low, high = error.interval
    return f"{error.value:.1%}", f"95 % interval: {low:.1%} to {high:.1%}"
