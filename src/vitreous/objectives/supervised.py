"""Learning from labels: cross-entropy, as the paper pre-trains and fine-tunes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.config import objective as config
from vitreous.data.batch import Batch
from vitreous.distributed.world import SINGLE_PROCESS, World
from vitreous.model.keyed_random import keyed_uniform
from vitreous.model.network import LeavesPatchesOut, Network, require
from vitreous.model.position import draw_cells
from vitreous.model.predictions import is_right, predicted_class
from vitreous.model.trace import Trace
from vitreous.objectives.objective import Metrics, Objective, Setting

KEEP_STREAM = 2**32  # stream of `keyed_uniform` for the keep schedule; a network's own begin at 0


class Classification(Objective):
    """Cross-entropy between the network's logits and the labels, hard or mixed."""

    class_weight: Tensor | None

    def __init__(self, model: Network, settings: config.Supervised, setting: Setting | None = None) -> None:
        super().__init__()
        self.model, self.settings = model, settings
        if settings.keep_schedule:
            require(model, LeavesPatchesOut, "keep_schedule")
        weight = balance((setting or Setting()).labels, model.config.classes) if settings.class_weights else None
        self.register_buffer("class_weight", weight, persistent=False)  # (K,); None where all weigh alike

    def forward(self, batch: Batch, progress: float) -> tuple[Tensor, Metrics]:
        logits = self._logits(batch, progress)
        return self._label_loss(logits, batch), {"accuracy": accuracy(logits, batch)}

    def _label_loss(self, logits: Tensor, batch: Batch) -> Tensor:
        return F.cross_entropy(
            logits, batch.targets, weight=self.class_weight, label_smoothing=self.settings.label_smoothing
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

    def evaluate(self, batches: Iterable[Batch], world: World = SINGLE_PROCESS) -> dict[str, float]:
        self.eval()
        with torch.inference_mode():
            found = [(self.model(batch.images).float(), batch.targets) for batch in batches]
            both = zip(*found, strict=True) if found else (None, None)
            logits, labels = (world.all_gather_rows(None if some is None else torch.cat(some)) for some in both)
            accuracy = is_right(logits, labels).float().mean().item()
            error = (accuracy * (1 - accuracy) / len(labels)) ** 0.5
            return {"accuracy": accuracy, "standard_error": error, "loss": F.cross_entropy(logits, labels).item()}

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

    def _logits(self, batch: Batch, progress: float, **trace: Trace) -> Tensor:
        """(B, K), from the patches that the keep schedule leaves: a random choice for each image.

        trace: trace=Trace(...) of a network that fills one.
        """
        fraction = self.settings.keep_fraction(progress)
        if fraction == 1.0:
            return self.model(batch.images, keys=batch.keys, **trace)
        patched = require(self.model, LeavesPatchesOut, "keep_schedule")
        height, width = batch.images.shape[2:]
        grid = patched.patch_grid((height, width))
        uniform = keyed_uniform(batch.keys, KEEP_STREAM, grid[0] * grid[1])
        keep_ids = draw_cells(len(batch.index), grid, fraction, uniform)
        return patched(batch.images, keep_ids=keep_ids, keys=batch.keys, **trace)


def accuracy(logits: Tensor, batch: Batch) -> Tensor:
    """The fraction of images that logits (B, K) classify rightly; of mixed ones, as the one with the larger part."""
    truth = batch.targets if batch.targets.ndim == 1 else predicted_class(batch.targets)
    return is_right(logits.detach(), truth).float().mean()


def balance(labels: Tensor, classes: int) -> Tensor:
    """(K,) weights by which every class counts alike, however many images (n,) it has; 0 for one that has none."""
    counts = torch.bincount(labels, minlength=classes).float()
    present = counts > 0
    weight = torch.zeros(classes)
    weight[present] = len(labels) / (present.sum() * counts[present])
    return weight
