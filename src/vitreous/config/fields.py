"""A configuration from what JSON keeps of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, get_args, get_type_hints

from vitreous.errors import UserError

T = TypeVar("T")


def from_fields(kind: type[T], values: Mapping[str, Any], where: object) -> T:
    """The dataclass `kind` with these fields, as JSON keeps them; `where` is the file they are from.

    JSON has lists for tuples, and for a field that is a dataclass itself its fields; where it may be one of several,
    it is the one that has them.
    """
    known = {item.name for item in fields(kind)}  # type: ignore[arg-type]
    if unknown := sorted(set(values) - known):
        raise UserError(f"{where}: {unknown[0]!r} is unknown to this vitreous; install a newer one.")
    hints = get_type_hints(kind)
    try:
        return kind(**{name: _value(hints[name], value, where) for name, value in values.items()})
    except UserError as error:
        raise error if str(error).startswith(str(where)) else UserError(f"{where}: {error}") from None
    except TypeError as error:
        raise UserError(f"{where}: {error}; use the version that wrote it.") from None


def _value(hint: Any, value: Any, where: object) -> Any:
    if isinstance(value, Mapping):
        kinds = [kind for kind in (hint, *get_args(hint)) if isinstance(kind, type) and is_dataclass(kind)]
        having = [kind for kind in kinds if set(value) <= {item.name for item in fields(kind)}]  # one of several
        if kinds:
            return from_fields((having or kinds)[0], value, where)
    return _tuples(value)


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
