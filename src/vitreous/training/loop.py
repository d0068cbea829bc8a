"""The only training loop, for all objectives and data.

Everything random in a step is a function of the seed, the epoch and the image (dropout: of the step), so a training
that is interrupted and resumed ends with the same bits as one that was not.
"""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.callbacks import Event
from vitreous.config.train import Training
from vitreous.data.batch import Batch
from vitreous.data.loader import Loader
from vitreous.distributed.meter import Cost, Meter
from vitreous.errors import UserError
from vitreous.interrupt import Interrupted, uninterrupted
from vitreous.model.precision import precision
from vitreous.objectives.objective import Objective, move_average
from vitreous.storage.files import write_file
from vitreous.storage.overwrite import readable_errors
from vitreous.training.checkpoint import Checkpoint, Saver, pack_optimizers, unpack_optimizers
from vitreous.training.parallel import broadcast_parameters, load_full_state
from vitreous.training.step import Learner, StepSchedule, parts_done, train_step

BestTensors = dict[str, dict[str, Tensor]]  # tensors by name, of "model" and of what an objective saves beside it


CHECKPOINTED_FIELDS = ("images", "best_step", "best_metrics", "history", "evaluated", "first_loss")
"""Attributes of the loop that a checkpoint keeps."""
Evaluate = Callable[[Objective], dict[str, float]]
"""Metrics on the validation split of an objective with the weights to keep."""


class DivergedError(UserError):
    """The loss or the weights are not finite, or the loss is far too high; nothing of that step was kept."""


@dataclass
class Outcome:
    """What a training came to."""

    best: BestTensors  # what to keep, as it was at the best evaluation
    best_step: int
    best_metrics: dict[str, float]
    images: int  # seen in all, resumed parts included
    steps: int  # taken so far
    finished: bool  # whether that is all
    remarks: list[str] = field(default_factory=list)


