"""`vitreous transfer`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from vitreous.cli.terminal import console, printable, table
from vitreous.cli.verb import Verb, verb
from vitreous.studies.transfer.request import TransferRequest
from vitreous.training.request import request_of
from vitreous.verbs.fit import ending_status, stopped_text
from vitreous.verbs.options import StudyOptions

if TYPE_CHECKING:
    from vitreous.report.transferred import TransferResult


@dataclass(frozen=True)
class Transfer(StudyOptions, TransferRequest, Verb["TransferResult"]):
    """Transfer a model to many tasks, by the paper's benchmarks: VTAB-1k, full, linear, k-NN, few-shot.

    Writes FOLDER/transfer.html, with the results beside the paper's table 2, and FOLDER/transfer.json. Tasks whose data
    are not on this machine are listed as missing; `vitreous data get NAME` fetches them. If it is interrupted, repeat
    the same command: finished tasks are not done again, and more tasks and protocols may be added.
    """

    resumes: ClassVar[bool] = True
    json_help: ClassVar[str] = "Print the contents of transfer.json."

    def run(self) -> TransferResult:
        """Transfer the model to every task under every protocol, or go on with that."""
        from vitreous.studies.transfer.transfer import transfer
        from vitreous.training.start import local_runtime

        runtime = local_runtime(self.workers, self.device, tensorboard=False)
        return transfer(request_of(TransferRequest, self), self.out, runtime, self.told, overwrite=self.overwrite)

    def show(self, result: TransferResult) -> None:
        """A table of accuracies, their means, the compute, and the files."""
        if not result.finished:
            so_far = (
                f" {result.out}/transfer.html shows the {len(result.scores)} scores so far." if result.scores else ""
            )
            print(stopped_text(result.out) + so_far)
            return
        rows = table("task", "protocol", "accuracy#", "95 % interval#", "test images#", "learned from#", "time#")
        for score in result.scores:
            low, high = score.interval
            of = "" if score.trained_on == score.trained_of else f" of {score.trained_of:,}"
            rows.add_row(
                printable(score.task),
                score.protocol,
                f"{100 * score.accuracy:.1f} %",
                f"{100 * low:.1f} to {100 * high:.1f}",
                score.tested.removeprefix("a random "),
                f"{score.trained_on:,}{of}",
                f"{score.seconds:.0f} s",
            )
        console().print(rows)
        print()
        for mean in result.means:
            low, high = mean.interval
            interval = f"{100 * low:.1f} to {100 * high:.1f}"
            print(
                f"mean of {mean.what}, {mean.protocol}: {100 * mean.value:.1f} % ({interval}), {mean.tasks} of "
                f"{mean.of} tasks"
            )
        print(printable(f"compute  {result.core_days}"))
        for one in result.absent:
            print(printable(f"missing  {one.task}{'' if one.protocol is None else f', {one.protocol}'}: {one.reason}"))
        print(f"page     {result.out}/transfer.html")
        print(f"numbers  {result.out}/transfer.json")

    def status(self, result: TransferResult) -> int:
        """0, or 128 + the signal that stopped it."""
        return ending_status(result.finished)


transfer = verb(Transfer)
