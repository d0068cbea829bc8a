"""`vitreous bench` and `vitreous probe`: how fast a model is, and what its features are worth."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from vitreous.arguments import Count, Precision, Range, Seed, TokenMerge
from vitreous.cli.terminal import print_skipped, print_wide, printable, table
from vitreous.cli.verb import Verb, verb
from vitreous.errors import UserError
from vitreous.storage.overwrite import check_file, output_folder
from vitreous.verbs.options import EngineOptions, PreprocessOption, WorkersOption

if TYPE_CHECKING:
    from vitreous.data.source import Data
    from vitreous.inference.bench import BenchResult
    from vitreous.inference.probing import ProbeResult
    from vitreous.weights.bundle import Bundle

NUMBERS, PLOT = "bench.json", "bench.svg"
PROTOCOLS = {
    "knn": "weighted vote of the k nearest training images (cosine similarity, temperature 0.07)",
    "linear": "linear classifier on standardised features, by L-BFGS, regularisation chosen on images not measured",
    "fewshot": "regularised least squares from a few training images per class, mean of 5 draws",
}


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
    merge: Sequence[TokenMerge] | None = None
    """N,N,...: How many similar tokens to merge in each block of a Vision Transformer, such as 0,4,8,13; each number is
    measured by itself. Default: as the model has it."""
    batch_sizes: Sequence[Count] = (1, 8)
    """N,N,...: Batch sizes for which latency is measured."""
    max_drop: Annotated[float, Range(0, 100)] | None = None
    """POINTS: Points of accuracy that int8 may lose. Default: 0.5."""
    out: str | Path | None = None
    """FOLDER: A folder for bench.json and bench.svg, a plot of accuracy against speed."""

    def run(self) -> BenchResult:
        from vitreous.inference import bench
        from vitreous.inference.engine_folder import is_engine
        from vitreous.inference.opening import check_classifier, open_model
        from vitreous.inference.speed import describe_machine
        from vitreous.report.speeds import speed_plot
        from vitreous.storage.files import write_output
        from vitreous.weights.bundle import Bundle

        place, callbacks = None if self.out is None else output_folder(self.out), self.active_callbacks
        if place is not None:
            for file in (NUMBERS, PLOT):
                check_file(place / file)
        if not isinstance(self.model, Bundle) and is_engine(Path(self.model)):
            if self.merge is not None or self.preprocess is not None:
                raise UserError(f"{self.model}: what it merges and how it prepares images is built in; leave both out.")
            found = bench.exported_engine(Path(self.model), self.data)
            rows = bench.measure_engines(found, self.batch_sizes, callbacks)
        else:
            bundle = open_model(self.model, self.preprocess)
            if self.data is not None:
                check_classifier(bundle)
            merges = [bench.own_merge(bundle)] if self.merge is None else list(dict.fromkeys(self.merge))
            found = bench.gather_engines(bundle, merges, self.data, self.max_drop, callbacks)
            rows = bench.measure_engines(found, self.batch_sizes, callbacks)
            bench.remember_speeds(bundle, merges, rows)
        name = "the model" if isinstance(self.model, Bundle) else str(self.model)
        result = bench.BenchResult(name, describe_machine(), tuple(rows), tuple(found.remarks))
        if place is not None:
            write_output(place / NUMBERS, json.dumps(result.to_json(), indent=2) + "\n")
            write_output(place / PLOT, speed_plot(rows))
        return result

    def show(self, result: BenchResult) -> None:
        from vitreous.report.speeds import name_row

        first = result.rows[0]
        latencies = [f"ms for {one.batch} (p50, p99)#" for one in first.latencies]
        accuracy = [f"accuracy of {first.evaluated:,} ({first.split})#"] if first.evaluated else []
        rows = (
            (
                name_row(row),
                f"{row.images_per_second:,.1f}",
                *(f"{1e3 * one.median:.1f}, {1e3 * one.p99:.1f}" for one in row.latencies),
                "" if row.megabytes is None else f"{row.megabytes:,.0f}",
                *([] if row.accuracy is None else [f"{row.accuracy:.2%}"]),
            )
            for row in result.rows
        )
        print_wide(table(("engine", "images/s#", *latencies, "MB#", *accuracy), rows), result.machine)
        print_wide(*map(printable, result.remarks))


@dataclass(frozen=True)
class Probe(EngineOptions["ProbeResult"], WorkersOption):
    """Measure what a model's frozen features are worth: k-NN, linear probe, few-shot.

    The model needs no classifier. Features are computed once and cached under $VITREOUS_CACHE or ~/.cache/vitreous.
    """

    data: str | Path | Data
    """DATA: A folder with one subfolder per class, {formats}, shards, data:NAME, or builtin.
    Accuracy is measured on the test split; if there is none, on val, or on a fifth of the images."""
    _: KW_ONLY
    protocol: Literal["knn", "linear", "fewshot"] = "knn"
    """knn: weighted vote of the nearest neighbours. linear: a linear classifier. fewshot: least squares from a few
    images per class."""
    shots: Sequence[Count] | None = None
    """N,N,...: Images per class, for fewshot. Default: 1,5,10."""
    seed: Seed | None = None
    """NUMBER: Seed for drawing the shots and the held-out images. Default: 0."""
    precision: Precision | None = None
    """fp32, bf16, fp16 or int8. Default: fp32, as int8 was verified by a classifier and not by features."""

    def run(self) -> ProbeResult:
        from vitreous.data.opening import open_dataset
        from vitreous.inference import probing

        start, protocol = time.perf_counter(), self.protocol
        if self.shots is not None and protocol != "fewshot":
            raise UserError(
                f"shots: only the protocol fewshot draws any, not {protocol}; take that, or leave shots out."
            )
        data = open_dataset(self.data)
        probing.check_labelled(data)
        seed = self._drawing_seed(data)
        model = self.open_engine(sum(map(len, data.splits.values())), precision="fp32", classifier=False)
        reader = probing.FeatureReader(
            model, batch_size=self.batch_size, workers=self.workers, progress=self.progress("computing features")
        )
        splits = reader.splits(data, seed, validate=protocol == "linear")
        remarks: list[str] = []
        if protocol == "knn":
            scores = probing.score_neighbours(splits, remarks)
        elif protocol == "linear":
            scores = [probing.score_linear(splits, seed, remarks)]
        else:
            scores = probing.score_few_shot(splits, self.shots, data.classes, seed, remarks)
        return probing.ProbeResult(
            protocol=protocol,
            judged=splits.judged,
            n=len(splits.test[1]),
            known=sum(len(some[1]) for some in (splits.train, splits.val) if some is not None),
            classes=splits.classes,
            width=splits.test[0].shape[1],
            scores=tuple(scores),
            computed=reader.computed,
            remarks=(*reader.cache.remarks, *reader.remarks, *remarks),
            unreadable=reader.unreadable,
            engine=model.computed_by,
            seconds=time.perf_counter() - start,
        )

    def _drawing_seed(self, data: Data) -> int:
        """The seed, 0 by default; refused if nothing is random, because equal results would look like a replication."""
        given_validation = self.protocol == "knn" or {"val", "test"} <= set(data.splits)
        if self.seed is not None and self.protocol != "fewshot" and len(data.splits) > 1 and given_validation:
            raise UserError(
                f"seed={self.seed}: with these splits ({', '.join(data.splits)}) the protocol {self.protocol} draws "
                "nothing at random, so every seed gives the same; leave it out."
            )
        return self.seed or 0

    def show(self, result: ProbeResult) -> None:
        source = "from the cache" if not result.computed else f"computed for {result.computed:,} images"
        name, few = next(iter(result.scores[0].setting)), result.protocol == "fewshot"
        rows = []
        for score in result.scores:
            low, high = score.interval
            row = [f"{score.setting[name]:g}", f"{score.accuracy:.2%}", f"{low:.1%} to {high:.1%}"]
            rows.append([*row, f"{score.std:.2%}"] if few else row)
        columns = [f"{name.replace('_', ' ')}#", "accuracy#", "95 % interval#"]
        print_wide(
            PROTOCOLS[result.protocol],
            f"{result.n:,} images measured ({result.judged}), {result.known:,} to learn from, {result.classes} "
            f"classes; {result.width} features ({source}) of {result.engine}, {result.seconds:.1f} s",
            "",
            table([*columns, "std of the draws#"] if few else columns, rows),
            *(f"note: {printable(remark)}" for remark in result.remarks),
        )
        print_skipped(result.unreadable)


bench = verb(Bench)
probe = verb(Probe)
