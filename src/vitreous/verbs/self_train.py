"""`vitreous self-train`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from vitreous.cli.verb import Verb, verb
from vitreous.studies.self_train.request import SelfTrainRequest
from vitreous.training.request import request_of
from vitreous.verbs.fit import ending_status, stopped_text
from vitreous.verbs.options import StudyOptions

if TYPE_CHECKING:
    from vitreous.report.rounds import Round
    from vitreous.studies.self_train.result import SelfTrainResult


@dataclass(frozen=True)
class SelfTrain(StudyOptions, SelfTrainRequest, Verb["SelfTrainResult"]):
    """Learn from a few labelled and many unlabelled images: Noisy Student.

    A teacher learns from the labelled images and labels the others; a noised student learns from both and becomes the
    next teacher. A page shows how each round does and which labels are uncertain. If it is interrupted, repeat the same
    command: it resumes where it stopped.
    """

    resumes: ClassVar[bool] = True

    def run(self) -> SelfTrainResult:
        """Train a teacher, then students on its labels; or go on with what the same call began."""
        from vitreous.studies.self_train.self_train import self_train
        from vitreous.training.folder import run_name, run_place
        from vitreous.training.start import local_runtime

        self.check()
        run = run_place(self.out, self.labelled, f"{run_name(self.labelled)}-self-train")
        run_place(self.out, self.unlabelled, run.name)
        runtime = local_runtime(self.workers, self.device, tensorboard=False)
        return self_train(request_of(SelfTrainRequest, self), run, runtime, self.told, overwrite=self.overwrite)

    def show(self, result: SelfTrainResult) -> None:
        """Each round's accuracy, which one is kept, and how to use it."""
        if not result.finished:
            print(stopped_text(result.run))
            return
        chosen = any(one.validation is not None for one in result.rounds)
        lines = [
            *map(_line, result.rounds),
            f"kept: round {result.best}, {'the best on validation images' if chosen else 'the last'}",
            *_against_teacher(result),
            f"labels: {result.run}/labels/final/labels.csv, of {result.unlabelled:,} images",
            f"report: {result.run}/report.html, with the images whose label is uncertain",
            f"use it: vitreous predict {result.run} IMAGE",
        ]
        print("\n".join(lines))

    def status(self, result: SelfTrainResult) -> int:
        """0, or 128 + the signal that stopped it."""
        return ending_status(result.finished)


def _against_teacher(result: SelfTrainResult) -> list[str]:
    paired = result.against_teacher
    if paired is None:
        return []
    low, high = (f"{100 * value:+.1f}" for value in paired.interval)
    measured = (
        f"{paired.n:,} test images, 95 % interval {low} to {high}"
        if paired.split == "test"
        else f"{paired.n:,} validation images (optimistic: the same images selected the round)"
    )
    return [f"kept less teacher: {100 * paired.difference:+.1f} points on the same {measured}"]


def _line(one: Round) -> str:
    scores = {"validation": one.validation, "test": one.test}
    found = [f"{name} {score.accuracy:.1%} of {score.n:,}" for name, score in scores.items() if score is not None]
    taken = "" if one.labels is None else f", {sum(one.labels.taken.values()):,} labels taken"
    return f"round {one.number}: {', '.join(found) or 'not measured'}{taken}"


self_train = verb(SelfTrain)
