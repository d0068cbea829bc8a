"""Arguments of public functions, checked against their annotations before anything is done with them.

`Annotated` types may have a `Range`. Numbers must be finite, texts not empty; NumPy's numbers become Python's.
"""

from __future__ import annotations

import inspect
import math
import os
import reprlib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from difflib import get_close_matches
from functools import cache, wraps
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from vitreous.errors import UserError

P = ParamSpec("P")
R = TypeVar("R")

MAX_TEXT_LETTERS, MAX_NAME_BYTES = 4096, 255  # the longest path of any system, and the longest file name
MAX_INT = 2**63
_SHORT = reprlib.Repr()
_SHORT.maxstring = 80


@dataclass(frozen=True)
class Range:
    """The allowed numbers: greater or equal, less or equal, greater than, less than."""

    ge: float = -math.inf
    le: float = math.inf
    gt: float | None = None  # in place of `ge`: greater than this
    lt: float | None = None  # in place of `le`: less than this

    def __contains__(self, value: float) -> bool:
        greater = value >= self.ge if self.gt is None else value > self.gt
        return greater and (value <= self.le if self.lt is None else value < self.lt)

    def __str__(self) -> str:
        if self.gt is None and self.lt is None and self.le < math.inf:
            return f"from {_number(self.ge)} to {_number(self.le)}"
        found = f"of at least {_number(self.ge)}" if self.gt is None else f"above {_number(self.gt)}"
        if self.lt is not None:
            return f"{found} and below {_number(self.lt)}"
        return found if self.le == math.inf else f"{found} and at most {_number(self.le)}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else f"{value:g}"


@dataclass(frozen=True)
class Expected:
    """What to give, in words, if the type does not say enough."""

    words: str

    def __str__(self) -> str:
        return self.words


@dataclass(frozen=True)
class OneOf:
    """A name that has a row in a table, to which rows can be added: it is read when a value is checked."""

    names: Callable[[], Collection[str]]

    def __contains__(self, value: object) -> bool:
        return value in self.names()

    def __str__(self) -> str:
        return f"one of {', '.join(self.names())}"


Count = Annotated[int, Range(1)]
Fraction = Annotated[float, Range(0, 1)]
PositiveFraction = Annotated[float, Range(gt=0, le=1)]
Rate = Annotated[float, Range(0, lt=1)]
NonNegative = Annotated[float, Range(0)]
Positive = Annotated[float, Range(gt=0)]
Seed = Annotated[int, Range(0, 2**31 - 1)]
Workers = Annotated[int, Range(0)]
SideLength = Count  # in pixels
TokenMerge = Workers
Precision = Literal["fp32", "bf16", "fp16", "int8"]  # of the numbers in the large products
Epochs = Annotated[float, Range(gt=0, le=1e9)]
Budget = Annotated[str, Expected("a time with its unit, such as 90s, 5m or 1h30m")]
WorkSlice = Annotated[str, Expected("a share i/n of the work, from 1/n to n/n, such as 1/8")]

