"""Engines: uint8 images in, logits or representations out.

Whoever only asks a model (predict, evaluate, probe) asks an engine, and need not know what computes.
B images, C channels, H x W pixels, K classes, D numbers of a representation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from vitreous.config.data import Preprocess
from vitreous.config.engine import EngineName, Precision
from vitreous.config.model import ModelConfig
from vitreous.data.augment import normalise
from vitreous.distributed.world import find_device
from vitreous.errors import UserError
from vitreous.model.family import inference_batch
from vitreous.model.network import Network, check_numbers, evaluating
from vitreous.weights.bundle import Bundle


class Engine(Protocol):
    """What computes a model's predictions. Several threads may call it."""

    @property
    def name(self) -> EngineName:
        """What computes."""

    @property
    def precision(self) -> Precision:
        """In what numbers the large products are computed."""

    @property
    def preprocess(self) -> Preprocess:
        """How images must be prepared: `vitreous.data.view.make_view` does it."""

    @property
    def classes(self) -> int:
        """K; 0 for a model without a classifier, which gives representations only."""

    @property
    def batch_size(self) -> int:
        """The batch size with the highest throughput."""

    @property
    def max_concurrency(self) -> int:
        """How many calls at the same time are fastest: more than one if a batch may begin before the last ends."""

    def logits(self, images: Tensor) -> Tensor:
        """(B, K) float32 of images (B, C, H, W) uint8."""

    def representations(self, images: Tensor) -> Tensor:
        """(B, D) float32, before any classifier, of images (B, C, H, W) uint8."""


@dataclass(frozen=True)
class InferenceModel:
    """A model that is ready to be asked: its engine, and what the engine's outputs mean."""

    engine: Engine
    config: ModelConfig
    labels: tuple[str, ...]
    """(K,) the names of the classes, in the order of the logits."""
    path: Path | None
    """Where it was read from."""
    identity: str | Network
    """What its outputs follow from, besides the preprocessing: a digest, or the network itself."""

    @property
    def computed_by(self) -> str:
        """The engine and its precision, such as "openvino-int8"."""
        return f"{self.engine.name}-{self.engine.precision}"


class TorchEngine:
    """A network in PyTorch, on the device where its weights are, in evaluation mode, without gradients."""

    name: EngineName = "torch"
    precision: Precision = "fp32"
    max_concurrency = 1

    def __init__(self, network: Network, preprocess: Preprocess, *, path: Path | None = None) -> None:
        """path: where the network was read from, for errors to say so."""
        self.network, self.preprocess, self.path = network, preprocess, path

    @property
    def classes(self) -> int:
        """K; 0 for a model without a classifier."""
        return self.network.config.classes

    @property
    def batch_size(self) -> int:
        """The batch size with the highest throughput."""
        return inference_batch(self.network.config)

    def logits(self, images: Tensor) -> Tensor:
        """(B, K) float32 of images (B, C, H, W) uint8."""
        if not self.classes:
            raise no_classifier(self.path)
        return self._compute(self.network, images, "logits")

    def representations(self, images: Tensor) -> Tensor:
        """(B, D) float32, before any classifier, of images (B, C, H, W) uint8."""
        return self._compute(self.network.representation, images, "features")

    def _compute(self, function: Callable[[Tensor], Tensor], images: Tensor, what: str) -> Tensor:
        check_images(images, self.preprocess)
        device = self.network.device
        with torch.inference_mode(), evaluating(self.network):
            found = function(normalise(images, self.preprocess).to(device)).float().cpu()
        check_numbers(found, what, self.path)
        return found.clone()  # an ordinary tensor, which training may use


def open_in_torch(bundle: Bundle, device: str = "auto") -> InferenceModel:
    """The model as it is, in PyTorch."""
    engine = TorchEngine(bundle.model.to(find_device(device)), bundle.preprocess, path=bundle.path)
    return InferenceModel(engine, bundle.model.config, bundle.labels, bundle.path, bundle.model)


def no_classifier(path: Path | None) -> UserError:
    """What is said to whoever wants logits of a model that has none."""
    return UserError(f"{path or 'the model'}: it has no classifier and so no logits to give.")


def check_images(images: Tensor, preprocess: Preprocess) -> None:
    """Refuse images that no engine with this preprocessing takes."""
    expected = (preprocess.channels, *preprocess.size)
    if images.dtype != torch.uint8 or images.ndim != 4 or tuple(images.shape[1:]) != expected:
        kind = str(images.dtype).removeprefix("torch.")
        raise UserError(
            f"images of shape {tuple(images.shape)} and type {kind}: the model takes (count, "
            f"{', '.join(map(str, expected))}) of uint8; vitreous.data.view.make_view makes one image so."
        )
