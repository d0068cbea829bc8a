"""`vitreous compare`, `vitreous transfer` and `vitreous self-train`: studies of many trainings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from vitreous.cli.terminal import print_wide, printable, table
from vitreous.cli.verb import Verb, verb
from vitreous.inputs import counted
from vitreous.studies.requests import CompareRequest, SelfTrainRequest, TransferRequest
from vitreous.training.request import request_of
from vitreous.verbs.fit import stopped_text
from vitreous.verbs.options import StudyOptions

if TYPE_CHECKING:
    from vitreous.studies.compare.result import Comparison, ComparisonRow
    from vitreous.studies.self_train.result import Round, SelfTrainResult
    from vitreous.studies.transfer.result import TransferResult


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
        from vitreous.studies.compare.compare import compare
        from vitreous.training.folder import run_folder, run_name
        from vitreous.training.start import local_runtime

        self.check()
        folder = run_folder(self.out, self.data, f"{run_name(self.data)}-compare")
        runtime = local_runtime(self.workers, self.device, tensorboard=False)
        return compare(
            request_of(CompareRequest, self), folder, runtime, self.active_callbacks, overwrite=self.overwrite
        )

    def show(self, result: Comparison) -> None:
        from vitreous.studies.compare.result import fraction_text

        if not result.finished:
            print(_stopped(result.out, "compare.html", counted(len(result.cells), "cell")))
            return
        columns = ("model", "fraction#", "images#", "accuracy#", "95 % interval#", "training FLOPs#", "core-hours#")
        seen = sorted({f"{cell.n:,}" for cell in result.cells})
        print_wide(table(columns, map(_compared, result.rows)), "")
        print_wide(f"accuracies are of {' or '.join(seen)} {result.split} images, means ± deviation over the seeds", "")
        for fraction, verdict in result.verdicts.items():
            what = "" if fraction is None else f"with {fraction_text(fraction)} of the images: "
            print(printable(f"{what}{verdict}"))
        for line in (*map(str, result.closing), *(f"note: {remark}" for remark in result.remarks)):
            print(printable(line))
        print(f"page     {result.out}/compare.html")
        print(f"numbers  {result.out}/compare.json")


def _compared(row: ComparisonRow) -> tuple[str, ...]:
    from vitreous.studies.compare.result import fraction_text

    spread = "" if row.accuracies.deviation is None else f" ± {100 * row.accuracies.deviation:.1f}"
    return (
        printable(row.model),
        fraction_text(row.fraction),
        "" if row.images is None else f"{row.images:,}",
        f"{100 * row.accuracies.mean:.1f}{spread} %",
        _interval(row.accuracies.interval),
        "" if row.flops is None else f"{row.flops:.3g}",
        "" if row.core_hours is None else f"{row.core_hours:.3g}",
    )


@dataclass(frozen=True)
class Transfer(StudyOptions, TransferRequest, Verb["TransferResult"]):
    """Measure how well a model transfers to many tasks: VTAB's 19 and your own.

    Writes FOLDER/transfer.html, with the results beside the paper's table 2, and FOLDER/transfer.json. Tasks whose data
    are not on this machine are listed as missing; `vitreous data get NAME` fetches them. If it is interrupted, repeat
    the same command: finished tasks are not done again, and more tasks and protocols may be added.
    """

    resumes: ClassVar[bool] = True
    json_help: ClassVar[str] = "Print the contents of transfer.json."

    def run(self) -> TransferResult:
        from vitreous.studies.transfer.transfer import transfer
        from vitreous.training.start import local_runtime

        runtime = local_runtime(self.workers, self.device, tensorboard=False)
        return transfer(
            request_of(TransferRequest, self), self.out, runtime, self.active_callbacks, overwrite=self.overwrite
        )

    def show(self, result: TransferResult) -> None:
        if not result.finished:
            print(_stopped(result.out, "transfer.html", counted(len(result.scores), "score")))
            return
        columns = ("task", "protocol", "accuracy#", "95 % interval#", "images measured#", "learned from#", "time#")
        rows = (
            (
                printable(score.task),
                score.protocol,
                f"{100 * score.accuracy:.1f} %",
                _interval(score.interval),
                score.tested.removeprefix("a random "),
                f"{score.trained_on:,}" + ("" if score.trained_on == score.trained_of else f" of {score.trained_of:,}"),
                f"{score.seconds:.0f} s",
            )
            for score in result.scores
        )
        print_wide(table(columns, rows), "")
        for mean in result.means:
            found = f"{100 * mean.value:.1f} % ({_interval(mean.interval)}), {mean.tasks} of {counted(mean.of, 'task')}"
            print(f"mean of {mean.what}, {mean.protocol}: {found}")
        print(printable(f"compute  {result.core_days}"))
        for one in result.absent:
            print(printable(f"missing  {one.task}{'' if one.protocol is None else f', {one.protocol}'}: {one.reason}"))
        print(f"page     {result.out}/transfer.html")
        print(f"numbers  {result.out}/transfer.json")


@dataclass(frozen=True)
class SelfTrain(StudyOptions, SelfTrainRequest, Verb["SelfTrainResult"]):
    """Learn from a few labelled and many unlabelled images: Noisy Student.

    A teacher learns from the labelled images and labels the others; a noised student learns from both and becomes the
    next teacher. A page shows how each round does and which labels are uncertain. If it is interrupted, repeat the same
    command: it resumes where it stopped.
    """

    resumes: ClassVar[bool] = True

    def run(self) -> SelfTrainResult:
        from vitreous.studies.self_train.self_train import self_train
        from vitreous.training.folder import run_folder, run_name
        from vitreous.training.start import local_runtime

        self.check()
        run = run_folder(self.out, self.labelled, f"{run_name(self.labelled)}-self-train")
        run_folder(self.out, self.unlabelled, run.name)
        runtime = local_runtime(self.workers, self.device, tensorboard=False)
        return self_train(
            request_of(SelfTrainRequest, self), run, runtime, self.active_callbacks, overwrite=self.overwrite
        )

    def show(self, result: SelfTrainResult) -> None:
        if not result.finished:
            print(stopped_text(result.run))
            return
        chosen = any(one.validation is not None for one in result.rounds)
        for one in result.rounds:
            print(_round_line(one))
        print(*(f"note: {printable(remark)}" for remark in result.remarks), sep="\n", end="\n" * bool(result.remarks))
        print(f"kept: round {result.best}, {'the best on validation images' if chosen else 'the last'}")
        if (paired := result.against_teacher) is not None:
            low, high = (f"{100 * value:+.1f}" for value in paired.interval)
            measured = (
                f"{paired.n:,} test images, 95 % interval {low} to {high}"
                if paired.split == "test"
                else f"{paired.n:,} validation images (optimistic: the same images selected the round)"
            )
            print(f"kept less teacher: {100 * paired.difference:+.1f} points on the same {measured}")
        print(f"labels: {result.run}/labels/final/labels.csv, of {counted(result.unlabelled, 'image')}")
        print(f"report: {result.run}/report.html, with the images whose label is uncertain")
        print(f"use it: vitreous predict {result.run} IMAGE")


def _stopped(folder: str, page: str, done: str) -> str:
    return stopped_text(folder) + ("" if done[:2] == "0 " else f" {folder}/{page} shows the {done} so far.")


def _round_line(one: Round) -> str:
    scores = {"validation": one.validation, "test": one.test}
    found = [f"{name} {score.accuracy:.1%} of {score.n:,}" for name, score in scores.items() if score is not None]
    taken = "" if one.labels is None else f", {sum(one.labels.taken.values()):,} labels taken"
    return f"round {one.number}: {', '.join(found) or 'not measured'}{taken}"


def _interval(interval: tuple[float, float]) -> str:
    low, high = interval
    return f"{100 * low:.1f} to {100 * high:.1f}"


compare = verb(Compare)
transfer = verb(Transfer)
self_train = verb(SelfTrain)
