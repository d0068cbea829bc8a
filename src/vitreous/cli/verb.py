"""A verb: a frozen dataclass of options, from which the command and the Python function are made."""

from __future__ import annotations

import ast
import inspect
import re
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from functools import cache, partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import NoneType
from typing import Any, ClassVar, Generic, ParamSpec, TypeVar, get_origin, get_type_hints

from vitreous.arguments import bind, check_values, choices_of, union_members
from vitreous.callbacks import Callbacks, Progress
from vitreous.data.formats import format_titles
from vitreous.interrupt import received_signal

P = ParamSpec("P")
R = TypeVar("R")

PYTHON_ONLY_TYPES = {
    "Bundle": "vitreous.weights.bundle",
    "Data": "vitreous.data.source",
    "ImageInput": "vitreous.data.view",
    "Preprocess": "vitreous.config.data",
}
"""Types that only Python callers can give: imported to check a function's arguments, never for a command."""


@dataclass(frozen=True, kw_only=True)
class Verb(ABC, Generic[R]):
    """Base class of all verbs. R: what it returns in Python."""

    callbacks: Callbacks | None = None
    """Functions for messages and progress; None shows them on a terminal and in a notebook."""

    distributed: ClassVar[bool] = False  # whether it runs in several processes of torchrun
    resumes: ClassVar[bool] = False  # whether the same command resumes
    streams: ClassVar[bool] = False  # whether the result is an iterator, shown while it is computed
    json_help: ClassVar[str] = "Print one JSON object."  # what --json does; empty for a verb without it

    @abstractmethod
    def run(self) -> R: ...

    @abstractmethod
    def show(self, result: R) -> None:
        """Print the result for a person."""

    def to_json(self, result: R) -> Any:
        """The result for --json; if the verb streams, an iterator with one object per line."""
        return {"path": str(result)} if isinstance(result, Path) else result.to_json()  # type: ignore[attr-defined]

    def status(self, result: R) -> int:
        """The exit status of the command: 0, or 128 + the signal that stopped a training."""
        return 0 if getattr(result, "finished", True) else 128 + (received_signal() or signal.SIGINT)

    @property
    def active_callbacks(self) -> Callbacks:
        """The callbacks, or ones that do nothing."""
        return self.callbacks or Callbacks()

    def progress(self, what: str) -> Progress:
        return partial(self.active_callbacks.progress, what)


@dataclass(frozen=True)
class Argument:
    """One field of a verb: an argument in Python, and if it has a help, of the command too."""

    field: str
    hint: Any  # the annotation
    default: Any  # `MISSING` where it must be given
    metavar: str = ""  # "COUNT", "N,N,..." for a list, "IMAGE ..." for one or more words
    help: str = ""  # empty for an argument of Python only
    positional: bool = False

    @property
    def name(self) -> str:
        """ "--image-size", or "MODEL" for a positional one."""
        return self.metavar.removesuffix(" ...") if self.positional else f"--{self.field.replace('_', '-')}"

    @property
    def required(self) -> bool:
        return self.default is MISSING

    @property
    def flag(self) -> bool:
        """Whether it takes no value."""
        return union_members(self.hint) == [bool]

    @property
    def overrides(self) -> bool:
        """Whether it is NAME=VALUE, given any number of times."""
        return any(_is(kind, Mapping) for kind in union_members(self.hint))

    @property
    def listed(self) -> bool:
        """Whether it is a list written with commas."""
        return "," in self.metavar and any(_is(kind, Sequence) for kind in union_members(self.hint))

    @property
    def repeats(self) -> bool:
        """Whether it takes several words."""
        return self.overrides or self.metavar.endswith(" ...")


def arguments_of(verb: type[Verb[Any]], *, in_command: bool = False) -> dict[str, Argument]:
    """The arguments of a verb: positional ones, its own, then those of its bases. in_command: types that only Python
    callers can give are `str`."""
    names = {
        name: str if in_command else getattr(import_module(room), name) for name, room in PYTHON_ONLY_TYPES.items()
    }
    hints = get_type_hints(verb, localns=names, include_extras=True)
    known = {field.name: field for field in fields(verb)}
    own, *groups = verb.__mro__
    docs = {name: text for owner in reversed(verb.__mro__) for name, text in _field_docs(owner).items()}
    order = [name for name, field in known.items() if not field.kw_only]
    order += [name for owner in (own, *reversed(groups)) for name in vars(owner).get("__annotations__", ())]
    found = {}
    for name in (name for name in dict.fromkeys(order) if name in known):
        field = known[name]
        default = field.default if field.default_factory is MISSING else field.default_factory()
        metavar, text = _option(docs.get(name, "").replace("{formats}", format_titles()), hints[name])
        found[name] = Argument(name, hints[name], default, metavar, text, positional=not field.kw_only)
    return found


def _option(text: str, hint: Any) -> tuple[str, str]:
    """Metavar and help of a docstring "METAVAR: help"; flags and choices need no METAVAR. Both are empty for an
    argument of Python only."""
    if found := re.fullmatch(r"(?s)(\S*[A-Z|]\S*(?: \.\.\.)?): (.+)", text):
        return found[1], found[2]
    kinds = [kind for kind in union_members(hint) if kind is not NoneType]
    choices = choices_of(hint)
    return ("|".join(choices), text) if choices or kinds == [bool] else ("", "")


def _is(kind: Any, what: type) -> bool:
    origin = get_origin(kind)
    return isinstance(origin, type) and issubclass(origin, what)


def _field_docs(owner: type) -> dict[str, str]:
    """The docstrings below the fields of a class, each as one line."""
    file = getattr(sys.modules.get(owner.__module__), "__file__", None)
    return _docs_in(file).get(owner.__name__, {}) if file and file.endswith(".py") else {}


@cache
def _docs_in(file: str) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for node in ast.parse(Path(file).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            for field, below in pairwise(node.body):
                match field, below:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                        found.setdefault(node.name, {})[name] = " ".join(text.split())
    return found


def verb(options: Callable[P, Verb[R]], name: str | None = None) -> Callable[P, R]:
    """The Python function of a verb: its arguments are the fields, checked; it returns what `run` does. name: if it is
    not that of the class."""
    kind: Any = options
    name = name or re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()
    signature = inspect.signature(kind)

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        given = bind(name, signature, *args, **kwargs).arguments
        hints = {field: argument.hint for field, argument in arguments_of(kind).items()}
        made: Verb[R] = kind(**check_values(given, hints))
        if made.callbacks is not None or not ("ipykernel" in sys.modules or sys.stderr.isatty()):
            return made.run()
        from vitreous.cli.terminal import shown_progress

        with shown_progress() as callbacks:
            return replace(made, callbacks=callbacks).run()

    call.__name__ = call.__qualname__ = name
    call.__module__ = kind.__module__
    helps = [f"{field}: {argument.help}" for field, argument in arguments_of(kind, in_command=True).items()]
    call.__doc__ = "\n".join([inspect.cleandoc(kind.__doc__ or ""), "", *(one for one in helps if one[-2:] != ": ")])
    call.__signature__ = signature  # type: ignore[attr-defined]
    return call
