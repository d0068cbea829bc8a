"""A configuration from what JSON keeps of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from vitreous.errors import UserError

T = TypeVar("T")


def from_fields(kind: type[T], values: Mapping[str, Any], where: object) -> T:
    """The dataclass `kind` with these fields, in which JSON has lists for tuples; `where` is the file they are from."""
    known = {item.name for item in fields(kind)}  # type: ignore[arg-type]
    if unknown := sorted(set(values) - known):
        raise UserError(f"{where}: {unknown[0]!r} is unknown to this vitreous; install a newer one.")
    try:
        return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    except TypeError as error:
        raise UserError(f"{where}: {error}; save the bundle with vitreous.") from None
