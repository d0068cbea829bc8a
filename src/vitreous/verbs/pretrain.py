"""`vitreous pretrain`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar

from vitreous.cli.verb import Verb, verb
from vitreous.training.request import PretrainRequest, TrainingRequest, request_of
from vitreous.verbs.fit import Fit, closing_text, ending_status
from vitreous.verbs.options import RunOptions

if TYPE_CHECKING:
    from vitreous.training.result import PretrainResult

METRICS = {
    "knn": "k-NN accuracy on held-out images: {:.1%}",
    "loss": "loss on held-out images: {:.3f}",
    "information": "information in the teacher's output on held-out images: {:.1%} of ln K",
    "accuracy": "accuracy: {:.1%}",
}


@dataclass(frozen=True)
class Pretrain(RunOptions, PretrainRequest, Verb["PretrainResult"]):
    """Learn features without labels: MAE, DINO, DINOv2 or masked patch prediction.

    If it is interrupted, repeat the same command: it resumes where it stopped.
    """

    distributed: ClassVar[bool] = True
    resumes: ClassVar[bool] = True

    def run(self) -> PretrainResult:
        """Learn features, or go on with what the same call began; `fit(weights=...)` then takes the run."""
        from vitreous.training.folder import run_name, run_place
        from vitreous.training.result import PretrainResult
        from vitreous.training.start import join_runtime
        from vitreous.training.train import train
        from vitreous.training.unlabelled import Unlabelled

        self.check()
        run = run_place(self.out, self.data, f"{run_name(self.data)}-{self.method}")
        if self.method == "supervised":
            shared = {
                one.name: getattr(self, one.name) for kind in (TrainingRequest, RunOptions) for one in fields(kind)
            }
            return PretrainResult.of_fit(Fit(self.data, **{**shared, "out": run}, callbacks=self.callbacks).run())
        runtime = join_runtime(self.workers, self.device, self.shard, self.tensorboard)
        request = request_of(PretrainRequest, self)
        return train(request, run, runtime, self.told, Unlabelled(), overwrite=self.overwrite)

    def show(self, result: PretrainResult) -> None:
        """The last live metric, what it cost, and how to use it."""
        found = [METRICS[name].format(value) for name, value in result.metrics.items() if name in METRICS]
        use = [f"use it: vitreous fit DATA --weights {result.run}"]
        if result.method == "mae":
            use.append(f"see it: vitreous reconstruct {result.run} IMAGE")
        print(closing_text(result, [*result.alarms, *found], use))

    def status(self, result: PretrainResult) -> int:
        """0, or 128 + the signal that stopped it."""
        return ending_status(result.finished)


pretrain = verb(Pretrain)
