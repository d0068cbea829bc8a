"""`vitreous probe`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from vitreous.arguments import Count, Seed
from vitreous.cli.terminal import console, printable, say_left_out, table
from vitreous.cli.verb import Verb, verb
from vitreous.config.engine import Precision
from vitreous.errors import UserError
from vitreous.verbs.options import EngineOptions, WorkersOption

if TYPE_CHECKING:
    from vitreous.data.source import Data
    from vitreous.inference.probing import ProbeResult
    from vitreous.weights.bundle import Bundle

PROTOCOLS = {
    "knn": "weighted vote of the k nearest training images (cosine similarity, temperature 0.07)",
    "linear": "linear classifier on standardised features, by L-BFGS, regularisation chosen on validation data",
    "fewshot": "regularised least squares from a few training images per class, mean of 5 draws",
}


@dataclass(frozen=True)
class Probe(EngineOptions, WorkersOption, Verb["ProbeResult"]):
    """Measure what a model's frozen features are worth: k-NN, linear probe, few-shot.

    The model needs no classifier. Features are computed once and cached under $VITREOUS_CACHE or ~/.cache/vitreous.
    """

    model: str | Path | Bundle
    """MODEL: A bundle, a run folder, an exported model, or anything that `vitreous import` reads."""
    data: str | Path | Data
    """DATA: A folder with one subfolder per class, a CSV or JSONL list, packed data, shards, data:NAME, or builtin.
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
    """fp32 or int8. Default: fp32, as int8 was verified by a classifier and not by features."""

    def run(self) -> ProbeResult:
        """Fit classifiers to the features of training images, and measure them on others."""
        from vitreous.data.opening import open_dataset
        from vitreous.inference.probing import (
            FeatureReader,
            ProbeResult,
            check_labelled,
            score_few_shot,
            score_linear,
            score_neighbours,
        )

        start, protocol = time.perf_counter(), self.protocol
        if self.shots is not None and protocol != "fewshot":
            raise UserError(
                f"shots: only the protocol fewshot draws any, not {protocol}; take that, or leave shots out."
            )
        data = open_dataset(self.data)
        check_labelled(data)
        seed = self._drawing_seed(data)
        images = sum(map(len, data.splits.values()))
        model = self.open_engine(self.model, images=images, precision="fp32", classifier=False)
        reader = FeatureReader(model, self.batch_size, self.workers, partial(self.told.progress, "computing features"))
        splits = reader.splits(data, seed, validate=protocol == "linear")
        remarks: list[str] = []
        if protocol == "knn":
            scores = score_neighbours(splits, remarks)
        elif protocol == "linear":
            scores = [score_linear(splits, seed, remarks)]
        else:
            scores = score_few_shot(splits, self.shots, data.classes, seed, remarks)
        return ProbeResult(
            protocol=protocol,
            judged=splits.judged,
            n=len(splits.test[1]),
            known=sum(len(some[1]) for some in (splits.train, splits.val) if some is not None),
            classes=splits.classes,
            width=splits.test[0].shape[1],
            scores=tuple(scores),
            computed=reader.computed,
            remarks=(*reader.cache.remarks, *remarks),
            unreadable=reader.unreadable,
            engine=model.computed_by,
            seconds=time.perf_counter() - start,
        )

    def _drawing_seed(self, data: Data) -> int:
        """The seed, 0 by default; one that changes nothing is refused, lest equal results look repeatable."""
        given_validation = self.protocol == "knn" or {"val", "test"} <= set(data.splits)
        if self.seed is not None and self.protocol != "fewshot" and len(data.splits) > 1 and given_validation:
            raise UserError(
                f"seed={self.seed}: with these splits ({', '.join(data.splits)}) the protocol {self.protocol} draws "
                "nothing at random, so every seed gives the same; leave it out."
            )
        return self.seed or 0

    def show(self, result: ProbeResult) -> None:
        """One row per setting, with its interval."""
        page = console()
        page.print(PROTOCOLS[result.protocol])
        source = "from the cache" if not result.computed else f"computed for {result.computed:,} images"
        page.print(
            f"{result.n:,} images measured ({result.judged}), {result.known:,} to learn from, {result.classes} "
            f"classes; {result.width} features ({source}) of {result.engine}, {result.seconds:.1f} s"
        )
        page.print()
        name = next(iter(result.scores[0].setting))
        columns = [f"{name.replace('_', ' ')}#", "accuracy#", "95 % interval#"]
        few = result.protocol == "fewshot"
        scores = table(*columns, "std of the draws#") if few else table(*columns)
        for score in result.scores:
            low, high = score.interval
            row = [f"{score.setting[name]:g}", f"{score.accuracy:.2%}", f"{low:.1%} to {high:.1%}"]
            scores.add_row(*row, *([f"{score.std:.2%}"] if few else []))
        page.print(scores)
        for remark in result.remarks:
            page.print(f"note: {printable(remark)}")
        say_left_out(result.unreadable)


probe = verb(Probe)
