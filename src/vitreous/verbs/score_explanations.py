"""`vitreous score-explanations`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vitreous.arguments import Count
from vitreous.cli.terminal import console, say_left_out, table
from vitreous.cli.verb import Verb, verb
from vitreous.explain.request import METHODS, Method
from vitreous.verbs.options import PreprocessOption, SplitOption

if TYPE_CHECKING:
    from vitreous.data.source import Data
    from vitreous.explain.score import ExplanationScores
    from vitreous.weights.bundle import Bundle


@dataclass(frozen=True)
class ScoreExplanations(PreprocessOption, SplitOption, Verb["ExplanationScores"]):
    """Measure how good explanations are: deletion, insertion, agreement with masks.

    Each image is explained for the class that the model predicts.

    Three maps that ignore the image are scored too; a method must beat them to mean anything.
    """

    model: str | Path | Bundle
    """MODEL: A bundle, a run folder, or anything that `vitreous import` reads; it needs a classifier."""
    data: str | Path | Data
    """DATA: Images, with or without labels: a folder, a CSV or JSONL list, packed data, shards, data:NAME, or
    builtin."""
    _: KW_ONLY
    methods: Sequence[Method] = METHODS
    """METHOD,METHOD,...: The methods to score."""
    masks: str | Path | None = None
    """FOLDER: Folder with one mask per image, under the image's name but ending in .png; adds energy, pointing and IoU.
    A trimap (1 and 3 count, 2 does not), or any other mask, in which all but 0 counts."""
    count: Count | None = None
    """COUNT: How many images to use, spread evenly over the split. Default: all."""

    def run(self) -> ExplanationScores:
        """Score each method and three baselines."""
        from vitreous.data.opening import choose_split, open_images
        from vitreous.explain.score import score_methods
        from vitreous.inference.memory_needs import check_explanation_memory
        from vitreous.inference.opening import open_classifier

        bundle = open_classifier(self.model, self.preprocess)
        check_explanation_memory(bundle, "attention")
        _, source = choose_split(open_images(self.data), self.split)
        return score_methods(
            bundle,
            source,
            self.methods,
            masks=None if self.masks is None else Path(self.masks),
            count=self.count,
            progress=lambda done, total: self.told.progress("scoring", done, total),
        )

    def show(self, result: ExplanationScores) -> None:
        """One row per map, baselines first, and how to read them."""
        page = console()
        page.print(f"{result.images:,} images, each explained for the class that the model predicts")
        page.print()
        masked = result.scores[0].energy is not None
        names = ("energy#", "pointing#", "IoU#") if masked else ()
        rows = table("map", "deletion#", "insertion#", *names, "ms per image#")
        for one in result.scores:
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
        say_left_out(result.left_out)


score_explanations = verb(ScoreExplanations)
