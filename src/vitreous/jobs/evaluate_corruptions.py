"""`vitreous evaluate --corruptions`: how well a model does on images as a bad camera or bad weather makes them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import PIL
from PIL import Image

from vitreous.arguments import Count, Merge, Seed, Workers, checked
from vitreous.config.data import Preprocess
from vitreous.config.engine import EngineChoice, Precision
from vitreous.data.corrupt import CORRUPTIONS, STRENGTHS, Corrupting, Levels
from vitreous.data.source import Data, Source, Split
from vitreous.data.subset import random_subset
from vitreous.errors import UserError
from vitreous.evaluate.corruptions import CorruptionResult
from vitreous.inference.choice import deploy
from vitreous.inference.corruptions import measure_corruptions
from vitreous.inference.engine import Deployed
from vitreous.inference.matching import Among, match_classes
from vitreous.inference.opening import choose_split, open_dataset
from vitreous.report.corruptions import CorruptionContent, CorruptionExample, corruptions_page
from vitreous.storage.failures import readable_errors
from vitreous.storage.files import write_output
from vitreous.storage.overwrite import GENERATOR, check_file, output_folder
from vitreous.weights.bundle import Bundle
from vitreous.wording import Range

FILES = ("corruptions.json", "corruptions.html")
IMAGES = 200
"""So many are measured if nothing else is said: each is seen 76 times."""
Strength = Annotated[int, Range(min(STRENGTHS), max(STRENGTHS))]


@dataclass(frozen=True)
class CorruptionEvaluation:
    """A result under corruptions, and what it was measured on."""

    split: str
    of: int
    """Images of the split, of which `result.n` were measured."""
    seed: int
    """Of the choice of images and of what is random in a corruption."""
    size: tuple[int, int]
    """Height and width of what the model sees, which is what was corrupted."""
    result: CorruptionResult
    among: Among
    remarks: tuple[str, ...]
    unreadable: dict[str, str]
    """Images that were left out: path to reason."""
    seconds: float
    engine: str = "torch-fp32"
    """What answered, and in what numbers."""
    page: Path | None = None
    """Where the page lies, if one was asked for; `corruptions.json` is beside it."""

    def to_json(self) -> dict[str, Any]:
        """{"split", "n", "of", "seed", "clean", "scores", "error", "relative_error", "means", "differences", ...}."""
        return {
            "split": self.split,
            "of": self.of,
            "seed": self.seed,
            "size": list(self.size),
            **self.result.to_json(),
            "differences": {kind: CORRUPTIONS[kind].differs for kind in self.result.kinds},
            "among": self.among,
            "remarks": list(self.remarks),
            "unreadable": self.unreadable,
            "seconds": round(self.seconds, 3),
            "engine": self.engine,
            "page": None if self.page is None else str(self.page),
        }


@checked
def evaluate_corruptions(
    model: str | Path | Bundle,
    data: str | Path | Data,
    *,
    split: Split | None = None,
    kinds: Sequence[str] | None = None,
    strengths: Sequence[Strength] = STRENGTHS,
    count: Count = IMAGES,
    seed: Seed = 0,
    among: Among | None = None,
    out: str | Path | None = None,
    batch_size: Count | None = None,
    workers: Workers | None = None,
    preprocess: Preprocess | str | None = None,
    engine: EngineChoice = "auto",
    precision: Precision | None = None,
    merge: Merge | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> CorruptionEvaluation:
    """Accuracy and calibration on images as they are and under each of the kinds of corruption of ImageNet-C.

    kinds: names of `vitreous.data.corrupt.CORRUPTIONS`, all if None. strengths: from 1 to 5.
    count: at most so many images, a random sample by the seed. seed: of that and of the corruptions themselves, which
        depend on nothing else but the image's name within the data.
    out: a folder for `corruptions.json` and a page with examples, `corruptions.html`.
    progress: called with images done and in all. The other arguments are those of `evaluate`.
    """
    kinds, strengths = _check_kinds(kinds), _check_strengths(strengths)
    folder = None if out is None else _make_folder(output_folder(out))
    name, source = choose_split(open_dataset(data), split)
    asked = min(count, len(source)) * (1 + len(kinds) * len(strengths))
    deployed = deploy(model, engine=engine, precision=precision, preprocess=preprocess, merge=merge, images=asked)
    # Classes are matched before images are drawn: a sample may lack some, and they can be answered all the same.
    matched = match_classes(source, deployed.labels, among)
    chosen = matched.with_source(random_subset(matched.source, seed, count))
    start = time.perf_counter()
    told = None if progress is None else lambda done: progress(done, len(chosen.source))
    result, unreadable = measure_corruptions(
        deployed, chosen, kinds, strengths, seed=seed, batch_size=batch_size, workers=workers, progress=told
    )
    found = CorruptionEvaluation(
        split=name,
        of=len(source),
        seed=seed,
        size=deployed.engine.preprocess.size,
        result=result,
        among=matched.among,
        remarks=matched.remarks,
        unreadable=unreadable,
        seconds=time.perf_counter() - start,
        engine=f"{deployed.engine.name}-{deployed.engine.precision}",
        page=None if folder is None else folder / FILES[1],
    )
    if folder is not None:
        said = "data in memory" if isinstance(data, Data) else str(data)
        _write(folder, found, _content(found, deployed, chosen.source, said))
    return found


def _check_kinds(kinds: Sequence[str] | None) -> tuple[str, ...]:
    if kinds is None:
        return tuple(CORRUPTIONS)
    if unknown := [kind for kind in kinds if kind not in CORRUPTIONS]:
        raise UserError(f"kinds: {unknown[0]!r}: no such corruption; there are {', '.join(CORRUPTIONS)}.")
    if not kinds:
        raise UserError("kinds: give at least one, or leave it out for all.")
    return tuple(dict.fromkeys(kinds))


def _check_strengths(strengths: Sequence[int]) -> tuple[int, ...]:
    if not strengths:
        raise UserError("strengths: give at least one from 1 to 5, or leave them out for all.")
    return tuple(sorted(set(strengths)))


def _make_folder(folder: Path) -> Path:
    """The folder, in which both files may be written: before anything is measured, which takes long."""
    for name in FILES:
        check_file(folder / name)
    with readable_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def _write(folder: Path, found: CorruptionEvaluation, content: CorruptionContent) -> None:
    described, page = (folder / name for name in FILES)
    versions = {"numpy": np.__version__, "pillow": PIL.__version__}  # what the corruptions are computed with
    said = {"generator": GENERATOR, "versions": versions, **found.to_json()}
    write_output(described, json.dumps(said, allow_nan=False) + "\n")
    write_output(page, corruptions_page(content))


def _content(found: CorruptionEvaluation, deployed: Deployed, source: Source, data: str) -> CorruptionContent:
    result = found.result
    drawn = f" of {found.of:,}, drawn at random by seed {found.seed}," if len(source) < found.of else ""
    left_out = tuple(f"left out: {path}: {reason}" for path, reason in found.unreadable.items())
    return CorruptionContent(
        model=_name(deployed),
        data=f"Measured on {result.n:,} images{drawn} of {data} ({found.split}).",
        size=found.size,
        result=result,
        example=_example(source, deployed.engine.preprocess, result, found.seed),
        remarks=(*found.remarks, *left_out),
    )


def _name(deployed: Deployed) -> str:
    """The end of the model's path; of a run's bundle, the run's."""
    if deployed.path is None:
        return "the model"
    path = deployed.path.resolve()
    return path.parent.name if path.name == "bundle" else path.stem if path.is_file() else path.name


def _example(source: Source, preprocess: Preprocess, result: CorruptionResult, seed: int) -> CorruptionExample:
    """The first image that can be read."""
    making = Corrupting(source, preprocess, result.kinds, result.strengths, seed)
    made = ((index, making.make(index)) for index in range(len(source)))
    index, views = next((index, one.views) for index, one in made if one.views is not None)
    clean, *others = map(_image, views)
    each = len(result.strengths)
    corrupted = {kind: others[k * each : (k + 1) * each] for k, kind in enumerate(result.kinds)}
    return CorruptionExample(source.name(index), clean, corrupted)


def _image(view: Levels) -> Image.Image:
    """A view (C, H, W) as an image."""
    return Image.fromarray(view[0] if len(view) == 1 else view.transpose(1, 2, 0).copy())
