"""One training step: schedules, optimizers, the step itself, and the memory that it needs.

Every schedule is a function of progress, from 0 to 1. Without a deadline that is the fraction of the steps. With one,
the number of steps is a guess at first, and planned again by what steps take: the rest of the training is spread over
fewer or more. A replanning is saved before it takes effect: a resumed training replans where it did before, and nowhere
else.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.config.model import ViTConfig
from vitreous.config.objective import TokenLabel
from vitreous.config.train import Optimizer, Training
from vitreous.data.batch import Batch
from vitreous.distributed.meter import Cost
from vitreous.distributed.world import SINGLE_PROCESS, World
from vitreous.inference.memory_needs import FLOAT_BYTES
from vitreous.memory import check_memory
from vitreous.model.family import count_activation_bytes, count_flops, count_parameters
from vitreous.model.layers import QKV
from vitreous.model.precision import precision
from vitreous.objectives.objective import Objective
from vitreous.training.parallel import checkpoint_blocks, count_parts, full_tensor, parallelise, shard_like


class StepSchedule:
    """From steps to progress: a line from 0 to 1, replanned where a new number of steps was set."""

    def __init__(self, steps: int, replans: Sequence[tuple[int, int]] = ()) -> None:
        self._replans = [(0, steps)]
        for one in replans:
            self.replan(*one)

    @property
    def steps(self) -> int:
        """Of the whole training, as it is planned now."""
        return self._replans[-1][1]

    @property
    def replans(self) -> list[tuple[int, int]]:
        """Pairs (from this step on, so many steps in all)."""
        return self._replans[1:]

    def replan(self, step: int, steps: int) -> None:
        """From this step on, spread what is left of the training so that it ends after so many steps in all, or now."""
        assert self._replans[-1][0] <= step <= steps
        self._replans.append((step, steps))

    def progress(self, step: int) -> float:
        """The fraction of the training that is done before this step."""
        if step >= self.steps:
            return 1.0
        done, ends = 0.0, [start for start, _ in self.replans] + [step]
        for (start, steps), end in zip(self._replans, ends, strict=True):
            if start > step:
                break
            done += (1 - done) * (min(end, step) - start) / (steps - start)
        return done


def parts_done(progress: float, parts: int) -> int:
    return int(progress * parts + 1e-9)


def training_work(training: Training, images: int, schedule: StepSchedule, steps: int) -> Cost:
    """Operations of a training that saw this many images in this many steps, the keep schedule counted in. A block
    costs its forward pass, as much again for the gradient of its input, and as much for that of its weights. Frozen
    blocks need the first alone; with a low-rank change the last is needed of q, k and v only, a quarter."""
    config, frozen = training.model, training.freeze / training.model.layers
    fractions = Counter(training.objective.keep_fraction(schedule.progress(step)) for step in range(steps))
    total = sum(times * count_flops(config, keep) for keep, times in fractions.items())
    passes = frozen + (1 - frozen) * (2.25 if training.lora else 3)
    return Cost(images=images, flops=images * passes * total / steps if steps else 0.0)


_A, _B, _C = 3.4445, -4.7750, 2.0315


class Muon(torch.optim.Optimizer):
    """Steps along the orthogonalised Nesterov momentum of each matrix (Jordan et al.), with decoupled weight decay; a
    group's `matrices` is how many a parameter holds, one above the other. The same steps as `torch.optim.Muon`, in
    float32. PyTorch's own works in bfloat16, which a processor without instructions for it multiplies several times
    slower than float32 (docs/log.md)."""

    def __init__(
        self, params: Iterable[dict[str, Any]], lr: float, weight_decay: float = 0.1, momentum: float = 0.95
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "matrices": 1})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(weight)
                buffer = state["momentum_buffer"].lerp_(weight.grad, 1 - group["momentum"])
                step = weight.grad.lerp(buffer, group["momentum"])
                matrices = full_tensor(step).chunk(group["matrices"])
                update = shard_like(torch.cat([orthogonalise(matrix) for matrix in matrices]), step)
                rows, columns = matrices[0].shape
                rate = group["lr"] * max(1.0, rows / columns) ** 0.5
                weight.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-rate)


def orthogonalise(matrix: Tensor, steps: int = 5) -> Tensor:
    """Nearly the closest matrix (m, n) with all singular values 1, by a Newton-Schulz iteration of degree five."""
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    x = wide / wide.norm().clamp(min=1e-7)
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=_B, alpha=_C), x, beta=_A)
    return x if wide is matrix else x.T


def make_optimizers(objective: Objective, c: Optimizer) -> list[torch.optim.Optimizer]:
    """One optimizer, or with Muon two, over the parameters with gradients. Each group has its `peak` learning rate."""
    group_of, layers = objective.parameter_groups(), objective.model.config.layers
    fused = {layer.weight for layer in objective.modules() if isinstance(layer, QKV)}  # three matrices in one
    groups: dict[bool, dict[Any, dict[str, Any]]] = {True: {}, False: {}}  # of Muon and of the rest
    for name, parameter in objective.named_parameters():
        if not parameter.requires_grad:
            continue
        own = group_of[name]
        muon = c.name == "muon" and own.kind == "matrix"
        peak = (c.muon_learning_rate if muon else c.learning_rate) * c.layer_decay ** (layers - own.layer)
        group = {"params": [], "lr": peak, "peak": peak, "decayed": own.decayed}
        if muon:
            group["matrices"] = 3 if parameter in fused else 1
        alike = own.layer, own.decayed, group.get("matrices")
        groups[muon].setdefault(alike, group)["params"].append(parameter)

    optimizers: list[torch.optim.Optimizer] = []
    if groups[True]:
        optimizers.append(Muon(groups[True].values(), lr=c.muon_learning_rate))
    if rest := list(groups[False].values()):
        if c.name == "sgd":
            optimizers.append(torch.optim.SGD(rest, lr=c.learning_rate, momentum=c.momentum))
        else:
            optimizers.append(torch.optim.AdamW(rest, c.learning_rate, c.betas, fused=True))
    set_rates(optimizers, c, 1.0, 0.0)
    return optimizers


def rate_factor(c: Optimizer, progress: float, after: float) -> float:
    """The fraction of the peak learning rate in a step. progress, after: of the training, before and after the step."""
    if after < c.warmup:
        return after / c.warmup
    if c.decay == "constant":
        return 1.0
    if c.decay == "steps":
        return float(0.1 ** sum(progress >= share for share in c.decay_at))
    done = (progress - c.warmup) / (1 - c.warmup)
    done = min(max(done, 0.0), 1.0)
    return 0.5 * (1 + math.cos(math.pi * done)) if c.decay == "cosine" else 1 - done


def decay_now(c: Optimizer, progress: float) -> float:
    """The weight decay at this progress: constant, or along half a cosine to its last value."""
    if c.weight_decay_end is None:
        return c.weight_decay
    return c.weight_decay_end + (c.weight_decay - c.weight_decay_end) * (1 + math.cos(math.pi * progress)) / 2


def set_rates(optimizers: Iterable[torch.optim.Optimizer], c: Optimizer, factor: float, progress: float) -> None:
    """Set each group's learning rate to this fraction of its peak, and the weight decay of decayed groups."""
    for optimizer in optimizers:
        own = c.muon_weight_decay if isinstance(optimizer, Muon) else None
        decay = decay_now(c, progress) if own is None else own
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * factor
            group["weight_decay"] = decay if group["decayed"] else 0.0


