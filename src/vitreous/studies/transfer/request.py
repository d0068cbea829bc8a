"""What a person can ask of a transfer. This file needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from vitreous.arguments import Budget, SideLength
from vitreous.config.study import Protocol


@dataclass(frozen=True)
class TransferRequest:
    """A model, and the tasks that it is transferred to."""

    model: str | Path
    """MODEL: A bundle, a run folder, or anything that `vitreous import` reads."""
    _: KW_ONLY
    tasks: Sequence[str | Path] = ("all",)
    """natural|specialized|structured|all|NAME,...: VTAB's groups, names that `vitreous data list` shows, or paths of
    data with labels; pets=PATH says that the data at PATH are Pets. Several with commas between them."""
    protocols: Sequence[Protocol] = ("vtab-1k",)
    """vtab-1k|full|linear|knn|fewshot-5,...: vtab-1k: fine-tune on 1,000 images. full: on all. linear, knn, fewshot-5:
    on frozen features. Several with commas between them."""
    budget: Budget | None = None
    """TIME: How long everything may take, such as 15m; it is divided fairly, and what does not fit is measured on a
    random part of the images. Default: the paper's settings, which take an accelerator."""
    image_size: SideLength | None = None
    """PIXELS: Side of the model's input in pixels. Default: the model's own; 384 for vtab-1k and full without a
    budget."""
    preprocess: str | None = None
    """TEXT: Changes to the model's preprocessing, such as "mean=0.5,std=0.5,crop=0.9,interpolation=bicubic"."""
