"""`vitreous analyze`, `vitreous plot-weights` and `vitreous score-explanations`: what is inside a model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from vitreous.arguments import Count, Seed
from vitreous.cli.terminal import print_skipped, print_wide, printable, table
from vitreous.cli.verb import Verb, verb
from vitreous.errors import UserError
from vitreous.explain.request import EXPLANATION_METHODS, Method
from vitreous.inputs import counted
from vitreous.storage.overwrite import GENERATOR, check_file, output_folder, readable_errors
from vitreous.verbs.options import PreprocessOption, SplitOption, WorkersOption

if TYPE_CHECKING:
    from vitreous.data.source import Data
    from vitreous.explain.analysis.bias_result import BiasAnalysis
    from vitreous.explain.analysis.depth_result import DepthAnalysis
    from vitreous.explain.score import ExplanationScores
    from vitreous.report.weight_plots import WeightPlots
    from vitreous.weights.bundle import Bundle


@dataclass(frozen=True)
class Analysis:
    """The numbers, and their files."""

    numbers: DepthAnalysis | BiasAnalysis  # `BiasAnalysis` with what="bias"
    json: Path
    page: Path

    def to_json(self) -> dict[str, Any]:
        return self.numbers.to_json()


@dataclass(frozen=True)
class Analyze(PreprocessOption, WorkersOption, Verb[Analysis]):
    """Compare what models learned, layer by layer, or which inductive bias they have.

    Writes FOLDER/analysis.html, a page with plots, and FOLDER/analysis.json, the numbers behind them; with --what bias,
    FOLDER/bias.html and FOLDER/bias.json.
    """

    models: Sequence[str | Path | Bundle]
    """MODEL ...: Bundles, run folders, or anything that `vitreous import` reads, with or without a classifier."""
    _: KW_ONLY
    data: str | Path | Data
    """DATA: A folder with one subfolder per class, {formats}, shards, data:NAME, or builtin.
    Images without labels will do; what needs labels is then left out."""
    out: str | Path
    """FOLDER: The folder to write to. An earlier analysis in it is replaced, other files are not."""
    what: Literal["depths", "bias"] = "depths"
    """depths: attention, tokens and linear probes by depth, of Vision Transformers. bias: what moving, shuffling and
    filtering images does to the predictions of models of any family, and how far they look."""
    count: Count | None = None
    """COUNT: How many images of the test split (or else of what there is) to measure, and how many of the train split
    the linear probes learn from. Default: 500; for bias, which processes each about 30 times, 200."""
    seed: Seed = 0
    """NUMBER: Seed for choosing the images, and for the noise, moves and shuffles."""
    json_help: ClassVar[str] = "Print the contents of the JSON file."

    def run(self) -> Analysis:
        from vitreous.explain.analysis.depth_result import DepthAnalysis
        from vitreous.inference.opening import open_model
        from vitreous.report.analysis import analysis_page
        from vitreous.report.bias import bias_page
        from vitreous.storage.files import write_output
        from vitreous.studies.analysis import MIN_IMAGES, measure_biases, measure_depths, name_models

        count = self.count or {"depths": 500, "bias": 200}[self.what]
        if not self.models:
            raise UserError("no models: give at least one bundle, run or file of weights.")
        if count < MIN_IMAGES:
            raise UserError(f"count={count}: give at least {MIN_IMAGES}; fewer say nothing about images in general.")
        stem = {"depths": "analysis", "bias": "bias"}[self.what]
        folder = output_folder(self.out)
        described, page = (check_file(folder / f"{stem}.{ending}") for ending in ("json", "html"))
        with readable_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        opened = [open_model(model, self.preprocess) for model in self.models]
        measure = measure_depths if self.what == "depths" else measure_biases
        numbers = measure(
            list(zip(name_models(self.models), opened, strict=True)),
            self.data,
            images=count,
            seed=self.seed,
            workers=self.workers,
            progress=self.progress("analyzing"),
        )
        write_output(described, json.dumps({"generator": GENERATOR, **numbers.to_json()}, allow_nan=False) + "\n")
        write_output(page, analysis_page(numbers) if isinstance(numbers, DepthAnalysis) else bias_page(numbers))
        return Analysis(numbers, described, page)

    def show(self, result: Analysis) -> None:
        from vitreous.explain.analysis.bias_result import summarise_bias, tell_margin
        from vitreous.explain.analysis.depth_result import DepthAnalysis
        from vitreous.report.bias import shown_value

        numbers = result.numbers
        measured = f"{counted(numbers.data.images, 'image')} ({numbers.data.split})"
        if isinstance(numbers, DepthAnalysis):
            names = [model.name for model in numbers.models]
            print_wide(f"{measured}; each number is the mean over the last third of the layers")
            notes = [f"{row.measure}: {row.note}" for row in numbers.summary if row.note]
            rows = [
                (row.measure, *(f"{value:.1%}" if row.share else f"{value:.3f}" for value in row.values))
                for row in numbers.summary
            ]
        else:
            notes = []
            names, biases = [name for name, _ in numbers.models], [bias for _, bias in numbers.models]
            print_wide(f"{measured}; how to read each number is on the page", tell_margin(biases))
            rows = [
                (row.measure, *(shown_value(value, row.as_percent) for value in row.values))
                for row in summarise_bias(biases)
            ]
        print_wide("", table(("", *(f"{printable(name)}#" for name in names)), rows), "")
        print_wide(*(f"note: {printable(remark)}" for remark in (*notes, *numbers.remarks)))
        print_wide(f"page     {result.page}", f"numbers  {result.json}")


@dataclass(frozen=True)
class PlotWeights(PreprocessOption, Verb["WeightPlots"]):
    """Plot patch filters, position similarity and attention distance, as in the paper's figure 7."""

    model: str | Path | Bundle
    """MODEL: A bundle, a run folder, a published name such as s16, or anything that `vitreous import` reads."""
    _: KW_ONLY
    data: str | Path | Data | None = None
    """DATA: Images to measure attention distance on: how far each head looks. Left out, there is no such plot."""
    count: Count | None = None
    """COUNT: How many of these images to use at most, spread evenly over the data. Default: 64."""
    out: str | Path | None = "plots"
    """FOLDER: Folder for the plots, as SVG and PNG: filters, positions, distance."""

    def run(self) -> WeightPlots:
        from vitreous.data.opening import choose_split, open_images
        from vitreous.inference.memory_needs import check_explanation_memory
        from vitreous.inference.opening import open_model
        from vitreous.model.vit import ViT
        from vitreous.report.weight_plots import check_plots, plot_weights

        if self.count is not None and self.data is None:
            raise UserError(f"count={self.count}: counts the images of data; give data too, or leave count out.")
        if self.out is not None:
            check_plots(self.out)
        bundle = open_model(self.model, self.preprocess)
        images = None
        if self.data is not None and isinstance(bundle.model, ViT):
            check_explanation_memory(bundle, "attention")
            _, images = choose_split(open_images(self.data), None)
        progress = self.progress("measuring attention distance")
        found = plot_weights(bundle, images, self.count, progress)
        return found if self.out is None else replace(found, files=found.save(self.out))

    def show(self, result: WeightPlots) -> None:
        numbers = result.to_json()
        variance, similarity = numbers["filter_variance"], numbers["position_similarity"]
        even, distances = numbers["even_distance"], numbers["attention_distance"]
        if variance is None:
            print_wide("filters             no convolution looks at the pixels, so there is no such plot")
        else:
            explained = f"the first {len(variance)} components explain {sum(variance):.0%} of the variance"
            print_wide(f"filters             {explained}")
        if even is None:
            print_wide("                    only a Vision Transformer has positions and attention distance")
        elif similarity is None:
            print_wide("positions           this model adds none to its tokens, so there is no such plot")
        else:
            means = ", ".join(f"{name} {value:.2f}" for name, value in similarity.items())
            print_wide(f"positions           mean cosine similarity: {means}")
        if distances is not None:
            rows = (
                (str(number), f"{sum(layer) / len(layer):.0f}", *(f"{head:.0f}" for head in layer))
                for number, layer in enumerate(distances)
            )
            print_wide(
                f"attention distance  in pixels; attending to all patches equally would give {even:.0f}",
                "",
                table(("layer", "mean#", *(f"head {i}#" for i in range(len(distances[0])))), rows),
            )
        elif even is not None:
            print_wide("attention distance  add --data DATA to see how far each head looks")
        if result.files:
            print(f"\nwritten: {', '.join(printable(str(file)) for file in result.files)}")


