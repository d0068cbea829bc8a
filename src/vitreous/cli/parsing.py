"""Parsing a command line into a verb, with errors of one sentence.

tyro parses and writes the help. Its errors are boxes of many lines about types, so they are caught before they are
printed. `tyro._errors` is not public; with a tyro without it the boxes stay.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, make_dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import tyro
from tyro.extras import subcommand_cli_from_dict

from vitreous.arguments import check_values, choices_of, shown, union_members, wanted
from vitreous.cli.verb import Argument, Verb, arguments_of
from vitreous.errors import UserError

Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(help_behavior_hint="")]
"""An option without a value."""
SYNONYMS = {
    **dict.fromkeys(("time", "duration", "minutes", "hours"), "budget"),
    **dict.fromkeys(("output", "output-dir", "o", "save"), "out"),
    **dict.fromkeys(("size", "resolution", "img-size"), "image-size"),
    **dict.fromkeys(("pretrained", "checkpoint"), "weights"),
    **dict.fromkeys(("class", "label"), "target"),
    **dict.fromkeys(("set", "opt", "override"), "overrides"),
    **dict.fromkeys(("topk", "k"), "top-k"),
    **dict.fromkeys(("limit", "num-images", "images", "n"), "count"),
}
"""Names of options in other programs."""


def parse(name: str, verb: type[Verb[Any]], args: Sequence[str]) -> tuple[Verb[Any], bool]:
    """The verb with its arguments, and whether its result is printed as JSON."""
    arguments = command_arguments(verb)
    if {"-h", "--help"} & {*_options_in(args)}:
        args = ["--help"]  # else tyro leaves out of the usage what is given
    _check_options(arguments, args)
    with _one_sentence_errors(name, arguments, args):
        given = dict(vars(tyro.cli(command_of(verb), prog=f"vitreous {name}", args=args)))
    as_json = given.pop("json", False)
    values = {name: _value_of(arguments[name], value) for name, value in given.items()}

    def place(name: str, value: object) -> str:
        argument = arguments[name.partition("[")[0]]
        typed = _value(args, argument.name) if argument.listed and isinstance(value, list) else None
        return f"{argument.name} {shown(value) if typed is None else _short(typed)}"

    return verb(**check_values(values, {name: one.hint for name, one in arguments.items()}, place)), as_json


def parse_any(verbs: Mapping[str, type[Verb[Any]]], families: Mapping[str, str], args: Sequence[str]) -> None:
    """Let tyro write the shell completion for all verbs. families: the help of first words that several verbs share."""
    commands: dict[str, Callable[..., Any]] = {}
    for name, verb in verbs.items():
        if " " not in name:
            commands[name] = command_of(verb)
    for word, summary in families.items():
        inner = {name.removeprefix(f"{word} "): verb for name, verb in verbs.items() if name.startswith(f"{word} ")}
        choices = [tyro.conf.subcommand(name, constructor=command_of(verb)) for name, verb in inner.items()]
        union: Any = Union.__getitem__(tuple(Annotated[Any, choice] for choice in choices))
        commands[word] = make_dataclass(word, [("command", union)], namespace={"__doc__": summary})
    plain = (tyro.conf.OmitSubcommandPrefixes, tyro.conf.OmitArgPrefixes)  # "get", not "command:get"
    subcommand_cli_from_dict(commands, prog="vitreous", args=args, config=plain)


def command_arguments(verb: type[Verb[Any]]) -> dict[str, Argument]:
    """The arguments of a verb's command by the names of its fields."""
    found = {}
    for name, argument in arguments_of(verb, in_command=True).items():
        if str in (kinds := union_members(argument.hint)) and int in kinds:  # on the command line it is a str
            argument = replace(argument, hint=str | None if NoneType in kinds else str)
        if argument.help:
            found[name] = argument
    if verb.json_help:
        found["json"] = Argument("json", bool, False, help=verb.json_help)
    return found


