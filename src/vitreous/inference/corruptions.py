"""How well a classifier does on corrupted images: each is decoded once and seen in every corruption."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vitreous.callbacks import Progress, no_progress
from vitreous.data.corrupt import CORRUPTIONS, CorruptedViews, CorruptionMaker
from vitreous.data.loader import check_unreadable, choose_workers
from vitreous.data.source import Source, random_subset
from vitreous.data.workers import WorkerPool, WorkersDiedError
from vitreous.errors import UserError
from vitreous.evaluation.classify import MetricInputs, metric_inputs
from vitreous.evaluation.corruptions import CorruptionResult, score_corruptions
from vitreous.inference.engine import InferenceModel
from vitreous.inference.evaluation import MatchedSource, Measurement
from vitreous.inference.memory_needs import check_inference_memory

MIN_IMAGES_FOR_WORKERS = 8  # for fewer, starting processes takes longer than they save


@dataclass(frozen=True, kw_only=True)
class CorruptionEvaluation(Measurement[CorruptionResult]):
    """How well a classifier does under corruptions."""

    seed: int  # of the choice of images and of what is random in a corruption
    size: tuple[int, int]  # height and width of what the model sees, which is what was corrupted
    page: Path | None = None  # where the page lies, if one was asked for; `corruptions.json` is beside it

    def to_json(self) -> dict[str, Any]:
        differences = {kind: CORRUPTIONS[kind].differs for kind in self.result.kinds}
        return {**super().to_json(), "differences": differences, "page": None if self.page is None else str(self.page)}


def evaluate_corruptions(
    model: InferenceModel,
    split: str,
    matched: MatchedSource,
    kinds: Sequence[str],
    strengths: Sequence[int],
    *,
    count: int,
    seed: int = 0,
    batch_size: int | None = None,
    workers: int | None = None,
    progress: Progress = no_progress,
) -> tuple[CorruptionEvaluation, Source]:
    """Accuracy and calibration on images as they are and under each corruption, and the images that were drawn.

    matched: all images of the split, with their classes matched: a sample may lack some, and they can be predicted all
    the same. count: images of the random sample. seed: of the sample and of the corruptions themselves, which depend on
    nothing else but the image's name within the data. What is kept of each image and corruption are five numbers:
    memory does not grow with classes.
    """
    start, engine = time.perf_counter(), model.engine
    source = random_subset(matched.source, seed, count)
    views = 1 + len(kinds) * len(strengths)
    batch = min(batch_size or engine.batch_size, views)
    check_inference_memory(model.config, engine.preprocess, batch)
    rows: list[MetricInputs] = []
    unreadable: dict[str, str] = {}
    corrupting = CorruptionMaker(source, engine.preprocess, tuple(kinds), tuple(strengths), seed)
    for index, made in enumerate(_corrupt(corrupting, _workers(workers, len(source)))):
        if made.views is None:
            unreadable[source.name(index)] = made.reason
            check_unreadable(unreadable, len(source), total=source.total)
        else:
            images = torch.from_numpy(made.views)
            logits = torch.cat([matched.select(engine.logits(some)) for some in torch.split(images, batch)])
            rows.append(metric_inputs(logits, torch.full((views,), int(source.labels[index]))))
        progress(index + 1, len(source))
    result = score_corruptions(kinds, strengths, MetricInputs(*map(torch.stack, zip(*rows, strict=True))))
    seconds = time.perf_counter() - start  # of the measuring alone
    found = CorruptionEvaluation(
        split=split,
        of=len(matched.source),
        seen=None if model.seen_images is None else model.seen_images.overlap(source),
        seed=seed,
        size=engine.preprocess.size,
        result=result,
        label_space=matched.label_space,
        remarks=matched.remarks,
        unreadable=unreadable,
        seconds=seconds,
        engine=model.computed_by,
    )
    return found, source


def _corrupt(corrupting: CorruptionMaker, workers: int) -> Iterator[CorruptedViews]:
    indices = range(len(corrupting.source))
    if not workers:
        yield from map(corrupting.make, indices)
        return
    processes: WorkerPool[int, CorruptedViews] = WorkerPool(corrupting.make, workers)
    try:
        with closing(processes):
            yield from processes.run(indices)
    except WorkersDiedError as error:
        raise UserError(
            f"workers={workers}: the processes that corrupt images keep dying, the last one {error.how}, at "
            f"{corrupting.source.name(error.task)}; if memory is short, give fewer workers, or 0."
        ) from None


def _workers(asked: int | None, images: int) -> int:
    """As many as were asked for, else one per core, four at most."""
    if asked is not None:
        return choose_workers(asked, images)
    return 0 if images < MIN_IMAGES_FOR_WORKERS else min(4, os.cpu_count() or 1)
