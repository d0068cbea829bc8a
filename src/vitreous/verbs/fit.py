"""`vitreous fit`."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from vitreous.cli.terminal import printable
from vitreous.cli.verb import Verb, verb
from vitreous.interrupt import signal_heard
from vitreous.training.request import FitRequest, request_of
from vitreous.verbs.options import RunOptions

if TYPE_CHECKING:
    from vitreous.training.result import FitResult, PretrainResult


def ending_status(finished: bool) -> int:
    """The exit status of a training: 0, or 128 + the signal that stopped it."""
    return 0 if finished else 128 + (signal_heard() or signal.SIGINT)


def stopped_text(run: str) -> str:
    """What to know of a training that was stopped."""
    return f"Stopped. Everything is saved in {run}; repeat the same command to go on."


def closing_text(result: FitResult | PretrainResult, found: Sequence[str], use: Sequence[str]) -> str:
    """What a tired person wants to know of a training: what was found, what it cost, and how to use it."""
    if not result.finished:
        return stopped_text(result.run)
    spent = result.spent
    lines = [
        *found,
        f"time: {spent.seconds:.0f} s, {spent.images:,} training images processed",
        f"model: {result.bundle}",
        f"report: {result.run}/report.html",
        *use,
    ]
    if result.remarks:
        count = len(result.remarks)
        lines.append(f"{count} {'note' if count == 1 else 'notes'}, such as: {printable(result.remarks[0])}")
    return "\n".join(lines)


@dataclass(frozen=True)
class Fit(RunOptions, FitRequest, Verb["FitResult"]):
    """Train a model on images, from scratch or from given weights.

    If it is interrupted, repeat the same command: it resumes where it stopped.
    """

    distributed: ClassVar[bool] = True
    resumes: ClassVar[bool] = True

    def run(self) -> FitResult:
        """Train, or go on with a training that the same call began; the result says how well it does."""
        from vitreous.training.folder import run_name, run_place
        from vitreous.training.labelled import Labelled
        from vitreous.training.start import join_runtime
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
