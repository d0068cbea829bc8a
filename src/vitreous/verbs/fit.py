"""`vitreous fit`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from vitreous.cli.verb import Verb, verb
from vitreous.training.request import FitRequest, request_of
from vitreous.verbs.ending import closing_text, ending_status
from vitreous.verbs.options import RunOptions

if TYPE_CHECKING:
    from vitreous.training.result import FitResult


@dataclass(frozen=True)
class Fit(RunOptions, FitRequest, Verb["FitResult"]):
    """Train a model on images, from scratch or from given weights.

    If it is interrupted, repeat the same command: it resumes where it stopped.
    """

    distributed: ClassVar[bool] = True
    resumes: ClassVar[bool] = True

    def run(self) -> FitResult:
        """Train, or go on with a training that the same call began; the result says how well it does."""
        from vitreous.training.context import join_runtime
        from vitreous.training.folder import run_name, run_place
        from vitreous.training.labelled import Labelled
        from vitreous.training.train import train

        self.check()
        run = run_place(self.out, self.data, run_name(self.data))
        runtime = join_runtime(self.workers, self.device, self.shard, self.tensorboard)
        request = request_of(FitRequest, self)
        return train(request, run, runtime, self.told, Labelled(), overwrite=self.overwrite)

    def show(self, result: FitResult) -> None:
        """The accuracy, what it cost, and how to use it."""
        from vitreous.training.result import accuracy_lines

        found = [f"{split} accuracy: {line}" for split, line in accuracy_lines(result).items()]
        found += [] if found else [f"{name}: {value:.4g}" for name, value in result.metrics.items()]
        print(closing_text(result, found, [f"use it: vitreous predict {result.run} IMAGE"]))

    def status(self, result: FitResult) -> int:
        """0, or 128 + the signal that stopped it."""
        return ending_status(result.finished)


fit = verb(Fit)
