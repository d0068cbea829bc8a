"""What the verbs that write files for each image share: where they write, and what becomes of unreadable images."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from vitreous.cli.terminal import printable
from vitreous.errors import UserError

if TYPE_CHECKING:
    from vitreous.data.decode import ImageError
    from vitreous.weights.bundle import Bundle

T = TypeVar("T")


@dataclass(frozen=True)
class ModelAndImages:
    """What a verb is given that writes files for each image."""

    model: str | Path | Bundle
    """MODEL: A bundle, a run folder, or anything that `vitreous import` reads."""
    images: str | Path | Sequence[str | Path]
    """IMAGE|FOLDER ...: Image files, and folders of images."""


class ImageResults(Generic[T]):
    """An iterator: what a function makes of each image, or the error of one that cannot be read."""

    def __init__(self, results: Iterable[Callable[[], T]]) -> None:
        self._results = iter(results)
        self.unreadable = 0
        """Images so far that could not be read."""

    def __iter__(self) -> Iterator[T | ImageError]:
        return self

    def __next__(self) -> T | ImageError:
        from vitreous.data.decode import ImageError

        result = next(self._results)
        try:
            return result()
        except ImageError as error:
            self.unreadable += 1
            return error


def print_each(results: Iterable[T | ImageError], line: Callable[[T], str]) -> None:
    """Print one line per image as it comes; on standard error, why one could not be read."""
    from vitreous.data.decode import ImageError

    for one in results:
        if isinstance(one, ImageError):
            print(f"vitreous: {printable(one.name)}: {one.reason}", file=sys.stderr)
        else:
            print(printable(line(one)), flush=True)


def name_outputs(
    out: str | Path | None, given: str | Path | Sequence[str | Path], paths: Sequence[Path], *endings: str
) -> list[list[Path]]:
    """For each image the files to write: one per ending, in the folder `out`, if any, named after the image.

    Every name is given only once, and never that of a given image: a number makes it another. Refused before any image
    is read: a file of such a name that is not ours, and a folder inside a given folder of images, where the next
    command would take what was written for images.
    """
    from vitreous.storage.overwrite import check_file, output_folder, real_path

    if out is None:
        return [[] for _ in paths]
    place, files = output_folder(out), set(paths)
    for folder in map(Path, [given] if isinstance(given, str | Path) else given):
        if folder not in files and real_path(place).is_relative_to(images := real_path(folder)):
            raise UserError(
                f"out {place}: is inside {folder}, a folder of the images, so its files would be taken for images too; "
                f"write to another, such as {images.with_name(f'{images.name}-{place.name}')}."
            )
    taken = set(map(os.path.realpath, paths))  # `Path.resolve` fails at a link to itself

    def name(stem: str) -> list[Path]:
        for number in count(1):
            named = [place / f"{stem}{'' if number == 1 else f'-{number}'}{ending}" for ending in endings]
            if taken.isdisjoint(map(os.path.realpath, named)):
                break
        taken.update(map(os.path.realpath, named))
        return [check_file(file) for file in named]

    return [name(path.stem) for path in paths]
