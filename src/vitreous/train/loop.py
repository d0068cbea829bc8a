"""The only training loop. It knows no objective by name, no data format and no screen.

Everything random in a step is a function of the seed and the step's number, so a training that is interrupted and taken
up again ends with the same bits as one that was not.
"""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from vitreous.config.train import Training
from vitreous.data.loader import Batch, Loader
from vitreous.errors import UserError
from vitreous.train.meter import Meter, Spent
from vitreous.train.optimizer import decay_now, make_optimizers, rate_factor, set_decay, set_rates
from vitreous.train.pace import Pace, crossed
from vitreous.train.parts import precision, split
from vitreous.train.state import (
    Checkpoint,
    load_newest,
    pack_optimizers,
    remove_partial,
    save_checkpoint,
    unpack_optimizers,
)
from vitreous.weights.files import readable_errors


class Objective(Protocol):
    """What the loop asks of an objective, which is a module that holds its `model`."""

    model: nn.Module

    def __call__(self, batch: Batch, progress: float) -> tuple[Tensor, dict[str, float]]:
        """The loss of a batch, and named figures of it."""

    def after_step(self, progress: float) -> None:
        """What follows an optimizer's step."""


Evaluate = Callable[[nn.Module], dict[str, float]]
"""Figures of a model on the validation part: "accuracy", its standard "error", and "loss"; see `is_better`."""


@dataclass(frozen=True)
class Event:
    """What the loop tells a listener after each step."""

    step: int
    steps: int
    epoch: int
    record: dict[str, float]
    pictures_per_second: float
    evaluation: dict[str, float] | None = None


class DivergedError(UserError):
    """The loss left the numbers; nothing of that step was kept."""


@dataclass
class Outcome:
    """What a training came to."""

    best: dict[str, Tensor]
    """The model's tensors at the best evaluation."""
    best_step: int
    best_figures: dict[str, float]
    pictures: int
    """Seen in all, resumed parts included."""
    steps: int
    """Taken so far."""
    finished: bool
    """Whether that is all."""
    remarks: list[str] = field(default_factory=list)


