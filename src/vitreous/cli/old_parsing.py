"""From the words of a command to the arguments of its verb; what is wrong with them in one sentence.

tyro parses and writes the help. Its own complaints are boxes of many lines that speak of types, so they are caught
before they are printed (`tyro._errors`, which is not public; of a tyro without it the boxes stay).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import wraps
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import tyro

from vitreous.arguments import _hints, check_values
from vitreous.errors import UserError
from vitreous.wording import shown, wanted


@dataclass(frozen=True)
class Argument:
    """One argument of a verb, as the command line has it."""

    name: str
    """ "--image-size", or for a place in the line "MODEL"."""
    metavar: str
    hint: Any
    required: bool

    @property
    def positional(self) -> bool:
        """Whether it is given by its place."""
        return not self.name.startswith("--")

    @property
    def flag(self) -> bool:
        """Whether it takes no value."""
        return _plain(self.hint) is bool

    @property
    def bare(self) -> bool:
        """Whether it may stand without a value, though it takes one: `--ray`, `--ray ADDRESS`."""
        return any(get_origin(choice) is tuple for choice in get_args(_plain(self.hint)))

    @property
    def repeats(self) -> bool:
        """Whether it may be given more than once."""
        return get_origin(_plain(self.hint)) is tuple


def parse(verb: str, function: Callable[..., int | None], args: Sequence[str]) -> int | None:
    """Call the verb's function with what the command says, and return its status."""
    arguments = arguments_of(function)
    _check_options(arguments, args)

    @wraps(function)
    def call(**given: Any) -> int | None:
        return function(**check_values(given, _hints(function), lambda name, value: _place(arguments, name, value)))

    with _own_words(verb, arguments, args):
        status: int | None = tyro.cli(call, prog=f"vitreous {verb}", args=args)
    return status


def arguments_of(function: Callable[..., Any]) -> dict[str, Argument]:
    """The arguments of a verb by the names that its function has for them."""
    found = {}
    hints = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        remarks = get_args(hints[name])[1:] if get_origin(hints[name]) is Annotated else ()
        said = [remark for remark in remarks if hasattr(remark, "metavar")]
        metavar = next((str(remark.metavar) for remark in said if remark.metavar), "")
        called = next((str(remark.name) for remark in said if remark.name), name)
        positional = any(remark is tyro.conf.Positional for remark in remarks)
        option = metavar.removesuffix(" ...") if positional else f"--{called.replace('_', '-')}"
        found[name] = Argument(option, metavar, hints[name], parameter.default is inspect.Parameter.empty)
    return found


def _plain(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def _place(arguments: dict[str, Argument], name: str, value: object) -> str:
    """ "--top 0", as a person wrote it; of one of several, "IMAGE|FOLDER 'x'"."""
    argument = arguments[re.sub(r"\[.*", "", name)]
    return f"{argument.name} {shown(value)}"


@contextmanager
def _own_words(verb: str, arguments: dict[str, Argument], args: Sequence[str]) -> Iterator[None]:
    """Within, what tyro would refuse is refused in one sentence."""
    try:
        from tyro import _errors
    except ImportError:
        yield
        return

    def refuse(event: Any) -> None:
        raise _sentence(verb, arguments, args, event)

    with _errors.on_parse_error(refuse):
        yield


def _sentence(verb: str, arguments: dict[str, Argument], args: Sequence[str], event: Any) -> UserError:
    """What is wrong with a command, of what tyro found: an unknown word, a missing or a wrong value."""
    if (unknown := _unknown_option(arguments, args)) is not None:
        return UserError(f"{_short(unknown)}: {verb} has no such option; {_meant(verb, unknown, arguments)}")
    if (found := _argument(arguments, getattr(event, "argument", None))) is not None:
        return _missing(verb, found) if found.positional else _wrong_value(found, _value(args, found.name))
    for missing in getattr(event, "missing_arguments", ()):
        if (found := _argument(arguments, missing.arg)) is not None:
            return _missing(verb, found)
    words = [*getattr(event, "tokens", ()), *getattr(event, "unrecognized_tokens", ())]
    if not words:
        return UserError(f"{verb}: the command cannot be read; see `vitreous {verb} --help`.")
    for flag in (argument.name for argument in arguments.values() if argument.flag):
        if _value(args, flag) == words[0]:
            return _no_value(flag, words[0])
    return UserError(
        f"{_short(words[0])}: one word too many for {verb}; put quotes around a name with spaces, and see "
        f"`vitreous {verb} --help`."
    )


def _wrong_value(argument: Argument, value: str | None) -> UserError:
    if value is None or value.startswith("--"):
        return UserError(f"{argument.name}: a value is missing; give {wanted(argument.hint)}.")
    return UserError(f"{argument.name} {_short(value)}: give {wanted(argument.hint)}.")


def _no_value(flag: str, value: str) -> UserError:
    return UserError(f"{flag} {_short(value)}: this option takes no value; leave {_short(value)} out.")


def _missing(verb: str, argument: Argument) -> UserError:
    called = argument.name if argument.positional else f"{argument.name} {argument.metavar}"
    return UserError(f"{verb}: {called} is missing; see `vitreous {verb} --help`.")


def _argument(arguments: dict[str, Argument], found: Any) -> Argument | None:
    """Which argument tyro speaks of."""
    return arguments.get(getattr(getattr(found, "field", None), "intern_name", ""))


def _unknown_option(arguments: dict[str, Argument], args: Sequence[str]) -> str | None:
    """The first word that looks like an option and is none."""
    known = {argument.name for argument in arguments.values()} | {"--help", "-h"}
    for arg in args:
        if arg == "--":
            return None
        name = arg.partition("=")[0]
        if re.match(r"--?[A-Za-z]", name) and name.replace("_", "-") not in known:
            return name
    return None


def _meant(verb: str, word: str, arguments: dict[str, Argument]) -> str:
    options = [argument.name for argument in arguments.values() if not argument.positional]
    bare = word.lstrip("-").replace("_", "-").lower()
    near = [option for option in options if bare and option.startswith(f"--{bare}")]
    near = near or get_close_matches(f"--{bare}", options, n=1)
    for argument in arguments.values():
        if argument.positional and bare == argument.name.lower().partition("|")[0]:
            return f"{argument.name} is given without a name: see `vitreous {verb} --help`."
    return f"did you mean {near[0]}?" if near else f"`vitreous {verb} --help` lists them."


def _check_options(arguments: dict[str, Argument], args: Sequence[str]) -> None:
    """Refuse what tyro would take without a word: an option that is there twice, of which it takes the last, and a flag
    with a value, which it takes for the next argument."""
    once = {argument.name for argument in arguments.values() if not (argument.positional or argument.repeats)}
    flags = {argument.name for argument in arguments.values() if argument.flag}
    seen: set[str] = set()
    for arg in args[: args.index("--")] if "--" in args else args:
        name, equals, value = arg.partition("=")
        name = name.replace("_", "-")
        if equals and name in flags:
            raise _no_value(name, value)
        if name in seen:
            raise UserError(f"{name}: given twice; give it once.")
        if name in once:
            seen.add(name)


def _value(args: Sequence[str], option: str) -> str | None:
    """What stands behind an option in the command."""
    for index, arg in enumerate(args):
        name, equals, value = arg.partition("=")
        if name.replace("_", "-") == option:
            return value if equals else next(iter(args[index + 1 : index + 2]), None)
    return None


def _short(word: str) -> str:
    return word if 0 < len(word) <= 60 else shown(word)
