"""`vitreous compare`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from vitreous.cli.terminal import console, printable, table
from vitreous.cli.verb import Verb, verb
from vitreous.studies.compare.request import CompareRequest
from vitreous.training.request import request_of
from vitreous.verbs.fit import ending_status, stopped_text
from vitreous.verbs.options import StudyOptions

if TYPE_CHECKING:
    from vitreous.report.compared import Comparison


@dataclass(frozen=True)
class Compare(StudyOptions, CompareRequest, Verb["Comparison"]):
    """Compare models fairly: the same data, splits, augmentation, tuning, and time or FLOPs.

    Each model is trained with each fraction of the images and each seed. Writes FOLDER/compare.html and
    FOLDER/compare.json. If it is interrupted, repeat the same command: what is finished is not done again, and more
    models, fractions and seeds may be added.
    """

    resumes: ClassVar[bool] = True
    json_help: ClassVar[str] = "Print the contents of compare.json."

    def run(self) -> Comparison:
        """Train every model with every fraction and every seed, or go on with that."""
        from vitreous.studies.compare.compare import compare
        from vitreous.training.folder import run_name, run_place
        from vitreous.training.start import local_runtime

        self.check()
        folder = run_place(self.out, self.data, f"{run_name(self.data)}-compare")
        runtime = local_runtime(self.workers, self.device, tensorboard=False)
        return compare(request_of(CompareRequest, self), folder, runtime, self.told, overwrite=self.overwrite)

    def show(self, result: Comparison) -> None:
        """A table of accuracies and costs, who is ahead, and the files."""
        from vitreous.report.compared import share_text

        if not result.finished:
            so_far = f" {result.out}/compare.html shows the {len(result.cells)} cells so far." if result.cells else ""
            print(stopped_text(result.out) + so_far)
            return
        rows = table("model", "fraction#", "images#", "accuracy#", "95 % interval#", "training FLOPs#", "core-hours#")
        for row in result.rows:
            spread = "" if row.accuracies.deviation is None else f" ± {100 * row.accuracies.deviation:.1f}"
            low, high = row.accuracies.interval
            rows.add_row(
                printable(row.model),
                share_text(row.fraction),
                "" if row.images is None else f"{row.images:,}",
                f"{100 * row.accuracies.mean:.1f}{spread} %",
                f"{100 * low:.1f} to {100 * high:.1f}",
                "" if row.flops is None else f"{row.flops:.3g}",
                "" if row.core_hours is None else f"{row.core_hours:.3g}",
            )
        console().print(rows)
        print()
        for fraction, verdict in result.verdicts.items():
            what = "" if fraction is None else f"with {share_text(fraction)} of the images: "
            print(printable(f"{what}{verdict}"))
        for closing in result.closing:
            print(printable(f"{closing}"))
        for remark in result.remarks:
            print(f"note: {printable(remark)}")
        print(f"page     {result.out}/compare.html")
        print(f"numbers  {result.out}/compare.json")

    def status(self, result: Comparison) -> int:
        """0, or 128 + the signal that stopped it."""
        return ending_status(result.finished)


compare = verb(Compare)
