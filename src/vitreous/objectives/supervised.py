"""Learning from labels: cross-entropy, as the paper pre-trains and fine-tunes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.config import objective as config
from vitreous.data.batch import Batch
from vitreous.distributed.world import ALONE, World
from vitreous.model.keyed_random import keyed_uniform
from vitreous.model.network import LeavesPatchesOut, Network, require
from vitreous.model.position import draw_cells
from vitreous.model.predictions import is_right, predicted_class
from vitreous.model.trace import Trace
from vitreous.objectives.objective import Metrics, Objective
from vitreous.objectives.setting import Setting

KEEP = 2**32
"""Stream of `keyed_uniform` for the keep schedule; a network's own begin at 0."""


class Classification(Objective):
    """Cross-entropy between the network's scores and the labels, hard or mixed."""

    class_weight: Tensor | None

    def __init__(self, model: Network, settings: config.Supervised, class_weight: Tensor | None = None) -> None:
        """`class_weight` (K,) weighs the classes; None for all alike."""
        super().__init__()
        self.model, self.settings = model, settings
        if settings.keep_schedule:
            require(model, LeavesPatchesOut, "keep_schedule")
        self.register_buffer("class_weight", class_weight, persistent=False)

    def forward(self, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        """The loss of a batch and its accuracy."""
        scores = self._scores(batch, progress)
        return self._label_loss(scores, batch), {"accuracy": accuracy(scores, batch)}

    def _label_loss(self, scores: Tensor, batch: Batch) -> Tensor:
        return F.cross_entropy(
            scores, batch.targets, weight=self.class_weight, label_smoothing=self.settings.label_smoothing
        )

    def _mean(self, each: Tensor, batch: Batch) -> Tensor:
        """Of losses (B,), as the labels' term takes it: images weigh as their classes do."""
        if self.class_weight is None:
            return each.mean()
        if batch.targets.ndim > 1:
            return ((batch.targets @ self.class_weight) * each).mean()
        own = self.class_weight[batch.targets]
        return (own * each).sum() / own.sum()

    def weigh(self, batch: Batch) -> float:
        """The images; with class weights, the weights of their classes: that is what cross-entropy divides by."""
        if self.class_weight is None or batch.targets.ndim > 1:
            return super().weigh(batch)
        return self.class_weight[batch.targets].sum().item()

    def evaluate(self, batches: Iterable[Batch], world: World = ALONE) -> dict[str, float]:
        """The accuracy, its standard error, and the plain cross-entropy."""
        self.eval()
        with torch.inference_mode():
            answers = [(self.model(batch.images).float(), batch.targets) for batch in batches]
            both = zip(*answers, strict=True) if answers else (None, None)
            scores, labels = (world.gather(None if some is None else torch.cat(some)) for some in both)
            accuracy = is_right(scores, labels).float().mean().item()
            error = (accuracy * (1 - accuracy) / len(labels)) ** 0.5
            return {"accuracy": accuracy, "standard_error": error, "loss": F.cross_entropy(scores, labels).item()}

    def is_better(self, new: dict[str, float], best: dict[str, float], history: Sequence[dict[str, float]]) -> bool:
        """The lowest loss, among those within a standard error of the highest accuracy.

        On few images the loss says more than the accuracy: it ranked weights as the test split did where accuracy did
        not (docs/log.md).
        """
        floor = max(past["accuracy"] for past in history) - new["standard_error"]
        if new["accuracy"] < floor:
            return False
        return best["accuracy"] < floor or new["loss"] < best["loss"]

    def is_worse(self, new: dict[str, float], start: dict[str, float]) -> bool:
        """By accuracy: the loss of a regularised classifier falls by the first steps in any case, as it grows surer."""
        return new["accuracy"] < start["accuracy"]

    def _scores(self, batch: Batch, progress: float, **told: Trace) -> Tensor:
        """(B, K), from the patches that the keep schedule leaves: a random choice for each image.

        told: trace=Trace(...) of a network that fills one.
        """
        share = self.settings.keep_share(progress)
        if share == 1.0:
            whole: Tensor = self.model(batch.images, keys=batch.keys, **told)
            return whole
        patched = require(self.model, LeavesPatchesOut, "keep_schedule")
        height, width = batch.images.shape[2:]
        grid = patched.patch_grid((height, width))
        cells = draw_cells(len(batch.index), grid, share, keyed_uniform(batch.keys, KEEP, grid[0] * grid[1]))
        return patched(batch.images, keep_ids=cells, keys=batch.keys, **told)


def accuracy(scores: Tensor, batch: Batch) -> Tensor:
    """The share of images whose highest score (B, K) is that of their label; of mixed ones, of the larger part."""
    truth = batch.targets if batch.targets.ndim == 1 else predicted_class(batch.targets)
    return is_right(scores.detach(), truth).float().mean()


def build_supervised(network: Network, settings: config.Supervised, setting: Setting) -> Classification:
    """With class weights, where the settings want any."""
    return Classification(network, settings, class_weights(network, settings, setting))


def class_weights(network: Network, settings: config.Supervised, setting: Setting) -> Tensor | None:
    """(K,), from how often each class occurs; None where all weigh alike."""
    return balance(setting.labels, network.config.classes) if settings.class_weights else None


def balance(labels: Tensor, classes: int) -> Tensor:
    """(K,) weights by which every class counts alike, however many images (n,) it has; 0 for one that has none."""
    counts = torch.bincount(labels, minlength=classes).float()
    present = counts > 0
    weight = torch.zeros(classes)
    weight[present] = len(labels) / (present.sum() * counts[present])
    return weight
