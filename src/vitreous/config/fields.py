"""A configuration from what JSON keeps of it, checked against the types that it declares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from vitreous.arguments import check_value, shown
from vitreous.errors import UserError

T = TypeVar("T")


def from_fields(kind: type[T], values: Any, where: object) -> T:
    """The dataclass `kind` with these fields, as JSON keeps them; `where` is the file they are from.

    JSON has lists for tuples, of dataclasses too, and for a dataclass its fields; where it may be one of several,
    it is the one that has them. A value of another type than its field's, or a field that is unknown or missing, is a
    `UserError` that names it.
    """
    if not isinstance(values, Mapping):
        raise UserError(f"{where}: {shown(values)} where the fields of {kind.__name__} belong; restore the file.")
    known = {item.name: item for item in fields(kind)}  # type: ignore[arg-type]
    if unknown := sorted(str(name) for name in values if name not in known):
        raise UserError(f"{where}: {shown(unknown[0])} is unknown to this vitreous; install a newer one.")
    needed = [name for name, item in known.items() if item.default is MISSING and item.default_factory is MISSING]
    if missing := [name for name in needed if name not in values]:
        raise UserError(f"{where}: {missing[0]!r} is missing; use the version that wrote it.")
    hints = get_type_hints(kind, include_extras=True)
    try:
        return kind(**{name: _value(hints[name], value, name) for name, value in values.items()})
    except UserError as error:
        raise error if str(error).startswith(str(where)) else UserError(f"{where}: {error}") from None


def _value(hint: Any, value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        kinds = [kind for kind in (hint, *get_args(hint)) if isinstance(kind, type) and is_dataclass(kind)]
        having = [kind for kind in kinds if set(value) <= {item.name for item in fields(kind)}]  # one of several
        if kinds:
            return from_fields((having or kinds)[0], value, name)
    if isinstance(value, list) and get_origin(hint) is tuple and is_dataclass(kind := get_args(hint)[0]):
        return tuple(from_fields(kind, item, name) for item in value)  # type: ignore[arg-type]
    return check_value(value, hint, name)
