"""`vitreous evaluate` and `vitreous report`: how good a model is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from vitreous.arguments import Count, Range, Seed
from vitreous.cli.terminal import print_skipped, print_wide, printable, table
from vitreous.cli.verb import Verb, verb
from vitreous.errors import UserError
from vitreous.inputs import counted
from vitreous.storage.overwrite import GENERATOR, check_file, output_folder, readable_errors
from vitreous.verbs.options import EngineOptions, MergeOption, PreprocessOption, SplitOption, WorkersOption

if TYPE_CHECKING:
    from vitreous.data.source import Data, Source
    from vitreous.inference.corruptions import CorruptionEvaluation
    from vitreous.inference.engine import InferenceModel
    from vitreous.inference.evaluation import Evaluation
    from vitreous.report.corruptions import CorruptionExample
    from vitreous.weights.bundle import Bundle

MAX_SHOWN_CLASSES = 10
CORRUPTED_IMAGES = 200  # by default: each is seen 76 times
CORRUPTION_FILES = ("corruptions.json", "corruptions.html")
Severity = Annotated[int, Range(1, 5)]


@dataclass(frozen=True)
class Evaluate(MergeOption, EngineOptions["Evaluation | CorruptionEvaluation"], WorkersOption, SplitOption):
    """Measure a model on labelled images: accuracy, calibration, each class, confusions, corruptions."""

    data: str | Path | Data
    """DATA: A folder with one subfolder per class, {formats}, shards, data:NAME, or builtin.
    Classes are matched to the model's labels by name; for ImageNet's classifiers also by WordNet id or number."""
    _: KW_ONLY
    label_sets: str | Path | None = None
    """real|FILE: Several labels per image, each of which counts as right: real for ImageNet's ReaL labels, or a JSON
    file with a list of labels for each validation image, or from file name to list."""
    label_space: Literal["all", "data"] | None = None
    """Choose the prediction among all classes of the model, or among those that the data have. Default: all; for the
    200 classes of ImageNet-A or ImageNet-R, data."""
    corruptions: bool = False
    """Measure accuracy and calibration under noise, blur, weather and digital corruption instead: 14 kinds of
    ImageNet-C and a synthetic frost, five severities each."""
    kinds: Sequence[str] | None = None
    """Of corruption, names of `vitreous.data.corrupt.CORRUPTIONS`; None for all."""
    severities: Sequence[Severity] | None = None
    """N,N,...: Severities of the corruptions, from 1 to 5. Default: 1,2,3,4,5."""
    count: Count | None = None
    """COUNT: How many images to measure, drawn at random. Default: all; under corruptions 200."""
    seed: Seed | None = None
    """NUMBER: Seed for drawing these images, and for what is random in a corruption. Default: 0."""
    out: str | Path | None = None
    """FILE|FOLDER: A file for the prediction of each image, which ends in .csv, .jsonl or .parquet. With --corruptions,
    a folder for corruptions.json and a page with plots and examples, corruptions.html."""

    def run(self) -> Evaluation | CorruptionEvaluation:
        from vitreous.data.opening import choose_split, open_dataset, open_images
        from vitreous.evaluation.prediction_file import check_prediction_file
        from vitreous.inference.evaluation import evaluate_classifier, find_labels

        if self.label_sets is not None and self.label_space is not None:
            raise UserError(
                f"label_space={self.label_space!r}: with label_sets, any class may be predicted; leave label_space out."
            )
        for name in ("label_sets",) if self.corruptions else ("kinds", "severities"):
            if (value := getattr(self, name)) is not None:
                which = "without" if self.corruptions else "with"
                raise UserError(f"{name}={value}: this is possible only {which} corruptions; leave it out.")
        if self.seed is not None and self.count is None and not self.corruptions:
            raise UserError(f"seed={self.seed}: it draws the images of count; give count too, or leave seed out.")
        loading: dict[str, Any] = {"batch_size": self.batch_size, "workers": self.workers}
        loading["progress"] = self.progress("evaluating")
        if self.corruptions:
            return self._evaluate_corruptions(loading)
        loading["predictions"] = None if self.out is None else check_prediction_file(self.out)
        labels = None if self.label_sets is None else find_labels(self.label_sets)
        split, source = choose_split((open_dataset if labels is None else open_images)(self.data), self.split)
        model = self.open_engine(min(self.count or len(source), len(source)), merge=self.merge)
        loading |= {"label_space": self.label_space, "label_sets": labels, "count": self.count, "seed": self.seed or 0}
        return evaluate_classifier(model, split, source, **loading)

    def _evaluate_corruptions(self, loading: dict[str, Any]) -> CorruptionEvaluation:
        from vitreous.data.corrupt import CORRUPTIONS, STRENGTHS
        from vitreous.data.opening import choose_split, open_dataset
        from vitreous.evaluation.prediction_file import FORMATS
        from vitreous.inference.corruptions import evaluate_corruptions
        from vitreous.inference.evaluation import match_classes

        kinds = tuple(dict.fromkeys(CORRUPTIONS if self.kinds is None else self.kinds))
        strengths = STRENGTHS if self.severities is None else tuple(sorted(set(self.severities)))
        if unknown := [kind for kind in kinds if kind not in CORRUPTIONS]:
            raise UserError(f"kinds: {unknown[0]!r}: no such corruption; there are {', '.join(CORRUPTIONS)}.")
        for name, values in (("kinds", kinds), ("severities", strengths)):
            if not values:
                raise UserError(f"{name}: give at least one, or leave it out for all.")
        folder = None
        if self.out is not None:  # before anything is measured, which takes long
            if Path(self.out).suffix.lower() in FORMATS:
                raise UserError(f"out={self.out}: corruptions are written to a folder; give it another name.")
            folder = output_folder(self.out)
            for name in CORRUPTION_FILES:
                check_file(folder / name)
            with readable_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
        split, source = choose_split(open_dataset(self.data), self.split)
        count = min(self.count or CORRUPTED_IMAGES, len(source))
        model = self.open_engine(count * (1 + len(kinds) * len(strengths)), merge=self.merge)
        matched = match_classes(source, model.labels, self.label_space)
        found, images = evaluate_corruptions(
            model, split, matched, kinds, strengths, count=count, seed=self.seed or 0, **loading
        )
        return found if folder is None else _write_corruption_files(folder, found, model, images, self.data)

    def show(self, result: Evaluation | CorruptionEvaluation) -> None:
        from vitreous.inference.corruptions import CorruptionEvaluation

        if isinstance(result, CorruptionEvaluation):
            _show_corruptions(result)
        else:
            _show_classes(result, self.seed or 0)
            if result.predictions is not None:
                print_wide(f"\nthe prediction for each image: {printable(result.predictions)}")
        print_skipped(result.unreadable)


def _drawn(found: Evaluation | CorruptionEvaluation, seed: int) -> str:
    left = found.of - found.result.n - len(found.unreadable)
    return f" of {found.of:,}, drawn at random by seed {seed}" if left else ""


def _show_classes(found: Evaluation, seed: int) -> None:
    from vitreous.evaluation.classify import METRICS, MIN_CLASS_IMAGES

    result = found.result
    seen = {name: entry for name, entry in result.per_class.items() if entry["n"]}
    rows = []
    for name, metric in METRICS.items():
        interval = "" if metric.interval is None or found.optimistic else _interval(metric.interval(result))
        if metric.shown(result):
            notes = "; ".join(filter(None, (interval, metric.note)))
            rows.append((metric.title, f"{result.metrics[name]:{metric.form}}", notes))
        if name == "top1":
            beaten = "; the model may be guessing too" if result.is_guessing else ""
            rows.append(("majority class", f"{result.majority[1]:.2%}", f"always predicting the most frequent{beaten}"))
    few = len(seen) <= MAX_SHOWN_CLASSES
    worst = result.hardest(MAX_SHOWN_CLASSES, least=1 if few else MIN_CLASS_IMAGES)
    title = "class" if few else f"the {len(worst)} hardest classes"
    hardest = ((printable(name), f"{entry['n']:,}", f"{entry['accuracy']:.1%}") for name, entry in worst)
    several = ""
    if found.label_sets is not None:
        several = (
            f", each of {result.labels_per_image:.2f} labels on average in {printable(found.label_sets)} counting as "
            f"right ({found.without:,} images without a label were left out)"
        )
    print_wide(
        f"{counted(result.n, 'image')}{_drawn(found, seed)} of {counted(len(seen), 'class')} ({found.split}){several}, "
        f"by {found.engine} in {found.seconds:.1f} s",
        *(f"note: {note}" for note in found.notes),
        "",
        table(("", "", ""), rows),
        "",
        table((title, "images#", "accuracy#"), hardest)
        if worst
        else f"No class has {MIN_CLASS_IMAGES} images, too few to say which are hard; --json lists all.",
    )
    if pairs := result.most_confused(MAX_SHOWN_CLASSES):
        confused = (
            (printable(pair.true), printable(pair.predicted), f"{pair.images:,}", f"{pair.share:.1%}") for pair in pairs
        )
        print_wide("", table(("true class", "predicted as", "images#", "fraction of class#"), confused))


def _show_corruptions(found: CorruptionEvaluation) -> None:
    from vitreous.evaluation.classify import METRICS

    result = found.result
    print_wide(
        f"{counted(result.n, 'image')}{_drawn(found, found.seed)} ({found.split}), each as it is and in "
        f"{len(result.scores)} corruptions of what the model sees, {found.size[0]}x{found.size[1]} pixels; "
        f"by {found.engine} in {found.seconds:.1f} s",
        *(f"note: {note}" for note in found.notes),
    )
    for name, metric in METRICS.items():
        if metric.by_corruption:
            form = metric.form.replace("2%", "1%")
            rows = [("as they are", *[""] * len(result.strengths), f"{result.clean.metrics[name]:{form}}")]
            for kind in result.kinds:
                values = [*(score.metrics[name] for score in result.of(kind)), result.mean(name, kind)]
                rows.append((kind, *(f"{value:{form}}" for value in values)))
            print_wide("", table((f"{metric.title} at severity", *(f"{k}#" for k in result.strengths), "mean#"), rows))
    numbers = {
        "accuracy as they are": (result.clean.metrics["top1"], result.clean.top1_interval),
        "mean corruption error": (result.error.value, result.error.interval),
        "less the error as they are": (result.relative_error.value, result.relative_error.interval),
    }
    print_wide(
        "",
        table(
            ("", "", ""),
            (
                (name, f"{value:.1%}", "" if found.optimistic else _interval(each))
                for name, (value, each) in numbers.items()
            ),
        ),
        "",
        "Kinds and severities are like ImageNet-C's, not equal: --json and --out say what differs.",
        *([] if found.page is None else [f"page: {printable(str(found.page))}"]),
    )


def _interval(interval: tuple[float, float]) -> str:
    return f"95 % interval: {interval[0]:.1%} to {interval[1]:.1%}"


def _write_corruption_files(
    folder: Path, found: CorruptionEvaluation, model: InferenceModel, images: Source, data: str | Path | Data
) -> CorruptionEvaluation:
    """Write the numbers and the page; the result with the page's path. images: the measured ones."""
    import numpy as np
    import PIL

    from vitreous.data.source import Data
    from vitreous.report.corruptions import CorruptionContent, corruptions_page
    from vitreous.storage.files import write_output

    numbers, page = (folder / name for name in CORRUPTION_FILES)
    found, result = replace(found, page=page), found.result
    drawn = f"{_drawn(found, found.seed)}," if len(images) < found.of else ""
    place = "data in memory" if isinstance(data, Data) else str(data)
    path = None if model.path is None else model.path.resolve()
    name = "the model" if path is None else path.stem if path.is_file() else path.name
    content = CorruptionContent(
        model=path.parent.name if path is not None and name == "bundle" else name,  # a run's bundle has the run's name
        data=f"Measured on {result.n:,} images{drawn} of {place} ({found.split}), computed by {found.engine}.",
        size=found.size,
        result=result,
        example=_example(found, model, images),
        remarks=(*found.notes, *(f"left out: {path}: {reason}" for path, reason in found.unreadable.items())),
    )
    versions = {"numpy": np.__version__, "pillow": PIL.__version__}  # what the corruptions are computed with
    described = {"generator": GENERATOR, "versions": versions, **found.to_json()}
    write_output(numbers, json.dumps(described, allow_nan=False) + "\n")
    write_output(page, corruptions_page(content))
    return found


