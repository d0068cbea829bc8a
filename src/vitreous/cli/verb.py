"""A verb: its options are the fields of a frozen dataclass; the command and the Python function are made from it."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, replace
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Generic,
    Literal,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from vitreous.allocator import keep_memory
from vitreous.arguments import NamedValue, check_values, in_python, not_bound
from vitreous.callbacks import Callbacks
from vitreous.config.options import Option

P = ParamSpec("P")
R = TypeVar("R")

HEAVY = {
    "Bundle": "vitreous.weights.bundle",
    "Data": "vitreous.data.source",
    "ImageInput": "vitreous.data.view",
    "Preprocess": "vitreous.config.data",
}
"""Types of fields that only Python can give: imported when a function checks its arguments, never for a command."""


@dataclass(frozen=True, kw_only=True)
class Verb(ABC, Generic[R]):
    """What every verb can do. R: what it returns in Python."""

    callbacks: Callbacks | None = None
    """Functions that are told what happens; None shows it on a terminal and in a notebook."""

    distributed: ClassVar[bool] = False
    """Whether several processes of torchrun may do it together."""
    resumes: ClassVar[bool] = False
    """Whether the same command goes on after an interruption."""
    streams: ClassVar[bool] = False
    """Whether the result is an iterator, shown while it is computed."""
    json_help: ClassVar[str] = "Print one JSON object."
    """What --json does; empty for a verb without it."""

    @abstractmethod
    def run(self) -> R:
        """Do it."""

    @abstractmethod
    def show(self, result: R) -> None:
        """Print the result for a person."""

    def to_json(self, result: R) -> Any:
        """The result as --json prints it; of a verb that streams, an iterator of one object per line."""
        return result.to_json()  # type: ignore[attr-defined]

    def status(self, result: R) -> int:
        """The exit status of the command."""
        return 0

    @property
    def told(self) -> Callbacks:
        """The callbacks; of a verb without any, ones that do nothing."""
        return self.callbacks or Callbacks()


@dataclass(frozen=True)
class Field:
    """One field of a verb."""

    name: str
    hint: Any
    default: Any
    """`MISSING` where it must be given."""
    option: Option | None


def fields_of(verb: type[Verb[Any]], *, in_command: bool = False) -> list[Field]:
    """The fields of a verb: what it is given by position, its own, then those of the groups that it shares.

    in_command: types that only Python can give are `str`, as all words of a command are.
    """
    names = {name: str if in_command else getattr(import_module(room), name) for name, room in HEAVY.items()}
    hints = get_type_hints(verb, localns=names, include_extras=True)
    known = {field.name: field for field in fields(verb)}
    own, *groups = verb.__mro__
    order = [name for owner in (own, *reversed(groups)) for name in vars(owner).get("__annotations__", ())]
    docs = {name: text for owner in reversed(verb.__mro__) for name, text in _field_docs(owner).items()}
    found = []
    for name in (name for name in dict.fromkeys(order) if name in known):
        hint, option = hints[name], None
        if get_origin(hint) is Annotated:
            option = next((one for one in get_args(hint)[1:] if isinstance(one, Option)), None)
        field = known[name]
        if option is None and (text := docs.get(name)):
            option = _option(text, hint, positional=not field.kw_only)
        default = field.default if field.default_factory is MISSING else field.default_factory()
        found.append(Field(name, hint, default, option))
    return sorted(found, key=lambda one: not (one.option is not None and one.option.positional))


def _option(text: str, hint: Any, positional: bool) -> Option | None:
    """What the docstring of a field says of it: "METAVAR: help", without a METAVAR for a flag and for fixed choices.

    None where no word of a command can be such a value.
    """
    kinds = [kind for kind in _kinds(hint) if kind is not NoneType]
    choices = [str(choice) for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
    found = re.fullmatch(r"(?s)(\S*[A-Z|]\S*(?: \.\.\.)?): (.+)", text)
    if found is None and not choices and kinds != [bool]:
        return None
    return Option(found[1] if found else "|".join(choices), found[2] if found else text, positional)


def _kinds(hint: Any) -> list[Any]:
    """The alternatives of a type."""
    if get_origin(hint) is Annotated:
        return _kinds(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return [kind for choice in get_args(hint) for kind in _kinds(choice)]
    return [hint]


def _field_docs(owner: type) -> dict[str, str]:
    """The docstrings that stand below the fields of a class, each as one line."""
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


def make(
    verb: type[Verb[R]], values: dict[str, Any], place: NamedValue = in_python, *, in_command: bool = False
) -> Verb[R]:
    """The verb with these options; one that its field's type does not allow is refused."""
    keep_memory()  # before anything is computed
    hints = {field.name: field.hint for field in fields_of(verb, in_command=in_command)}
    return verb(**check_values(values, hints, place))


def verb(options: Callable[P, Verb[R]], name: str | None = None) -> Callable[P, R]:
    """The Python function of a verb: its arguments are the fields, each checked; it returns what `run` does.

    name: if it is not that of the class.
    """
    kind: Any = options
    signature = inspect.signature(kind)

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise not_bound(call.__name__, signature, kwargs, error) from None
        given = make(kind, bound.arguments)
        if given.callbacks is not None or not _is_watched():
            return given.run()  # type: ignore[no-any-return]
        from vitreous.cli.progress import shown_progress

        with shown_progress() as callbacks:
            return replace(given, callbacks=callbacks).run()  # type: ignore[no-any-return]

    call.__name__ = call.__qualname__ = name or re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()
    call.__module__ = kind.__module__
    call.__doc__ = describe(kind)
    call.__signature__ = _plain_signature(signature)  # type: ignore[attr-defined]
    return call


def _plain_signature(signature: inspect.Signature) -> inspect.Signature:
    """The same with `str | None` for "Annotated[str | None, Option(...)]": what an editor should show."""
    parameters = []
    for parameter in signature.parameters.values():
        written = ast.parse(str(parameter.annotation), mode="eval").body
        if isinstance(written, ast.Subscript) and isinstance(written.slice, ast.Tuple):
            parameter = parameter.replace(annotation=ast.unparse(written.slice.elts[0]))
        parameters.append(parameter)
    return signature.replace(parameters=parameters)


def describe(kind: type[Verb[Any]]) -> str:
    """The docstring of a verb's Python function: what it does, and each argument."""
    lines = [inspect.cleandoc(kind.__doc__ or ""), ""]
    lines += (f"{field.name}: {field.option.help}" for field in fields_of(kind, in_command=True) if field.option)
    return "\n".join(lines)


def _is_watched() -> bool:
    """Whether somebody sees what is written to standard error: in a notebook, or at a terminal."""
    return "ipykernel" in sys.modules or sys.stderr.isatty()
