"""Engines: uint8 images in, logits or representations out.

Whoever only asks a model (predict, evaluate, probe) asks an engine, and need not know what computes.
B images, C channels, H x W pixels, K classes, D numbers of a representation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vitreous.arguments import Precision
from vitreous.callbacks import Progress, no_progress
from vitreous.config.data import Preprocess
from vitreous.config.model import ModelConfig
from vitreous.data.augment import normalise
from vitreous.distributed.world import find_device
from vitreous.errors import UserError
from vitreous.model.family import inference_batch
from vitreous.model.network import Network, check_numbers, evaluating
from vitreous.weights.bundle import Bundle, bundle_digest
from vitreous.weights.seen_images import SeenImages

if TYPE_CHECKING:
    from vitreous.inference.engine_folder import EngineMetadata

LOGITS, REPRESENTATION = "logits", "representation"


class Engine(ABC):
    """What computes a model's predictions. Several threads may call it."""

    name: str
    precision: Precision = "fp32"
    max_concurrency = 1
    """How many calls at the same time are fastest: more than one if a batch may begin before the last ends."""
    preprocess: Preprocess  # how images must be prepared: `vitreous.data.view.make_view` does it
    path: Path | None  # where the model was read from, for errors to say so

    @property
    @abstractmethod
    def classes(self) -> int:
        """K; 0 for a model without a classifier, which gives representations only."""

    @property
    @abstractmethod
    def batch_size(self) -> int:
        """The batch size with the highest throughput."""

    @abstractmethod
    def _compute(self, images: Tensor, outputs: Sequence[str]) -> list[Tensor]:
        """(B, K) logits or (B, D) representations, float32, of each name in `outputs`; in one pass where it can."""

    def logits(self, images: Tensor) -> Tensor:
        """(B, K) float32 of images (B, C, H, W) uint8."""
        if not self.classes:
            raise UserError(f"{self.path or 'the model'}: it has no classifier and so no logits to give.")
        return self.outputs(images, [LOGITS])[0]

    def representations(self, images: Tensor) -> Tensor:
        """(B, D) float32, before any classifier, of images (B, C, H, W) uint8."""
        return self.outputs(images, [REPRESENTATION])[0]

    def outputs(self, images: Tensor, names: Sequence[str]) -> list[Tensor]:
        """The outputs of these names, `LOGITS` (if there is a classifier) or `REPRESENTATION`, in one pass."""
        expected = (self.preprocess.channels, *self.preprocess.size)
        if images.dtype != torch.uint8 or images.ndim != 4 or tuple(images.shape[1:]) != expected:
            kind = str(images.dtype).removeprefix("torch.")
            raise UserError(
                f"images of shape {tuple(images.shape)} and type {kind}: the model takes (count, "
                f"{', '.join(map(str, expected))}) of uint8; vitreous.data.view.make_view makes one image so."
            )
        found = self._compute(images, names)
        for name, values in zip(names, found, strict=True):
            check_numbers(values, name, self.path)
        return found


AUTOCAST: dict[Precision, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""What products are computed in; all else stays in float32."""


class TorchEngine(Engine):
    """A network in PyTorch, on the device where its weights are, in evaluation mode, without gradients."""

    name: str = "torch"

    def __init__(
        self, network: Network, preprocess: Preprocess, precision: Precision = "fp32", *, path: Path | None = None
    ) -> None:
        self.network, self.preprocess, self.precision, self.path = network, preprocess, precision, path

    @property
    def classes(self) -> int:
        return self.network.config.classes

    @property
    def batch_size(self) -> int:
        return inference_batch(self.network.config)

    def _compute(self, images: Tensor, outputs: Sequence[str]) -> list[Tensor]:
        device, reduced = self.network.device, AUTOCAST.get(self.precision)
        autocast = nullcontext() if reduced is None else torch.autocast(device.type, reduced)
        with torch.inference_mode(), evaluating(self.network), autocast:
            given = normalise(images.to(device), self.preprocess)
            if len(outputs) > 1:
                both = self.network.outputs(given)
                found = [both.logits if output == LOGITS else both.representation for output in outputs]
            else:
                found = [self.network(given) if outputs[0] == LOGITS else self.network.representation(given)]
            found = [values.float().cpu() for values in found]
        return [values.clone() for values in found]  # ordinary tensors, which training may use


class GraphEngine(Engine):
    """A graph that another runtime computes, on the processor."""

    def __init__(self, graph: Any, preprocess: Preprocess, precision: Precision, *, path: Path | None = None) -> None:
        self.graph, self.preprocess, self.precision, self.path = graph, preprocess, precision, path


@dataclass(frozen=True)
class InferenceModel:
    """A model that is ready to be asked: its engine, and what the engine's outputs mean."""

    engine: Engine
    config: ModelConfig
    labels: tuple[str, ...]  # (K,) the names of the classes, in the order of the logits
    path: Path | None  # where it was read from
    identity: str | Network  # what its outputs follow from, besides the preprocessing: a digest, or the network itself
    conversion: EngineMetadata | None = None  # of a converted model: what it was made from, and how it was verified
    seen_images: SeenImages | None = None  # of its training; None where that is not known

    @property
    def metadata(self) -> EngineMetadata:
        assert self.conversion is not None, "asked of converted models only"
        return self.conversion

    @property
    def computed_by(self) -> str:
        """The engine and its precision, such as "openvino-int8"."""
        return f"{self.engine.name}-{self.engine.precision}"


def in_batches(
    function: Callable[[Tensor], Tensor], images: Tensor, size: int, progress: Progress = no_progress
) -> Tensor:
    found: list[Tensor] = []
    for batch in torch.split(images, size):
        found.append(function(batch))
        progress(min(len(found) * size, len(images)), len(images))
    return torch.cat(found)


def open_in_torch(bundle: Bundle, device: str = "auto", precision: Precision = "fp32") -> InferenceModel:
    engine = TorchEngine(bundle.model.to(find_device(device)), bundle.preprocess, precision, path=bundle.path)
    identity = bundle.model if precision == "fp32" else f"{bundle_digest(bundle)}-torch-{precision}"
    seen = bundle.seen_images
    return InferenceModel(engine, bundle.model.config, bundle.labels, bundle.path, identity, seen_images=seen)
