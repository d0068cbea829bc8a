"""From another format's tensors to a model and back: a list of rules, each read in both directions.

Every tensor is used exactly once: what is missing, left over or of a wrong shape is an error that names it, in the
names that the file has.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from vitreous.config.model import ModelConfig
from vitreous.errors import UserError
from vitreous.model.family import build_network, count_parameters
from vitreous.model.network import Network

MAX_NAMED_TENSORS = 6  # in an error; the others are counted
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


class TensorLayout(NamedTuple):
    """How a tensor of ours is laid out in another format."""

    split: Callable[[Tensor], Sequence[Tensor]]  # ours to theirs
    join: Callable[[Sequence[Tensor]], Tensor]  # theirs to ours


SPLIT_QKV = TensorLayout(lambda tensor: tensor.chunk(3), lambda parts: torch.cat(list(parts)))
"""Queries, keys and values apart, which we keep one above the other."""
POINTWISE = TensorLayout(lambda w: (w[:, :, None, None],), lambda parts: parts[0][:, :, 0, 0])
"""A matrix that is kept as a 1x1 convolution."""


@dataclass(frozen=True)
class Rule:
    """A tensor of ours, or all of a module, and the tensors that another format has for it.

    Rule("blocks.*.norm1", ("encoder.layer.{0}.layernorm_before",)) is for "blocks.7.norm1.weight" and ".bias".
    """

    name: str  # a * stands for a number
    theirs: tuple[str, ...]  # {0} is the first number; what comes after the module's name is kept
    layout: TensorLayout | None = None  # None where they are the same
    prefix: str = ""  # of all their names
    count: Callable[..., Sequence[int]] | None = None  # from our numbers to theirs


def rename(names: Mapping[str, str], prefix: str = "") -> list[Rule]:
    """Rules for other names and nothing else."""
    return [Rule(name, (theirs,), prefix=prefix) for name, theirs in names.items()]


def _mapped(names: Iterable[str], rules: Sequence[Rule]) -> dict[str, tuple[tuple[str, ...], TensorLayout | None]]:
    """Another format's names of our tensors, and how they are laid out there; ours where there is no rule."""
    by_name = {rule.name: rule for rule in rules}
    return {name: _theirs(name, by_name) for name in names}


def _theirs(name: str, rules: Mapping[str, Rule]) -> tuple[tuple[str, ...], TensorLayout | None]:
    numbers = [int(digits) for digits in _NUMBER.findall(name)]
    for form in dict.fromkeys((name, _NUMBER.sub("*", name))):
        for module, rest in ((form, ""), (form.rpartition(".")[0], "." + name.rpartition(".")[2])):
            if (rule := rules.get(module)) is not None:
                theirs: Sequence[str] = rule.theirs
                if "*" in module:
                    counted = numbers if rule.count is None else rule.count(*numbers)
                    theirs = [template.format(*counted) for template in theirs]
                return tuple(f"{rule.prefix}{one}{rest}" for one in theirs), rule.layout
    return (name,), None


def build_model(
    config: ModelConfig, tensors: Mapping[str, Tensor], where: object, *, rules: Sequence[Rule] = (), copy: bool = True
) -> Network:
    """The model in evaluation mode with these tensors as its weights and buffers, in float32; nothing is drawn.

    rules: how tensors are called that do not go by our own names.
    copy: mapped tensors are copied once, for torch's own memory is aligned and theirs is not: matrix products on it
        round differently, so what must be repeated to the last bit needs the copy. Without, they stay on the disk
        until they are used.
    """
    stored, described = sum(tensor.numel() for tensor in tensors.values()), count_parameters(config)
    if config.layers > len(tensors) or described > 2 * stored:  # before a far larger model is built
        raise UserError(
            f"{where}: its {len(tensors):,} tensors hold {stored:,} numbers, and the configuration is of a model of "
            f"{config.layers:,} layers with {described:,}; the file is not of this model: give the right one."
        )
    model = build_network(config, seed=None)
    own = model.state_dict()
    mapped = _mapped(own, rules)
    state = _import_state(tensors, mapped, own, where)
    counters = {theirs for name, tensor in own.items() if not tensor.is_floating_point() for theirs in mapped[name][0]}
    _check_numbers({name: tensor for name, tensor in tensors.items() if name not in counters}, where)
    if not copy:
        for name, parameter in model.named_parameters():
            parameter.data = state.pop(name).float().contiguous()
    model.load_state_dict(state, strict=copy)
    return model.eval()


def _check_numbers(tensors: Mapping[str, Tensor], where: object) -> None:
    """Refuse weights that are no finite floating-point numbers."""
    for name, tensor in tensors.items():
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


def _import_state(
    tensors: Mapping[str, Tensor],
    mapped: Mapping[str, tuple[tuple[str, ...], TensorLayout | None]],
    own: Mapping[str, Tensor],
    where: object,
) -> dict[str, Tensor]:
    """The tensors under our names; a `UserError` if one is missing, left over or of a wrong shape."""
    expected: dict[str, tuple[int, ...]] = {}  # their names and shapes
    for name, (theirs, layout) in mapped.items():
        parts = (own[name],) if layout is None else layout.split(torch.empty(own[name].shape, device="meta"))
        expected |= {other: tuple(part.shape) for other, part in zip(theirs, parts, strict=True)}
    missing, unexpected = sorted(set(expected) - set(tensors)), sorted(set(tensors) - set(expected))
    misshapen = [
        f"{name} has shape {tuple(tensors[name].shape)}, and the model needs {shape}"
        for name, shape in expected.items()
        if name in tensors and tuple(tensors[name].shape) != shape
    ]
    wrong = [f"{_some(missing)} {'is' if len(missing) == 1 else 'are'} missing"] if missing else []
    wrong += [f"{_some(unexpected)} belong{'s' * (len(unexpected) == 1)} to no part of the model"] if unexpected else []
    wrong += [_some(misshapen)] if misshapen else []
    if wrong:
        raise UserError(f"{where}: {'; '.join(wrong)}; the file is not of this model: give the right one.")
    state = {}
    for name, (theirs, layout) in mapped.items():
        parts = [tensors[other] for other in theirs]
        state[name] = parts[0] if layout is None else layout.join(parts)
    return state


def export_state(state: Mapping[str, Tensor], rules: Sequence[Rule]) -> dict[str, Tensor]:
    """Our tensors as another format has them; only those that change are copied."""
    found: dict[str, Tensor] = {}
    for name, (theirs, layout) in _mapped(state, rules).items():
        tensor = state[name].detach().cpu()
        parts = (tensor,) if layout is None else [part.clone() for part in layout.split(tensor)]
        found.update(zip(theirs, (part.contiguous() for part in parts), strict=True))
    return found


def _some(names: Sequence[str]) -> str:
    listed = ", ".join(names[:MAX_NAMED_TENSORS])
    others = len(names) - MAX_NAMED_TENSORS
    return listed if others <= 0 else f"{listed} and {others} more"
