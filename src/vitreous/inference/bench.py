"""How fast a model is in each engine, how much memory each takes, and how accurate each is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from vitreous.arguments import Precision
from vitreous.callbacks import Callbacks
from vitreous.config.model import ViTConfig
from vitreous.data.opening import choose_split, open_dataset
from vitreous.data.source import Data
from vitreous.errors import MachineError, UserError
from vitreous.evaluation.intervals import wilson
from vitreous.inference.conversion import (
    MAX_INT8_DROP,
    LabelledViews,
    QuantizationImages,
    builtin_views,
    convert_model,
    correct_predictions,
    default_max_drop,
    held_out_views,
    quantize_model,
    split_images,
)
from vitreous.inference.engine import Engine, InferenceModel, TorchEngine, open_in_torch
from vitreous.inference.engine_cache import EngineCache
from vitreous.inference.engine_folder import EngineMetadata, is_engine, load_engine
from vitreous.inference.engines import ENGINES, TORCH, Variant, converted_variants
from vitreous.inference.opening import MAX_LIKELY_INT8_DROP, is_trusted, with_merge
from vitreous.inference.speed import measure_latency, measure_speeds, noise
from vitreous.memory import peak_bytes
from vitreous.storage.overwrite import GENERATOR
from vitreous.weights.bundle import Bundle, load_bundle, save_bundle

ROUNDS = 5  # in which every engine is measured in turn; the median counts
MEMORY_TIMEOUT_SECONDS = 120.0  # after which the process that measures an engine's memory is given up


@dataclass(frozen=True)
class Latency:
    """Seconds per batch."""

    batch: int  # its size
    median: float
    p99: float


@dataclass(frozen=True)
class EngineTiming:
    """One engine of one model."""

    engine: str
    precision: Precision
    merge: int  # tokens that are merged in each block
    images_per_second: float  # at `best_batch`
    best_batch: int  # the batch size with the highest throughput
    latencies: tuple[Latency, ...]
    megabytes: float | None
    """The peak of a process that does nothing but compute batches of `best_batch` with this engine; Python and its
    libraries are among them. None if that cannot be told."""
    correct: int | None = None  # labelled images whose prediction is right; None if there are none
    evaluated: int = 0  # labelled images
    split: str = ""  # of the data, from which they are
    seen: bool = False  # whether the model may have seen some of them in its training: then there is no interval

    @property
    def accuracy(self) -> float | None:
        return None if self.correct is None else self.correct / self.evaluated

    def to_json(self) -> dict[str, Any]:
        if self.correct is None:
            return asdict(self)
        interval = None if self.seen else list(wilson(self.correct, self.evaluated))
        return asdict(self) | {"accuracy": self.accuracy, "interval": interval}


@dataclass(frozen=True)
class BenchResult:
    """What was measured, fastest first."""

    model: str
    machine: str
    rows: tuple[EngineTiming, ...]
    remarks: tuple[str, ...] = ()  # what was left out, and why

    def to_json(self) -> dict[str, Any]:
        return {"generator": GENERATOR, **asdict(self), "rows": [row.to_json() for row in self.rows]}


class EngineCandidate(NamedTuple):
    """A variant of a model, and how many tokens are merged in each block."""

    variant: Variant
    merge: int

    def __str__(self) -> str:
        return f"{self.variant}" + (f", {self.merge} tokens merged" if self.merge else "")


@dataclass
class Candidates:
    """The engines of one model that are to be measured side by side."""

    engines: dict[EngineCandidate, Engine] = field(default_factory=dict)
    held_out: LabelledViews | None = None  # labelled images on which the accuracy of all of them is measured
    remarks: list[str] = field(default_factory=list)  # what was left out, and why


def exported_engine(folder: Path, data: str | Path | Data | None) -> Candidates:
    model = load_engine(folder)
    metadata = model.metadata
    variant = Variant(metadata.runtime, metadata.precision)
    found = Candidates({EngineCandidate(variant, int(metadata.model.get("merge", 0))): model.engine})
    if data is not None:
        split, source = choose_split(open_dataset(data), None)
        found.held_out = held_out_views(model, source, model.labels, split)
    return found


def gather_engines(
    bundle: Bundle, merges: Sequence[int], data: str | Path | Data | None, max_drop: float | None, callbacks: Callbacks
) -> Candidates:
    """Every engine that is installed, in each of its precisions; converted first if it is not cached.

    data: labelled images; None: no int8 but what is cached already, and no accuracy.
    """
    images = None if data is None else split_images(bundle, data, None, callbacks.progress)
    found = Candidates(held_out=images.held_out if images is not None and images.labelled else None)
    for merge in merges:
        model = at_merge(bundle, merge)
        found.engines[EngineCandidate(TORCH, merge)] = open_in_torch(model, "cpu").engine
        converted: dict[str, InferenceModel] = {}  # in fp32, of which int8 is made
        for variant in converted_variants():
            if ENGINES[variant.engine].missing:
                continue
            candidate = EngineCandidate(variant, merge)
            try:
                made = _find_or_convert(model, variant, images, max_drop, converted, callbacks)
            except UserError as error:
                found.remarks.append(f"{candidate}: left out. {error}")
                continue
            if made is not None:
                found.engines[candidate] = made.engine
                if not is_trusted(made.metadata):
                    found.remarks.append(f"{candidate}: {_why_not_trusted(made.metadata)}")
    missing = [name for name, kind in ENGINES.items() if kind.missing]
    found.remarks += [f"{name}: not installed; pip install 'vitreous[{name}]'." for name in missing]
    if data is None:
        found.remarks.append("int8 and accuracy: need labelled images; give data.")
    elif found.held_out is None:
        found.remarks.append("accuracy: the images have no labels of the model's classes.")
    return found


def at_merge(bundle: Bundle, merge: int) -> Bundle:
    """The model with this many tokens merged per block; one that cannot merge any is as it is at 0."""
    return bundle if merge == own_merge(bundle) else with_merge(bundle, merge)


def own_merge(bundle: Bundle) -> int:
    config = bundle.model.config
    return config.merge if isinstance(config, ViTConfig) else 0


def _find_or_convert(
    model: Bundle,
    variant: Variant,
    images: QuantizationImages | None,
    max_drop: float | None,
    converted: dict[str, InferenceModel],
    callbacks: Callbacks,
) -> InferenceModel | None:
    """The model in this variant; None for int8 without images."""
    cache = EngineCache(model)
    cached = cache.get(variant)
    if cached is not None and _is_good(cached.metadata, images, max_drop):
        return cached
    if variant.precision == "int8" and images is None:
        return None
    callbacks.message(f"preparing {variant}")
    if variant.engine not in converted:
        views = builtin_views(model.preprocess)
        converted[variant.engine] = convert_model(model, variant.engine, views, callbacks.progress)
    made = converted[variant.engine]
    if variant.precision == "int8" and images is not None:
        made = quantize_model(model, made, images, max_drop, if_faster=True, progress=callbacks.progress)
    return cache.put(made)


def _is_good(metadata: EngineMetadata, images: QuantizationImages | None, max_drop: float | None) -> bool:
    """Whether it need not be made again: of int8, it loses little, and more images would not make it trusted."""
    accuracy = metadata.accuracy
    if accuracy is None:
        return metadata.precision == "fp32"
    if max_drop is None:
        max_drop = default_max_drop(accuracy.labelled if images is None else images.labelled)
    held_out = 0 if images is None else len(images.held_out.labels)
    return accuracy.drop <= max_drop and (is_trusted(metadata) or accuracy.images >= held_out)


def _why_not_trusted(metadata: EngineMetadata) -> str:
    accuracy = metadata.accuracy
    assert accuracy is not None
    return (
        f"auto does not take it: it loses {accuracy.drop:.2f} points ({accuracy}), and by the end of the 95 % interval "
        f"{accuracy.max_likely_drop:.2f}; allowed are {MAX_INT8_DROP:g} and {MAX_LIKELY_INT8_DROP:g}."
    )


def measure_engines(found: Candidates, batches: Sequence[int], callbacks: Callbacks) -> list[EngineTiming]:
    speeds = measure_speeds(found.engines, rounds=ROUNDS, progress=partial(callbacks.progress, "measuring speeds"))
    rows, held_out = [], found.held_out
    if held_out is not None and held_out.note is not None:
        found.remarks.append(held_out.note)
    for candidate, engine in found.engines.items():
        callbacks.message(f"measuring latency and memory of {candidate}" + (", and accuracy" if held_out else ""))
        rows.append(
            EngineTiming(
                engine=candidate.variant.engine,
                precision=candidate.variant.precision,
                merge=candidate.merge,
                images_per_second=speeds[candidate],
                best_batch=engine.batch_size,
                latencies=tuple(Latency(batch, *measure_latency(engine, batch)) for batch in batches),
                megabytes=measure_memory(engine),
                correct=None
                if held_out is None
                else int(correct_predictions(engine, held_out, callbacks.progress).sum()),
                evaluated=0 if held_out is None else len(held_out.labels),
                split="" if held_out is None else held_out.split,
                seen=held_out is not None and held_out.note is not None,
            )
        )
    return sorted(rows, key=lambda row: -row.images_per_second)


def remember_speeds(bundle: Bundle, merges: Sequence[int], rows: Sequence[EngineTiming]) -> None:
    """Cache the speeds, so that the engine "auto" knows which is fastest."""
    for merge in merges:
        speeds = {Variant(row.engine, row.precision): row.images_per_second for row in rows if row.merge == merge}
        EngineCache(at_merge(bundle, merge)).remember(speeds)


def measure_memory(engine: Engine) -> float | None:
    """Megabytes at the peak of a process that opens the engine and computes batches of the size that it likes best.

    Within this process the figure would depend on what was converted and computed before. None if the system does not
    tell, it took too long, the engine is in no folder, or there is no room to save the network.
    """
    if isinstance(engine, TorchEngine):
        with suppress(UserError, MachineError, OSError), TemporaryDirectory() as place:
            labels = [str(number) for number in range(engine.classes)]
            # as it is now: it may merge other tokens than the bundle says
            return _measure_in_process(save_bundle(Path(place) / "bundle", engine.network, engine.preprocess, labels))
        return None
    return _measure_in_process(engine.path) if engine.path is not None and is_engine(engine.path) else None


def _measure_in_process(folder: Path) -> float | None:
    """In a new process, not a fork: runtimes have threads, which a fork leaves behind."""
    paths = os.pathsep.join(path for path in sys.path if path)
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", __name__, str(folder)],  # -P: no modules of the current folder
            env={**os.environ, "PYTHONPATH": paths},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=False,
            timeout=MEMORY_TIMEOUT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return None
    held = int(done.stdout.split()[-1]) if done.returncode == 0 else 0  # before it, whatever a person's Python prints
    return held / 1e6 if held else None


def print_peak_memory(folder: Path) -> None:
    engine = (load_engine(folder) if is_engine(folder) else open_in_torch(load_bundle(folder), "cpu")).engine
    images = noise(engine, engine.batch_size)
    for _ in range(2):
        (engine.logits if engine.classes else engine.representations)(images)
    print(peak_bytes())


if __name__ == "__main__":
    print_peak_memory(Path(sys.argv[1]))
