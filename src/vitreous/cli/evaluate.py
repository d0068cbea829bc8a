"""`vitreous evaluate`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from vitreous.arguments import Count, Merge, Seed, Workers
from vitreous.cli.corruptions import show_corruptions
from vitreous.cli.engines import EngineOption, PrecisionOption
from vitreous.cli.terminal import Flag, console, option, print_json, printable, progress, say_left_out, table
from vitreous.errors import UserError

if TYPE_CHECKING:
    from vitreous.jobs.evaluate import Evaluation, LabelSetEvaluation

SHOWN = 10


def evaluate(
    model: Annotated[str, tyro.conf.Positional, option("MODEL")],
    data: Annotated[str, tyro.conf.Positional, option("DATA")],
    split: Annotated[Literal["test", "val", "train"] | None, option("test|val|train")] = None,
    labels: Annotated[str | None, option("real|FILE")] = None,
    among: Annotated[Literal["all", "data"] | None, option("all|data")] = None,
    answers: Annotated[str | None, option("FILE")] = None,
    corruptions: Flag = False,
    severity: Annotated[str | None, option("N,N,...")] = None,
    count: Annotated[Count | None, option("COUNT")] = None,
    seed: Annotated[Seed | None, option("NUMBER")] = None,
    out: Annotated[str | None, option("FOLDER")] = None,
    batch_size: Annotated[Count | None, option("COUNT")] = None,
    workers: Annotated[Workers | None, option("COUNT")] = None,
    preprocess: Annotated[str | None, option("TEXT")] = None,
    engine: EngineOption = "auto",
    precision: PrecisionOption = None,
    merge: Annotated[Merge | None, option("COUNT")] = None,
    json: Flag = False,
) -> None:
    """Measure a model on labelled data: accuracy, calibration, each class, what is confused with what.

    Args:
        model: A bundle, a run folder, an exported model, or anything that `vitreous import` reads.
        data: A folder with one subfolder per class, a CSV or JSONL list, packed data, shards, data:NAME, or builtin.
            Classes are matched to the model's labels by name; for ImageNet's classifiers also by WordNet id or number.
        split: Which split of the data to use. Default: test if there is one, else val, else all.
        labels: Several labels per image, each of which counts as right: real for ImageNet's ReaL labels, or a JSON
            file with a list of labels for each validation image, or from file name to list.
        among: Choose the answer among all classes of the model, or among those that the data have. Default: all; for
            the 200 classes of ImageNet-A or ImageNet-R, data.
        answers: Write what the model says of each image to this file, which ends in .csv, .jsonl or .parquet.
        corruptions: Measure accuracy and calibration under noise, blur, weather and digital corruption instead: the 15
            kinds of ImageNet-C, five strengths each.
        severity: Strengths of the corruptions, from 1 to 5. Default: 1,2,3,4,5.
        count: How many images to corrupt, drawn at random. Default: 200.
        seed: Seed for drawing these images, and for what is random in a corruption. Default: 0.
        out: Folder for corruptions.json and a page with plots and examples, corruptions.html.
        batch_size: How many images to pass through the model at once. Default: what is fastest.
        workers: Processes that decode images. Default: one per core, at most 4; none for a few images.
        preprocess: Changes to the model's preprocessing, such as "mean=0.5,std=0.5,crop=0.9,interpolation=bicubic".
        engine: What computes. auto takes the fastest that was verified for this model here, and says which.
        precision: fp32 or int8. Default: of engine auto, whatever is fastest; else fp32.
        merge: How many tokens to merge per block: faster, and a little less accurate. Default: as the model says.
        json: Print one JSON object.
    """
    from vitreous.jobs.evaluate import LabelSetEvaluation, evaluate_label_sets
    from vitreous.jobs.evaluate import evaluate as measure
    from vitreous.jobs.evaluate_corruptions import evaluate_corruptions

    if labels is not None and among is not None:
        raise UserError(f"--among {among}: with --labels, any class may be the answer; leave --among out.")
    if corruptions:
        _refuse("without --corruptions", labels=labels, answers=answers)
        with progress("evaluating") as bar:
            corrupted = evaluate_corruptions(
                model,
                data,
                split=split,
                among=among,
                **_given(strengths=None if severity is None else _strengths(severity), count=count, seed=seed),
                out=out,
                batch_size=batch_size,
                workers=workers,
                preprocess=preprocess,
                engine=engine,
                precision=precision,
                merge=merge,
                progress=bar,
            )
        if json:
            print_json(corrupted.to_json())
            return
        show_corruptions(corrupted)
        return
    _refuse("with --corruptions", severity=severity, count=count, seed=seed, out=out)
    found: Evaluation | LabelSetEvaluation
    with progress("evaluating") as bar:
        if labels is not None:
            found = evaluate_label_sets(
                model,
                data,
                labels,
                split=split,
                answers=answers,
                batch_size=batch_size,
                workers=workers,
                preprocess=preprocess,
                engine=engine,
                precision=precision,
                merge=merge,
                progress=bar,
            )
        else:
            found = measure(
                model,
                data,
                split=split,
                among=among,
                answers=answers,
                batch_size=batch_size,
                workers=workers,
                preprocess=preprocess,
                engine=engine,
                precision=precision,
                merge=merge,
                progress=bar,
            )
    if json:
        print_json(found.to_json())
        return
    if isinstance(found, LabelSetEvaluation):
        _show_label_sets(found)
    else:
        _show(found)
    if found.answers is not None:
        console().print(f"\nthe answer to each image: {printable(found.answers)}")
    say_left_out(found.unreadable)


def _refuse(where: str, **options: object) -> None:
    """Refuse options that do nothing here, for whoever gave them expects something of them."""
    for name, value in options.items():
        if value is not None:
            raise UserError(f"--{name} {value}: this is possible only {where}; leave it out.")


def _given(**options: Any) -> dict[str, Any]:
    """The options that were given; what the others are by default, the job says."""
    return {name: value for name, value in options.items() if value is not None}


def _strengths(text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(1 <= strength <= 5 for strength in found):
        raise UserError(f"--severity {text}: give numbers from 1 to 5 separated by commas, such as 1,3,5.")
    return found


def _show_label_sets(found: LabelSetEvaluation) -> None:
    result, page = found.result, console()
    low, high = result.top1_interval
    page.print(
        f"{result.n:,} images ({found.split}) with {result.labels_per_image:.2f} labels each on average, of "
        f"{printable(found.labels)}, in {found.seconds:.1f} s; {found.without:,} without a label were left out"
    )
    page.print()
    rows = table("", "", "")
    rows.show_header = False
    rows.add_row("any-label accuracy", f"{result.top1:.2%}", f"95 % interval: {low:.1%} to {high:.1%}")
    rows.add_row("any label in top 5", f"{result.top5:.2%}")
    rows.add_row("calibration error", f"{result.ece:.2%}", "ECE, 15 bins")
    page.print(rows)


def _show(found: Evaluation) -> None:
    from vitreous.evaluate.classify import ENOUGH

    result, page = found.result, console()
    low, high = result.top1_interval
    seen = {name: entry for name, entry in result.per_class.items() if entry["n"]}
    page.print(f"{result.n:,} images of {len(seen)} classes ({found.split}), in {found.seconds:.1f} s")
    for remark in found.remarks:
        page.print(f"note: {remark}")
    page.print()
    rows = table("", "", "")
    rows.show_header = False
    rows.add_row("top-1 accuracy", f"{result.top1:.2%}", f"95 % interval: {low:.1%} to {high:.1%}")
    if len(result.labels) > 5:
        rows.add_row("top-5 accuracy", f"{result.top5:.2%}")
    rows.add_row("calibration error", f"{result.ece:.2%}", "ECE, 15 bins")
    rows.add_row("cross-entropy", f"{result.loss:.3f}")
    page.print(rows)

    few = len(seen) <= SHOWN
    worst = result.hardest(SHOWN, least=1 if few else ENOUGH)
    classes = table("class" if few else f"the {len(worst)} hardest classes", "images#", "accuracy#")
    for name, entry in worst:
        classes.add_row(printable(name), f"{entry['n']:,}", f"{entry['accuracy']:.1%}")
    page.print()
    page.print(classes if worst else f"No class has {ENOUGH} images, too few to say which are hard; --json lists all.")

    if pairs := result.most_confused(SHOWN):
        confused = table("true class", "predicted as", "images#", "share of class#")
        for pair in pairs:
            confused.add_row(printable(pair.true), printable(pair.predicted), f"{pair.images:,}", f"{pair.share:.1%}")
        page.print()
        page.print(confused)
