"""Whether an engine computes what the network does, on the same images; and the first layer in which it does not."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Interpreter, Node

from vitreous.callbacks import Callbacks, NamedProgress
from vitreous.inference.engine import Engine, in_batches
from vitreous.model.predictions import class_probabilities, predicted_class

TOLERANCE = 1e-4  # by which logits may differ in float32, relative to the largest of them if that is above 1


@dataclass(frozen=True)
class Agreement:
    """How the outputs of two engines for the same images differ. Differences are relative as in `TOLERANCE`."""

    images: int
    same_label: int  # images for which both have the same likeliest label
    equal: int  # images whose logits and representation are the same up to rounding
    max_logit_difference: float
    max_probability_difference: float  # absolute
    max_representation_difference: float
    worst: int = 0  # the index of the image whose outputs differ most

    def within(self, fraction: float = 0.0) -> bool:
        """Whether they are the same up to rounding for all images but this fraction."""
        return self.images - self.equal <= math.ceil(fraction * self.images)


def compare_engines(
    reference: Engine,
    other: Engine,
    images: Tensor,
    *,
    classifier: bool,
    progress: NamedProgress = Callbacks.progress,
) -> Agreement:
    """How the other engine's outputs differ from the reference's, for images (n, C, H, W) uint8.

    The first image is given alone, too, and the worse of its outputs counts: an engine may have a graph of its own for
    that. classifier: the model has one. Labels between which the reference itself cannot decide, their logits being
    closer than the tolerance, count as the same.
    """

    def outputs(name: str) -> tuple[Tensor, Tensor]:  # (n + 1, ...) of each engine; the last is the first image again
        compute, by = (
            getattr(other, name),
            [partial(progress, f"comparing {name}, {e.name}") for e in (reference, other)],
        )
        expected = in_batches(getattr(reference, name), images, reference.batch_size, by[0])
        found = torch.cat([in_batches(compute, images, other.batch_size, by[1]), compute(images[:1])])
        return found, torch.cat([expected, expected[:1]])

    def fold(differences: Tensor) -> Tensor:  # (n,) of (n + 1,): for the first image the worse of both
        return torch.cat([torch.maximum(differences[:1], differences[-1:]), differences[1:-1]])

    count = len(images)
    features = fold(_differences(*outputs("representations")))
    equal = features <= TOLERANCE
    if not classifier:
        return Agreement(count, count, int(equal.sum()), 0.0, 0.0, features.max().item(), int(features.argmax()))
    found, expected = outputs("logits")
    differences = fold(_differences(found, expected))
    behind = fold(expected.amax(dim=1) - expected.gather(1, predicted_class(found)[:, None])[:, 0])
    same = behind <= TOLERANCE * max(1.0, expected.abs().max().item())
    return Agreement(
        images=count,
        same_label=int(same.sum()),
        equal=int((equal & same & (differences <= TOLERANCE)).sum()),
        max_logit_difference=differences.max().item(),
        max_probability_difference=(class_probabilities(found) - class_probabilities(expected)).abs().max().item(),
        max_representation_difference=features.max().item(),
        worst=int(torch.maximum(differences, features).argmax()),
    )


def _differences(found: Tensor, expected: Tensor) -> Tensor:
    """(n,) of each row the largest difference, relative to the largest number of all if that is above 1."""
    return (found - expected).abs().flatten(1).amax(dim=1) / max(1.0, expected.abs().max().item())


def first_difference(
    program: ExportedProgram,
    intermediate: Callable[[Any, Tensor], dict[str, NDArray[Any]]],
    model: Any,
    images: Tensor,
    tolerance: float = TOLERANCE,
) -> str | None:
    """The layer of the network in which a converted model first differs from it; None if no layer does.

    intermediate: of `vitreous.inference.engines.EngineKind`; images: a few, (n, C, H, W) uint8.
    """
    converted = intermediate(model, images)
    traced: dict[str, tuple[str, Tensor]] = {}

    class Recorder(Interpreter):
        def run_node(self, n: Node) -> Any:
            value = super().run_node(n)
            layer = _layer(n)
            if n.name in converted and layer and isinstance(value, Tensor) and value.is_floating_point():
                traced[n.name] = layer, value
            return value

    with torch.no_grad():
        Recorder(program.module()).run(images)
    found = None
    for name, (layer, value) in traced.items():
        other = torch.from_numpy(converted[name].copy())
        if other.shape != value.shape:
            continue
        if _differences(other, value).max() <= tolerance:
            found = None  # what differed before was only split into other nodes
        elif found is None:
            found = layer
    return found


COMPARED = ("linear", "conv", "addmm", "layer_norm", "group_norm")
"""Operations whose nodes are compared: each belongs to one layer, and no runtime renames them."""


def _layer(node: Node) -> str:
    """The name of the layer that a node belongs to, such as blocks.3.mlp.fc1; empty for what is not compared."""
    if not node.name.startswith(COMPARED):
        return ""
    stack = node.meta.get("nn_module_stack") or {}
    names = [str(path) for path, _ in stack.values()]
    return names[-1].removeprefix("network.") if names else ""
