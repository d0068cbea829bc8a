"""One training step, for the loop and for whoever measures how long one takes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn

from vitreous.config.train import Training
from vitreous.data.batch import Batch
from vitreous.distributed.world import World
from vitreous.model.precision import precision
from vitreous.objectives.objective import Objective
from vitreous.training.optimizer import decay_now, make_optimizers, rate_factor, set_decay, set_rates
from vitreous.training.parallel import Single, full_tensor, parallelise, recompute_blocks


@dataclass
class Learner:
    """An objective with what steps it. Its state and its names are the objective's, however it is called."""

    objective: Objective
    training: Training
    world: World
    parallel: Single = field(init=False)
    """How it is called: compiled where that is wanted, and in step with other processes."""
    optimizers: list[torch.optim.Optimizer] = field(init=False)

    def __post_init__(self) -> None:
        self.objective.to(self.world.device)
        if self.training.activation_checkpointing:
            recompute_blocks(self.objective)
        self.parallel = parallelise(self.objective, self.world, self.training.compile)
        self.optimizers = make_optimizers(self.objective, self.training.optimizer)


Check = Callable[[float, float], None]
"""Is told the loss and the gradient's norm before they change anything, and may refuse them."""


def train_step(
    learner: Learner, batch: Batch, number: int, progress: float, after: float, check: Check = lambda loss, norm: None
) -> dict[str, float]:
    """Take one step, and return the loss, the metrics, the gradient's norm and the learning rate.

    number: of the step, from 0; dropout follows from it, all else that is random from the batch's keys.
    progress, after: the share of the training that is done before and after the step.
    """
    training = learner.training
    torch.manual_seed(training.seed * 1_000_003 + number + learner.world.rank * 2**40)
    factor = rate_factor(training.optimizer, progress, after)
    set_rates(learner.optimizers, factor)
    set_decay(learner.optimizers, decay_now(training.optimizer, progress))
    learner.objective.train()
    record = _backward(learner, batch.to(learner.world.device), progress)
    parameters = [p for p in learner.objective.parameters() if p.grad is not None]
    norm = full_tensor(nn.utils.clip_grad_norm_(parameters, training.optimizer.clip or math.inf)).item()
    check(record["loss"], norm)
    for optimizer in learner.optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    learner.objective.after_step(after)
    return {**record, "norm": norm, "learning_rate": factor * training.optimizer.learning_rate}


def _backward(learner: Learner, batch: Batch, progress: float) -> dict[str, float]:
    """Gradients of a whole batch, worked through in parts and by all processes; the batch's loss and metrics.

    What each process adds is averaged over them, so parts are weighed against what one process has on average.
    """
    totals: dict[str, float] = {}
    weight, images = learner.world.mean_numbers((learner.objective.weigh(batch), len(batch.index)))
    parts = batch.split(learner.training.accumulate)
    for number, part in enumerate(parts, start=1):
        share = learner.objective.weigh(part) / weight
        with learner.parallel.no_sync(last=number == len(parts)):
            with precision(learner.world.device):
                loss, metrics = learner.parallel.call(part, progress)
            (loss * share).backward()
        totals["loss"] = totals.get("loss", 0.0) + share * loss.item()
        for name, value in metrics.items():  # means over images, however those weigh in the loss
            totals[name] = totals.get(name, 0.0) + len(part.index) / images * value.item()
    return dict(zip(totals, learner.world.mean_numbers(list(totals.values())), strict=True))
