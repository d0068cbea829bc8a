"""The files of `vitreous evaluate --corruptions --out`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vitreous.storage.files import write_output
from vitreous.storage.overwrite import GENERATOR, check_file, output_folder, readable_errors

if TYPE_CHECKING:
    from vitreous.data.source import Data, Source
    from vitreous.inference.corruptions import CorruptionEvaluation
    from vitreous.inference.engine import InferenceModel
    from vitreous.report.corruptions import CorruptionExample

NUMBERS, PAGE = "corruptions.json", "corruptions.html"


def check_corruption_files(out: str | Path) -> Path:
    """The folder, in which both files may be written: before anything is measured, which takes long."""
    folder = output_folder(out)
    for name in (NUMBERS, PAGE):
        check_file(folder / name)
    with readable_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def write_corruption_files(
    folder: Path, found: CorruptionEvaluation, model: InferenceModel, images: Source, data: str | Path | Data
) -> CorruptionEvaluation:
    """Write the numbers and the page; the same with the place of the page. images: those that were measured."""
    import numpy as np
    import PIL

    from vitreous.data.source import Data
    from vitreous.report.corruptions import CorruptionContent, corruptions_page

    found, result = replace(found, page=folder / PAGE), found.result
    drawn = f" of {found.of:,}, drawn at random by seed {found.seed}," if len(images) < found.of else ""
    place = "data in memory" if isinstance(data, Data) else str(data)
    content = CorruptionContent(
        model=_name(model.path),
        data=f"Measured on {result.n:,} images{drawn} of {place} ({found.split}), computed by {found.engine}.",
        size=found.size,
        result=result,
        example=_example(found, model, images),
        remarks=(*found.remarks, *(f"left out: {path}: {reason}" for path, reason in found.unreadable.items())),
    )
    versions = {"numpy": np.__version__, "pillow": PIL.__version__}  # what the corruptions are computed with
    numbers = {"generator": GENERATOR, "versions": versions, **found.to_json()}
    write_output(folder / NUMBERS, json.dumps(numbers, allow_nan=False) + "\n")
    write_output(folder / PAGE, corruptions_page(content))
    return found


def _name(path: Path | None) -> str:
    """The end of the model's path; of a run's bundle, the run's."""
    if path is None:
        return "the model"
    path = path.resolve()
    return path.parent.name if path.name == "bundle" else path.stem if path.is_file() else path.name


def _example(found: CorruptionEvaluation, model: InferenceModel, images: Source) -> CorruptionExample:
    """The first image that can be read, in every corruption."""
    from PIL import Image

    from vitreous.data.corrupt import Corrupting
    from vitreous.report.corruptions import CorruptionExample

    result = found.result
    corrupting = Corrupting(images, model.engine.preprocess, result.kinds, result.strengths, found.seed)
    made = ((index, corrupting.make(index)) for index in range(len(images)))
    index, views = next((index, one.views) for index, one in made if one.views is not None)
    clean, *others = (Image.fromarray(view[0] if len(view) == 1 else view.transpose(1, 2, 0).copy()) for view in views)
    each = len(result.strengths)
    corrupted = {kind: others[k * each : (k + 1) * each] for k, kind in enumerate(result.kinds)}
    return CorruptionExample(images.name(index), clean, corrupted)
