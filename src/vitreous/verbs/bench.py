"""`vitreous bench`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from vitreous.arguments import Count, Merge
from vitreous.cli.terminal import console, printable, table
from vitreous.cli.verb import Verb, verb
from vitreous.errors import UserError
from vitreous.verbs.options import PreprocessOption
from vitreous.wording import Range

if TYPE_CHECKING:
    from vitreous.data.source import Data
    from vitreous.inference.bench import BenchResult
    from vitreous.weights.bundle import Bundle

NUMBERS, PLOT = "bench.json", "bench.svg"


@dataclass(frozen=True)
class Bench(PreprocessOption, Verb["BenchResult"]):
    """Measure how fast a model is on this machine, in each engine that is installed.

    What is converted on the way is cached, and so are the speeds: --engine auto of other commands then takes the
    fastest.
    """

    model: str | Path | Bundle
    """MODEL: A bundle, a run folder, an exported model, or anything that `vitreous import` reads."""
    _: KW_ONLY
    data: str | Path | Data | None = None
    """DATA: Labelled images. With them the model is quantized to int8 too, and each engine's accuracy is measured."""
    merge: Sequence[Merge] | None = None
    """N,N,...: How many similar tokens to merge in each block of a Vision Transformer, such as 0,4,8,13; each number is
    measured by itself. Default: as the model has it."""
    batch_sizes: Sequence[Count] = (1, 8)
    """N,N,...: Batch sizes for which latency is measured."""
    max_drop: Annotated[float, Range(0, 100)] | None = None
    """POINTS: Points of accuracy that int8 may lose. Default: 0.5."""
    out: str | Path | None = None
    """FOLDER: A folder for bench.json and bench.svg, a plot of accuracy against speed."""

    def run(self) -> BenchResult:
        """Convert the model for each engine, and measure them in turns."""
        from vitreous.inference.bench import (
            BenchResult,
            exported_engine,
            gather_engines,
            measure_engines,
            own_merge,
            remember_speeds,
        )
        from vitreous.inference.engine_folder import is_engine
        from vitreous.inference.opening import check_classifier, open_model
        from vitreous.inference.speed import describe_machine
        from vitreous.report.speeds import speed_plot
        from vitreous.storage.files import write_output
        from vitreous.storage.overwrite import check_file, output_folder
        from vitreous.weights.bundle import Bundle

        place, message = None if self.out is None else output_folder(self.out), self.told.message
        if place is not None:
            for file in (NUMBERS, PLOT):
                check_file(place / file)
        if not isinstance(self.model, Bundle) and is_engine(Path(self.model)):
            if self.merge is not None or self.preprocess is not None:
                raise UserError(f"{self.model}: what it merges and how it prepares images is built in; leave both out.")
            found = exported_engine(Path(self.model), self.data)
            rows = measure_engines(found, self.batch_sizes, message)
        else:
            bundle = open_model(self.model, self.preprocess)
            if self.data is not None:
                check_classifier(bundle)
            merges = [own_merge(bundle)] if self.merge is None else list(dict.fromkeys(self.merge))
            found = gather_engines(bundle, merges, self.data, self.max_drop, message)
            rows = measure_engines(found, self.batch_sizes, message)
            remember_speeds(bundle, merges, rows)
        name = "the model" if isinstance(self.model, Bundle) else str(self.model)
        result = BenchResult(name, describe_machine(), tuple(rows), tuple(found.remarks))
        if place is not None:
            write_output(place / NUMBERS, json.dumps(result.to_json(), indent=2) + "\n")
            write_output(place / PLOT, speed_plot(rows))
        return result

    def show(self, result: BenchResult) -> None:
        """One row per engine, fastest first."""
        from vitreous.report.speeds import name_row

        page, (first, *_) = console(), result.rows
        latencies = [f"ms for {one.batch} (p50, p99)#" for one in first.latencies]
        accuracy = [f"accuracy of {first.evaluated:,}#"] if first.evaluated else []
        rows = table("engine", "images/s#", *latencies, "MB#", *accuracy)
        for row in result.rows:
            rows.add_row(
                name_row(row),
                f"{row.images_per_second:,.1f}",
                *(f"{1e3 * one.median:.1f}, {1e3 * one.p99:.1f}" for one in row.latencies),
                "" if row.megabytes is None else f"{row.megabytes:,.0f}",
                *([] if row.accuracy is None else [f"{row.accuracy:.2%}"]),
            )
        page.print(rows)
        page.print(result.machine)
        for remark in result.remarks:
            page.print(printable(remark))


bench = verb(Bench)
