"""Predictions of an engine for images: one for each, in order, whatever became of its neighbours."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitreous.callbacks import Progress, no_progress
from vitreous.data.decode import ImageError
from vitreous.data.opening import check_found, is_dataset_name, open_every_image, open_folder_of_images
from vitreous.data.shards.opening import is_shards, open_shards
from vitreous.data.source import Source
from vitreous.data.view import IMAGE_TYPES, ImageInput, Sample, ViewOrError, ViewPipeline, check_image, map_concurrently
from vitreous.evaluation.prediction_file import prediction_row
from vitreous.inference.engine import InferenceModel
from vitreous.model.predictions import class_probabilities, ranked_classes

NamedImage = tuple[str, ImageInput]  # an image, after the name that its prediction has


@dataclass(frozen=True)
class LabelScore:
    """A label and its probability."""

    label: str
    score: float


@dataclass(frozen=True)
class Prediction:
    """The likeliest labels of one image, or why it could not be read."""

    path: str
    """The image's path. What has none is called by its kind and its place among the images given, from 0: bytes#0,
    image#1 for an image of Pillow's, array#2, tensor#3."""
    top: tuple[LabelScore, ...] = ()
    """The likeliest labels, the likeliest first; none if there is an error, or the model has no classifier."""
    error: str | None = None
    temporary: bool = False
    """Whether the error may pass, such as a missing permission, and so says nothing of the image."""
    embedding: Tensor | None = field(default=None, compare=False)
    """The image's representation (D,), if it was asked for."""

    @property
    def label(self) -> str | None:
        return self.top[0].label if self.top else None

    @property
    def score(self) -> float | None:
        return self.top[0].score if self.top else None

    def to_json(self) -> dict[str, Any]:
        """{"path", "prediction", "probability", "top", "error"}, and "embedding" if there is one."""
        top = None if self.error is not None else [(one.label, one.score) for one in self.top]
        embedding = {} if self.embedding is None else {"embedding": self.embedding.tolist()}
        return {**prediction_row(self.path, top), "error": self.error, **embedding}

    def __repr__(self) -> str:
        found = self.error or ", ".join(f"{one.label} {one.score:.1%}" for one in self.top) or "no classifier"
        return f"Prediction({self.path}: {found})"

    def _repr_html_(self) -> str:
        rows = [(one.label, f"{one.score:.1%}") for one in self.top] if self.error is None else [("error", self.error)]
        cells = "".join(f"<tr><td>{escape(label)}</td><td>{escape(text)}</td></tr>" for label, text in rows)
        return f"<table><caption>{escape(self.path)}</caption>{cells}</table>"


def predict_images(
    model: InferenceModel,
    images: Iterable[NamedImage],
    count: int,
    *,
    top: int,
    batch_size: int,
    embed: bool = False,
    threads: int | None = None,
    progress: Progress = no_progress,
) -> Iterator[Prediction]:
    """Predictions as they are made, in order. Memory does not grow with the number of images.

    count: the number of images, for the progress. embed: give representations too; the model then computes twice.
    threads: that decode; None for one per core.
    """
    engine, labels, done = model.engine, model.labels, 0
    names = deque[str]()

    def without_names() -> Iterator[ImageInput]:
        for name, image in images:
            names.append(name)
            yield image

    def compute(batch: list[ViewOrError]) -> tuple[Iterable[Tensor], Iterable[Tensor]]:
        readable = [view for view in batch if isinstance(view, Tensor)]
        if not readable:
            return (), ()
        views = torch.stack(readable)
        probabilities = class_probabilities(engine.logits(views)) if labels else ()
        return probabilities, engine.representations(views) if embed else ()

    batches = ViewPipeline(engine.preprocess, batch_size, threads=threads).batches(without_names())
    for batch, outputs in map_concurrently(compute, batches, engine.max_concurrency):
        probabilities, vectors = map(iter, outputs)
        for view in batch:
            name = names.popleft()
            if isinstance(view, ImageError):
                yield Prediction(name, error=view.reason, temporary=view.temporary)
            else:
                best = ranked_classes(next(probabilities), top) if labels else []
                likeliest = tuple(LabelScore(labels[k], value) for k, value in best)
                yield Prediction(name, likeliest, embedding=next(vectors) if embed else None)
        done += len(batch)
        progress(done, count)


class ImageList:
    """Images that a person gives, with their names; a folder, shards or a list stand for all images in them.

    The files of a folder are kept as bytes in one block (`vitreous.data.folder.Names`): of a million, some 100 MB.
    """

    def __init__(self, images: ImageInput | Sequence[ImageInput]) -> None:
        given = [images] if isinstance(images, IMAGE_TYPES) else images
        if not isinstance(given, Sequence):
            check_image(given)  # which it is not: say so
        self._given: Sequence[ImageInput] = given
        self._sources: dict[int, Sequence[Source]] = {}
        """What those of the images that stand for several hold, by their place."""
        notes: list[str] = []
        for number, image in enumerate(given):
            check_image(image)
            if not isinstance(image, str | Path):
                continue
            if is_shards(image):
                self._sources[number] = tuple(open_shards(image, labelled=False).splits.values())
            elif (folder := open_folder_of_images(image, notes)) is not None:
                self._sources[number] = (folder,)
            elif is_dataset_name(image):
                self._sources[number], remarks = open_every_image(image)
                notes += remarks
        several = sum(len(source) for sources in self._sources.values() for source in sources)
        self._count = len(given) - len(self._sources) + several
        check_found(self._count, notes)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[NamedImage]:
        for number, image in enumerate(self._given):
            if number in self._sources:
                yield from named_images(self._sources[number])
            else:
                yield _name(number, image), Path(image) if isinstance(image, str) else image


def named_images(sources: Iterable[Source]) -> Iterator[NamedImage]:
    return ((source.name(index), Sample(source, index)) for source in sources for index in range(len(source)))


def _name(number: int, image: ImageInput) -> str:
    match image:
        case str() | Path():
            return str(Path(image))
        case Sample():
            return image.source.name(image.index)
        case bytes():
            return f"bytes#{number}"
        case Image.Image():
            return f"image#{number}"
        case np.ndarray():
            return f"array#{number}"
        case _:
            return f"tensor#{number}"