class Loop:
    """One training in a run folder; `run` does it, or what is left of it."""

    def __init__(
        self,
        objective: nn.Module,
        loader: Loader,
        training: Training,
        pace: Pace,
        folder: Path,
        *,
        evaluate: Evaluate | None,
        keep_last: bool = False,
        name_of: Callable[[int], str] = str,
        save_seconds: float = 60.0,
        meter: Meter | None = None,
        check_clock: Callable[[int], None] = lambda step: None,
    ) -> None:
        """Without `evaluate`, or with `keep_last`, the last weights count as the best.

        `name_of` says what a person calls a picture. `meter` is told what was spent before an interruption.
        `check_clock` is called after each step and may bend the pace.
        """
        self.meter = meter or Meter()
        self.objective, self.loader, self.training, self.pace = objective, loader, training, pace
        self.check_clock = check_clock
        self.keep_last = keep_last
        self.folder, self.evaluate, self.name_of, self.save_seconds = folder, evaluate, name_of, save_seconds
        self.optimizers = make_optimizers(objective, training.optimizer)
        model = objective.model
        assert isinstance(model, nn.Module)
        self.model = model
        self.ema = copy.deepcopy(model).requires_grad_(False) if training.ema else None
        self.start = _copied(model) if training.blend < 1 and not training.lora else {}
        self.step = 0
        self.pictures = 0
        self.best: dict[str, Tensor] = {}
        self.best_step, self.best_figures = -1, dict[str, float]()
        self.highest = 0.0  # accuracy of any evaluation so far
        self.first_loss: float | None = None
        self.remarks: list[str] = []

    @property
    def steps(self) -> int:
        """To take in all, as far as is known now."""
        return self.pace.steps

    def run(
        self, listener: Callable[[Event], None] = lambda event: None, stop: Callable[[], bool] = lambda: False
    ) -> Outcome:
        """Train to the end, or until `stop` says so, in which case all is saved to go on later."""
        self._resume()
        if self.step == 0 and self.training.probe and self.evaluate is not None and not self.best:
            self._evaluate()
        saved, timer = time.monotonic(), _Timer(self.loader.batch_size)
        for epoch, batch in self._batches():
            if stop():
                break
            record = self._train_step(batch)
            evaluation = self._evaluate() if self._due() else None
            listener(Event(self.step, self.steps, epoch, record, timer.tick(evaluation is None), evaluation))
            if time.monotonic() - saved >= self.save_seconds or self.step == self.steps:
                self.save()
                saved = time.monotonic()
            self.check_clock(self.step)
        if self.step < self.steps:
            self.save()
        if not self.best or self.keep_last:  # there was no evaluation yet, or not at this step
            self._keep(self._result(), self.best_figures)
        return Outcome(
            self.best,
            self.best_step,
            self.best_figures,
            self.pictures,
            self.step,
            self.step == self.steps,
            self.remarks,
        )

    def _due(self) -> bool:
        """Whether the validation part is looked at after the step that was just taken."""
        if self.evaluate is None:
            return False
        before, now = self.pace.progress(self.step - 1), self.pace.progress(self.step)
        return crossed(now, self.training.evaluations) > crossed(before, self.training.evaluations)

    def _batches(self) -> Iterator[tuple[int, Batch]]:
        """The batches from the present step on, with their epoch."""
        while self.step < self.steps:
            epoch, start = divmod(self.step, self.loader.steps_per_epoch)
            for batch in self.loader.batches(epoch, start):
                yield epoch, batch
                if self.step == self.steps:
                    return

    def _train_step(self, batch: Batch) -> dict[str, float]:
        progress, after = self.pace.progress(self.step), self.pace.progress(self.step + 1)
        torch.manual_seed(self.training.seed * 1_000_003 + self.step)
        factor = rate_factor(self.training.optimizer, progress, after)
        set_rates(self.optimizers, factor)
        set_decay(self.optimizers, decay_now(self.training.optimizer, progress))
        self.objective.train()
        record = self._backward(batch, progress)
        parameters = [p for p in self.objective.parameters() if p.grad is not None]
        norm = nn.utils.clip_grad_norm_(parameters, self.training.optimizer.clip or math.inf).item()
        self._check(record["loss"], norm, batch)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.pictures += len(batch.index)
        self.objective.after_step(after)  # type: ignore[operator]
        self._average()
        record = {"step": self.step, **record, "norm": norm, "rate": factor * self.training.optimizer.rate}
        self._log(record)
        return record

    def _backward(self, batch: Batch, progress: float) -> dict[str, float]:
        """Gradients of a whole batch, worked through in parts; the batch's loss and figures."""
        totals: dict[str, float] = {}
        for part in split(batch, self.training.accumulate):
            share = len(part.index) / len(batch.index)
            with precision():
                loss, figures = self.objective(part, progress)
            (loss * share).backward()
            for name, value in {"loss": loss.item(), **figures}.items():
                totals[name] = totals.get(name, 0.0) + share * value
        return totals

    def _check(self, loss: float, norm: float, batch: Batch) -> None:
        """Stop before a step that would spoil the weights."""
        if self.first_loss is None:
            self.first_loss = loss
        limit = 20 * max(1.0, self.first_loss)
        if math.isfinite(loss) and math.isfinite(norm) and loss < limit:
            return
        names = ", ".join(self.name_of(int(i)) for i in batch.index[:4])
        raise DivergedError(
            f"step {self.step + 1}: the loss is {loss:.4g} and the gradient's norm {norm:.4g}, on the pictures {names}"
            f"{', ...' if len(batch.index) > 4 else ''}; nothing of this step was kept, and the last checkpoint is "
            "whole. Train with a lower rate, or look at these pictures."
        )

    @torch.no_grad()
    def _average(self) -> None:
        """Move the averaged weights; faster at first, when there is little to average."""
        if self.ema is None or self.training.ema is None:
            return
        decay = min(self.training.ema, (1 + self.step) / (10 + self.step))
        for average, now in zip(self.ema.parameters(), self.model.parameters(), strict=True):
            average.lerp_(now, 1 - decay)

    def _result(self) -> nn.Module:
        """The model that would be kept now: averaged over the last steps, and blended with the one at the start."""
        model = self.ema or self.model
        if not self.start:
            return model
        blended = copy.deepcopy(model)
        with torch.no_grad():
            for name, tensor in blended.state_dict().items():
                tensor.copy_(torch.lerp(self.start[name], tensor, self.training.blend))
        return blended

    def _evaluate(self) -> dict[str, float]:
        model = self._result().eval()
        assert self.evaluate is not None
        with torch.inference_mode():
            figures = self.evaluate(model)
        self._log({"step": self.step, **{f"val_{name}": value for name, value in figures.items()}})
        self.highest = max(self.highest, figures.get("accuracy", 0.0))
        if self.keep_last or not self.best or is_better(figures, self.best_figures, self.highest):
            self._keep(model, figures)
        return figures

    def _keep(self, model: nn.Module, figures: dict[str, float]) -> None:
        """Remember the present weights as the best."""
        self.best = _copied(model)
        self.best_step, self.best_figures = self.step, figures

    def _log(self, record: dict[str, float]) -> None:
        path = self.folder / "metrics.jsonl"
        with readable_errors(path), path.open("a") as file:
            file.write(json.dumps(record) + "\n")

    def save(self) -> None:
        """Write a checkpoint of the present step."""
        facts: dict[str, Any] = {
            "pictures": self.pictures,
            "best_step": self.best_step,
            "best_figures": self.best_figures,
            "highest": self.highest,
            "first_loss": self.first_loss,
            "spent": asdict(self.meter.spent()),
        }
        ema = {} if self.ema is None else self.ema.state_dict()
        optimizers = pack_optimizers(self.optimizers, self.objective)
        point = Checkpoint(self.step, self.objective.state_dict(), optimizers, ema, self.start, self.best, facts)
        save_checkpoint(self.folder / "checkpoints", point)

    def _resume(self) -> None:
        """Take up the newest whole checkpoint, and forget what was logged after it."""
        folder = self.folder / "checkpoints"
        folder.mkdir(parents=True, exist_ok=True)
        remove_partial(folder)
        point, self.remarks = load_newest(folder)
        if point is not None:
            self.step, self.start, self.best = point.step, point.start, point.best
            self.pictures, self.highest = point.facts["pictures"], point.facts["highest"]
            self.first_loss, self.meter.before = point.facts["first_loss"], Spent(**point.facts["spent"])
            self.best_step, self.best_figures = point.facts["best_step"], point.facts["best_figures"]
            self.objective.load_state_dict(point.module)
            unpack_optimizers(point.optimizers, self.optimizers, self.objective)
            if self.ema is not None:
                self.ema.load_state_dict(point.ema)
        log = self.folder / "metrics.jsonl"
        lines = log.read_text().splitlines(keepends=True) if log.exists() else []
        kept = log.with_suffix(".partial")
        kept.write_text("".join(line for line in lines if point is not None and _logged_step(line) <= self.step))
        kept.replace(log)


def _copied(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def is_better(new: dict[str, float], old: dict[str, float], highest: float) -> bool:
    """Whether new figures beat old ones: the lowest loss among those within a standard error of the highest accuracy.

    On few pictures the loss says more than the accuracy: it ranked weights as the test part did where accuracy did not
    (docs/log.md).
    """
    floor = highest - new["error"]
    if new["accuracy"] < floor:
        return False
    return old["accuracy"] < floor or new["loss"] < old["loss"]


def _logged_step(line: str) -> float:
    """The step a line is about; a line that was cut short by a crash counts as never written."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError):
        return math.inf


class _Timer:
    """Pictures a second, over the last steps."""

    def __init__(self, batch_size: int) -> None:
        self.batch_size, self.last, self.average = batch_size, time.monotonic(), 0.0

    def tick(self, counts: bool) -> float:
        now = time.monotonic()
        speed = self.batch_size / max(1e-9, now - self.last)
        self.last = now
        if counts:
            self.average = speed if not self.average else 0.9 * self.average + 0.1 * speed
        return self.average
