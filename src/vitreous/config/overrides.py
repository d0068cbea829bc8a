"""Single fields of a training set by name, as `--overrides optimizer.learning_rate=1e-4` does."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from vitreous.arguments import check_value, shown, union_members
from vitreous.config.train import Training
from vitreous.errors import UserError

ELSEWHERE = {
    "epochs": "the arguments epochs or budget",
    "seed": "the argument seed",
    "accumulate": "micro_batch, the number of images that a process works through at once",
    "preprocess": "the arguments preprocess and image_size",
    "preprocess.size": "the argument image_size",
    "preprocess.mean": "the argument preprocess",
    "preprocess.std": "the argument preprocess",
    "preprocess.interpolation": "the argument preprocess",
    "preprocess.resize": "the argument preprocess",
    "model.image_size": "the argument image_size",
    "model.patch": "the argument model",
    "model.stem": "the argument model",
    "model.classes": "the data, which say how many there are",
    "model.channels": "the data, which say how many there are",
}
"""Fields that have a place of their own."""


class Idle(NamedTuple):
    """When a field acts, and what to say where it does not."""

    acts: Callable[[Training], bool]
    unless: str


IDLE = {
    "optimizer.momentum": Idle(lambda t: t.optimizer.name == "sgd", "without optimizer.name=sgd"),
    "optimizer.betas": Idle(lambda t: t.optimizer.name != "sgd", "with optimizer.name=sgd"),
    "optimizer.muon_learning_rate": Idle(lambda t: t.optimizer.name == "muon", "without optimizer.name=muon"),
    "optimizer.muon_weight_decay": Idle(lambda t: t.optimizer.name == "muon", "without optimizer.name=muon"),
    "augment.pad": Idle(lambda t: t.augment.crop_scale is None, "without augment.crop_scale=none"),
    "augment.crop_ratio": Idle(
        lambda t: t.augment.crop_scale is not None or t.objective.evaluates_views, "without augment.crop_scale"
    ),
    "augment.layers": Idle(lambda t: t.augment.policy == "randaugment", "without augment.policy=randaugment"),
    "augment.magnitude": Idle(lambda t: t.augment.policy == "randaugment", "without augment.policy=randaugment"),
    "wise_ft_alpha": Idle(lambda t: not t.lora, "with lora, unless lora=0"),
}
"""Fields that act only together with another; those of an objective are its `idle_fields`."""
FREE = frozenset({"drop_path", "dropout", "patch_dropout", "merge"})
"""Fields of a model that given weights say nothing about."""


SHORT_NAMES = {name: f"optimizer.{name}" for name in ("learning_rate", "weight_decay", "betas", "momentum", "warmup")}
SHORT_NAMES |= {"lr": "optimizer.learning_rate", "optimizer.lr": "optimizer.learning_rate"}


def parse_overrides(texts: Iterable[str]) -> dict[str, str]:
    """{"freeze": "6"} of ["freeze=6"]."""
    overrides = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise UserError(f"{shown(text)}: write NAME=VALUE, for example lr=1e-4.")
        if name.strip() in overrides:
            raise UserError(f"{name.strip()}: set twice; give one value.")
        overrides[name.strip()] = value.strip()
    return override_texts(overrides)


def override(
    training: Training,
    overrides: Mapping[str, object],
    *,
    weights: bool = False,
    settle: Callable[[Training], Training] = lambda changed: changed,
) -> Training:
    """The training with these fields changed, checked as a whole; "objective.crops.local_views" is a field too.

    overrides: values, or texts as a person writes them ("1e-4", "[0.2,1.0]", "none").
    weights: the model comes from given weights.
    settle: decides what the overrides leave open, before it is checked that each of them does something.
    """
    nested: dict[str, Any] = {}
    for name, value in overrides.items():
        *path, last = name.split(".")
        if name in ELSEWHERE:
            raise UserError(f"{name}: is set by {ELSEWHERE[name]}.")
        owner: Any = training
        for part in path:
            owner = getattr(owner, part, None)
        if name == "model.merge" and not hasattr(training.model, "merge"):
            family = training.model.family
            raise UserError(f"{name}: a network of the family {family!r} has no tokens to merge; leave it out.")
        if not is_dataclass(owner) or isinstance(owner, type) or last not in _values(owner):
            raise UserError(f"{name}: there is no such field; {_nearest(name, training)}")
        if path == ["model"] and weights and last not in FREE:
            raise UserError(f"{name}: the weights say what the model is; it cannot be changed.")
        place = nested
        for part in path:
            place = place.setdefault(part, {})
        place[last] = _Value(read_value(name, override_text(value), _values(owner)[last]))
    try:
        changed: Training = _replaced(training, nested)
    except UserError as error:
        if any(str(error).startswith(f"{name}=") for name in overrides):
            raise
        given = " ".join(f"{name}={override_text(value)}" for name, value in overrides.items())
        raise UserError(f"{given}: {error}") from None
    settled = settle(changed)
    _check_acting(settled, overrides, weights)
    return settled


def _check_acting(training: Training, overrides: Mapping[str, object], weights: bool) -> None:
    """Refuse a change of a field that does nothing in this training."""
    if weights and "whiten" in overrides:
        raise UserError("whiten: only a new model can start whitened, not given weights; leave it out.")
    idle = {name: field.unless for name, field in IDLE.items() if not field.acts(training)}
    idle |= {f"objective.{name}": unless for name, unless in training.objective.idle_fields.items()}
    for name in overrides:
        if name in idle:
            raise UserError(f"{name}: does nothing {idle[name]}; set that too, or leave it out.")


def override_text(value: object) -> str:
    """A value as a person would write it, which `read_value` reads again."""
    return value if isinstance(value, str) else json.dumps(value)


def override_texts(overrides: Mapping[str, object] | None) -> dict[str, str]:
    """By the full names of the fields: "lr" is "optimizer.learning_rate"."""
    texts: dict[str, str] = {}
    for name, value in (overrides or {}).items():
        full = SHORT_NAMES.get(name, name)
        if full in texts:
            raise UserError(f"{name}: {full} is set twice; give one value.")
        texts[full] = override_text(value)
    return texts


class _Value:
    """A leaf among nested overrides, whatever its type."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _replaced(owner: Any, nested: Mapping[str, Any]) -> Any:
    new = {
        name: change.value if isinstance(change, _Value) else _replaced(getattr(owner, name), change)
        for name, change in nested.items()
    }
    return replace(owner, **new)


