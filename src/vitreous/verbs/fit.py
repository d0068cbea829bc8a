"""`vitreous fit` and `vitreous pretrain`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar

from vitreous.cli.terminal import printable
from vitreous.cli.verb import Verb, verb
from vitreous.inputs import counted
from vitreous.training.request import FitRequest, PretrainRequest, TrainingRequest, request_of
from vitreous.verbs.options import RunOptions

if TYPE_CHECKING:
    from vitreous.training.result import FitResult, PretrainResult

METRICS = {
    "knn": "k-NN accuracy on held-out images: {:.1%}",
    "loss": "loss on held-out images: {:.3f}",
    "information": "information in the teacher's output on held-out images: {:.1%} of ln K",
    "accuracy": "accuracy: {:.1%}",
    "majority": "accuracy of always predicting the most frequent class: {:.1%}",
}


def stopped_text(run: str) -> str:
    return f"Stopped. Everything is saved in {run}; repeat the same command to go on."


def closing_text(result: FitResult | PretrainResult, found: Sequence[str], use: Sequence[str]) -> str:
    """The summary of a training: metrics, cost, and how to use the model."""
    if not result.finished:
        return stopped_text(result.run)
    spent = result.spent
    stages = [f"{name} {seconds:.0f}" for name, seconds in spent.stages.items() if seconds >= 0.5 and name != "writing"]
    writing = f", then {spent.stages['writing']:.0f} s to write it" if "writing" in spent.stages else ""
    lines = [
        *found,
        f"training: {counted(result.steps, 'step')}, {counted(spent.images, 'image')}"
        if result.steps
        else "training: no steps",
        f"time: {spent.seconds:.0f} s" + (f" ({', '.join(stages)}){writing}" if stages else ""),
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

    To begin with: vitreous fit photos/ --budget 5m, where photos/ has one folder of images per class.

    If it is interrupted, repeat the same command: it resumes where it stopped.
    """

    distributed: ClassVar[bool] = True
    resumes: ClassVar[bool] = True

    def run(self) -> FitResult:
        from vitreous.training.folder import run_folder, run_name
        from vitreous.training.labelled import Labelled
        from vitreous.training.start import join_runtime
        from vitreous.training.train import train

        self.check()
        run = run_folder(self.out, self.data, run_name(self.data))
        runtime = join_runtime(self.workers, self.device, self.fsdp, self.tensorboard)
        request = request_of(FitRequest, self)
        return train(
            request, run, runtime, self.active_callbacks, Labelled(chooses_weights=True), overwrite=self.overwrite
        )

    def show(self, result: FitResult) -> None:
        from vitreous.training.result import accuracy_lines, guessing_advice

        found = [f"{split} accuracy: {printable(line)}" for split, line in accuracy_lines(result).items()]
        found += [] if (advice := guessing_advice(result, self)) is None else [printable(advice)]
        found += [] if found else [f"{name}: {value:.4g}" for name, value in result.metrics.items()]
        print(closing_text(result, found, [f"use it: vitreous predict {result.run} IMAGE"]))


@dataclass(frozen=True)
class Pretrain(RunOptions, PretrainRequest, Verb["PretrainResult"]):
    """Learn features without labels: MAE, DINO, DINOv2 or masked patch prediction.

    If it is interrupted, repeat the same command: it resumes where it stopped.
    """

    distributed: ClassVar[bool] = True
    resumes: ClassVar[bool] = True

    def run(self) -> PretrainResult:
        from vitreous.training.folder import run_folder, run_name
        from vitreous.training.result import PretrainResult
        from vitreous.training.start import join_runtime
        from vitreous.training.train import train
        from vitreous.training.unlabelled import Unlabelled

        self.check()
        run = run_folder(self.out, self.data, f"{run_name(self.data)}-{self.method}")
        if self.method == "supervised":
            shared = [one.name for kind in (TrainingRequest, RunOptions) for one in fields(kind)]
            options = {name: getattr(self, name) for name in shared} | {"out": run, "weights": "none"}
            return PretrainResult.of_fit(Fit(self.data, **options, callbacks=self.callbacks).run())
        runtime = join_runtime(self.workers, self.device, self.fsdp, self.tensorboard)
        request = request_of(PretrainRequest, self)
        return train(request, run, runtime, self.active_callbacks, Unlabelled(), overwrite=self.overwrite)

    def show(self, result: PretrainResult) -> None:
        found = [METRICS[name].format(value) for name, value in result.metrics.items() if name in METRICS]
        use = [f"use it: vitreous fit DATA --weights {result.run}"]
        if result.method == "mae":
            use.append(f"see it: vitreous reconstruct {result.run} IMAGE")
        print(closing_text(result, [*result.alarms, *found], use))


fit = verb(Fit)
pretrain = verb(Pretrain)