@dataclass(frozen=True)
class ScoreExplanations(PreprocessOption, SplitOption, Verb["ExplanationScores"]):
    """Measure how good explanations are: deletion, insertion, agreement with masks.

    Each image is explained for the class that the model predicts.

    Three maps that ignore the image are scored too; a method must beat them to mean anything.
    """

    model: str | Path | Bundle
    """MODEL: A bundle, a run folder, a published name such as s16, or anything that `vitreous import` reads; it needs a
    classifier."""
    data: str | Path | Data
    """DATA: Images, with or without labels: a folder, {formats}, shards, data:NAME, or
    builtin."""
    _: KW_ONLY
    methods: Sequence[Method] | None = None
    """METHOD,METHOD,...: The methods to score. Default: all."""
    masks: str | Path | None = None
    """FOLDER: Folder with one mask per image, under the image's name but ending in .png; adds energy, pointing and IoU.
    A trimap (1 and 3 count, 2 does not), or any other mask, in which all but 0 counts."""
    count: Count | None = None
    """COUNT: How many images to use at most, spread evenly over the split. Default: all."""

    def run(self) -> ExplanationScores:
        from vitreous.data.opening import choose_split, open_images
        from vitreous.explain.score import score_methods
        from vitreous.inference.memory_needs import check_explanation_memory
        from vitreous.inference.opening import open_classifier

        bundle = open_classifier(self.model, self.preprocess)
        check_explanation_memory(bundle, "attention")
        _, source = choose_split(open_images(self.data), self.split)
        masks, progress = None if self.masks is None else Path(self.masks), self.progress("scoring")
        methods = tuple(EXPLANATION_METHODS) if self.methods is None else self.methods
        return score_methods(bundle, source, methods, masks=masks, count=self.count, progress=progress)

    def show(self, result: ExplanationScores) -> None:
        masked = result.scores[0].energy is not None
        rows = []
        for one in result.scores:
            row = [one.name]
            for metric, (low, high) in one.intervals.items():
                mean = getattr(one, metric)
                if metric in ("energy", "pointing"):
                    row.append(f"{mean:.1%} ({100 * low:.1f} to {100 * high:.1f})")
                else:
                    row.append(f"{mean:.3f} ({low:.3f} to {high:.3f})")
            rows.append([*row, "" if one.seconds is None else f"{1e3 * one.seconds:.0f}"])
        columns = ("map", "deletion#", "insertion#", *(("energy#", "pointing#", "IoU#") if masked else ()))
        print_wide(
            f"{counted(result.images, 'image')}, each explained for the class that the model predicts",
            "in brackets, 95 % intervals: bootstrapped over the images",
            "",
            table((*columns, "ms per image#"), rows),
            "",
            "deletion   probability of the class as its most important patches are removed; lower is better",
            "insertion  probability of the class when only those patches are shown; higher is better",
            *(["energy, pointing, IoU  agreement with the masks; higher is better"] if masked else []),
            "The first three maps ignore the image; a method must beat them to mean anything.",
        )
        print_skipped(result.left_out)


analyze = verb(Analyze)
plot_weights = verb(PlotWeights)
score_explanations = verb(ScoreExplanations)
