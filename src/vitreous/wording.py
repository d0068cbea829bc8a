"""Values, and what an annotation allows, in words for a sentence."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

_SHORT = reprlib.Repr()
_SHORT.maxstring = 80
"""How a value is written in a sentence."""


@dataclass(frozen=True)
class Range:
    """Which numbers an argument may be."""

    least: float = -math.inf
    most: float = math.inf
    above: float | None = None
    """In place of `least`: greater than this."""

    def __contains__(self, value: float) -> bool:
        return self.least <= value <= self.most and (self.above is None or value > self.above)

    def __str__(self) -> str:
        if self.above is not None:
            most = "" if self.most == math.inf else f" and at most {_number(self.most)}"
            return f"above {_number(self.above)}{most}"
        if self.most == math.inf:
            return f"of at least {_number(self.least)}"
        return f"from {_number(self.least)} to {_number(self.most)}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else f"{value:g}"


@dataclass(frozen=True)
class Wanted:
    """What to give, in words, where the type says too little."""

    words: str


def wanted(hint: Any) -> str:
    """What to give, in words: "a whole number of at least 1, or leave it out"."""
    choices = _choices(hint)
    words = list(dict.fromkeys(_word(choice, choices) for choice in choices if choice is not NoneType))
    return f"{_listed(words)}, or leave it out" if NoneType in choices else _listed(words)


def _listed(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]


def _choices(hint: Any) -> list[Any]:
    """The alternatives of a hint, those within alternatives too."""
    if get_origin(hint) in (Union, UnionType):
        return [inner for choice in get_args(hint) for inner in _choices(choice)]
    return [hint]


def _word(hint: Any, beside: Sequence[Any]) -> str:
    origin = get_origin(hint)
    if origin is Annotated:
        kind, *remarks = get_args(hint)
        if said := [remark.words for remark in remarks if isinstance(remark, Wanted)]:
            return said[0]
        ranges = [str(remark) for remark in remarks if isinstance(remark, Range)]
        return " ".join([wanted(kind), *ranges])
    if origin is Literal:
        choices = [str(choice) for choice in get_args(hint)]
        return f"one of {', '.join(choices)}" if len(choices) > 1 else choices[0]
    if hint is str and Path in beside:
        return "a path"
    if origin is tuple and ... not in get_args(hint):
        return f"{len(get_args(hint))} numbers, such as {(1,) * len(get_args(hint))}"
    if origin is not None and isinstance(origin, type) and issubclass(origin, Sequence):
        items = wanted(get_args(hint)[0])
        return "a list of them" if set(_choices(get_args(hint)[0])) <= set(beside) else f"a list, each of it {items}"
    words: dict[Any, str] = {int: "a whole number", float: "a number", bool: "True or False", str: "a text"}
    words |= {Path: "a path", bytes: "the bytes of a file", Callable: "a function"}
    kind = origin or hint
    if kind in words:
        return words[kind]
    if isinstance(kind, type) and issubclass(kind, Mapping):
        return "a dict of names and values"
    return f"a {getattr(kind, '__module__', '').partition('.')[0]} {getattr(kind, '__qualname__', kind)}"


def shown(value: object) -> str:
    """A value in a sentence, cut short; of what has no short text, its type."""
    if isinstance(value, bool | str | float | NoneType | Path):
        return _SHORT.repr(str(value) if isinstance(value, Path) else value)
    if isinstance(value, int):
        # beyond 4,300 digits Python refuses to write a number, and beyond 20 nobody reads it
        return repr(value) if abs(value) < 10**20 else f"{'-' * (value < 0)}10**{math.floor(_digits(value))}"
    if isinstance(value, list | tuple | dict):
        try:
            return _SHORT.repr(value)
        except ValueError:  # a number in it that Python refuses to write
            pass
    return f"<{type(value).__module__}.{type(value).__qualname__}>".replace("builtins.", "")


def _digits(value: int) -> float:
    return abs(value).bit_length() * math.log10(2)
