"""What the training loop asks of an objective, what it may leave to this class, and what an objective is given."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from vitreous.config.data import Preprocess
from vitreous.data.batch import Batch
from vitreous.distributed.world import SINGLE_PROCESS, World
from vitreous.errors import no_readable_images
from vitreous.model.network import Network, ParameterGroup

Metrics = dict[str, Tensor]
"""Named numbers of a batch, each a tensor without axes."""


TeacherTargets = Callable[[Batch, Callable[[Tensor], Tensor]], Tensor]
"""What a teacher predicts for a batch: from the batch, and a function from logits (B, K) to targets (B, K) whose rows
sum to 1, to the targets of each image, mixed as the images are; without gradients. A plain function, so that all copies
of an objective ask the same teacher, and no checkpoint, average or optimizer sees it."""


@dataclass(frozen=True)
class Setting:
    """What an objective may need to know beside its network and its configuration."""

    seed: int = 0
    labels: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))
    """(n,) of the training images; -1 where there is none."""
    world: World = field(default_factory=World)
    preprocess: Preprocess = field(default_factory=Preprocess)
    """What made the images of a batch: pixels in [0, 1] are x * std + mean."""
    teacher_targets: TeacherTargets | None = None


class Objective(nn.Module, ABC):
    """A module that holds the network to train and says what it should learn from a batch.

    It is built from the network, its configuration and a `Setting`. It takes no gradient steps itself:
    `vitreous.training.step` does. Its state is its state_dict.
    """

    model: Network  # the network to keep in the end
    watched: ClassVar[str] = "loss"  # the metric of images set aside that tells how the training goes

    @abstractmethod
    def forward(self, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        """The loss of a batch and its metrics, when `progress` (0 to 1) of the training is done."""

    def train(self, mode: bool = True) -> Self:
        """Training mode, but for layers that are frozen and keep statistics (BatchNorm): those stay as they are too."""
        super().train(mode)
        for module in self.modules():
            weights, statistics = list(module.parameters(recurse=False)), list(module.buffers(recurse=False))
            if weights and statistics and not any(weight.requires_grad for weight in weights):
                module.training = False
        return self

    def weigh(self, batch: Batch) -> float:
        """How much a batch counts beside others: its loss is a mean over so much."""
        return float(len(batch.index))

    def after_step(self, progress: float) -> None:
        """What follows an optimizer's step."""

    def evaluate(self, batches: Iterable[Batch], world: World = SINGLE_PROCESS) -> dict[str, float]:
        """Metrics of images that are not trained on: here the mean of the one that is watched.

        world: where several processes evaluate together, `batches` are this one's, and the metrics those of all.
        """
        self.eval()
        total, weight = 0.0, 0.0
        with torch.inference_mode():
            for batch in batches:
                loss, metrics = self(batch, 1.0)
                own = self.weigh(batch)
                total += own * {"loss": loss, **metrics}[self.watched].item()
                weight += own
        total, weight = world.sum_numbers(total, weight)
        if not weight:
            raise no_readable_images()
        return {self.watched: total / weight}

    def is_better(self, new: dict[str, float], best: dict[str, float], history: Sequence[dict[str, float]]) -> bool:
        """Whether new metrics of an evaluation beat the best; `history` has those of all evaluations so far."""
        return new[self.watched] < best[self.watched]

    def is_worse(self, new: dict[str, float], start: dict[str, float]) -> bool:
        """Whether a training has spoilt the good weights that it began with, by the metrics of both."""
        return self.is_better(start, new, (start, new))

    def extras(self) -> Mapping[str, nn.Module]:
        """What is saved beside the network, by name."""
        return {}

    def transformer_blocks(self) -> list[nn.Module]:
        """The blocks that are sharded, and whose activations are recomputed, one by one where memory is short."""
        return [block for one in self.modules() if isinstance(one, Network) for block in one.transformer_blocks()]

    def parameter_groups(self) -> dict[str, ParameterGroup]:
        """The group of each parameter: as its network says; of what is built around networks, the layer above."""
        layers = self.model.config.layers
        found = {name: ParameterGroup(layers, "other", p.ndim >= 2) for name, p in self.named_parameters()}
        for place, module in self.named_modules():
            if isinstance(module, Network):
                found |= {f"{place}.{name}": group for name, group in module.parameter_groups().items()}
        return found


@torch.no_grad()
def move_average(average: nn.Module, now: nn.Module, rate: float) -> None:
    """Move one module a little towards another of the same shape: parameters and buffers; whole numbers are copied."""
    for old, new in zip(average.state_dict().values(), now.state_dict().values(), strict=True):
        if old.is_floating_point():
            old.lerp_(new, rate)
        else:
            old.copy_(new)
