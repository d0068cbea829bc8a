"""From another format's tensors to a model and back: a list of rules, each read in both directions.

Every tensor is used exactly once: what is missing, left over or of a wrong shape is an error that names it, in the
names that the file has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitreous.config.model import ModelConfig
from vitreous.errors import UserError
from vitreous.model.family import build_network, count_parameters
from vitreous.model.network import Network

Shape = tuple[int, ...]
NAMED = 6
"""So many tensors are named in an error; the others are counted."""


@dataclass(frozen=True)
class Rule:
    """One of our tensors, and the tensors that another format has for it."""

    ours: str
    theirs: tuple[str, ...]
    split: Callable[[Tensor], Sequence[Tensor]] | None = None
    """Ours to theirs; None where they are the same."""
    join: Callable[[Sequence[Tensor]], Tensor] | None = None
    """Theirs to ours."""

    def shapes(self, ours: Shape) -> list[Shape]:
        """What their tensors must look like."""
        if self.split is None:
            return [ours]
        return [tuple(part.shape) for part in self.split(torch.empty(ours, device="meta"))]


def same(ours: str, theirs: str) -> Rule:
    """Another name and nothing else."""
    return Rule(ours, (theirs,))


def pointwise(ours: str, theirs: str) -> Rule:
    """A matrix that is kept as a 1x1 convolution."""
    return Rule(ours, (theirs,), lambda w: (w[:, :, None, None],), lambda parts: parts[0][:, :, 0, 0])


def thirds(ours: str, theirs: Iterable[str]) -> Rule:
    """Queries, keys and values apart, which we keep one above the other."""
    return Rule(ours, tuple(theirs), lambda tensor: tensor.chunk(3), lambda parts: torch.cat(list(parts)))


def build_model(
    config: ModelConfig,
    tensors: Mapping[str, Tensor],
    where: object,
    *,
    rules: Sequence[Rule] = (),
    copy: bool = True,
) -> Network:
    """The model in evaluation mode with these tensors as its weights and buffers, in float32; nothing is drawn.

    rules: how tensors are called that do not go by our own names.
    copy: mapped tensors are copied once, for torch's own memory is aligned and theirs is not: matrix products on it
        round differently, so what must be repeated to the last bit needs the copy. Without, they stay on the disk
        until they are used.
    """
    _check_extent(config, tensors, where)
    model = build_network(config, seed=None)
    own = model.state_dict()
    state = to_ours(tensors, rules, {name: tuple(tensor.shape) for name, tensor in own.items()}, where)
    called = {rule.ours: rule.theirs for rule in rules}
    counters = [called.get(name, (name,)) for name, tensor in own.items() if not tensor.is_floating_point()]
    _check_numbers(tensors, {name for names in counters for name in names}, where)
    if not copy:
        for name, parameter in model.named_parameters():
            parameter.data = state[name].float().contiguous()
        state = {name: tensor for name, tensor in state.items() if name not in dict(model.named_parameters())}
    model.load_state_dict(state, strict=copy)
    return model.eval()


def _check_extent(config: ModelConfig, tensors: Mapping[str, Tensor], where: object) -> None:
    """Refuse a configuration of a far larger model than the tensors are of, before that model is built."""
    stored, described = sum(tensor.numel() for tensor in tensors.values()), count_parameters(config)
    if config.layers > len(tensors) or described > 2 * stored:
        raise UserError(
            f"{where}: its {len(tensors):,} tensors hold {stored:,} numbers, and the configuration is of a model of "
            f"{config.layers:,} layers with {described:,}; the file is not of this model: give the right one."
        )


def _check_numbers(tensors: Mapping[str, Tensor], counters: set[str], where: object) -> None:
    """Refuse weights that are no finite floating-point numbers. counters: those that are whole numbers."""
    for name, tensor in tensors.items():
        if name in counters:
            continue
        if not tensor.is_floating_point():
            kind = str(tensor.dtype).removeprefix("torch.")
            raise UserError(
                f"{where}: {name} is {kind}, and weights are floating-point numbers; give them as they were trained, "
                "before they were quantised or converted."
            )
        if not all(math.isfinite(bound.item()) for bound in tensor.float().aminmax()):
            raise UserError(
                f"{where}: {name} holds NaN or infinity, so every answer would be nonsense; give weights of a training "
                "that did not diverge."
            )


def to_ours(
    tensors: Mapping[str, Tensor], rules: Sequence[Rule], expected: Mapping[str, Shape], where: object
) -> dict[str, Tensor]:
    """The tensors under our names; a `UserError` if one is missing, left over or of a wrong shape.

    rules: for those that do not go by our own names. expected: our names and shapes.
    """
    if not rules and {name: tuple(tensor.shape) for name, tensor in tensors.items()} == expected:
        return dict(tensors)
    ruled = {rule.ours: rule for rule in rules}
    rules = [ruled.get(name) or same(name, name) for name in expected]
    known = {name for rule in rules for name in rule.theirs}
    missing = sorted(known - set(tensors))
    unexpected = sorted(set(tensors) - known)
    misshapen = [
        f"{name} has shape {tuple(tensors[name].shape)}, and the model needs {shape}"
        for rule in rules
        for name, shape in zip(rule.theirs, rule.shapes(expected[rule.ours]), strict=True)
        if name in tensors and tuple(tensors[name].shape) != shape
    ]
    if missing or unexpected or misshapen:
        wrong = [f"{_some(missing)} {_be(missing)} missing"] if missing else []
        if unexpected:
            wrong.append(f"{_some(unexpected)} belong{'s' * (len(unexpected) == 1)} to no part of the model")
        if misshapen:
            wrong.append(_some(misshapen))
        raise UserError(f"{where}: {'; '.join(wrong)}; the file is not of this model: give the right one.")
    parts = {rule.ours: [tensors[name] for name in rule.theirs] for rule in rules}
    return {rule.ours: rule.join(parts[rule.ours]) if rule.join else parts[rule.ours][0] for rule in rules}


def to_theirs(state: Mapping[str, Tensor], rules: Sequence[Rule]) -> dict[str, Tensor]:
    """Our tensors under their names, each in memory of its own; rules for tensors that the model has not are idle."""
    rules = [rule for rule in rules if rule.ours in state]
    assert len(rules) == len(state), "a rule for each tensor"
    found: dict[str, Tensor] = {}
    for rule in rules:
        ours = state[rule.ours].detach().cpu()
        parts = (ours,) if rule.split is None else rule.split(ours)
        found.update({name: part.clone().contiguous() for name, part in zip(rule.theirs, parts, strict=True)})
    return found


def relaid(state: Mapping[str, Tensor], rules: Sequence[Rule]) -> dict[str, Tensor]:
    """Our tensors, those that a rule is for as it has them, the others as they are; none is copied that need not be."""
    ruled = {rule.ours: rule for rule in rules}
    found: dict[str, Tensor] = {}
    for name, tensor in state.items():
        rule = ruled.get(name) or same(name, name)
        parts = (tensor,) if rule.split is None else rule.split(tensor)
        found.update(zip(rule.theirs, (part.detach().cpu().contiguous() for part in parts), strict=True))
    return found


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:NAMED])
    return shown if len(names) <= NAMED else f"{shown} and {len(names) - NAMED} more"


def _be(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"
