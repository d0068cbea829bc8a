"""What an engine says of images, one answer for each, in order, whatever became of its neighbours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitreous.data.decode import ImageError
from vitreous.data.pipeline import Viewed, ViewPipeline, map_ahead
from vitreous.data.view import ImageInput
from vitreous.inference.engine import Deployed

Progress = Callable[[int, int], None]
"""Called with images done and images in all."""


@dataclass(frozen=True)
class Score:
    """A label and how likely the model holds it, from 0 to 1."""

    label: str
    score: float


@dataclass(frozen=True)
class Prediction:
    """What the model says of one image, or why it could not be read."""

    path: str
    """The image's path. What has none is called by its kind and its place among the images given, from 0: bytes#0,
    image#1 for an image of Pillow's, array#2, tensor#3."""
    top: tuple[Score, ...] = ()
    """The likeliest labels, best first; none where there is an error, or the model has no classifier."""
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

    def _repr_html_(self) -> str:
        """A table of labels and scores, for a notebook."""
        rows = [(one.label, f"{one.score:.1%}") for one in self.top] if self.error is None else [("error", self.error)]
        cells = "".join(f"<tr><td>{escape(label)}</td><td>{escape(text)}</td></tr>" for label, text in rows)
        return f"<table><caption>{escape(self.path)}</caption>{cells}</table>"


class NamedImage(NamedTuple):
    """An image, and what its prediction calls it."""

    name: str
    image: ImageInput


class Answer(NamedTuple):
    """A prediction, and the image's representation (D,) where it was asked for and the image could be read."""

    prediction: Prediction
    representation: Tensor | None


def answer_each(
    deployed: Deployed,
    named: Sequence[NamedImage],
    *,
    top: int,
    batch_size: int,
    embed: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Iterator[Answer]:
    """Answers as they are made, in order. Memory does not grow with the number of images.

    embed: give representations too; the model is then asked twice. threads: that decode; None for one per core.
    """
    engine, labels, done = deployed.engine, deployed.labels, 0

    def ask(batch: list[Viewed]) -> tuple[Iterable[Tensor], Iterable[Tensor]]:
        readable = [view for view in batch if isinstance(view, Tensor)]
        if not readable:
            return (), ()
        views = torch.stack(readable)
        chances = engine.scores(views).softmax(dim=1) if labels else ()
        return chances, engine.representations(views) if embed else ()

    pipeline = ViewPipeline(engine.preprocess, batch_size, threads=threads)
    batches = pipeline.batches(one.image for one in named)
    for batch, answers in map_ahead(ask, batches, engine.calls_at_once):
        chances, vectors = map(iter, answers)
        for (name, _), view in zip(named[done : done + len(batch)], batch, strict=True):
            if isinstance(view, ImageError):
                yield Answer(Prediction(name, error=view.reason), None)
            else:
                best = _best(next(chances), labels, top) if labels else ()
                yield Answer(Prediction(name, best), next(vectors) if embed else None)
        done += len(batch)
        if progress is not None:
            progress(done, len(named))


def _best(chances: Tensor, labels: Sequence[str], top: int) -> tuple[Score, ...]:
    """The likeliest labels of probabilities (K,)."""
    best = chances.topk(min(top, len(labels)))
    return tuple(Score(labels[k], value) for k, value in zip(best.indices.tolist(), best.values.tolist(), strict=True))