def command_of(verb: type[Verb[Any]]) -> type:
    """A dataclass with the arguments of a verb's command, for tyro to read."""
    options: list[Any] = []
    for name, argument in command_arguments(verb).items():
        remarks: list[Any] = [
            tyro.conf.arg(metavar=argument.metavar or None, help=argument.help, help_behavior_hint=_default_shown)
        ]
        remarks += [tyro.conf.Positional] * argument.positional + [tyro.conf.UseAppendAction] * argument.overrides
        hint: Any = Annotated.__class_getitem__((_parsed_type(argument), *remarks))  # type: ignore[attr-defined]
        default = argument.default
        if argument.overrides or (argument.repeats and not argument.required):
            default = ()
        elif argument.listed and default and not argument.required:
            default = ",".join(map(str, default))
        options.append((name, hint) if argument.required else (name, hint, field(default=default)))
    # tyro wraps the help to the terminal
    text = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(verb.__doc__ or ""))
    return make_dataclass(verb.__name__, options, kw_only=True, namespace={"__doc__": text})


def _default_shown(value: str) -> str:
    return f"(default: {value})" if value not in ("", "None", "False", "()") else ""


def _parsed_type(argument: Argument) -> Any:
    """The type that tyro parses."""
    kinds = union_members(argument.hint)
    if argument.flag:
        return Flag
    if argument.repeats:
        return tuple[str, ...]
    if {*kinds} <= {str, NoneType} and not argument.listed and (names := choices_of(argument.hint)):
        choice: Any = Literal.__getitem__(tuple(names))
        return choice | None if NoneType in kinds else choice
    if argument.listed or str in kinds or Path in kinds:
        return str | None if NoneType in kinds else str
    return get_args(argument.hint)[0] if get_origin(argument.hint) is Annotated else argument.hint


def _value_of(argument: Argument, value: Any) -> Any:
    """The value of the verb's field, from what tyro parsed."""
    if argument.overrides:
        from vitreous.config.overrides import parse_overrides

        try:
            return parse_overrides(value)
        except UserError as error:
            raise UserError(f"{argument.name} {error}") from None
    if not (argument.listed and isinstance(value, str)):
        return value
    item = next(union_members(get_args(kind)[0])[0] for kind in union_members(argument.hint) if get_args(kind))
    try:
        return [item(part.strip()) if item in (int, float) else part.strip() for part in value.split(",")]
    except ValueError:
        message = f"{argument.name} {_short(value)}: give {wanted(argument.hint)}; values are separated by commas."
        raise UserError(message) from None


@contextmanager
def _one_sentence_errors(verb: str, arguments: dict[str, Argument], args: Sequence[str]) -> Iterator[None]:
    """Within, tyro's errors are raised as `UserError`."""
    try:
        from tyro import _errors
    except ImportError:
        yield
        return

    def refuse(event: Any) -> None:
        raise UserError(_error_sentence(verb, arguments, args, event))

    with _errors.on_parse_error(refuse):
        yield


def _error_sentence(verb: str, arguments: dict[str, Argument], args: Sequence[str], event: Any) -> str:
    """The message for an error of tyro: an unknown word, a missing or a wrong value."""
    help_of_verb = f"see `vitreous {verb} --help`."
    if (unknown := _unknown_option(arguments, args)) is not None:
        return f"{_short(unknown)}: {verb} has no such option; {_suggestion(verb, unknown, arguments)}"
    wrong = _argument(arguments, getattr(event, "argument", None))
    if wrong is not None and not wrong.positional:
        value = _value(args, wrong.name)
        if value is None or value.startswith("--"):
            return f"{wrong.name}: a value is missing; give {wanted(wrong.hint)}."
        return f"{wrong.name} {_short(value)}: give {wanted(wrong.hint)}."
    missing = [_argument(arguments, one.arg) for one in getattr(event, "missing_arguments", ())]
    for argument in (wrong, *missing):
        if argument is not None:
            metavar = "" if argument.positional else f" {argument.metavar}"
            return f"{verb}: {argument.name}{metavar} is missing; {help_of_verb}"
    words = [*getattr(event, "tokens", ()), *getattr(event, "unrecognized_tokens", ())]
    if not words:
        return f"{verb}: the command cannot be read; {help_of_verb}"
    word = _short(words[0])
    for flag in (argument.name for argument in arguments.values() if argument.flag):
        if _value(args, flag) == words[0]:
            return f"{flag} {word}: this option takes no value; leave {word} out."
    return f"{word}: one word too many for {verb}; put quotes around a name with spaces, and {help_of_verb}"


