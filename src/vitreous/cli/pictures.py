"""What the verbs that go picture by picture share: what they are told, and what they write."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from vitreous.cli.terminal import printable
from vitreous.errors import UserError

if TYPE_CHECKING:
    from vitreous.data.decode import PictureError


class OutputFiles:
    """Files below a folder, each named after its picture: every name only once, and never that of a given picture."""

    def __init__(self, folder: str, pictures: Sequence[Path]) -> None:
        self.folder = Path(folder)
        self.taken = {_real(path) for path in pictures}

    def name(self, picture: str | Path, *endings: str) -> list[Path]:
        """A file for each ending, with a number if any of these names is taken."""
        stem, number = Path(picture).stem, 1
        while True:
            name = stem if number == 1 else f"{stem}-{number}"
            files = [self.folder / f"{name}{ending}" for ending in endings]
            if self.taken.isdisjoint(map(_real, files)):
                self.taken.update(map(_real, files))
                return files
            number += 1

    @contextmanager
    def writing(self) -> Iterator[None]:
        """The folder is made; what keeps its files from being written becomes a sentence."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            yield
        except OSError as error:
            raise UserError(
                f"--out {self.folder}: cannot be written to ({error.strerror}); give another folder."
            ) from None


def _real(path: Path) -> str:
    return os.path.realpath(path)  # `Path.resolve` fails at a link to itself


def parse_point(text: str | None) -> tuple[float, float] | None:
    """The place in a picture that `--query X,Y` names."""
    if text is None:
        return None
    try:
        x, y = (float(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"--query {text}: give two numbers, such as 120,80: across and down, in pixels.") from None
    return x, y


def say_unreadable(error: PictureError) -> None:
    """Name on standard error a picture that could not be read, and why."""
    print(f"vitreous: {printable(error.name)}: {error.reason}", file=sys.stderr)
