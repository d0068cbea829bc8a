"""What a shell completes: all verbs with their options, those of two words too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Union

import tyro
from tyro.extras import subcommand_cli_from_dict

from vitreous.cli.parsing import command_of


def parse_any(verbs: Mapping[str, Callable[..., Any]], args: Sequence[str]) -> int | None:
    """Let tyro parse a command of any verb; it knows how to write shell completion."""
    verbs = {name: command_of(verb) if isinstance(verb, type) else verb for name, verb in verbs.items()}
    commands = {name: command for name, command in verbs.items() if " " not in name}
    for first in dict.fromkeys(verb.partition(" ")[0] for verb in verbs if " " in verb):
        inner = {verb.partition(" ")[2]: one for verb, one in verbs.items() if verb.startswith(f"{first} ")}
        commands[first] = _family(inner)
    plain = (tyro.conf.OmitSubcommandPrefixes, tyro.conf.OmitArgPrefixes)  # "get", not "command:get"
    status: int | None = subcommand_cli_from_dict(commands, prog="vitreous", args=args, config=plain)
    return status


def _family(verbs: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """A function whose one argument is a choice of these."""
    choices = [Annotated[Any, tyro.conf.subcommand(name, constructor=verb)] for name, verb in verbs.items()]

    def family(command: Any) -> Any:
        return command

    family.__annotations__["command"] = Union[tuple(choices)]  # noqa: UP007  made of values, not written down
    family.__doc__ = "Public datasets."
    return family
