"""What every network can do, what only some can, and what a parameter of one is.

Letters in shapes: B images, C channels, H x W pixels, K classes, D the length of the representation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self, TypeGuard, TypeVar, cast, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from vitreous.config.model import ModelConfig, ViTConfig
from vitreous.errors import DamagedModelError, UserError
from vitreous.model.trace import Trace

Capability = TypeVar("Capability")


Kind = Literal["embedding", "matrix", "norm", "classifier", "other"]
_NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


class ParameterGroup(NamedTuple):
    """What a parameter is, for whoever trains it."""

    layer: int  # -1 for the embedding, a layer's number from 0, or the number of layers for what follows them
    kind: Kind
    """embedding: how pixels enter; matrix: a weight matrix inside a layer, which Muon is made for; norm: scale and
    shift of a norm; classifier: whatever is made anew for other classes; other: all else."""
    decayed: bool  # whether weight decay acts on it: on matrices, not on biases, norms, tokens and positions


class Outputs(NamedTuple):
    """What a network makes of images."""

    representation: Tensor  # (B, D), what the classifier reads
    logits: Tensor  # (B, K); the representation where there is no classifier


class Network(nn.Module, ABC):
    """A network of any family: images in, logits or a representation out.

    It is called with its configuration and a seed, from which alone its weights are drawn (None: left undefined, to be
    loaded). A family's network says besides what its embedding, its layers and its classifiers are, and may say how its
    tensors are resized and what a low-rank change is learned for.
    """

    config: ModelConfig
    embedding: ClassVar[tuple[str, ...]] = ()  # how the names of those parameters begin by which pixels enter
    hidden_classifier: ClassVar[tuple[str, ...]] = ()  # and of those that are made anew with the classifiers
    undecayed: ClassVar[tuple[str, ...]] = ()  # how the names of tokens and tables of positions end

    @abstractmethod
    def outputs(self, images: Tensor, *, keys: Tensor | None = None) -> Outputs:
        """The representation (B, D) and the logits (B, K), in one pass.

        images: (B, C, H, W) float, normalised.
        keys: (B,) int64, one for each sample, from which whatever is random in training follows (stochastic depth,
            patch dropout); None: torch's generator.
        """

    def forward(self, images: Tensor, **options: Any) -> Tensor:
        """Logits (B, K); the representation (B, D) when there is no classifier. The options are those of `outputs`."""
        return self.outputs(images, **options).logits

    def representation(self, images: Tensor, **options: Any) -> Tensor:
        """(B, D): what the classifier reads. The options are those of `outputs`."""
        return self.outputs(images, **options).representation

    def layers(self) -> Sequence[nn.Module]:
        """The `config.layers` layers that can be frozen one by one, first to last."""
        return []

    def classifiers(self) -> list[nn.Linear]:
        """The last layers, whose mean is the logits; none without a classifier."""
        return []

    def transformer_blocks(self) -> Sequence[nn.Module]:
        """The blocks that are sharded, and whose activations are recomputed, one by one where memory is short."""
        return []

    def lora_targets(self) -> list[nn.Linear]:
        """The layers that a low-rank change is learned for."""
        return []

    @classmethod
    def resize(cls, state: dict[str, Tensor], config: Any, size: tuple[int, int]) -> dict[str, Tensor]:
        """A network's tensors for images (height, width) of another size; `config.for_size` belongs to them."""
        return state

    def resized(self, image_size: int | tuple[int, int]) -> Self:
        """The same network for images of another size, to be fine-tuned there: a ViT's positions are resampled."""
        size = (image_size, image_size) if isinstance(image_size, int) else image_size
        kind: Any = type(self)
        network: Self = kind(self.config.for_size(size), seed=None)
        network.load_state_dict(self.resize(self.state_dict(), self.config, size))
        return network.to(next(self.parameters())).train(self.training)

    @property
    def device(self) -> torch.device:
        """Where its parameters are, and images must be; the CPU without parameters."""
        return next((parameter.device for parameter in self.parameters()), torch.device("cpu"))

    def parameter_groups(self) -> dict[str, ParameterGroup]:
        """The group of each parameter, by name, those of a low-rank change included."""
        layers = {id(p): number for number, layer in enumerate(self.layers()) for p in layer.parameters()}
        classifier = {id(p) for layer in self.classifiers() for p in layer.parameters()}
        norms = {id(p) for m in self.modules() if isinstance(m, _NORMS) for p in m.parameters(recurse=False)}
        found = {}
        for name, parameter in self.named_parameters():
            layer = -1 if name.startswith(self.embedding) else layers.get(id(parameter), self.config.layers)
            kind: Kind = "other"
            if id(parameter) in classifier or name.startswith(self.hidden_classifier):
                kind = "classifier"
            elif id(parameter) in norms:
                kind = "norm"
            elif layer < 0:
                kind = "embedding"
            elif layer < self.config.layers and parameter.ndim == 2 and name.endswith(".weight"):
                kind = "matrix"
            found[name] = ParameterGroup(layer, kind, parameter.ndim >= 2 and not name.endswith(self.undecayed))
        return found

    def without_classifier(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of such a network's state that do not belong to its classifier."""
        own = {name for name, group in self.parameter_groups().items() if group.kind == "classifier"}
        return {name: tensor for name, tensor in state.items() if name not in own}

    def first_convolution(self) -> tuple[str, nn.Conv2d] | None:
        """The layer that looks at the pixels, with its name; None if it is no convolution."""
        for name, module in self.named_modules():
            if isinstance(module, nn.Conv2d) and module.in_channels == self.config.channels:
                return name, module
        return None


@runtime_checkable
class TracesAttention(Protocol):
    """A network of blocks of attention over tokens, which tells what it saw to whoever hands it a trace."""

    @property
    def config(self) -> ViTConfig:
        """Which tokens there are, and how many blocks and heads."""

    def __call__(self, images: Tensor, *, keys: Tensor | None = None, trace: Trace | None = None) -> Tensor:
        """The logits; the trace is filled."""

    def representation(self, images: Tensor, *, keys: Tensor | None = None, trace: Trace | None = None) -> Tensor:
        """The representation; the trace is filled."""

    def output_tokens(self) -> slice:
        """The tokens that the representation is read from, so whose attention explains the logits."""


@runtime_checkable
class LeavesPatchesOut(Protocol):
    """A network that takes any set of an image's patches; those left out are never computed."""

    @property
    def config(self) -> ModelConfig: ...

    def __call__(self, images: Tensor, *, keys: Tensor | None = None, keep_ids: Tensor | None = None) -> Tensor:
        """The logits; keep_ids: (B, M) the patches to look at, counted row by row; None for all."""

    def representation(self, images: Tensor, *, keys: Tensor | None = None, keep_ids: Tensor | None = None) -> Tensor:
        """The representation; keep_ids as above."""

    def patch_grid(self, size: tuple[int, int]) -> tuple[int, int]:
        """Rows and columns of patches of an image (height, width)."""


@runtime_checkable
class MergesTokens(Protocol):
    """A network of tokens, which can merge those that are alike on the way (ToMe)."""

    def with_merge(self, merge: int) -> Network:
        """The same network, with the same weights in memory, that merges so many tokens per block; 0 for none."""


@runtime_checkable
class HasFeatureMap(Protocol):
    """A network that looks at an image place by place and then joins the places: a convolutional one."""

    @property
    def config(self) -> ModelConfig: ...

    def feature_map(self, images: Tensor) -> Tensor:
        """(B, D, h, w): the last features that still have a place."""

    def classify(self, feature_map: Tensor) -> Tensor:
        """(B, K): the logits that follow from them."""


_NEEDS = {
    "TracesAttention": ("a network whose attention can be traced", "has none"),
    "LeavesPatchesOut": ("a network that can leave patches out", "cannot"),
    "MergesTokens": ("a network of tokens, which can be merged", "has none"),
    "HasFeatureMap": ("a network with a feature map", "has none"),
}
"""What each capability asks for, and what is said of a network without it."""


def has_stem(network: Network | LeavesPatchesOut) -> bool:
    """Whether it is a hybrid: a convolutional stem sees the pixels, and mixes patches before they are tokens."""
    return getattr(network.config, "stem", None) is not None


def can_leave_patches_out(network: Network | LeavesPatchesOut) -> TypeGuard[LeavesPatchesOut]:
    """Whether it takes any set of patches: one of the class of those that do, and no hybrid."""
    return isinstance(network, LeavesPatchesOut) and not has_stem(network)


def require(network: Network, capability: Callable[..., Capability], what: str) -> Capability:
    """The same network, typed as the capability (a Protocol above, or a class), or a sentence why `what` needs it."""
    kind = cast("type[Capability]", capability)
    if capability is LeavesPatchesOut and has_stem(network):
        raise UserError(
            f"{what}: needs {_NEEDS['LeavesPatchesOut'][0]}; a hybrid's stem looks at all patches at once, so none can "
            "be hidden from it. Use a model without a stem, such as S/16."
        )
    if isinstance(network, kind):
        return network
    need, lack = _NEEDS.get(kind.__name__, ("a Vision Transformer", "is not one"))
    raise UserError(
        f"{what}: needs {need}; a network of the family {network.config.family!r} {lack}. Use a Vision Transformer."
    )


_within: dict[nn.Module, tuple[int, bool]] = {}
"""Of each module that is being asked: how many are within `evaluating`, and whether it was training before."""
_counting = Lock()


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Within, the network is in evaluation mode, so that nothing is dropped; after it, each module is as it was.

    Whoever asks a network, or looks inside one that a person may have put into training mode, does it within. Several
    threads may at once: it stays in evaluation mode until the last is done.
    """
    modules = list(network.modules())
    with _counting:
        for module in modules:  # each by itself: a network that merges tokens shares its modules with one that does not
            count, training = _within.get(module, (0, False))
            _within[module] = count + 1, training or module.training
            module.training = False
    try:
        yield
    finally:
        with _counting:
            for module in modules:
                count, training = _within.pop(module)
                if count > 1:
                    _within[module] = count - 1, training
                elif training:
                    module.training = True


def check_numbers(values: Tensor, what: str, path: Path | None = None) -> None:
    """Refuse outputs that mean nothing. what: "scores", "features"; path: where the model was read from."""
    if not torch.isfinite(values).all():
        raise DamagedModelError(
            f"{path or 'the model'}: gives {what} that are not numbers: its weights are damaged, or its "
            "training diverged."
        )
