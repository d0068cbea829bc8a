"""`vitreous analyze`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from vitreous.arguments import Count, Seed
from vitreous.cli.terminal import console, printable, table
from vitreous.cli.verb import Verb, verb
from vitreous.errors import UserError
from vitreous.verbs.options import PreprocessOption, WorkersOption

if TYPE_CHECKING:
    from vitreous.data.source import Data
    from vitreous.explain.analysis.bias_numbers import BiasNumbers
    from vitreous.explain.analysis.numbers import Numbers
    from vitreous.weights.bundle import Bundle


@dataclass(frozen=True)
class Analysis:
    """What was measured, and the files it was written to."""

    numbers: Numbers | BiasNumbers
    """`BiasNumbers` with what="bias"."""
    json: Path
    page: Path

    def to_json(self) -> dict[str, Any]:
        """What the JSON file holds."""
        return self.numbers.to_json()


@dataclass(frozen=True)
class Analyze(PreprocessOption, WorkersOption, Verb[Analysis]):
    """Compare what models learned, depth by depth, or which inductive bias they have.

    Writes FOLDER/analysis.html, a page with plots, and FOLDER/analysis.json, the numbers behind them; with --what bias,
    FOLDER/bias.html and FOLDER/bias.json.
    """

    models: Sequence[str | Path | Bundle]
    """MODEL ...: Bundles, run folders, or anything that `vitreous import` reads, with or without a classifier."""
    _: KW_ONLY
    data: str | Path | Data
    """DATA: A folder with one subfolder per class, a CSV or JSONL list, packed data, shards, data:NAME, or builtin.
    Images without labels will do; what needs labels is then left out."""
    out: str | Path
    """FOLDER: The folder to write to. An earlier analysis in it is replaced, other files are not."""
    what: Literal["depths", "bias"] = "depths"
    """depths: attention, tokens and linear probes by depth, of Vision Transformers. bias: what moving, shuffling and
    filtering images does to the predictions of models of any family, and how far they look."""
    images: Count | None = None
    """COUNT: How many images of the test split (or else of what there is) to measure, and how many of the train split
    the linear probes learn from. Default: 500; for bias, which processes each about 30 times, 200."""
    seed: Seed = 0
    """NUMBER: Seed for choosing the images, and for the noise, moves and shuffles."""
    json_help: ClassVar[str] = "Print the contents of the JSON file."

    def run(self) -> Analysis:
        """Measure every model on the same images, and write the page and the JSON file."""
        from vitreous.explain.analysis.numbers import Numbers
        from vitreous.inference.opening import open_model
        from vitreous.report.analysis import analysis_page
        from vitreous.report.bias import bias_page
        from vitreous.storage.files import write_output
        from vitreous.storage.overwrite import GENERATOR, check_file, output_folder, readable_errors
        from vitreous.studies.analysis import MIN_IMAGES, measure_biases, measure_depths, name_models

        count = self.images or {"depths": 500, "bias": 200}[self.what]
        if not self.models:
            raise UserError("no models: give at least one bundle, run or file of weights.")
        if count < MIN_IMAGES:
            raise UserError(f"images={count}: give at least {MIN_IMAGES}; fewer say nothing about images in general.")
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
            progress=lambda done, total: self.told.progress("analyzing", done, total),
        )
        write_output(described, json.dumps({"generator": GENERATOR, **numbers.to_json()}, allow_nan=False) + "\n")
        write_output(page, analysis_page(numbers) if isinstance(numbers, Numbers) else bias_page(numbers))
        return Analysis(numbers, described, page)

    def show(self, result: Analysis) -> None:
        """A table with one row per measure and one column per model, and the files."""
        from vitreous.explain.analysis.bias_numbers import summarise_bias, tell_margin
        from vitreous.explain.analysis.numbers import Numbers
        from vitreous.report.bias import shown_value

        page, numbers = console(), result.numbers
        measured = f"{numbers.data.images:,} images ({numbers.data.split})"
        if isinstance(numbers, Numbers):
            page.print(f"{measured}; each number is the mean over the last third of the layers")
            rows = table("", *(f"{printable(model.name)}#" for model in numbers.models))
            for row in numbers.summary:
                rows.add_row(row.measure, *(f"{value:.1%}" if row.share else f"{value:.3f}" for value in row.values))
        else:
            biases = [bias for _, bias in numbers.models]
            page.print(f"{measured}; how to read each number is on the page")
            page.print(tell_margin(biases))
            rows = table("", *(f"{printable(name)}#" for name, _ in numbers.models))
            for summary in summarise_bias(biases):
                rows.add_row(summary.measure, *(shown_value(value, summary.share) for value in summary.values))
        page.print()
        page.print(rows)
        page.print()
        for remark in numbers.remarks:
            page.print(f"note: {printable(remark)}")
        page.print(f"page     {result.page}")
        page.print(f"numbers  {result.json}")


analyze = verb(Analyze)
