"""From the words of a command to the arguments of its verb; what is wrong with them in one sentence.

tyro parses and writes the help. Its own complaints are boxes of many lines that speak of types, so they are caught
before they are printed (`tyro._errors`, which is not public; of a tyro without it the boxes stay).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import tyro

from vitreous.cli.verb import Verb, fields_of, make
from vitreous.errors import UserError
from vitreous.wording import shown, wanted

Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(help_behavior_hint="")]
"""An option that is either there or not."""


@dataclass(frozen=True)
class Argument:
    """One argument of a verb, as the command line has it."""

    name: str
    """ "--image-size", or for a place in the line "MODEL"."""
    metavar: str
    help: str
    hint: Any
    """What a value may be."""
    default: Any
    """`MISSING` where it must be given."""

    @property
    def required(self) -> bool:
        """Whether it must be given."""
        return self.default is MISSING

    @property
    def positional(self) -> bool:
        """Whether it is given by its place."""
        return not self.name.startswith("--")

    @property
    def flag(self) -> bool:
        """Whether it takes no value."""
        return _plain(self.hint) is bool

    @property
    def overrides(self) -> bool:
        """Whether it is NAME=VALUE, given any number of times."""
        return any(_is(kind, Mapping) for kind in _kinds(self.hint))

    @property
    def listed(self) -> bool:
        """Whether it is a list that is written with commas."""
        return "," in self.metavar and any(_is(kind, Sequence) for kind in _kinds(self.hint))

    @property
    def repeats(self) -> bool:
        """Whether several values are taken, each as a word of its own."""
        return self.overrides or self.metavar.endswith(" ...")

    @property
    def typed(self) -> Any:
        """The type that tyro parses."""
        if self.flag:
            return Flag
        if self.repeats:
            return tuple[str, ...]
        optional = [None] if NoneType in _kinds(self.hint) else []
        if self.listed or any(kind in (str, Path) for kind in _kinds(self.hint)):
            return Union[(str, *optional)]
        return _plain(self.hint)

    def taken(self, value: Any) -> Any:
        """The value as the verb has it, from what tyro parsed."""
        if self.overrides:
            from vitreous.config.overrides import parse_overrides

            try:
                return parse_overrides(value)
            except UserError as error:
                raise UserError(f"{self.name} {error}") from None
        if self.listed and isinstance(value, str):
            return self._split(value)
        return value

    def _split(self, text: str) -> list[Any]:
        inner = next(get_args(kind)[0] for kind in _kinds(self.hint) if _is(kind, Sequence))
        item = _plain(inner)
        try:
            return [item(part.strip()) if item in (int, float) else part.strip() for part in text.split(",")]
        except ValueError:
            raise UserError(
                f"{self.name} {_short(text)}: give {wanted(self.hint)}; values are separated by commas."
            ) from None

    @property
    def written_default(self) -> Any:
        """The default as a person would write it."""
        if self.overrides or (self.repeats and not self.required):
            return ()
        if self.listed and self.default not in (None, MISSING):
            return ",".join(map(str, self.default))
        return self.default


def parse(name: str, verb: type[Verb[Any]], args: Sequence[str]) -> tuple[Verb[Any], bool]:
    """The verb with what the command says, and whether its result is printed as JSON."""
    arguments = arguments_of(verb)
    _check_options(arguments, args)
    with _own_words(name, arguments, args):
        given = tyro.cli(command_of(verb), prog=f"vitreous {name}", args=args)
    as_json = given.pop("json", False)
    values = {field: arguments[field].taken(value) for field, value in given.items()}

    def place(field: str, value: object) -> str:
        argument = arguments[field.partition("[")[0]]
        typed = _value(args, argument.name) if argument.listed and isinstance(value, list) else None
        return f"{argument.name} {shown(value) if typed is None else _short(typed)}"

    return make(verb, values, place, in_command=True), as_json


def arguments_of(verb: type[Verb[Any]]) -> dict[str, Argument]:
    """The arguments of a verb's command by the names of its fields."""
    found = {}
    for field in fields_of(verb, in_command=True):
        if (option := field.option) is not None:
            name = option.metavar.removesuffix(" ...") if option.positional else f"--{field.name.replace('_', '-')}"
            hint = field.hint
            if str in (kinds := _kinds(hint)) and int in kinds:  # a number that Python may take is a text here
                hint = str | None if NoneType in kinds else str
            found[field.name] = Argument(name, option.metavar, option.help, hint, field.default)
    if verb.json_help:
        found["json"] = Argument("--json", "", verb.json_help, bool, default=False)
    return found


def command_of(verb: type[Verb[Any]]) -> Callable[..., dict[str, Any]]:
    """A function with the verb's arguments, for tyro to read: it returns them."""

    def command(**given: Any) -> dict[str, Any]:
        return given

    parameters = []
    for field, argument in arguments_of(verb).items():
        remarks: list[Any] = [
            tyro.conf.arg(metavar=argument.metavar or None, help=argument.help, help_behavior_hint=_default_shown)
        ]
        remarks += [tyro.conf.Positional] * argument.positional + [tyro.conf.UseAppendAction] * argument.overrides
        default = inspect.Parameter.empty if argument.required else argument.written_default
        annotation: Any = Annotated.__class_getitem__((argument.typed, *remarks))  # type: ignore[attr-defined]
        parameters.append(
            inspect.Parameter(field, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        )
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    # The help is wrapped to the terminal, so where the source breaks its lines must not show.
    command.__doc__ = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(verb.__doc__ or ""))
    return command


def _default_shown(value: str) -> str:
    return f"(default: {value})" if value not in ("", "None", "False", "()") else ""


def _plain(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def _kinds(hint: Any) -> list[Any]:
    """The alternatives of a type."""
    hint = _plain(hint)
    if get_origin(hint) in (Union, UnionType):
        return [kind for choice in get_args(hint) for kind in _kinds(choice)]
    return [hint]


def _is(kind: Any, what: type) -> bool:
    origin = get_origin(kind)
    return isinstance(origin, type) and issubclass(origin, what)


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
