"""Single fields of a training set by name, as `--set optimizer.rate=1e-4` does."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from vitreous.config.pretrain import Dino, Mae
from vitreous.config.train import Training
from vitreous.errors import UserError

ELSEWHERE = {
    "epochs": "--epochs or --budget",
    "seed": "--seed",
    "preprocess": "--preprocess and --image-size",
    "preprocess.size": "--image-size",
    "preprocess.mean": "--preprocess",
    "preprocess.std": "--preprocess",
    "preprocess.interpolation": "--preprocess",
    "preprocess.resize": "--preprocess",
    "model.image_size": "--image-size",
    "model.patch": "--model",
    "model.classes": "the data, which say how many there are",
    "model.channels": "the data, which say how many there are",
}
"""Fields that have a place of their own."""
Settings = TypeVar("Settings", bound=Training | Mae | Dino)
FREE = frozenset({"drop_path", "dropout", "patch_dropout"})
"""Fields of a model that given weights say nothing about."""


def parse_changes(texts: Iterable[str]) -> dict[str, str]:
    """{"freeze": "6"} of ["freeze=6"]."""
    changes = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise UserError(f"--set {text!r}: write NAME=VALUE, for example optimizer.rate=1e-4.")
        changes[name.strip()] = value.strip()
    return changes


def change(training: Settings, changes: Mapping[str, str], *, weights: bool = False) -> Settings:
    """The training, or a method of pre-training, with these fields changed, checked as a whole.

    weights: the model comes from given weights.
    """
    parts: dict[str, dict[str, Any]] = {}
    for name, text in changes.items():
        part, _, rest = name.rpartition(".")
        if name in ELSEWHERE:
            raise UserError(f"--set {name}: belongs to {ELSEWHERE[name]}.")
        owner = getattr(training, part, None) if part else training
        if not is_dataclass(owner) or isinstance(owner, type) or rest not in _values(owner):
            raise UserError(f"--set {name}: there is no such field; {_nearest(name, training)}")
        if part == "model" and weights and rest not in FREE:
            raise UserError(f"--set {name}: the weights say what the model is; it cannot be changed.")
        parts.setdefault(part, {})[rest] = read_value(f"--set {name}", text, _values(owner)[rest])
    try:
        own = parts.pop("", {})
        return replace(
            training, **own, **{part: replace(getattr(training, part), **new) for part, new in parts.items()}
        )
    except UserError as error:
        raise UserError(f"--set {' '.join(f'{name}={text}' for name, text in changes.items())}: {error}") from None


def read_value(place: str, text: str, hint: Any) -> Any:
    """A value of the hinted type, written as a person writes it."""
    choices = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if type(None) in choices and text.lower() in ("none", "null"):
        return None
    for kind in choices:
        if get_origin(kind) is Literal and text in get_args(kind):
            return text
        if kind is bool and text.lower() in ("true", "false"):
            return text.lower() == "true"
        try:
            if kind is int or kind is float:
                return kind(text)
            if get_origin(kind) is tuple:
                return _shaped(json.loads(text), kind)
        except ValueError:
            continue
    raise UserError(f"{place}={text}: {_wanted(choices)}.")


def _shaped(value: Any, hint: Any) -> Any:
    """A JSON value as the nested tuples of numbers that the hint describes."""
    if get_origin(hint) is not tuple:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(value)
        return hint(value)
    inner = get_args(hint)
    if not isinstance(value, list) or (inner[-1] is not ... and len(inner) != len(value)):
        raise ValueError(value)
    each = inner[:1] * len(value) if inner[-1] is ... else inner
    return tuple(_shaped(item, kind) for item, kind in zip(value, each, strict=True))


def _wanted(choices: tuple[Any, ...]) -> str:
    words = {bool: "true or false", int: "a whole number", float: "a number", type(None): "none"}
    found = []
    for kind in choices:
        if get_origin(kind) is Literal:
            found += [str(value) for value in get_args(kind)]
        else:
            found.append(words.get(kind, "numbers in brackets, such as [0.2,1.0]"))
    return f"write {' or '.join(found)}"


def _values(owner: Any) -> dict[str, Any]:
    """The types of the fields that hold a value, not a part with fields of its own."""
    hints = {field.name: get_type_hints(type(owner))[field.name] for field in fields(owner)}
    return {name: hint for name, hint in hints.items() if not is_dataclass(hint)}


def _nearest(name: str, training: Training | Mae | Dino) -> str:
    known = list(_values(training))
    for field in fields(training):
        if is_dataclass(part := getattr(training, field.name)):
            known += [f"{field.name}.{inner}" for inner in _values(part)]
    near = [other for other in known if other.endswith(f".{name}")] or difflib.get_close_matches(name, known, 3, 0.5)
    return f"did you mean {' or '.join(near)}?" if near else f"for example {', '.join(known[:8])}."
