"""Images with several labels, each of which counts as right: ReaL (Beyer et al. 2020, "Are we done with ImageNet?").

An image without labels is left out. Letters: K classes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from vitreous.errors import UserError
from vitreous.inputs import read_json

_VALIDATION = re.compile(r"ILSVRC2012_val_(\d{8})(?!\d)")  # a validation image of ImageNet, whose number counts from 1

LabelSet = tuple[int, ...]  # the classes of one image


@dataclass(frozen=True)
class LabelSets:
    """The labels of images, by the number or by the name of their file."""

    path: Path
    numbered: tuple[LabelSet, ...] | None  # of ImageNet's validation images, in their order
    named: dict[str, LabelSet]  # by the file's name, without folders

    def of(self, image: str) -> LabelSet | None:
        """The labels of the image at this path; None if the file says nothing of it."""
        if self.numbered is None:
            return self.named.get(PurePath(image).name)
        found = _VALIDATION.search(PurePath(image).name)
        if found is None:
            raise UserError(
                f"{image}: its name has no number such as ILSVRC2012_val_00000001, by which the labels in "
                f"{self.path} go; give ImageNet's validation images, or labels by file name."
            )
        if not 1 <= int(found[1]) <= len(self.numbered):
            raise UserError(f"{image}: {self.path} has labels of {len(self.numbered):,} images only; check both.")
        return self.numbered[int(found[1]) - 1]


def read_label_sets(path: str | Path, labels: Sequence[str]) -> LabelSets:
    """What a JSON file says: a list with a list of labels for each validation image of ImageNet, or an object from
    file name to such a list. labels: (K,) the model's; those in the file are their numbers or their names."""
    path = Path(path)
    found = read_json(path)
    number = {name: k for k, name in enumerate(labels)}

    def read_set(place: str, entry: Any) -> LabelSet:
        if not isinstance(entry, list):
            raise UserError(f"{path}: {place}: not a list of labels; give one for each image, empty if it has none.")
        numbers: dict[int, None] = {}
        for label in entry:
            k = number.get(label) if isinstance(label, str) else label
            if not isinstance(k, int) or isinstance(k, bool) or not 0 <= k < len(labels):
                raise UserError(
                    f"{path}: {place}: label {str(label)[:60]!r}: the model has no such class; labels are its classes' "
                    f"names, or their numbers from 0 to {len(labels) - 1}."
                )
            numbers[k] = None  # a label that is there twice counts once
        return tuple(numbers)

    if isinstance(found, list) and found:
        return LabelSets(path, tuple(read_set(f"image {i}", entry) for i, entry in enumerate(found, 1)), {})
    if not isinstance(found, dict) or not found:
        raise UserError(f"{path}: neither a list with a list of labels for each image, nor an object from file name.")
    named: dict[str, LabelSet] = {}
    for name, entry in found.items():
        if (short := PurePath(name).name) in named:
            raise UserError(f"{path}: {short}: there are labels for two files of this name; rename one of them.")
        named[short] = read_set(name, entry)
    return LabelSets(path, None, named)
