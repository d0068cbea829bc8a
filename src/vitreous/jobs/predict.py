"""`vitreous predict`: what is on pictures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

from vitreous.arguments import Count, Merge, checked
from vitreous.config.data import Preprocess
from vitreous.config.engine import EngineChoice, Precision
from vitreous.data.view import PICTURE_TYPES, Picture, Sample, check_picture
from vitreous.run.engines.choice import deploy
from vitreous.run.needs import check_inference_memory
from vitreous.run.opening import check_found, find_pictures, find_samples
from vitreous.run.prediction.answers import NamedPicture, Prediction, Progress, answer_each
from vitreous.weights.bundle import Bundle


@checked
def predict(
    model: str | Path | Bundle,
    pictures: Picture | Sequence[Picture],
    *,
    top: Count = 5,
    batch_size: Count | None = None,
    preprocess: Preprocess | str | None = None,
    engine: EngineChoice = "auto",
    precision: Precision | None = None,
    merge: Merge | None = None,
    progress: Progress | None = None,
) -> list[Prediction]:
    """One prediction for each picture, in order; see `predict_each`, which gives them one at a time."""
    found = predict_each(
        model,
        pictures,
        top=top,
        batch_size=batch_size,
        preprocess=preprocess,
        engine=engine,
        precision=precision,
        merge=merge,
        progress=progress,
    )
    return list(found)


@checked
def predict_each(
    model: str | Path | Bundle,
    pictures: Picture | Sequence[Picture],
    *,
    top: Count = 5,
    batch_size: Count | None = None,
    preprocess: Preprocess | str | None = None,
    engine: EngineChoice = "auto",
    precision: Precision | None = None,
    merge: Merge | None = None,
    progress: Progress | None = None,
) -> Iterator[Prediction]:
    """Predictions as they are made, in order. Memory does not grow with the number of pictures.

    model: a bundle, a run, an exported model, or anything else that `open_weights` takes.
    pictures: one or several of these: files; folders, of which all pictures are taken in the order of their paths;
        shards; the bytes of files; pictures of Pillow's; arrays (H, W) or (H, W, C) and tensors (H, W) or (C, H, W),
        uint8.
    top: how many labels to give for each.
    engine, precision: what computes, and in what numbers; `vitreous.run.engines.choice.deploy` says how it is chosen.
    merge: how many tokens the model merges per block (docs/merging.md); None for as many as it does of itself.
    progress: called with pictures done and pictures in all.
    """
    named = _name_pictures(pictures)
    deployed = deploy(
        model, engine=engine, precision=precision, preprocess=preprocess, merge=merge, pictures=len(named)
    )
    batch = min(batch_size or deployed.engine.batch_size, len(named))
    check_inference_memory(deployed.config, deployed.engine.preprocess, batch)
    answers = answer_each(deployed, named, top=top, batch_size=batch, progress=progress)
    return (answer.prediction for answer in answers)


def _name_pictures(pictures: Picture | Sequence[Picture]) -> list[NamedPicture]:
    """Each picture with what its prediction calls it, and each folder replaced by the pictures in it."""
    given = [pictures] if isinstance(pictures, PICTURE_TYPES) else pictures
    if not isinstance(given, Sequence):
        check_picture(given)  # which it is not: say so
    named: list[NamedPicture] = []
    notes: list[str] = []
    for number, picture in enumerate(given):
        check_picture(picture)
        match picture:
            case str() | Path() if (samples := find_samples(picture)) is not None:
                named += [NamedPicture(sample.source.name(sample.index), sample) for sample in samples]
            case str() | Path():
                named += [NamedPicture(str(path), path) for path in find_pictures(picture, notes)]
            case Sample():
                named.append(NamedPicture(picture.source.name(picture.index), picture))
            case bytes():
                named.append(NamedPicture(f"bytes#{number}", picture))
            case Image.Image():
                named.append(NamedPicture(f"image#{number}", picture))
            case np.ndarray():
                named.append(NamedPicture(f"array#{number}", picture))
            case Tensor():
                named.append(NamedPicture(f"tensor#{number}", picture))
    check_found(len(named), notes)
    return named
