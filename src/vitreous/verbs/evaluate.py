"""`vitreous evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from vitreous.arguments import Count, Seed
from vitreous.cli.terminal import console, printable, say_left_out, table
from vitreous.cli.verb import Verb, verb
from vitreous.errors import UserError
from vitreous.verbs.options import EngineOptions, MergeOption, SplitOption, WorkersOption
from vitreous.wording import Range

if TYPE_CHECKING:
    from rich.table import Table

    from vitreous.data.source import Data
    from vitreous.inference.corruptions import CorruptionEvaluation
    from vitreous.inference.evaluation import Evaluation, LabelSetEvaluation
    from vitreous.weights.bundle import Bundle

SHOWN_CLASSES = 10
CORRUPTED_IMAGES = 200
"""By default: each is seen 76 times."""
Severity = Annotated[int, Range(1, 5)]


@dataclass(frozen=True)
class Evaluate(
    MergeOption,
    EngineOptions,
    WorkersOption,
    SplitOption,
    Verb["Evaluation | LabelSetEvaluation | CorruptionEvaluation"],
):
    """Measure a model on labelled data: accuracy, calibration, each class, what is confused with what."""

    model: str | Path | Bundle
    """MODEL: A bundle, a run folder, an exported model, or anything that `vitreous import` reads."""
    data: str | Path | Data
    """DATA: A folder with one subfolder per class, a CSV or JSONL list, packed data, shards, data:NAME, or builtin.
    Classes are matched to the model's labels by name; for ImageNet's classifiers also by WordNet id or number."""
    _: KW_ONLY
    labels: str | Path | None = None
    """real|FILE: Several labels per image, each of which counts as right: real for ImageNet's ReaL labels, or a JSON
    file with a list of labels for each validation image, or from file name to list."""
    label_space: Literal["all", "data"] | None = None
    """Choose the prediction among all classes of the model, or among those that the data have. Default: all; for the
    200 classes of ImageNet-A or ImageNet-R, data."""
    predictions: str | Path | None = None
    """FILE: Write the prediction for each image to this file, which ends in .csv, .jsonl or .parquet."""
    corruptions: bool = False
    """Measure accuracy and calibration under noise, blur, weather and digital corruption instead: the 15 kinds of
    ImageNet-C, five severities each."""
    kinds: Sequence[str] | None = None
    """Of corruption, names of `vitreous.data.corrupt.CORRUPTIONS`; None for all."""
    severity: Sequence[Severity] | None = None
    """N,N,...: Severities of the corruptions, from 1 to 5. Default: 1,2,3,4,5."""
    count: Count | None = None
    """COUNT: How many images to corrupt, drawn at random. Default: 200."""
    seed: Seed | None = None
    """NUMBER: Seed for drawing these images, and for what is random in a corruption. Default: 0."""
    out: str | Path | None = None
    """FOLDER: Folder for corruptions.json and a page with plots and examples, corruptions.html."""

    def run(self) -> Evaluation | LabelSetEvaluation | CorruptionEvaluation:
        """Measure it; the result says what was measured on what, and what computed it."""
        from vitreous.data.opening import choose_split, open_dataset, open_images
        from vitreous.evaluation.prediction_file import check_prediction_file
        from vitreous.inference.evaluation import evaluate_classifier, evaluate_label_sets, find_labels

        if self.labels is not None and self.label_space is not None:
            raise UserError(
                f"label_space={self.label_space!r}: with labels, any class may be predicted; leave label_space out."
            )
        of_corruptions = ("kinds", "severity", "count", "seed", "out")
        for name in ("labels", "predictions") if self.corruptions else of_corruptions:
            if (value := getattr(self, name)) is not None:
                which = "without" if self.corruptions else "with"
                raise UserError(f"{name}={value}: this is possible only {which} corruptions; leave it out.")
        if self.corruptions:
            return self._evaluate_corruptions()
        place = None if self.predictions is None else check_prediction_file(self.predictions)
        labels = None if self.labels is None else find_labels(self.labels)
        split, source = choose_split((open_dataset if labels is None else open_images)(self.data), self.split)
        model = self.open_engine(self.model, images=len(source), merge=self.merge)
        if labels is not None:
            return evaluate_label_sets(model, split, source, labels, predictions=place, **self._loading)
        return evaluate_classifier(
            model, split, source, label_space=self.label_space, predictions=place, **self._loading
        )

    @property
    def _loading(self) -> dict[str, Any]:
        progress = partial(self.told.progress, "evaluating")
        return {"batch_size": self.batch_size, "workers": self.workers, "progress": progress}

    def _evaluate_corruptions(self) -> CorruptionEvaluation:
        from vitreous.data.corrupt import CORRUPTIONS, STRENGTHS
        from vitreous.data.opening import choose_split, open_dataset
        from vitreous.inference.corruptions import evaluate_corruptions
        from vitreous.inference.matching import match_classes
        from vitreous.verbs.corruption_page import check_corruption_files, write_corruption_files

        kinds = tuple(dict.fromkeys(CORRUPTIONS if self.kinds is None else self.kinds))
        strengths = STRENGTHS if self.severity is None else tuple(sorted(set(self.severity)))
        if unknown := [kind for kind in kinds if kind not in CORRUPTIONS]:
            raise UserError(f"kinds: {unknown[0]!r}: no such corruption; there are {', '.join(CORRUPTIONS)}.")
        for name, values in (("kinds", kinds), ("severity", strengths)):
            if not values:
                raise UserError(f"{name}: give at least one, or leave it out for all.")
        folder = None if self.out is None else check_corruption_files(self.out)
        split, source = choose_split(open_dataset(self.data), self.split)
        count = min(self.count or CORRUPTED_IMAGES, len(source))
        model = self.open_engine(self.model, images=count * (1 + len(kinds) * len(strengths)), merge=self.merge)
        found, images = evaluate_corruptions(
            model,
            split,
            match_classes(source, model.labels, self.label_space),
            kinds,
            strengths,
            count=count,
            seed=self.seed or 0,
            **self._loading,
        )
        return found if folder is None else write_corruption_files(folder, found, model, images, self.data)

    def show(self, result: Evaluation | LabelSetEvaluation | CorruptionEvaluation) -> None:
        """Accuracy and calibration with intervals, the hardest classes, and what is confused with what."""
        from vitreous.inference.corruptions import CorruptionEvaluation
        from vitreous.inference.evaluation import Evaluation

        if isinstance(result, CorruptionEvaluation):
            _show_corruptions(result)
        else:
            _show_classes(result) if isinstance(result, Evaluation) else _show_label_sets(result)
            if result.predictions is not None:
                console().print(f"\nthe prediction for each image: {printable(result.predictions)}")
        say_left_out(result.unreadable)


def _show_label_sets(found: LabelSetEvaluation) -> None:
    result, page = found.result, console()
    page.print(
        f"{result.n:,} images ({found.split}) with {result.labels_per_image:.2f} labels each on average, of "
        f"{printable(found.labels)}, by {found.engine} in {found.seconds:.1f} s; {found.without:,} without a label "
        "were left out"
    )
    page.print()
    rows = _without_header()
    rows.add_row("any-label accuracy", f"{result.top1:.2%}", _interval(result.top1_interval))
    rows.add_row("any label in top 5", f"{result.top5:.2%}")
    rows.add_row("calibration error", f"{result.ece:.2%}", "ECE, 15 bins")
    page.print(rows)


def _show_classes(found: Evaluation) -> None:
    from vitreous.evaluation.classify import MIN_CLASS_IMAGES

    result, page = found.result, console()
    seen = {name: entry for name, entry in result.per_class.items() if entry["n"]}
    page.print(
        f"{result.n:,} images of {len(seen)} classes ({found.split}), by {found.engine} in {found.seconds:.1f} s"
    )
    for remark in found.remarks:
        page.print(f"note: {remark}")
    page.print()
    rows = _without_header()
    rows.add_row("top-1 accuracy", f"{result.top1:.2%}", _interval(result.top1_interval))
    if len(result.labels) > 5:
        rows.add_row("top-5 accuracy", f"{result.top5:.2%}")
    rows.add_row("calibration error", f"{result.ece:.2%}", "ECE, 15 bins")
    rows.add_row("cross-entropy", f"{result.loss:.3f}")
    page.print(rows)

    few = len(seen) <= SHOWN_CLASSES
    worst = result.hardest(SHOWN_CLASSES, least=1 if few else MIN_CLASS_IMAGES)
    classes = table("class" if few else f"the {len(worst)} hardest classes", "images#", "accuracy#")
    for name, entry in worst:
        classes.add_row(printable(name), f"{entry['n']:,}", f"{entry['accuracy']:.1%}")
    page.print()
    too_few = f"No class has {MIN_CLASS_IMAGES} images, too few to say which are hard; --json lists all."
    page.print(classes if worst else too_few)

    if pairs := result.most_confused(SHOWN_CLASSES):
        confused = table("true class", "predicted as", "images#", "fraction of class#")
        for pair in pairs:
            confused.add_row(printable(pair.true), printable(pair.predicted), f"{pair.images:,}", f"{pair.share:.1%}")
        page.print()
        page.print(confused)


def _show_corruptions(found: CorruptionEvaluation) -> None:
    result, page = found.result, console()
    drawn = f" of {found.of:,}, drawn at random by seed {found.seed}" if result.n < found.of else ""
    page.print(
        f"{result.n:,} images{drawn} ({found.split}), each as it is and in {len(result.scores)} corruptions of what "
        f"the model sees, {found.size[0]}x{found.size[1]} pixels; by {found.engine} in {found.seconds:.1f} s"
    )
    for remark in found.remarks:
        page.print(f"note: {remark}")
    for title, metric in (("accuracy at severity", "accuracy"), ("calibration error (ECE)", "ece")):
        rows = table(title, *(f"{k}#" for k in result.strengths), "mean#")
        rows.add_row("as they are", *[""] * len(result.strengths), f"{getattr(result.clean, metric):.1%}")
        for kind in result.kinds:
            values = [*(getattr(score, metric) for score in result.of(kind)), getattr(result, metric)(kind)]
            rows.add_row(kind, *(f"{value:.1%}" for value in values))
        page.print()
        page.print(rows)
    page.print()
    rows = _without_header()
    rows.add_row("accuracy as they are", f"{result.clean.accuracy:.1%}", _interval(result.clean.interval))
    for name, error in (("mean corruption error", result.error), ("less the error as they are", result.relative_error)):
        rows.add_row(name, f"{error.value:.1%}", _interval(error.interval))
    page.print(rows)
    page.print()
    page.print("Kinds and severities are like ImageNet-C's, not equal: --json and --out say what differs.")
    if found.page is not None:
        page.print(f"page: {printable(str(found.page))}")


def _interval(interval: tuple[float, float]) -> str:
    return f"95 % interval: {interval[0]:.1%} to {interval[1]:.1%}"


def _without_header() -> Table:
    rows = table("", "", "")
    rows.show_header = False
    return rows


evaluate = verb(Evaluate)
