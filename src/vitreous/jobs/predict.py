"""`vitreous predict`: what is on pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitreous.arguments import Count, Merge, checked
from vitreous.config.data import Preprocess
from vitreous.config.engine import EngineChoice, Precision
from vitreous.data.decode import PictureError
from vitreous.data.pipeline import ViewPipeline
from vitreous.data.view import PICTURE_TYPES, Picture, Sample, check_picture
from vitreous.deploy.engine import Engine
from vitreous.run.engines import deploy
from vitreous.run.needs import check_inference_memory
from vitreous.run.opening import check_found, find_pictures
from vitreous.weights.bundle import Bundle


@dataclass(frozen=True)
class Score:
    """A label and how likely the model holds it, from 0 to 1."""

    label: str
    score: float


@dataclass(frozen=True)
class Prediction:
    """What the model says of one picture, or why it could not be read."""

    path: str
    """The picture's path. What has none is called by its kind and its place among the pictures given, from 0: bytes#0,
    image#1 for a picture of Pillow's, array#2, tensor#3."""
    top: tuple[Score, ...] = ()
    """The likeliest labels, best first; none where there is an error."""
    error: str | None = None

    @property
    def label(self) -> str | None:
        """The likeliest label."""
        return self.top[0].label if self.top else None

    @property
    def score(self) -> float | None:
        """Its score."""
        return self.top[0].score if self.top else None

    def to_json(self) -> dict[str, Any]:
        """{"path", "label", "score", "top"} or {"path", "error"}."""
        if self.error is not None:
            return {"path": self.path, "error": self.error}
        top = [{"label": one.label, "score": one.score} for one in self.top]
        return {"path": self.path, "label": self.label, "score": self.score, "top": top}


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
    progress: Callable[[int, int], None] | None = None,
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
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Prediction]:
    """Predictions as they are made, in order. Memory does not grow with the number of pictures.

    model: a bundle, a run, an exported model, or anything else that `open_weights` takes.
    pictures: one or several of these: files; folders, of which all pictures are taken in the order of their paths; the
        bytes of files; pictures of Pillow's; arrays (H, W) or (H, W, C) and tensors (H, W) or (C, H, W), uint8.
    top: how many labels to give for each.
    engine, precision: what computes, and in what numbers; `vitreous.run.engines.deploy` says how it is chosen.
    merge: how many tokens the model merges per block (docs/merging.md); None for as many as it does of itself.
    progress: called with pictures done and pictures in all.
    """
    named = _name_pictures(pictures)
    deployed = deploy(
        model, engine=engine, precision=precision, preprocess=preprocess, merge=merge, pictures=len(named)
    )
    asked = deployed.engine
    batch = min(batch_size or asked.batch_size, len(named))
    check_inference_memory(deployed.config, asked.preprocess, batch)
    return _predict(asked, deployed.labels, named, top, batch, progress)


class _Named(NamedTuple):
    name: str
    picture: Picture


def _name_pictures(pictures: Picture | Sequence[Picture]) -> list[_Named]:
    """Each picture with what its prediction calls it, and each folder replaced by the pictures in it."""
    given = [pictures] if isinstance(pictures, PICTURE_TYPES) else pictures
    if not isinstance(given, Sequence):
        check_picture(given)  # which it is not: say so
    named: list[_Named] = []
    notes: list[str] = []
    for number, picture in enumerate(given):
        check_picture(picture)
        match picture:
            case str() | Path():
                named += [_Named(str(path), path) for path in find_pictures(picture, notes)]
            case Sample():
                named.append(_Named(picture.source.name(picture.index), picture))
            case bytes():
                named.append(_Named(f"bytes#{number}", picture))
            case Image.Image():
                named.append(_Named(f"image#{number}", picture))
            case np.ndarray():
                named.append(_Named(f"array#{number}", picture))
            case Tensor():
                named.append(_Named(f"tensor#{number}", picture))
    check_found(len(named), notes)
    return named


def _predict(
    engine: Engine,
    labels: tuple[str, ...],
    named: list[_Named],
    top: int,
    batch_size: int,
    progress: Callable[[int, int], None] | None,
) -> Iterator[Prediction]:
    done = 0
    pipeline = ViewPipeline(engine.preprocess, batch_size)
    for batch in pipeline.batches(one.picture for one in named):
        views = [view for view in batch if isinstance(view, Tensor)]
        chances = iter(engine.scores(torch.stack(views)).softmax(dim=1) if views else ())
        for (name, _), view in zip(named[done : done + len(batch)], batch, strict=True):
            if isinstance(view, PictureError):
                yield Prediction(name, error=view.reason)
            else:
                best = next(chances).topk(min(top, len(labels)))
                pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
                yield Prediction(name, tuple(Score(labels[k], value) for k, value in pairs))
        done += len(batch)
        if progress is not None:
            progress(done, len(named))