FormatArgument = Callable[[str, object], str]  # a name and a value to "top_k=0", or "--top-k 0" on the command line


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: arguments that the annotations do not allow raise a `UserError`."""
    signature = inspect.signature(function)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        bound = bind(getattr(function, "__name__", "the function"), signature, *args, **kwargs)
        bound.arguments.update(check_values(bound.arguments, _hints(function)))
        return function(*bound.args, **bound.kwargs)

    return call


def bind(called: str, signature: inspect.Signature, *args: Any, **kwargs: Any) -> inspect.BoundArguments:
    """The bound arguments of a call; a missing or unknown one raises a `UserError`."""
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        names = [name for name in signature.parameters if name != "self"]
        for name in kwargs:
            if name not in names:
                near = get_close_matches(name, names, n=1)
                meant = f"did you mean {near[0]}?" if near else f"it takes {', '.join(names)}."
                raise UserError(f"{called}({name}=...): there is no such argument; {meant}") from None
        raise UserError(f"{called}(): {error}; it takes {', '.join(names)}.") from None


def check_values(
    values: Mapping[str, object], hints: Mapping[str, Any], place: FormatArgument | None = None
) -> dict[str, Any]:
    """The values by name, converted to their annotated types; an invalid one raises a `UserError`."""
    return {
        name: check_value(value, hints[name], name, place) if name in hints else value for name, value in values.items()
    }


def check_fields(config: Any) -> None:
    """Check the fields of a frozen dataclass against their annotations; NumPy's numbers become Python's."""
    hints = _hints(config.__class__)
    for field in fields(config):
        value = getattr(config, field.name)
        if (converted := check_value(value, hints[field.name], field.name)) is not value:
            object.__setattr__(config, field.name, converted)


def check_value(value: object, hint: Any, name: str, place: FormatArgument | None = None) -> Any:
    """The value converted to the annotated type; an invalid one raises a `UserError`."""
    try:
        return _convert(value, hint)
    except _InvalidValueError as error:
        name += error.place
        given = f"{name}={shown(error.value)}" if place is None else place(name, error.value)
        raise UserError(f"{given}: {f'{error.reason}; ' * bool(error.reason)}give {wanted(error.hint)}.") from None


@cache
def _hints(owner: Any) -> dict[str, Any]:
    """The annotations of a function's arguments, or of a dataclass's fields."""
    hints = get_type_hints(inspect.unwrap(owner), include_extras=True)
    known = {field.name for field in fields(owner)} if is_dataclass(owner) else hints.keys() - {"return"}
    return {name: hint for name, hint in hints.items() if name in known and get_origin(hint) is not ClassVar}


class _InvalidValueError(Exception):
    """A value that its annotation does not allow. place: its index, if it is an item of the argument."""

    def __init__(self, value: object, hint: Any, reason: str = "", place: str = "", *, near: bool = False) -> None:
        super().__init__(reason)
        self.value, self.hint, self.reason, self.place = value, hint, reason, place
        # whether the type is right and only the value is wrong: the message is then about this member of a union
        self.near = near or bool(reason)


def _convert(value: object, hint: Any) -> Any:
    """The value converted to the hint; an invalid one raises `_InvalidValueError`."""
    origin = get_origin(hint)
    kind = origin or hint
    if hint in (Any, object) or isinstance(hint, TypeVar):
        return value
    if origin is Annotated:
        return _convert_annotated(value, hint)
    if origin in (Union, UnionType):
        return _convert_union(value, hint)
    if hint in (int, float, bool, str):
        return _convert_scalar(value, hint)
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return _convert_items(value, hint, origin)
    if origin is Literal:
        fits = any(type(value) is type(choice) and value == choice for choice in get_args(hint))
    elif isinstance(origin, type) and issubclass(origin, Mapping):
        fits = isinstance(value, Mapping) and all(isinstance(key, str) and key for key in value)
    elif kind is Callable:
        fits = callable(value)
    else:  # protocols are not checked
        fits = getattr(kind, "_is_protocol", False) or isinstance(value, kind)
    if not fits:
        raise _InvalidValueError(value, hint)
    return _path(value, hint) if kind is Path else value


def _convert_annotated(value: object, hint: Any) -> Any:
    kind, *remarks = get_args(hint)
    try:
        converted = _convert(value, kind)
    except _InvalidValueError as error:
        error.hint = error.hint if error.place else hint  # a wrong item is about what items may be
        raise
    if not all(converted in remark for remark in remarks if isinstance(remark, Range | OneOf)):
        raise _InvalidValueError(value, hint, near=True)
    return converted


def _convert_union(value: object, hint: Any) -> Any:
    """Convert by the first member that fits; the error is that of the member that came nearest."""
    near: _InvalidValueError | None = None
    for choice in get_args(hint):
        try:
            converted = _convert(value, choice)
            return _path(converted, hint) if choice is str and Path in get_args(hint) else converted
        except _InvalidValueError as error:
            near = error if error.near else near
    if near is None:
        raise _InvalidValueError(value, hint)
    near.hint, near.near = near.hint if near.place else hint, True  # a wrong whole is about all alternatives
    raise near


def _convert_scalar(value: object, kind: type) -> Any:
    """A number, bool or str; NumPy's scalars become Python's."""
    dtype = getattr(value, "dtype", None)
    if kind is str:
        return _text(value, kind)
    truth = isinstance(value, bool) or getattr(dtype, "kind", "") == "b"
    array = dtype is not None and getattr(value, "shape", None) != ()
    if array or truth != (kind is bool) or not (truth or isinstance(value, Integral if kind is int else Real)):
        raise _InvalidValueError(value, kind)
    if truth:
        return bool(value)
    assert isinstance(value, Real)
    number: int | float = int(value) if isinstance(value, Integral) else float(value)
    if isinstance(number, int) and not -MAX_INT < number < MAX_INT:
        raise _InvalidValueError(number, kind, "too large")
    if not math.isfinite(number):
        raise _InvalidValueError(number, kind, "not a finite number")
    return value if isinstance(value, int | float) else number


def _text(value: object, hint: Any) -> Any:
    if not isinstance(value, str):
        raise _InvalidValueError(value, hint)
    if not value.strip():
        raise _InvalidValueError(value, hint, "empty")
    if len(value) > MAX_TEXT_LETTERS:
        raise _InvalidValueError(value, hint, f"too long ({len(value):,} letters)")
    if "\0" in value:
        raise _InvalidValueError(value, hint, "holds a null character")
    return value


def _path(value: Any, hint: Any) -> Any:
    _text(str(value), hint)
    if any(len(os.fsencode(name)) > MAX_NAME_BYTES for name in str(value).split("/")):
        raise _InvalidValueError(value, hint, "a name of more than 255 bytes, which no file has")
    return value


def _convert_items(value: object, hint: Any, origin: type) -> Any:
    """A list or tuple with each item checked; a tuple if the annotation is one."""
    inner = get_args(hint) or (Any, ...)
    fixed = origin is tuple and inner[-1] is not ...
    if isinstance(value, str | bytes) or not isinstance(value, Sequence) or (fixed and len(inner) != len(value)):
        raise _InvalidValueError(value, hint)
    converted = []
    for number, (item, kind) in enumerate(zip(value, inner if fixed else inner[:1] * len(value), strict=True)):
        try:
            converted.append(_convert(item, kind))
        except _InvalidValueError as error:
            error.place, error.near = f"[{number}]{error.place}", True
            raise
    return tuple(converted) if origin is tuple or isinstance(value, tuple) else converted


def wanted(hint: Any) -> str:
    """What to give, in words: "a whole number of at least 1, or leave it out"."""
    choices = union_members(hint, annotated=True)
    words = list(dict.fromkeys(_describe_hint(choice, choices) for choice in choices if choice is not NoneType))
    listed = f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]
    return f"{listed}, or leave it out" if NoneType in choices else listed


def union_members(hint: Any, *, annotated: bool = False) -> list[Any]:
    """The members of a union, nested ones too. annotated: keep `Annotated` around each."""
    if get_origin(hint) is Annotated and not annotated:
        return union_members(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return [inner for choice in get_args(hint) for inner in union_members(choice, annotated=annotated)]
    return [hint]


def choices_of(hint: Any) -> list[str]:
    """The fixed values that a hint allows beside others: those of a Literal, the names of a table."""
    found: list[str] = []
    for kind in union_members(hint, annotated=True):
        if get_origin(kind) is Literal:
            found += map(str, get_args(kind))
        elif get_origin(kind) is Annotated:
            found += [name for remark in get_args(kind)[1:] if isinstance(remark, OneOf) for name in remark.names()]
    return found


def _describe_hint(hint: Any, beside: Sequence[Any]) -> str:
    origin = get_origin(hint)
    if origin is Annotated:
        kind, *remarks = get_args(hint)
        if words := [str(remark) for remark in remarks if isinstance(remark, Expected | OneOf)]:
            return words[0]
        return " ".join([wanted(kind), *(str(remark) for remark in remarks if isinstance(remark, Range))])
    if origin is Literal:
        choices = [str(choice) for choice in get_args(hint)]
        return f"one of {', '.join(choices)}" if len(choices) > 1 else choices[0]
    if hint is str and Path in beside:
        return "a path"
    if origin is tuple and ... not in get_args(hint):
        return f"{len(get_args(hint))} numbers, such as {(1,) * len(get_args(hint))}"
    if isinstance(origin, type) and issubclass(origin, Sequence):
        item = get_args(hint)[0]
        several = set(union_members(item, annotated=True)) <= set(beside)
        return "a list of them" if several else f"a list, each of it {wanted(item)}"
    kind = origin or hint
    names: dict[Any, str] = {int: "a whole number", float: "a number", bool: "True or False", str: "a text"}
    names |= {Path: "a path", bytes: "the bytes of a file", Callable: "a function"}
    if isinstance(kind, type) and issubclass(kind, Mapping):
        return "a dict of names and values"
    return (
        names.get(kind)
        or f"a {getattr(kind, '__module__', '').partition('.')[0]} {getattr(kind, '__qualname__', kind)}"
    )


def shown(value: object) -> str:
    """A short repr for error messages; the type of a value without one."""
    if isinstance(value, bool | str | float | NoneType | Path):
        return _SHORT.repr(str(value) if isinstance(value, Path) else value)
    if isinstance(value, int):
        # beyond 4,300 digits Python refuses to write a number, and beyond 20 nobody reads it
        digits = math.floor(abs(value).bit_length() * math.log10(2))
        return repr(value) if abs(value) < 10**20 else f"{'-' * (value < 0)}10**{digits}"
    with suppress(ValueError):  # a number in it that Python refuses to write
        if isinstance(value, list | tuple | dict):
            return _SHORT.repr(value)
    return f"<{type(value).__module__}.{type(value).__qualname__}>".replace("builtins.", "")
