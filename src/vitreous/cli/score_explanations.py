"""`vitreous score-explanations`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from vitreous.arguments import Count
from vitreous.cli.terminal import Flag, console, option, print_json, progress, say_left_out, table

if TYPE_CHECKING:
    from vitreous.jobs.score_explanations import ExplanationScores


def score_explanations(
    model: Annotated[str, tyro.conf.Positional, option("MODEL")],
    data: Annotated[str, tyro.conf.Positional, option("DATA")],
    method: Annotated[
        Literal["attention", "rollout", "relevance", "gradcam", "occlusion"] | None,
        option("attention|rollout|relevance|gradcam|occlusion"),
    ] = None,
    masks: Annotated[str | None, option("DIR")] = None,
    split: Annotated[Literal["test", "val", "train"] | None, option("test|val|train")] = None,
    count: Annotated[Count | None, option("COUNT")] = None,
    preprocess: Annotated[str | None, option("TEXT")] = None,
    json: Flag = False,
) -> None:
    """Measure how good explanations are: deletion, insertion, agreement with masks.

    Each image is explained for the class that the model predicts.

    Three maps that ignore the image are scored too; a method must beat them to mean anything.

    Args:
        model: A bundle, a run folder, or anything that `vitreous import` reads; it needs a classifier.
        data: Images, with or without labels: a folder, a CSV or JSONL list, packed data, shards, data:NAME, or
            builtin.
        method: Score this method only. Default: all of them.
        masks: Folder with one mask per image, under the image's name but ending in .png; adds energy, pointing and
            IoU. A trimap (1 and 3 count, 2 does not), or any other mask, in which all but 0 counts.
        split: Which split of the data to use. Default: test if there is one, else val, else all.
        count: How many images to use, spread evenly over the split. Default: all.
        preprocess: Changes to the model's preprocessing, such as "mean=0.5,std=0.5,crop=0.9,interpolation=bicubic".
        json: Print one JSON object.
    """
    from vitreous.explain.methods import METHODS
    from vitreous.jobs.score_explanations import score_explanations as score

    methods = METHODS if method is None else (method,)
    with progress("scoring") as bar:
        found = score(
            model, data, methods=methods, masks=masks, split=split, count=count, preprocess=preprocess, progress=bar
        )
    if json:
        print_json(found.to_json())
        return
    _show(found)
    say_left_out(found.left_out)


def _show(found: ExplanationScores) -> None:
    """One row per map, baselines first, and how to read them."""
    page = console()
    page.print(f"{found.images:,} images, each explained for the class that the model predicts")
    page.print()
    masked = found.scores[0].energy is not None
    names = ("energy#", "pointing#", "IoU#") if masked else ()
    rows = table("map", "deletion#", "insertion#", *names, "ms per image#")
    for one in found.scores:
        numbers = [f"{one.deletion:.3f}", f"{one.insertion:.3f}"]
        if one.energy is not None and one.pointing is not None and one.iou is not None:
            numbers += [f"{one.energy:.1%}", f"{one.pointing:.1%}", f"{one.iou:.3f}"]
        rows.add_row(one.name, *numbers, "" if one.seconds is None else f"{1e3 * one.seconds:.0f}")
    page.print(rows)
    page.print()
    page.print("deletion   probability of the class as its most important patches are removed; lower is better")
    page.print("insertion  probability of the class when only those patches are shown; higher is better")
    if masked:
        page.print("energy, pointing, IoU  agreement with the masks; higher is better")
    page.print("The first three maps ignore the image; a method must beat them to mean anything.")
