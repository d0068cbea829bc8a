"""How a large prediction is divided into parts, and what all who work on it must agree on.

The images have a fixed order, and each part is so many of them in a row. So any number of processes, one after the
other or at once, can do whichever parts are missing.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal

from vitreous.arguments import Count
from vitreous.config.data import Preprocess
from vitreous.config.engine import EngineName, Precision
from vitreous.config.fields import from_fields
from vitreous.data.source import Source
from vitreous.errors import UserError
from vitreous.inputs import parse_json, read_text
from vitreous.storage.files import create_file
from vitreous.storage.overwrite import GENERATOR, output_folder

Format = Literal["parquet", "jsonl"]

TRIES, PAUSE = 20, 0.1
"""How often, and every how many seconds, a plan that is not whole yet is read again."""
NOTES = "_vitreous"
"""The folder, within that of the answers, of what is known about them. Readers of a whole folder of Parquet files pass
over names with an underscore."""
PLAN = "plan.json"
FEWEST, MOST = 64, 4096
"""Images in a part: few enough that little is lost with a process, and many enough that parts are not files without
end."""
PARTS = 256
"""How many parts to make while they are neither too small nor too large: enough for many workers."""


@dataclass(frozen=True)
class Plan:
    """What the answers in one folder follow from, and how they are divided."""

    model: str
    """A digest of its weights, its preprocessing and its labels."""
    preprocess: Preprocess
    engine: EngineName
    precision: Precision
    merge: int | None
    top: Count
    embed: bool
    format: Format
    images: Count
    names: str
    """A digest of the names of all images, in their order."""
    part_size: Count
    generator: str = GENERATOR

    @property
    def parts(self) -> int:
        """How many there are."""
        return math.ceil(self.images / self.part_size)

    def range_of(self, part: int) -> range:
        """Which images a part holds."""
        return range(part * self.part_size, min((part + 1) * self.part_size, self.images))

    def file_of(self, part: int) -> str:
        """The name of the file with its answers; names are in the order of the images."""
        return f"part-{part:06d}.{self.format}"

    def parts_of(self, share: Share) -> range:
        """The parts that belong to one of several processes: each gets every nth."""
        return range(share.number - 1, self.parts, share.of)


@dataclass(frozen=True)
class Share:
    """One of several equal shares of the work, counted from 1."""

    number: int = 1
    of: int = 1

    @classmethod
    def parse(cls, text: str) -> Share:
        """What "3/8" says."""
        number, _, of = text.partition("/")
        if number.isascii() and of.isascii() and number.isdigit() and of.isdigit() and 1 <= int(number) <= int(of):
            return cls(int(number), int(of))
        raise UserError(f"part={text!r}: give a share i/n of the work, from 1/n to n/n, such as 1/8.")


def choose_part_size(images: int) -> int:
    """How many images to put into a part."""
    return max(FEWEST, min(MOST, math.ceil(images / PARTS)))


def digest_names(sources: Sequence[Source]) -> str:
    """64 hexadecimal digits that differ if the name or the place of any image does."""
    digest = sha256()
    for source in sources:
        for index in range(len(source)):
            digest.update(source.name(index).encode(errors="surrogateescape") + b"\0")
    return digest.hexdigest()


def cut_out(sources: Sequence[Source], wanted: range) -> list[Source]:
    """The images with these numbers, counted through all the sources."""
    return list(_cut_out(sources, wanted))


def _cut_out(sources: Sequence[Source], wanted: range) -> Iterator[Source]:
    first = 0
    for source in sources:
        start, stop = max(wanted.start - first, 0), min(wanted.stop - first, len(source))
        if start < stop:
            yield source.subset(range(start, stop))
        first += len(source)


def read_plan(out: Path) -> Plan | None:
    """The plan of the answers in a folder; None where it is empty or not there. Other people's folders are refused."""
    path = output_folder(out) / NOTES / PLAN
    if path.is_file():
        return from_fields(Plan, parse_json(_whole_text(path), path), path)
    held = [inside.name for inside in out.iterdir() if inside.name != NOTES] if out.is_dir() else []
    if held:
        raise UserError(
            f"{out}: is not empty (it holds {', '.join(sorted(held)[:3])}) and no prediction wrote it; choose a folder "
            "that is new or empty."
        )
    return None


def _whole_text(path: Path) -> str:
    """The text of a plan, which ends with a line: where there are no hard links, it is empty for a moment at first."""
    for _ in range(TRIES):
        if (text := read_text(path)).endswith("\n"):
            break
        time.sleep(PAUSE)
    return text


def create_plan(out: Path, plan: Plan) -> bool:
    """Write the plan into the folder; False if another process was faster."""
    return create_file(out / NOTES / PLAN, json.dumps(asdict(plan), indent=2) + "\n")


def check_plan(out: Path, there: Plan, asked: Plan) -> None:
    """Refuse to add answers to a folder that holds others than are asked for."""
    for name, difference in DIFFERENCES.items():
        if getattr(there, name) != getattr(asked, name):
            raise UserError(
                f"{out}: holds answers {difference.format(there=there, asked=asked)}; repeat the command that began "
                "it, or choose another folder."
            )


DIFFERENCES = {
    "preprocess": "with another preprocessing",
    "engine": "that {there.engine} computes, not {asked.engine}",
    "precision": "in {there.precision}, not in {asked.precision}",
    "merge": "with merge={there.merge}, not {asked.merge}",
    "model": "of another model",
    "top": "with top={there.top}, not {asked.top}",
    "embed": "with embed={there.embed}, not {asked.embed}",
    "images": "for {there.images:,} images, and there are {asked.images:,} now",
    "names": "for images with other names or in another order",
}
"""How the answers in a folder may differ from what is asked for, the most telling difference first."""