class Learner:
    """An objective with its optimizers, compiled and parallelised as the training says."""

    def __init__(self, objective: Objective, training: Training, world: World) -> None:
        self.objective, self.training, self.world = objective.to(world.device), training, world
        if training.activation_checkpointing:
            checkpoint_blocks(objective)
        self.parallel = parallelise(objective, world, training.compile)
        self.optimizers = make_optimizers(objective, training.optimizer)

    def totals(self, batch: Batch) -> tuple[float, float]:
        """The weight and the number of this process's images of a batch."""
        return self.objective.weigh(batch), len(batch.index)


CheckStep = Callable[[float, float], None]
"""Gets the loss and the gradient's norm, the same in all processes, before the optimizers step, and may raise."""


def train_step(
    learner: Learner,
    batch: Batch,
    number: int,
    progress: float,
    after: float,
    check: CheckStep = lambda loss, norm: None,
    totals: Sequence[float] | None = None,
) -> dict[str, float]:
    """Take one step, and return the loss, the metrics, the gradient's norm and the learning rate. number: of the step,
    from 0; dropout follows from it, all else that is random from the batch's keys. progress, after: the
    fraction of the training that is done before and after the step. totals: the sums of `Learner.totals` over all
    processes; None to ask them."""
    training, world = learner.training, learner.world
    torch.manual_seed(training.seed * 1_000_003 + number + world.rank * 2**40)
    factor = rate_factor(training.optimizer, progress, after)
    set_rates(learner.optimizers, training.optimizer, factor, progress)
    learner.objective.train()
    found = _backward(learner, batch.to(world.device), progress, totals or world.sum_numbers(*learner.totals(batch)))
    parameters = [p for p in learner.objective.parameters() if p.grad is not None]
    length = full_tensor(nn.utils.clip_grad_norm_(parameters, training.optimizer.clip or math.inf))
    # one transfer from the device, and one collective
    *values, norm = torch.stack([*(value.detach().float() for *_, value in found), length]).tolist()
    sums = dict.fromkeys((name for name, *_ in found), 0.0)
    for (name, share, _), value in zip(found, values, strict=True):
        sums[name] += share * value
    *means, norm = (total / world.size for total in world.sum_numbers(*sums.values(), norm))
    record = dict(zip(sums, means, strict=True))
    check(record["loss"], norm)
    for optimizer in learner.optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    learner.objective.after_step(after)
    return {**record, "norm": norm, "learning_rate": factor * training.optimizer.learning_rate}


