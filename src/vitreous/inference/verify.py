"""Whether an engine says what the network says, on the same images; and where it first does not."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Interpreter, Node

from vitreous.inference.engine import Engine

TOLERANCE = 1e-4
"""By which scores may differ in float32, relative to the largest of them where that is above 1."""


@dataclass(frozen=True)
class Agreement:
    """How two engines' answers for the same images differ."""

    images: int
    same_label: int
    """Images for which both have the same likeliest label."""
    equal: int
    """Images whose scores and representation are the same up to rounding."""
    worst_score: float
    """The largest difference of a score, relative to the largest score where that is above 1."""
    worst_probability: float
    worst_representation: float
    """As the scores'."""
    worst: int = 0
    """The number of the image whose answers differ most."""

    def close(self, but: float = 0.0) -> bool:
        """Whether they are the same up to rounding, but for a share of the images."""
        return self.images - self.equal <= math.ceil(but * self.images)


def agreement(reference: Engine, other: Engine, images: Tensor, *, classifier: bool) -> Agreement:
    """How the other engine's answers differ from the reference's, for images (n, C, H, W) uint8.

    The first image is asked about alone, too, and the worse of its answers counts: an engine may have a graph of its
    own for that. classifier: the model has one. Labels between which the reference itself cannot decide, their scores
    being closer than the tolerance, count as the same.
    """
    count = len(images)
    expected = _and_first(batched(reference.representations, images, reference.batch_size))
    features = _fold(_differences(_also_alone(other.representations, images, other.batch_size), expected))
    equal = features <= TOLERANCE
    if not classifier:
        worst = int(features.argmax())
        return Agreement(count, count, int(equal.sum()), 0.0, 0.0, features.max().item(), worst)
    expected = _and_first(batched(reference.scores, images, reference.batch_size))
    found = _also_alone(other.scores, images, other.batch_size)
    scores = _fold(_differences(found, expected))
    behind = _fold(expected.amax(dim=1) - expected.gather(1, found.argmax(dim=1, keepdim=True))[:, 0])
    same = behind <= TOLERANCE * max(1.0, expected.abs().max().item())
    return Agreement(
        images=count,
        same_label=int(same.sum()),
        equal=int((equal & same & (scores <= TOLERANCE)).sum()),
        worst_score=scores.max().item(),
        worst_probability=(found.softmax(dim=1) - expected.softmax(dim=1)).abs().max().item(),
        worst_representation=features.max().item(),
        worst=int(torch.maximum(scores, features).argmax()),
    )


def _and_first(rows: Tensor) -> Tensor:
    """(n + 1, ...) the rows, and the first again."""
    return torch.cat([rows, rows[:1]])


def _also_alone(function: Callable[[Tensor], Tensor], images: Tensor, size: int) -> Tensor:
    """(n + 1, ...) an engine's answers for the images in batches, and for the first of them alone."""
    return torch.cat([batched(function, images, size), function(images[:1])])


def _fold(differences: Tensor) -> Tensor:
    """(n,) of (n + 1,): for the first image the worse of both."""
    return torch.cat([torch.maximum(differences[:1], differences[-1:]), differences[1:-1]])


def batched(function: Callable[[Tensor], Tensor], images: Tensor, size: int) -> Tensor:
    """An engine's answers for many images, asked for in batches."""
    return torch.cat([function(part) for part in torch.split(images, size)])


def _differences(found: Tensor, expected: Tensor) -> Tensor:
    """(n,) of each row the largest difference, relative to the largest number of all where that is above 1."""
    return (found - expected).abs().flatten(1).amax(dim=1) / max(1.0, expected.abs().max().item())


def first_difference(
    program: ExportedProgram,
    intermediate: Callable[[Any, Tensor], dict[str, NDArray[Any]]],
    model: Any,
    images: Tensor,
    tolerance: float = TOLERANCE,
) -> str | None:
    """The layer of the network in which a converted model first differs from it; None if no layer does.

    intermediate: the runtime's (`vitreous.inference.runtime.Backend`); images: a few, (n, C, H, W) uint8.
    """
    theirs = intermediate(model, images)
    ours: dict[str, tuple[str, Tensor]] = {}

    class Recorder(Interpreter):
        def run_node(self, n: Node) -> Any:
            value = super().run_node(n)
            layer = _layer(n)
            if n.name in theirs and layer and isinstance(value, Tensor) and value.is_floating_point():
                ours[n.name] = layer, value
            return value

    with torch.no_grad():
        Recorder(program.module()).run(images)
    found = None
    for name, (layer, value) in ours.items():
        other = torch.from_numpy(theirs[name].copy())
        if other.shape != value.shape:
            continue
        if _differences(other, value).max() <= tolerance:
            found = None  # what differed before was only divided among nodes in another way
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
