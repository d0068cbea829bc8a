"""What the verbs that go image by image share: what they are told, and what they write."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from vitreous.cli.terminal import printable
from vitreous.errors import UserError

if TYPE_CHECKING:
    from vitreous.data.decode import ImageError


def name_outputs(folder: str, images: Sequence[Path], *endings: str) -> list[list[Path]]:
    """For each image the files to write: one per ending, below the folder, named after the image.

    Every name is given only once, and never that of a given image: a number makes it another. If there is a file of
    such a name that is not ours, it is refused here, before any image is looked at.
    """
    from vitreous.storage.overwrite import check_file, output_folder

    place = output_folder(folder)
    taken = set(map(os.path.realpath, images))  # `Path.resolve` fails at a link to itself

    def name(stem: str) -> list[Path]:
        for number in count(1):
            files = [place / f"{stem}{'' if number == 1 else f'-{number}'}{ending}" for ending in endings]
            if taken.isdisjoint(map(os.path.realpath, files)):
                break
        taken.update(map(os.path.realpath, files))
        return [check_file(file) for file in files]

    return [name(image.stem) for image in images]


def parse_point(text: str | None) -> tuple[float, float] | None:
    """The place in an image that `--query X,Y` names."""
    if text is None:
        return None
    try:
        x, y = (float(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"--query {text}: give two numbers, such as 120,80: across and down, in pixels.") from None
    return x, y


def say_unreadable(error: ImageError) -> None:
    """Name on standard error an image that could not be read, and why."""
    print(f"vitreous: {printable(error.name)}: {error.reason}", file=sys.stderr)