class Loop:
    """One training in a run folder; `run` does it, or what is left of it."""

    def __init__(
        self,
        objective: Objective,
        loader: Loader,
        training: Training,
        schedule: StepSchedule,
        folder: Path,
        *,
        evaluate: Evaluate | None,
        keep_last: bool = False,
        meter: Meter | None = None,
        check_clock: Callable[[int], None] | None = None,
    ) -> None:
        """Without `evaluate`, or with `keep_last`, the last weights count as the best. `meter` is told what was spent
        before an interruption. `check_clock` is called between a step and its evaluation, and may replan the schedule.
        """
        self.meter, self.world = meter or Meter(), loader.world
        self.objective, self.loader, self.training, self.schedule = objective, loader, training, schedule
        self.check_clock, self.keep_last = check_clock, keep_last
        self.folder, self.evaluate = folder, evaluate
        broadcast_parameters(objective, self.world)  # before it is copied
        self.ema = copy.deepcopy(objective).requires_grad_(False) if training.ema else None
        blends = training.wise_ft_alpha < 1 and not training.lora
        self.start = _copied(objective.model) if blends else {}
        self.learner = Learner(objective, training, self.world)
        if self.ema is not None:
            self.learner.parallel.shard_same(self.ema)
        self.saver = Saver(folder / "checkpoints", self.world)
        self.step, self.images = 0, 0
        self.best: BestTensors = {}
        self.best_step, self.best_metrics = -1, dict[str, float]()
        self.evaluated = -1  # the last step after which the validation split was looked at
        self.history: list[dict[str, float]] = []  # metrics of all evaluations so far
        self.first_loss: float | None = None
        self.remarks: list[str] = []

    @property
    def steps(self) -> int:
        return self.schedule.steps

    def run(
        self, on_step: Callable[[Event], None] = lambda event: None, stop: Callable[[], bool] = lambda: False
    ) -> Outcome:
        """Train to the end, or until `stop` or a signal says so; then all is saved to resume later."""
        self._resume()
        try:
            # processes get a signal at different steps, so several stop where they agree to
            with uninterrupted() if self.world.size > 1 else nullcontext():
                finished = self._take_steps(on_step, stop)
        except Interrupted:  # never within a step, so what is saved now is whole
            finished = self.world.size > 1 and self.step == self.steps
        if not finished or not self.steps:
            self.save()
        self.saver.finish()
        if not self.best or self.keep_last:  # there was no evaluation yet, or not at this step
            self._remember_best(self._result(), self.best_metrics)
        state = self.best, self.best_step, self.best_metrics, self.images, self.step
        return Outcome(*state, finished, self.remarks)

    def _take_steps(self, on_step: Callable[[Event], None], stop: Callable[[], bool]) -> bool:
        if self._due():  # before the first step, or if an interruption prevented it
            self._evaluate()
            if self.step == self.steps:  # no step will save what was found
                self.save()
        saved = last = time.monotonic()
        speed = 0.0  # images a second, over the last steps
        for epoch, batch in self._batches():
            late = time.monotonic() - saved >= self.training.save_seconds
            # one collective for all that is agreed on before a step
            stopped, unreadable, due, *totals = self.world.sum_numbers(
                stop(), self.loader.has_unshared, late and self.world.is_main, *self.learner.totals(batch)
            )
            if unreadable:
                self.loader.sync_unreadable()
            if stopped:
                return False
            with uninterrupted():
                record = self._train_step(batch, totals)
                if self.check_clock is not None:
                    self.check_clock(self.step)
            evaluation = self._evaluate() if self._due() else None
            now = time.monotonic()
            if evaluation is None:
                latest = self.loader.batch_size / max(1e-9, now - last)
                speed = 0.9 * speed + 0.1 * latest if speed else latest
            last = now
            on_step(Event(self.step, self.steps, epoch, record, speed, evaluation))
            with uninterrupted():
                if self.step == self.steps or due:
                    self.save()
                    saved = time.monotonic()
        return True

    def _due(self) -> bool:
        """Whether to evaluate now, after the last step."""
        if self.evaluate is None or self.evaluated >= self.step:
            return False
        if self.step == 0:  # a good start is the first candidate
            return self.training.probe and self.steps > 0
        before, now = self.schedule.progress(self.step - 1), self.schedule.progress(self.step)
        return parts_done(now, self.training.evaluations) > parts_done(before, self.training.evaluations)

    def _batches(self) -> Iterator[tuple[int, Batch]]:
        while self.step < self.steps:
            epoch, start = divmod(self.step, self.loader.steps_per_epoch)
            for batch in self.loader.batches(epoch, start):
                yield epoch, batch
                if self.step == self.steps:
                    return

    def _train_step(self, batch: Batch, totals: list[float]) -> dict[str, float]:
        progress, after = self.schedule.progress(self.step), self.schedule.progress(self.step + 1)
        check = partial(self._check, batch)
        found = train_step(self.learner, batch, self.step, progress, after, check, totals)
        self.step += 1
        self.images += self.loader.batch_size
        if self.ema is not None and self.training.ema is not None:
            # faster at first, when there is little to average
            move_average(self.ema, self.objective, 1 - min(self.training.ema, (1 + self.step) / (10 + self.step)))
        record = {"step": self.step, **found}
        self._log(record)
        return record

    def _check(self, batch: Batch, loss: float, norm: float) -> None:
        """Stop before a step that would spoil the weights."""
        if self.first_loss is None:
            self.first_loss = loss
        if math.isfinite(loss) and math.isfinite(norm) and loss < 20 * max(1.0, self.first_loss):
            return
        index = self.world.all_gather_rows(batch.index)
        names = ", ".join(self.loader.source.name(int(i)) for i in index[:4])
        raise DivergedError(
            f"step {self.step + 1}: the loss is {loss:.4g} and the gradient's norm {norm:.4g}, on the images {names}"
            f"{', ...' if len(index) > 4 else ''}; nothing of this step was kept, and the last checkpoint is "
            "whole. Train with a lower learning rate, or look at these images."
        )

    def _result(self) -> Objective:
        """The objective to keep now: the moving average, its network blended with the initial one (WiSE-FT)."""
        found = self.learner.parallel.full_model(self.ema or self.objective)
        if not self.start:
            return found
        blended = copy.deepcopy(found)
        with torch.no_grad():
            for name, tensor in blended.model.state_dict().items():
                if tensor.is_floating_point():
                    tensor.copy_(torch.lerp(self.start[name].to(tensor.device), tensor, self.training.wise_ft_alpha))
        return blended

    def _evaluate(self) -> dict[str, float]:
        found = self._result().eval()
        assert self.evaluate is not None
        device = self.world.device
        # on an accelerator as training computes; processors keep float32, which evaluation has later too
        with torch.inference_mode(), nullcontext() if device.type == "cpu" else precision(device):
            metrics = self.evaluate(found)
        if not all(map(math.isfinite, metrics.values())):
            raise self._diverged("the metrics on the validation images are no numbers any more")
        with uninterrupted():
            self._log({"step": self.step, **{f"val_{name}": value for name, value in metrics.items()}})
            self.history.append(metrics)
            if self.keep_last or not self.best or self._is_better(found, metrics):
                self._remember_best(found, metrics)
            self.evaluated = self.step
        self.learner.parallel.offload_full_model()
        return metrics

    def _is_better(self, found: Objective, metrics: dict[str, float]) -> bool:
        """Whether these weights are the best so far, and with a first classifier not worse than the start."""
        if self.training.probe and found.is_worse(metrics, self.history[0]):
            return False
        return found.is_better(metrics, self.best_metrics, self.history)

    def _remember_best(self, objective: Objective, metrics: dict[str, float]) -> None:
        kept = {"model": objective.model, **objective.extras()}
        self.best = {name: _copied(module) for name, module in kept.items()}
        if not all(bool(tensor.isfinite().all()) for tensors in self.best.values() for tensor in tensors.values()):
            raise self._diverged("the weights are no finite numbers any more")
        self.best_step, self.best_metrics = self.step, metrics

    def _diverged(self, what: str) -> DivergedError:
        return DivergedError(f"step {self.step}: {what}: the training diverged; train with a lower learning rate.")

    def _log(self, record: dict[str, float]) -> None:
        if not self.world.is_main:
            return
        path = self.folder / "metrics.jsonl"
        with readable_errors(path), path.open("a") as file:
            file.write(json.dumps(record) + "\n")

    def save(self) -> None:
        """Write a checkpoint, and with the first the initial weights for blending. All processes call it after the same
        step."""
        metadata: dict[str, Any] = {name: getattr(self, name) for name in CHECKPOINTED_FIELDS}
        self.meter.end_stage("steps")  # else a resumed training would not know what these took
        metadata["spent"] = asdict(self.meter.spent(self.world))
        ema = {} if self.ema is None else self.ema.state_dict()
        optimizers = pack_optimizers(self.learner.optimizers, self.objective)
        point = Checkpoint(self.step, self.objective.state_dict(), optimizers, ema, self.best, metadata)
        self.saver.save(point, self.start)

    def _resume(self) -> None:
        """Load the newest complete checkpoint, and drop what was logged after it."""
        point, self.remarks, start = self.saver.load(with_start=bool(self.start))
        if point is not None:
            self.step, self.best = point.step, point.best
            self.evaluated = point.step  # as it was before this was noted
            for name in CHECKPOINTED_FIELDS:
                setattr(self, name, point.metadata.get(name, getattr(self, name)))
            self.meter.before = Cost(**point.metadata["spent"])
            load_full_state(self.objective, point.module)
            unpack_optimizers(point.optimizers, self.learner.optimizers, self.objective)
            if self.ema is not None:
                load_full_state(self.ema, point.ema)
            if self.start:
                self.start = start
        if self.world.is_main:
            log = self.folder / "metrics.jsonl"
            lines = log.read_text().splitlines(keepends=True) if log.exists() and point is not None else []
            write_file(log, "".join(line for line in lines if _logged_step(line) <= self.step))


