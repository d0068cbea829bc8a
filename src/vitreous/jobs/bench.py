"""`vitreous bench`: how fast a model answers on this machine, engine by engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from vitreous.arguments import Count, checked
from vitreous.config.data import Preprocess
from vitreous.data.source import Data
from vitreous.errors import UserError
from vitreous.inference.bench import (
    Candidates,
    EngineTiming,
    Way,
    at_merge,
    gather_engines,
    measure_engines,
    own_merge,
)
from vitreous.inference.conversion import JUDGED, sample_views
from vitreous.inference.folder import is_engine, load_engine
from vitreous.inference.opening import check_classifier, choose_split, open_dataset, open_model
from vitreous.inference.prepared import PreparedEngines, Variant
from vitreous.inference.speed import describe_machine
from vitreous.report.speeds import speed_plot
from vitreous.storage.files import write_output
from vitreous.storage.overwrite import GENERATOR, check_file, output_folder
from vitreous.weights.bundle import Bundle
from vitreous.wording import Range

NUMBERS, PLOT = "bench.json", "bench.svg"
BATCHES = (1, 8)
ROUNDS = 5
"""In which every engine is measured in turn; the median counts."""


@dataclass(frozen=True)
class Bench:
    """What was measured, fastest first."""

    model: str
    machine: str
    rows: tuple[EngineTiming, ...]
    remarks: tuple[str, ...] = ()
    """What was left out, and why."""

    def to_json(self) -> dict[str, Any]:
        """{"model", "machine", "rows": [{"engine", "precision", "images_per_second", ...}], "remarks"}."""
        return {
            "generator": GENERATOR,
            "model": self.model,
            "machine": self.machine,
            "rows": [row.to_json() for row in self.rows],
            "remarks": list(self.remarks),
        }


@checked
def bench(
    model: str | Path | Bundle,
    *,
    data: str | Path | Data | None = None,
    merge: Sequence[Annotated[int, Range(0)]] | None = None,
    batch_sizes: Sequence[Count] = BATCHES,
    max_drop: Annotated[float, Range(0, 100)] | None = None,
    preprocess: Preprocess | str | None = None,
    out: str | Path | None = None,
    say: Callable[[str], None] | None = None,
) -> Bench:
    """Images a second and latency of a model in each engine that is installed, side by side on this machine.

    What is converted on the way, and the speeds, are kept: engine "auto" of other commands then takes the fastest.

    model: a bundle, a run, an exported model, or anything else that `open_weights` takes.
    data: labelled images; with them int8 is made too, and every engine's accuracy is measured.
    merge: how many tokens to merge in each block, each number by itself; the model's own if None.
    batch_sizes: numbers of images at once for which latency is measured.
    max_drop: points of accuracy that int8 may lose, 0.5 if None.
    out: a folder for bench.json and bench.svg, a plot of accuracy against speed.
    say: told what is being done.
    """
    place = None if out is None else output_folder(out)
    if place is not None:
        for file in (NUMBERS, PLOT):
            check_file(place / file)
    tell = say or (lambda text: None)
    if not isinstance(model, Bundle) and is_engine(Path(model)):
        if merge is not None or preprocess is not None:
            raise UserError(f"{model}: what it merges and how it prepares images is built in; leave both out.")
        found = _exported(Path(model), data)
        rows = measure_engines(found, batch_sizes, ROUNDS, tell)
    else:
        bundle = open_model(model, preprocess)
        if data is not None:
            check_classifier(bundle)
        merges = [own_merge(bundle)] if merge is None else list(dict.fromkeys(merge))
        found = gather_engines(bundle, merges, data, max_drop, tell)
        rows = measure_engines(found, batch_sizes, ROUNDS, tell)
        _remember(bundle, merges, rows)
    name = "the model" if isinstance(model, Bundle) else str(model)
    result = Bench(name, describe_machine(), tuple(rows), tuple(found.remarks))
    if place is not None:
        write_output(place / NUMBERS, json.dumps(result.to_json(), indent=2) + "\n")
        write_output(place / PLOT, speed_plot(rows))
    return result


def _exported(folder: Path, data: str | Path | Data | None) -> Candidates:
    """The one engine of an exported model."""
    deployed, about = load_engine(folder)
    way = Way(Variant(about.runtime, about.precision), int(about.model.get("merge", 0)))
    found = Candidates({way: deployed.engine})
    if data is not None:
        images = choose_split(open_dataset(data), None)[1]
        found.judged = sample_views(images, about.preprocess, JUDGED, deployed.labels)
    return found


def _remember(bundle: Bundle, merges: Sequence[int], rows: Sequence[EngineTiming]) -> None:
    """Keep the speeds, so that engine "auto" knows which is fastest."""
    for merge in merges:
        speeds = {Variant(row.engine, row.precision): row.images_per_second for row in rows if row.merge == merge}
        PreparedEngines(at_merge(bundle, merge)).remember(speeds)
