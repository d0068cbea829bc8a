"""Which of a model's classes each class of the data is, and among which classes the prediction is chosen."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from torch import Tensor

from vitreous.data.source import Source
from vitreous.errors import UserError
from vitreous.weights.labels import class_numbers, imagenet_synsets, is_imagenet, subset_name

LabelSpace = Literal["all", "data"]
"""Whether the prediction is the likeliest of all of a model's classes, or of those that the data have."""


@dataclass(frozen=True)
class MatchedSource:
    """Images whose labels count in the classes that may be predicted."""

    source: Source
    labels: tuple[str, ...]  # (K,) names of the classes that may be predicted
    outputs: tuple[int, ...] | None = None  # (K,) which of the model's classes they are; None for all
    remarks: tuple[str, ...] = ()  # how the classes were matched and which may be predicted, unless it is the obvious

    @property
    def label_space(self) -> LabelSpace:
        return "all" if self.outputs is None else "data"

    def select(self, logits: Tensor) -> Tensor:
        return logits if self.outputs is None else logits[:, list(self.outputs)]


def check_imagenet(labels: tuple[str, ...], path: Path) -> None:
    """Refuse a model whose classes are not ImageNet's in its order, in which the labels at `path` count."""
    if not is_imagenet(labels):
        raise UserError(
            f"{path}: labels of ImageNet's validation images, and the model's {len(labels):,} classes are not "
            "ImageNet's in its order; give a classifier of ImageNet, or labels by file name."
        )


def match_names(source: Source, labels: tuple[str, ...]) -> MatchedSource:
    """Each class is the model's of the same name, and the prediction is chosen among all."""
    return MatchedSource(source.relabelled(labels), labels)


def match_classes(source: Source, labels: tuple[str, ...], label_space: LabelSpace | None = None) -> MatchedSource:
    """Each class is the model's of the same name; of ImageNet's classifiers also of its WordNet id or number.

    label_space: if None, all; for the classes of ImageNet-A and ImageNet-R, as in their papers, the data's.
    """
    matched, subset = _match(source, labels)
    if label_space == "all" or (label_space is None and subset is None):
        return matched
    present = np.unique(matched.source.labels[matched.source.labels >= 0])
    if len(present) < 2:
        raise UserError(
            "label_space='data': the images are all of one class, so there is nothing to choose; give 'all'."
        )
    if len(present) == len(labels):
        return matched
    place = np.full(len(labels) + 1, -1, dtype=np.int64)
    place[present] = np.arange(len(present))
    chosen = tuple(labels[k] for k in present)
    whose = f", as usual for {subset}" if subset else ""
    remark = f"predictions are among the data's {len(chosen)} classes{whose}, of the model's {len(labels):,}"
    of_data = matched.source.with_labels(place[matched.source.labels], chosen)
    return MatchedSource(of_data, chosen, tuple(present.tolist()), (*matched.remarks, remark))


def _match(source: Source, labels: tuple[str, ...]) -> tuple[MatchedSource, str | None]:
    """The images with labels that count in all of the model's, and the dataset whose classes they are, if known."""
    used = {source.classes[label] for label in np.unique(source.labels) if label >= 0}
    found = None
    if is_imagenet(labels):
        found = class_numbers(used)
        strangers = sorted(used - set(imagenet_synsets()) - set(labels))
        if found is None and strangers and len(strangers) < len(used):
            raise UserError(
                f"class {strangers[0]!r}: not one of ImageNet's 1,000, as the model's and others of the data are; "
                "remove its folder, or train on these data."
            )
    if found is None or (used <= set(labels) and len(set(labels)) == len(labels)):
        subset = None if found is None else subset_name(found[1].values())
        return match_names(source, labels), subset
    naming, number = found
    table = np.array([number.get(name, -1) for name in source.classes] + [-1], dtype=np.int64)
    remark = f"the data's classes are matched to the model's by ImageNet's {naming}"
    subset = subset_name(number.values())
    return MatchedSource(source.with_labels(table[source.labels], labels), labels, None, (remark,)), subset