def _argument(arguments: dict[str, Argument], found: Any) -> Argument | None:
    """The argument of a tyro error."""
    return arguments.get(getattr(getattr(found, "field", None), "intern_name", ""))


def _unknown_option(arguments: dict[str, Argument], args: Sequence[str]) -> str | None:
    """The first unknown word that looks like an option."""
    known = {argument.name for argument in arguments.values()} | {"--help", "-h"}
    names = (arg.partition("=")[0] for arg in _options_in(args))
    return next((name for name in names if re.match(r"--?[A-Za-z]", name) and _with_hyphens(name) not in known), None)


def _suggestion(verb: str, word: str, arguments: dict[str, Argument]) -> str:
    options = [argument.name for argument in arguments.values() if not argument.positional]
    bare = _with_hyphens(word.lstrip("-")).lower()
    if "overrides" in arguments and (field := _field_of_trainings(bare)):
        return f"did you mean --overrides {field}=...?"
    near = [option for option in options if bare and option.startswith(f"--{bare}")]
    near = near or [option for option in options if option == f"--{SYNONYMS.get(bare)}"]
    near = near or [f"--{name}" for name in get_close_matches(bare, [option[2:] for option in options], n=1)]
    for argument in arguments.values():
        if argument.positional and bare == argument.name.lower().partition("|")[0]:
            return f"{argument.name} is given without a name: see `vitreous {verb} --help`."
    return f"did you mean {near[0]}?" if near else f"`vitreous {verb} --help` lists them."


def _field_of_trainings(bare: str) -> str | None:
    """The field of a training that an unknown option may mean: "lr", "batch_size", "augment.mixup"."""
    from vitreous.config.data import Augment
    from vitreous.config.overrides import ELSEWHERE, SHORT_NAMES
    from vitreous.config.train import Training

    name = bare.replace("-", "_")
    nested = ("augment", "optimizer", "objective", "model")
    if name in SHORT_NAMES or (name in Training.__dataclass_fields__ and name not in (*ELSEWHERE, *nested)):
        return name
    return f"augment.{name}" if name in Augment.__dataclass_fields__ else None


def _check_options(arguments: dict[str, Argument], args: Sequence[str]) -> None:
    """Refuse what tyro accepts silently: a repeated option, of which it takes the last, and a flag with a value, which
    it takes for the next argument."""
    options = {argument.name: argument for argument in arguments.values() if not argument.positional}
    seen: set[str] = set()
    for arg in _options_in(args):
        name, equals, value = arg.partition("=")
        argument = options.get(name := _with_hyphens(name))
        if argument is None or argument.repeats:
            continue
        if equals and argument.flag:
            raise UserError(f"{name} {_short(value)}: this option takes no value; leave {_short(value)} out.")
        if name in seen:
            raise UserError(f"{name}: given twice; give it once.")
        seen.add(name)


def _options_in(args: Sequence[str]) -> Sequence[str]:
    """The words before "--", after which no word is an option."""
    return args[: args.index("--")] if "--" in args else args


def _value(args: Sequence[str], option: str) -> str | None:
    """The word after an option."""
    for index, arg in enumerate(args):
        name, equals, value = arg.partition("=")
        if _with_hyphens(name) == option:
            return value if equals else next(iter(args[index + 1 : index + 2]), None)
    return None


def _with_hyphens(name: str) -> str:
    return name.replace("_", "-")


def _short(word: str) -> str:
    return word if 0 < len(word) <= 60 else shown(word)