def _example(found: CorruptionEvaluation, model: InferenceModel, images: Source) -> CorruptionExample:
    """The first image that can be read, in every corruption."""
    from PIL import Image

    from vitreous.data.corrupt import CorruptionMaker
    from vitreous.report.corruptions import CorruptionExample

    result = found.result
    corrupting = CorruptionMaker(images, model.engine.preprocess, result.kinds, result.strengths, found.seed)
    made = ((index, corrupting.make(index)) for index in range(len(images)))
    index, views = next((index, one.views) for index, one in made if one.views is not None)
    clean, *others = (Image.fromarray(view[0] if len(view) == 1 else view.transpose(1, 2, 0).copy()) for view in views)
    each = len(result.strengths)
    corrupted = {kind: others[k * each : (k + 1) * each] for k, kind in enumerate(result.kinds)}
    return CorruptionExample(images.name(index), clean, corrupted)


@dataclass(frozen=True)
class Report(PreprocessOption, SplitOption, Verb[Path]):
    """Write a web page about a model: training, accuracy, mistakes, explanations.

    The page is one HTML file that works offline.
    """

    model: str | Path | Bundle
    """RUN|BUNDLE: A run folder (the page then tells about its training), a bundle, or anything that `vitreous import`
    reads."""
    _: KW_ONLY
    data: str | Path | Data | None = None
    """DATA: Data to measure the model on. Default: the results of the run, or none for a bundle."""
    out: str | Path | None = None
    """FILE: The file to write. Default: report.html in the run folder, or NAME-report.html in the current folder."""

    def run(self) -> Path:
        """Write the page and return its path; a page of ours is replaced, any other file is not."""
        from vitreous.training.page import write_report

        return write_report(
            self.model,
            data=self.data,
            split=self.split,
            out=self.out,
            preprocess=self.preprocess,
            progress=self.progress("measuring"),
        )

    def show(self, result: Path) -> None:
        print(f"{printable(str(result))} ({result.stat().st_size / 1e6:.1f} MB): open it in a browser.")


evaluate = verb(Evaluate)
write_report = verb(Report, "write_report")
