"""Configurations checked against the types that they declare: what JSON keeps of them, and what Python code gives."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from vitreous.errors import UserError

T = TypeVar("T")

LARGEST = 2**63 - 1
"""The largest whole number that tensors know; whatever is larger is a mistake or an attack."""
_SHOWN = 60
"""So many characters of a wrong value are shown."""


def from_fields(kind: type[T], values: Any, where: object) -> T:
    """The dataclass `kind` with these fields, as JSON keeps them; `where` is the file they are from.

    JSON has lists for tuples, and for a field that is a dataclass itself its fields. A value of another type than its
    field's, or a field that is unknown or missing, is a `UserError` that names it.
    """
    if not isinstance(values, Mapping):
        raise UserError(f"{where}: {shown(values)} where the fields of {kind.__name__} belong; restore the file.")
    known = {item.name: item for item in fields(kind)}  # type: ignore[arg-type]
    if unknown := sorted(str(name) for name in values if name not in known):
        raise UserError(f"{where}: {shown(unknown[0])} is unknown to this vitreous; install a newer one.")
    needed = [name for name, item in known.items() if item.default is MISSING and item.default_factory is MISSING]
    if missing := [name for name in needed if name not in values]:
        raise UserError(f"{where}: {missing[0]!r} is missing; use the version that wrote it.")
    hints = get_type_hints(kind)
    try:
        return kind(**{name: typed(hints[name], value, name) for name, value in values.items()})
    except UserError as error:
        raise error if str(error).startswith(str(where)) else UserError(f"{where}: {error}") from None


def check_types(config: Any) -> None:
    """Refuse a configuration with a value that is not of the type that its field declares."""
    hints = get_type_hints(type(config))
    for item in fields(config):
        typed(hints[item.name], getattr(config, item.name), item.name)


def typed(hint: Any, value: Any, name: str) -> Any:
    """The value as the hinted type, lists as tuples; a `UserError` that names the field if it is of another type."""
    origin, choices = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        plain = [choice for choice in choices if choice is not type(None)]
        if value is None and len(plain) < len(choices):
            return None
        fitting = [choice for choice in plain if _is_kind(value, choice)] or plain
        return typed(fitting[0], value, name)
    if not _is_kind(value, hint):
        raise UserError(f"{name}={shown(value)}: {_wanted(hint)}.")
    if origin is tuple:
        if choices[-1] is not ... and len(choices) != len(value):
            raise UserError(f"{name}={shown(value)}: {_wanted(hint)}.")
        kinds = choices[:1] * len(value) if choices[-1] is ... else choices
        return tuple(typed(kind, item, name) for kind, item in zip(kinds, value, strict=True))
    if isinstance(hint, type) and is_dataclass(hint) and isinstance(value, Mapping):
        return from_fields(hint, value, name)
    return value


def shown(value: object) -> str:
    """A value in a message, cut short where it is long."""
    try:
        text = repr(value[:_SHOWN] if isinstance(value, str | bytes | list | tuple) else value)
    except (ValueError, RecursionError):  # a number of thousands of digits, a list without end
        text = f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _is_kind(value: Any, hint: Any) -> bool:
    """Whether a value is of a type, as far as can be seen without looking into it. JSON writes 1.0 as 1."""
    if get_origin(hint) is Literal:
        return any(type(value) is type(choice) and value == choice for choice in get_args(hint))
    if get_origin(hint) is tuple:
        return isinstance(value, list | tuple)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST
    if hint is float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and abs(value) <= LARGEST and math.isfinite(value)
    if isinstance(hint, type) and is_dataclass(hint):
        return isinstance(value, hint | Mapping)
    kind = get_origin(hint) or hint
    return not isinstance(kind, type) or isinstance(value, kind)


def _wanted(hint: Any) -> str:
    """What a value of this type looks like."""
    if get_origin(hint) is Literal:
        return f"choose one of {', '.join(map(str, get_args(hint)))}"
    if get_origin(hint) is tuple:
        inner = get_args(hint)
        return "must be a list" if inner[-1] is ... else f"must be a list of {len(inner)}"
    words: dict[Any, str] = {bool: "true or false", int: "a whole number", float: "a finite number", str: "a text"}
    return f"must be {words.get(hint, 'an object with fields')}"
