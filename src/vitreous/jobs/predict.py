"""`vitreous predict`: what is on pictures."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous.config.data import Preprocess
from vitreous.data.augment import eval_view, normalise
from vitreous.data.decode import PictureError, open_picture
from vitreous.data.folder import pictures_below
from vitreous.errors import UserError
from vitreous.jobs.opening import open_classifier
from vitreous.model.family import inference_batch
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


def predict(
    model: str | Path | Bundle,
    pictures: str | Path | Sequence[str | Path],
    *,
    top: int = 5,
    batch_size: int | None = None,
    preprocess: Preprocess | str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Prediction]:
    """One prediction for each picture, in order; see `predict_each`, which gives them one at a time."""
    return list(predict_each(model, pictures, top=top, batch_size=batch_size, preprocess=preprocess, progress=progress))


def predict_each(
    model: str | Path | Bundle,
    pictures: str | Path | Sequence[str | Path],
    *,
    top: int = 5,
    batch_size: int | None = None,
    preprocess: Preprocess | str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Prediction]:
    """Predictions as they are made, in order. Memory does not grow with the number of pictures.

    model: a bundle, a run, or anything else that `open_weights` takes.
    pictures: files, and folders, of which all pictures are taken in the order of their paths.
    top: how many labels to give for each.
    progress: called with pictures done and pictures in all.
    """
    if top < 1 or (batch_size is not None and batch_size < 1):
        raise UserError(f"top={top}, batch_size={batch_size}: must be at least 1.")
    paths = list_pictures([pictures] if isinstance(pictures, str | Path) else pictures)
    bundle = open_classifier(model, preprocess)
    batch = inference_batch(bundle.model.config) if batch_size is None else batch_size
    return _predict(bundle, paths, top, batch, progress)


def _predict(
    bundle: Bundle, paths: list[Path], top: int, batch_size: int, progress: Callable[[int, int], None] | None
) -> Iterator[Prediction]:
    done = 0
    for batch in _decoded(paths, bundle.preprocess, batch_size):
        views = [view for view in batch if isinstance(view, Tensor)]
        scores = iter(_scores(bundle, views) if views else ())
        for path, view in zip(paths[done : done + len(batch)], batch, strict=True):
            if isinstance(view, PictureError):
                yield Prediction(str(path), error=view.reason)
            else:
                best = next(scores).topk(min(top, len(bundle.labels)))
                pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
                yield Prediction(str(path), tuple(Score(bundle.labels[k], value) for k, value in pairs))
        done += len(batch)
        if progress is not None:
            progress(done, len(paths))


def _scores(bundle: Bundle, views: list[Tensor]) -> Tensor:
    """(B, K) probabilities."""
    with torch.inference_mode():
        scores: Tensor = bundle.model(normalise(torch.stack(views), bundle.preprocess)).softmax(dim=1)
    check_scores(scores, bundle)
    return scores


def check_scores(scores: Tensor, bundle: Bundle) -> None:
    """Refuse a model whose answers mean nothing."""
    if not torch.isfinite(scores).all():
        raise UserError(f"{bundle.path or 'the model'}: gives scores that are not numbers; its weights are damaged.")


def _decoded(paths: list[Path], preprocess: Preprocess, batch_size: int) -> Iterator[list[Tensor | PictureError]]:
    """Batches of views (C, H, W) uint8, or why there is none; the next batch is decoded while one is being used."""
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        waiting: deque[list[Future[Tensor | PictureError]]] = deque()
        for chunk in _chunks(paths, batch_size):
            waiting.append([pool.submit(_view, path, preprocess) for path in chunk])
            if len(waiting) > 1:
                yield [future.result() for future in waiting.popleft()]
        if waiting:
            yield [future.result() for future in waiting.popleft()]


def _view(path: Path, preprocess: Preprocess) -> Tensor | PictureError:
    """The picture as evaluation sees it, or why it cannot be read."""
    try:
        # Twice the size leaves the last resampling enough to work with, as in the loader.
        picture = open_picture(path, channels=preprocess.channels, at_least=2 * max(preprocess.resized))
        return eval_view(picture, preprocess)
    except PictureError as error:
        return error


def list_pictures(given: Sequence[str | Path]) -> list[Path]:
    """The files, with each folder replaced by the pictures in it."""
    if not given:
        raise UserError("no pictures: give at least one picture or folder.")
    paths: list[Path] = []
    for place in map(Path, given):
        if place.is_dir():
            source = pictures_below(place, [])
            paths += [Path(source.name(index)) for index in range(len(source))]
        else:
            paths.append(place)
    return paths


def _chunks(paths: Iterable[Path], size: int) -> Iterator[list[Path]]:
    rest = iter(paths)
    while chunk := list(islice(rest, size)):
        yield chunk
