"""`vitreous predict`: what is on images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

from vitreous.arguments import Count, Merge, checked
from vitreous.config.data import Preprocess
from vitreous.config.engine import EngineChoice, Precision
from vitreous.data.view import IMAGE_TYPES, ImageInput, Sample, check_image
from vitreous.inference.choice import deploy
from vitreous.inference.needs import check_inference_memory
from vitreous.inference.opening import check_found, find_images, find_samples
from vitreous.inference.prediction.answers import NamedImage, Prediction, Progress, answer_each
from vitreous.weights.bundle import Bundle


@checked
def predict(
    model: str | Path | Bundle,
    images: ImageInput | Sequence[ImageInput],
    *,
    top: Count = 5,
    batch_size: Count | None = None,
    preprocess: Preprocess | str | None = None,
    engine: EngineChoice = "auto",
    precision: Precision | None = None,
    merge: Merge | None = None,
    progress: Progress | None = None,
) -> list[Prediction]:
    """One prediction for each image, in order; see `predict_each`, which gives them one at a time."""
    found = predict_each(
        model,
        images,
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
    images: ImageInput | Sequence[ImageInput],
    *,
    top: Count = 5,
    batch_size: Count | None = None,
    preprocess: Preprocess | str | None = None,
    engine: EngineChoice = "auto",
    precision: Precision | None = None,
    merge: Merge | None = None,
    progress: Progress | None = None,
) -> Iterator[Prediction]:
    """Predictions as they are made, in order. Memory does not grow with the number of images.

    model: a bundle, a run, an exported model, or anything else that `open_weights` takes.
    images: one or several of these: files; folders, of which all images are taken in the order of their paths;
        shards; the bytes of files; images of Pillow's; arrays (H, W) or (H, W, C) and tensors (H, W) or (C, H, W),
        uint8.
    top: how many labels to give for each.
    engine, precision: what computes, and in what numbers; `vitreous.inference.choice.deploy` says how it is chosen.
    merge: how many tokens the model merges per block (docs/merging.md); None for as many as it does of itself.
    progress: called with images done and images in all.
    """
    named = _name_images(images)
    deployed = deploy(model, engine=engine, precision=precision, preprocess=preprocess, merge=merge, images=len(named))
    batch = min(batch_size or deployed.engine.batch_size, len(named))
    check_inference_memory(deployed.config, deployed.engine.preprocess, batch)
    answers = answer_each(deployed, named, top=top, batch_size=batch, progress=progress)
    return (answer.prediction for answer in answers)


def _name_images(images: ImageInput | Sequence[ImageInput]) -> list[NamedImage]:
    """Each image with what its prediction calls it, and each folder replaced by the images in it."""
    given = [images] if isinstance(images, IMAGE_TYPES) else images
    if not isinstance(given, Sequence):
        check_image(given)  # which it is not: say so
    named: list[NamedImage] = []
    notes: list[str] = []
    for number, image in enumerate(given):
        check_image(image)
        match image:
            case str() | Path() if (samples := find_samples(image)) is not None:
                named += [NamedImage(sample.source.name(sample.index), sample) for sample in samples]
            case str() | Path():
                named += [NamedImage(str(path), path) for path in find_images(image, notes)]
            case Sample():
                named.append(NamedImage(image.source.name(image.index), image))
            case bytes():
                named.append(NamedImage(f"bytes#{number}", image))
            case Image.Image():
                named.append(NamedImage(f"image#{number}", image))
            case np.ndarray():
                named.append(NamedImage(f"array#{number}", image))
            case Tensor():
                named.append(NamedImage(f"tensor#{number}", image))
    check_found(len(named), notes)
    return named
