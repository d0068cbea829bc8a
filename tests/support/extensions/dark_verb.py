"""A verb from outside the package: `vitreous find-dark photos/ --brightness 0.1 --limit 3`."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from vitreous.arguments import Count
from vitreous.cli.verb import Verb, verb


@dataclass(frozen=True)
class FindDark(Verb[dict[str, float]]):
    """Find images that are too dark, the darkest first."""

    data: str | Path
    """DATA: A folder of images, or any other data that `vitreous inspect` opens."""
    _: KW_ONLY
    brightness: float = 0.2
    """LEVEL: Only images without a brighter pixel: 0 is black, 1 is white."""
    limit: Count | None = None
    """COUNT: At most this many images. Default: all."""

    def run(self) -> dict[str, float]:
        from vitreous.data.opening import open_data

        images, found = open_data(self.data, labelled=False).train, []
        for index in range(len(images)):
            self.active_callbacks.progress("reading", index, len(images))
            found.append((images.read(index).convert("L").getextrema()[1] / 255, images.name(index)))
        return {name: level for level, name in sorted(found)[: self.limit] if level <= self.brightness}

    def show(self, result: dict[str, float]) -> None:
        print("\n".join(f"{level:.2f}  {name}" for name, level in result.items()) or "none")

    def to_json(self, result: dict[str, float]) -> dict[str, float]:
        return result


find_dark = verb(FindDark)
