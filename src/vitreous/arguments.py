"""What a person gives to a function, checked against the function's own annotations: one mechanism, one way to say it.

Whatever a person may call is `checked`: an argument that its annotation does not allow is refused by name, before
anything is done with it. Beside plain types an annotation may say a `Range`. Numbers are finite, texts are not empty,
and a number of NumPy's is as good as Python's own.
"""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from functools import cache, wraps
from numbers import Integral, Real
from pathlib import Path
from types import UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    ParamSpec,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from vitreous.errors import UserError
from vitreous.wording import Range, Wanted, shown, wanted

P = ParamSpec("P")
R = TypeVar("R")

LONGEST = 4096
"""Letters of a text; no path that a system takes is longer."""
LONGEST_NAME = 255
"""Bytes of a file's name, between two slashes."""
HUGE = 2**63


Count = Annotated[int, Range(1)]
Seed = Annotated[int, Range(0, 2**31 - 1)]
Workers = Annotated[int, Range(0)]
Pixels = Annotated[int, Range(1)]
Merge = Annotated[int, Range(0)]
Epochs = Annotated[float, Range(above=0, most=1e9)]
Budget = Annotated[str, Wanted("a time with its unit, such as 90s, 5m or 1h30m")]
Part = Annotated[str, Wanted("a share i/n of the work, from 1/n to n/n, such as 1/8")]

NamedValue = Callable[[str, object], str]
"""How a sentence writes an argument, from its name and value: "top=0", or "--top 0" on the command line."""


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """The function, which then refuses arguments that its annotations do not allow, each in one sentence."""
    signature = inspect.signature(function)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise not_bound(getattr(function, "__name__", "the function"), signature, kwargs, error) from None
        bound.arguments.update(check_values(bound.arguments, _hints(function)))
        return function(*bound.args, **bound.kwargs)

    return call


def check_values(
    values: Mapping[str, object], hints: Mapping[str, Any], place: NamedValue | None = None
) -> dict[str, Any]:
    """The values by name, as their annotations have them; one that its annotation does not allow is refused."""
    return {
        name: check_value(value, hints[name], name, place) if name in hints else value for name, value in values.items()
    }


def check_fields(config: Any) -> None:
    """Refuse a frozen dataclass whose fields are not what their annotations say; numbers of NumPy's become Python's."""
    hints = _hints(cast(Hashable, type(config)))
    for field in fields(config):
        value = getattr(config, field.name)
        if (taken := check_value(value, hints[field.name], field.name)) is not value:
            object.__setattr__(config, field.name, taken)


def check_value(value: object, hint: Any, name: str, place: NamedValue | None = None) -> Any:
    """The value as the annotation has it, or one sentence that names it and says what to give."""
    try:
        return _take(value, hint)
    except _UnfitError as error:
        reason = f"{error.reason}; " if error.reason else ""
        given = (place or in_python)(f"{name}{error.place}", error.value)
        raise UserError(f"{given}: {reason}give {wanted(error.hint)}.") from None


def in_python(name: str, value: object) -> str:
    """An argument as a notebook has it."""
    return f"{name}={shown(value)}"


class _UnfitError(Exception):
    """A value that an annotation does not allow, with the annotation and, where it lies inside another, its place."""

    def __init__(self, value: object, hint: Any, reason: str = "", place: str = "", *, near: bool = False) -> None:
        super().__init__(reason)
        self.value, self.hint, self.reason, self.place = value, hint, reason, place
        self.near = near or bool(reason)
        """Of the right type, though not of the right value: of several alternatives this one was meant."""


def _take(value: object, hint: Any) -> Any:
    """The value as the hint has it; raises `_UnfitError`."""
    origin = get_origin(hint)
    if hint in (Any, object) or isinstance(hint, TypeVar):
        return value
    if origin is Annotated:
        return _take_annotated(value, hint)
    if origin in (Union, UnionType):
        return _take_any(value, hint)
    if origin is Literal:
        if any(type(value) is type(choice) and value == choice for choice in get_args(hint)):
            return value
        raise _UnfitError(value, hint)
    if hint in (int, float, bool, str):
        return _take_plain(value, hint)
    if origin is tuple or (isinstance(origin, type) and issubclass(origin, Sequence)):
        return _take_items(value, hint, origin)
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        return _take_mapping(value, hint)
    if origin is Callable or hint is Callable:
        if not callable(value):
            raise _UnfitError(value, hint)
        return value
    kind = origin or hint
    if getattr(kind, "_is_protocol", False):  # whether a value keeps to it shows when it is used
        return value
    if not isinstance(value, kind):
        raise _UnfitError(value, hint)
    return _path(value, hint) if kind is Path else value


