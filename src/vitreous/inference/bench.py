"""How fast a model answers in each engine, and how often it is right: what `vitreous bench` measures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from vitreous.config.engine import EngineName, Precision
from vitreous.config.model import ViTConfig
from vitreous.data.source import Data
from vitreous.errors import UserError
from vitreous.evaluate.classify import wilson
from vitreous.inference.choice import ENOUGH, MAX_DROP, in_torch
from vitreous.inference.conversion import (
    Converted,
    LabelledViews,
    builtin_views,
    convert_model,
    count_right,
    quantise_model,
)
from vitreous.inference.engine import Engine
from vitreous.inference.engine_memory import measure_memory
from vitreous.inference.export import split_images
from vitreous.inference.folder import About
from vitreous.inference.opening import with_merge
from vitreous.inference.prepared import CONVERTED, TORCH, PreparedEngines, Variant
from vitreous.inference.runtime import RUNTIMES
from vitreous.inference.speed import measure_latency, measure_speeds
from vitreous.weights.bundle import Bundle

Say = Callable[[str], None]


@dataclass(frozen=True)
class Latency:
    """Seconds from images to answers."""

    batch: int
    """Images at once."""
    median: float
    p99: float


@dataclass(frozen=True)
class EngineTiming:
    """One engine of one model."""

    engine: EngineName
    precision: Precision
    merge: int
    """Tokens that are merged in each block."""
    images_per_second: float
    """With as many at once as it likes best, `best_batch`."""
    best_batch: int
    latencies: tuple[Latency, ...]
    megabytes: float | None
    """That a process holds at most which asks nothing but this engine, `best_batch` images at once; Python and its
    libraries are among them. None where that cannot be told."""
    right: int | None = None
    """Labelled images that it names rightly; None where there are none."""
    judged: int = 0
    """Of so many."""

    @property
    def accuracy(self) -> float | None:
        """From 0 to 1."""
        return None if self.right is None else self.right / self.judged

    def to_json(self) -> dict[str, Any]:
        """Its fields, and the accuracy with its 95 % interval."""
        if self.right is None:
            return asdict(self)
        return asdict(self) | {"accuracy": self.accuracy, "interval": list(wilson(self.right, self.judged))}


class Way(NamedTuple):
    """One way to compute a model: a variant, and how many tokens are merged in each block."""

    variant: Variant
    merge: int

    def __str__(self) -> str:
        return f"{self.variant}" + (f", {self.merge} tokens merged" if self.merge else "")


@dataclass
class Candidates:
    """The engines of one model that are to be measured side by side."""

    engines: dict[Way, Engine] = field(default_factory=dict)
    judged: LabelledViews | None = None
    """Labelled images that judge all of them."""
    remarks: list[str] = field(default_factory=list)
    """What was left out, and why."""


def gather_engines(
    bundle: Bundle, merges: Sequence[int], data: str | Path | Data | None, max_drop: float | None, say: Say
) -> Candidates:
    """Every engine that is installed, in each precision it has; converted first where it is not yet kept here.

    data: labelled images; None: no int8 but what is kept already, and no accuracy.
    """
    found = Candidates()
    maker = _Maker(bundle, data, MAX_DROP if max_drop is None else max_drop, say)
    found.judged = maker.judged
    for merge in merges:
        model, maker.converted = at_merge(bundle, merge), None
        found.engines[Way(TORCH, merge)] = in_torch(model, "cpu").engine
        for variant in CONVERTED:
            if not RUNTIMES[variant.engine].installed:
                continue
            try:
                engine = maker.engine(model, Way(variant, merge))
            except UserError as error:
                found.remarks.append(f"{Way(variant, merge)}: left out. {error}")
                continue
            if engine is not None:
                found.engines[Way(variant, merge)] = engine
    missing = [name for name, runtime in RUNTIMES.items() if not runtime.installed]
    found.remarks += [f"{name}: not installed; pip install 'vitreous[{name}]'." for name in missing]
    if found.judged is not None and len(found.judged.labels) < ENOUGH:
        few = f"int8: judged on {len(found.judged.labels)} images; auto takes it only with {ENOUGH} or more."
        found.remarks.append(few)
    if data is None:
        found.remarks.append("int8 and accuracy: need labelled images; give data.")
    return found


def at_merge(bundle: Bundle, merge: int) -> Bundle:
    """The model with so many tokens merged per block; one that cannot merge any is what it is at 0."""
    return bundle if merge == own_merge(bundle) else with_merge(bundle, merge)


def own_merge(bundle: Bundle) -> int:
    """How many tokens a model merges per block of itself."""
    config = bundle.model.config
    return config.merge if isinstance(config, ViTConfig) else 0


class _Maker:
    """Converts a model, or finds it converted."""

    def __init__(self, bundle: Bundle, data: str | Path | Data | None, max_drop: float, say: Say) -> None:
        self.max_drop, self.say = max_drop, say
        self.converted: Converted | None = None
        """The last, of which int8 is made."""
        self.calibration: Tensor | None = None
        self.judged: LabelledViews | None = None
        if data is not None:
            self.calibration, self.judged = split_images(bundle, data, None)

    def engine(self, model: Bundle, way: Way) -> Engine | None:
        """What answers so; None for int8 that cannot be made for want of images."""
        prepared, int8 = PreparedEngines(model), way.variant.precision == "int8"
        kept = prepared.get(way.variant)
        if kept is not None and self._is_good(kept[1]):
            return kept[0].engine
        if int8 and self.calibration is None:
            return None
        self.say(f"preparing {way}")
        if self.converted is None or self.converted.about.runtime != way.variant.engine or not int8:
            self.converted = convert_model(model, way.variant.engine, builtin_views(model.preprocess))
        if not int8 or self.calibration is None or self.judged is None:
            return prepared.put(self.converted).engine
        quantised = quantise_model(
            model, self.converted, self.calibration, self.judged, self.max_drop, to_be_faster=True
        )
        return prepared.put(quantised).engine

    def _is_good(self, about: About) -> bool:
        """Whether what is kept need not be made again: of int8, whether it was judged well enough, and loses little.

        Well enough is on `ENOUGH` images, where there are so many now: else auto would never take it.
        """
        judged = 0 if self.judged is None else len(self.judged.labels)
        accuracy = about.accuracy
        return accuracy is None or (accuracy.images >= min(judged, ENOUGH) and accuracy.drop <= self.max_drop)


def measure_engines(found: Candidates, batches: Sequence[int], rounds: int, say: Say) -> list[EngineTiming]:
    """All of them, speeds in turns; fastest first."""
    say("measuring speeds, in turns")
    speeds = measure_speeds(found.engines, rounds=rounds)
    rows = []
    for way, engine in found.engines.items():
        say(f"measuring latency and memory of {way}" + (", and accuracy" if found.judged else ""))
        rows.append(
            EngineTiming(
                engine=way.variant.engine,
                precision=way.variant.precision,
                merge=way.merge,
                images_per_second=speeds[way],
                best_batch=engine.batch_size,
                latencies=tuple(Latency(batch, *measure_latency(engine, batch)) for batch in batches),
                megabytes=measure_memory(engine),
                right=None if found.judged is None else count_right(engine, found.judged),
                judged=0 if found.judged is None else len(found.judged.labels),
            )
        )
    return sorted(rows, key=lambda row: -row.images_per_second)