def read_value(place: str, text: str, hint: Any) -> Any:
    """A value of the hinted type, written as a person writes it, or in JSON."""
    kinds = union_members(hint)
    if any(kind is str or text in get_args(kind) for kind in kinds):
        return text
    try:
        value = json.loads(text)
    except ValueError:
        value = {"none": None, "true": True, "false": False}.get(text.lower(), text)
        with suppress(ValueError):
            value = float(value) if value is text else value  # .5
    try:
        return check_value(value, hint, place)
    except UserError:
        if isinstance(value, list) or not any(get_origin(kind) is tuple for kind in kinds):
            raise
        raise UserError(f"{place}={text}: give numbers in brackets, such as [0.2,1.0].") from None


def _values(owner: Any) -> dict[str, Any]:
    hints = get_type_hints(type(owner), include_extras=True)
    return {field.name: hints[field.name] for field in fields(owner) if not is_dataclass(getattr(owner, field.name))}


def _names(owner: Any, before: str = "") -> list[str]:
    """All fields that hold a value, by their full names."""
    found = [before + name for name in _values(owner)]
    for field in fields(owner):
        if is_dataclass(inner := getattr(owner, field.name)):
            found += _names(inner, f"{before}{field.name}.")
    return found


def _nearest(name: str, training: Training) -> str:
    known = _names(training)
    group, _, last = name.rpartition(".")
    near = [other for other in known if other.endswith(f".{name}")]
    near = near or [other for other in known if other.startswith(f"{group}.") and other.endswith(f"_{last}")]
    near = near or difflib.get_close_matches(name, known, 3, 0.5)
    return f"did you mean {' or '.join(near)}?" if near else f"for example {', '.join(known[:8])}."