def _take_annotated(value: object, hint: Any) -> Any:
    kind, *remarks = get_args(hint)
    try:
        taken = _take(value, kind)
    except _UnfitError as error:
        inner = error.hint if error.place else hint  # a wrong item is about what items may be
        raise _UnfitError(error.value, inner, error.reason, error.place, near=error.near) from None
    for remark in remarks:
        if isinstance(remark, Range) and taken not in remark:
            raise _UnfitError(value, hint, near=True)
    return taken


def _take_any(value: object, hint: Any) -> Any:
    """The first alternative that fits; else what is wrong by the one that came nearest."""
    near: _UnfitError | None = None
    for choice in get_args(hint):
        try:
            return (
                _path(_take(value, choice), hint) if choice is str and Path in get_args(hint) else _take(value, choice)
            )
        except _UnfitError as error:
            near = error if error.near else near
    if near is None:
        raise _UnfitError(value, hint)
    whole = not near.place  # a wrong item is about what items may be; a wrong whole about all alternatives
    raise _UnfitError(near.value, hint if whole else near.hint, near.reason, near.place, near=True)


def _take_plain(value: object, kind: type) -> Any:
    """A number, truth value or text; NumPy's own become Python's."""
    dtype = getattr(value, "dtype", None)
    if dtype is not None and getattr(value, "shape", None) != ():
        raise _UnfitError(value, kind)
    if kind is str:
        return _text(value, kind)
    truth = isinstance(value, bool) or getattr(dtype, "kind", "") == "b"
    if kind is bool:
        if not truth:
            raise _UnfitError(value, kind)
        return bool(value)
    if truth or not isinstance(value, Real) or (kind is int and not isinstance(value, Integral)):
        raise _UnfitError(value, kind)
    number: int | float = int(value) if isinstance(value, Integral) else float(value)
    if isinstance(number, int):
        if not -HUGE < number < HUGE:
            raise _UnfitError(number, kind, "too large")
    elif not math.isfinite(number):
        raise _UnfitError(number, kind, "not a finite number")
    return value if isinstance(value, int | float) else number


def _text(value: object, hint: Any) -> Any:
    if not isinstance(value, str):
        raise _UnfitError(value, hint)
    if not value.strip():
        raise _UnfitError(value, hint, "empty")
    if len(value) > LONGEST:
        raise _UnfitError(value, hint, f"too long ({len(value):,} letters)")
    if "\0" in value:
        raise _UnfitError(value, hint, "holds a null character")
    return value


def _path(value: Any, hint: Any) -> Any:
    _text(str(value), hint)
    if any(len(os.fsencode(name)) > LONGEST_NAME for name in str(value).split("/")):
        raise _UnfitError(value, hint, "a name of more than 255 bytes, which no file has")
    return value


def _take_items(value: object, hint: Any, origin: type) -> Any:
    """A list or tuple, each item checked; a tuple where the annotation has one."""
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise _UnfitError(value, hint)
    inner = get_args(hint) or (Any, ...)
    if origin is tuple and inner[-1] is not ... and len(inner) != len(value):
        raise _UnfitError(value, hint)
    each = (inner[0],) * len(value) if origin is not tuple or inner[-1] is ... else inner
    taken = []
    for number, (item, kind) in enumerate(zip(value, each, strict=True)):
        try:
            taken.append(_take(item, kind))
        except _UnfitError as error:
            raise _UnfitError(error.value, error.hint, error.reason, f"[{number}]{error.place}", near=True) from None
    same = all(item is kept for item, kept in zip(value, taken, strict=True))
    if origin is tuple:
        return value if isinstance(value, tuple) and same else tuple(taken)
    return value if same else taken


def _take_mapping(value: object, hint: Any) -> Any:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) and key for key in value):
        raise _UnfitError(value, hint)
    return value


@cache
def _hints(owner: Hashable) -> dict[str, Any]:
    """The annotations of a function's arguments, or of a dataclass's fields; found when first needed."""
    found: Any = owner
    hints = get_type_hints(inspect.unwrap(found), include_extras=True)
    known = {field.name for field in fields(found)} if is_dataclass(found) else hints.keys() - {"return"}
    return {name: hint for name, hint in hints.items() if name in known and get_origin(hint) is not ClassVar}


def not_bound(called: str, signature: inspect.Signature, given: Mapping[str, object], error: TypeError) -> UserError:
    """The sentence about an argument that is missing, or that the function does not have."""
    names = [name for name in signature.parameters if name != "self"]
    for name in given:
        if name not in names:
            near = get_close_matches(name, names, n=1)
            meant = f"did you mean {near[0]}?" if near else f"it takes {', '.join(names)}."
            return UserError(f"{called}({name}=...): there is no such argument; {meant}")
    return UserError(f"{called}(): {error}; it takes {', '.join(names)}.")
