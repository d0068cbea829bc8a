"""From another format's tensors to a model and back: a list of rules, each read in both directions.

Every tensor is used exactly once: one that is missing, unexpected or misshapen is an error that gives its name in the
file.
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
    """How another format stores a tensor of ours."""

    split: Callable[[Tensor], Sequence[Tensor]]  # ours to theirs
    join: Callable[[Sequence[Tensor]], Tensor]  # theirs to ours


SPLIT_QKV = TensorLayout(lambda tensor: tensor.chunk(3), lambda parts: torch.cat(list(parts)))
"""Three tensors for queries, keys and values, which we keep in one."""
Q_AND_V = TensorLayout(
    lambda bias: (bias.chunk(3)[0], bias.chunk(3)[2]),
    lambda parts: torch.cat([parts[0], torch.zeros_like(parts[0]), parts[1]]),
)
"""Biases of queries and values; those of keys are zeros."""
JOINED = TensorLayout(lambda tensor: tensor.chunk(2), lambda parts: torch.cat(list(parts)))
"""Two tensors, such as a gate and what it gates, that we keep in one."""
VECTOR = TensorLayout(lambda token: (token[0, 0],), lambda parts: parts[0][None, None])
"""A token (1, 1, D) stored as (D,)."""
TABLE = TensorLayout(lambda table: (table[0],), lambda parts: parts[0][None])
"""Positions (1, N, D) stored as (N, D)."""
TRANSPOSED = TensorLayout(lambda weight: (weight.T,), lambda parts: parts[0].T)
PROJECTION_AS_HEAD = TensorLayout(
    lambda weight: (weight, torch.zeros(weight.shape[0], device=weight.device)), lambda parts: parts[0]
)
"""A projection without bias stored as a classifier whose biases are zeros."""
POINTWISE = TensorLayout(lambda w: (w[:, :, None, None],), lambda parts: parts[0][:, :, 0, 0])
"""A matrix stored as a 1x1 convolution."""


@dataclass(frozen=True)
class Rule:
    """A tensor of ours, or all tensors of a module, and their names in another format.

    Rule("blocks.*.norm1", ("encoder.layer.{0}.layernorm_before",)) is for "blocks.7.norm1.weight" and ".bias".
    """

    name: str  # * stands for a number
    theirs: tuple[str, ...]  # {0} stands for the first number; ".weight" and ".bias" are appended for a module
    layout: TensorLayout | None = None  # None if the tensor is stored as it is
    prefix: str = ""  # of all names in the other format
    renumber: Callable[..., Sequence[int]] | None = None  # from our numbers to theirs, such as counting from 1


def rename(names: Mapping[str, str], prefix: str = "") -> list[Rule]:
    return [Rule(name, (theirs,), prefix=prefix) for name, theirs in names.items()]


def _map_names(names: Iterable[str], rules: Sequence[Rule]) -> dict[str, tuple[tuple[str, ...], TensorLayout | None]]:
    """For each of our tensors its names and layout in the other format; our own name if no rule applies."""
    by_name = {rule.name: rule for rule in rules}
    return {name: _apply_rule(name, by_name) for name in names}


def _apply_rule(name: str, rules: Mapping[str, Rule]) -> tuple[tuple[str, ...], TensorLayout | None]:
    numbers = [int(digits) for digits in _NUMBER.findall(name)]
    for form in dict.fromkeys((name, _NUMBER.sub("*", name))):
        for module, rest in ((form, ""), (form.rpartition(".")[0], "." + name.rpartition(".")[2])):
            if (rule := rules.get(module)) is not None:
                theirs: Sequence[str] = rule.theirs
                if "*" in module:
                    renumbered = numbers if rule.renumber is None else rule.renumber(*numbers)
                    theirs = [template.format(*renumbered) for template in theirs]
                return tuple(f"{rule.prefix}{one}{rest}" for one in theirs), rule.layout
    return (name,), None


def under_our_names(tensors: Mapping[str, Tensor], rules: Sequence[Rule]) -> dict[str, Tensor]:
    """What a file holds, by our names, to tell its configuration: of joined tensors only the shape (meta device)."""
    found: dict[str, list[Tensor | None]] = {}
    layouts: dict[str, TensorLayout | None] = {}
    forms = [
        (re.compile(re.escape(rule.prefix + theirs).replace(r"\{0\}", r"(\d{1,9})") + r"(\.\w+)?"), rule, part)
        for rule in rules
        for part, theirs in enumerate(rule.theirs)
    ]
    for name, tensor in tensors.items():
        matches = [(match, rule, part) for form, rule, part in forms if (match := form.fullmatch(name))]
        exact = [entry for entry in matches if entry[0].groups()[-1] is None]
        for match, rule, part in (exact or matches)[:1]:
            *numbers, rest = match.groups()
            ours = rule.name.replace("*", numbers[0] if numbers else "*") + (rest or "")
            found.setdefault(ours, [None] * len(rule.theirs))[part] = tensor
            layouts[ours] = rule.layout
        if not matches:
            found[name], layouts[name] = [tensor], None
    named = {}
    for name, parts in found.items():
        whole, layout = [part for part in parts if part is not None], layouts[name]
        if layout is None:
            named[name] = whole[0]
        elif len(whole) == len(parts):
            named[name] = layout.join([torch.empty(part.shape, device="meta") for part in whole])
    return named


def build_model(
    config: ModelConfig,
    tensors: Mapping[str, Tensor],
    where: object,
    *,
    rules: Sequence[Rule] = (),
    copy: bool = True,
    advice: str = "the file is not of this model: give the right one.",
) -> Network:
    """The model in evaluation mode with these tensors as its weights and buffers, in float32.

    rules: for tensors whose name or shape in the file is not ours. advice: the end of the error if they do not fit.
    copy: tensors mapped from a file are copied into torch's aligned memory. Without the copy they stay on the disk
        until they are used, but matrix products on unaligned memory round differently in the last bits.
    """
    stored, described = sum(tensor.numel() for tensor in tensors.values()), count_parameters(config)
    if config.layers > len(tensors) or described > 2 * stored:  # before a far larger model is built
        raise UserError(
            f"{where}: its {len(tensors):,} tensors hold {stored:,} numbers, and the configuration is of a model of "
            f"{config.layers:,} layers with {described:,}; {advice}"
        )
    model = build_network(config, seed=None)
    own = model.state_dict()
    mapped = _map_names(own, rules)
    state = _import_state(tensors, mapped, own, where, advice)
    counters = {theirs for name, tensor in own.items() if not tensor.is_floating_point() for theirs in mapped[name][0]}
    _check_numbers({name: tensor for name, tensor in tensors.items() if name not in counters}, where)
    if not copy:
        for name, parameter in model.named_parameters():
            parameter.data = state.pop(name).float().contiguous()
    model.load_state_dict(state, strict=copy)
    return model.eval()


def _check_numbers(tensors: Mapping[str, Tensor], where: object) -> None:
    """Refuse weights that are not finite floating-point numbers."""
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
    advice: str,
) -> dict[str, Tensor]:
    """The tensors under our names; a `UserError` if one is missing, unexpected or misshapen."""
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
    wrong = [f"{_join_names(missing)} {'is' if len(missing) == 1 else 'are'} missing"] if missing else []
    if unexpected:
        wrong.append(f"{_join_names(unexpected)} belong{'s' * (len(unexpected) == 1)} to no part of the model")
    if misshapen:
        wrong.append(_join_names(misshapen))
    if wrong:
        raise UserError(f"{where}: {'; '.join(wrong)}; {advice}")
    state = {}
    for name, (theirs, layout) in mapped.items():
        parts = [tensors[other] for other in theirs]
        state[name] = parts[0] if layout is None else layout.join(parts)
    return state


def export_state(state: Mapping[str, Tensor], rules: Sequence[Rule]) -> dict[str, Tensor]:
    """Our tensors in the names and layouts of another format; only those that change are copied."""
    found: dict[str, Tensor] = {}
    for name, (theirs, layout) in _map_names(state, rules).items():
        tensor = state[name].detach().cpu()
        parts = (tensor,) if layout is None else [part.clone() for part in layout.split(tensor)]
        found.update(zip(theirs, (part.contiguous() for part in parts), strict=True))
    return found


def _join_names(names: Sequence[str]) -> str:
    listed = ", ".join(names[:MAX_NAMED_TENSORS])
    others = len(names) - MAX_NAMED_TENSORS
    return listed if others <= 0 else f"{listed} and {others} more"
