"""`vitreous report`."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from vitreous.cli.terminal import printable
from vitreous.cli.verb import Verb, verb
from vitreous.verbs.options import PreprocessOption, SplitOption

if TYPE_CHECKING:
    from vitreous.data.source import Data
    from vitreous.weights.bundle import Bundle


@dataclass(frozen=True)
class Report(PreprocessOption, SplitOption, Verb[Path]):
    """Write a web page about a model: its training, its accuracy, what it looks at, how to use it.

    The page is one HTML file that works offline.
    """

    model: str | Path | Bundle
    """RUN|BUNDLE: A run folder (the page then tells about its training), a bundle, or anything that `vitreous import`
    reads."""
    _: KW_ONLY
    data: str | Path | Data | None = None
    """DATA: Data to measure the model on. Default: the results of the run, or none for a bundle."""
    out: str | Path | None = None
    """FILE: The file to write. Default: report.html in the run folder, or NAME-report.html in the current folder."""
    json_help: ClassVar[str] = ""

    def run(self) -> Path:
        """Write the page and return its path; a page of ours is replaced, any other file is not."""
        from vitreous.training.page import write_report

        return write_report(
            self.model,
            data=self.data,
            split=self.split,
            out=self.out,
            preprocess=self.preprocess,
            progress=partial(self.told.progress, "measuring"),
        )

    def show(self, result: Path) -> None:
        """Where the page is, and its size."""
        print(f"{printable(str(result))} ({result.stat().st_size / 1e6:.1f} MB): open it in a browser.")


write_report = verb(Report, "write_report")