def _backward(
    learner: Learner, batch: Batch, progress: float, totals: Sequence[float]
) -> list[tuple[str, float, Tensor]]:
    """Gradients of a whole batch, worked through in parts and by all processes. The name, the share and the value of
    the loss and of each metric of each part: what the processes add is averaged over them, so a part has its share of
    what one process has on average."""
    world, found = learner.world, []
    weight, images = (total / world.size for total in totals)
    unit = 2 if learner.training.augment.mixes else 1
    parts = batch.split(count_parts(learner.training.micro_batch, int(totals[1]), world.size, unit))
    for number, part in enumerate(parts, start=1):
        share = learner.objective.weigh(part) / weight
        with learner.parallel.no_sync(last=number == len(parts)):
            with precision(world.device):
                loss, metrics = learner.parallel.call(part, progress)
            (loss * share).backward()
        found.append(("loss", share, loss))  # metrics are means over images, however those weigh in the loss
        found += [(name, len(part.index) / images, value) for name, value in metrics.items()]
    return found


def check_training_memory(training: Training, images: int, world: World = SINGLE_PROCESS, beside: int = 1) -> None:
    """Refuse a training whose step needs more memory than there is, before it starts any process that decodes.

    world: the processes that share each batch, and where they compute. A GPU's memory is not looked at:
        `vitreous models --gpus` says what fits.
    beside: how many of them share this machine's memory.
    """
    if world.device.type != "cpu":
        return
    training, size = replace(training, batch_size=-(-training.batch_size // world.size)), training.model.image_size
    together = f" in each of {beside} processes" if beside > 1 else ""
    check_memory(
        beside * training_bytes(training, images, world.size if world.sharded else 1),
        f"a training at {size[0]}x{size[1]} pixels, {images_at_once(training, images):,} images at once{together}",
        "give a smaller image_size, batch_size or model, or set a smaller micro_batch",
    )


def images_at_once(training: Training, images: int) -> int:
    """The largest part of a batch of one process; there are so many images."""
    batch = min(training.batch_size, images)
    return -(-batch // count_parts(training.micro_batch, batch, 1))


def training_bytes(training: Training, images: int, shards: int = 1) -> float:
    """Weights, gradients and what the optimizer keeps; a batch of views, and the activations of a micro-batch: a lower
    bound, from the configuration alone.

    shards: the number of processes among which the former are divided.
    """
    config, batch = training.model, min(training.batch_size, images)
    moments = {"adamw": 2, "sgd": 1, "muon": 1}[training.optimizer.name]
    copies = 1 + moments + (training.ema is not None) + training.objective.networks
    views = activations = 0.0
    for view in training.objective.views.values():
        size = view.size or config.image_size
        views += view.count * config.channels * math.prod(size) * FLOAT_BYTES
        seen = config if size == config.image_size else config.for_size(size)
        activations += view.count * count_activation_bytes(seen)
    if isinstance(config, ViTConfig) and isinstance(training.objective, TokenLabel):
        labels = config.patches * config.classes * FLOAT_BYTES
        views, activations = views + labels, activations + 2 * labels  # targets; logits and their logarithms
    micro_batch = images_at_once(training, images)
    if training.activation_checkpointing:
        activations /= config.layers  # of one block at a time; what lies between blocks is little beside it
    weights = copies * FLOAT_BYTES * count_parameters(config) / shards
    if shards > 1 and micro_batch < batch:  # gradients stay whole until the last micro-batch
        weights += FLOAT_BYTES * count_parameters(config)
    return weights + batch * views + micro_batch * activations * training.objective.largest_keep_fraction