def _copied(model: nn.Module) -> dict[str, Tensor]:
    """Its tensors on the CPU, to save the device's memory."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in model.state_dict().items()}


def _logged_step(line: str) -> float:
    """The step of a line; infinity for a line that a crash cut short."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError):
        return math.inf


def check_tensorboard() -> None:
    if find_spec("tensorboard") is None:
        raise UserError("tensorboard: not installed; pip install 'vitreous[track]', or leave it out.")


@contextmanager
def tracked(on_step: Callable[[Event], None], folder: Path) -> Iterator[Callable[[Event], None]]:
    """The on_step, which also writes metrics to RUN/tensorboard; `tensorboard --logdir RUN` shows them."""
    from torch.utils.tensorboard import SummaryWriter

    with ExitStack() as stack:
        writer: SummaryWriter | None = None

        def both(event: Event) -> None:
            nonlocal writer
            if writer is None:  # steps that an interrupted training logged, and that are taken again, are forgotten
                writer = stack.enter_context(SummaryWriter(str(folder / "tensorboard"), purge_step=event.step))
            metrics = {f"train/{name}": value for name, value in event.record.items() if name != "step"}
            metrics["train/images_per_second"] = event.images_per_second
            metrics |= {f"validation/{name}": value for name, value in (event.evaluation or {}).items()}
            for name, value in metrics.items():
                writer.add_scalar(name, value, event.step)
            on_step(event)

        yield both
