"""How an option of a command is written: once, as a field of a frozen dataclass.

    weights: Annotated[str | Path | None, Option("MODEL", "Start from this model.")] = None

The command line, the Python function, its checks and the documentation follow from this line.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Option:
    """What the help of a command says of a field; a field without an `Option` exists in Python only."""

    metavar: str
    """What stands for the value in the help: "COUNT", "N,N,..." for a list, "IMAGE ..." for one or more words."""
    help: str
    positional: bool = False


def positional(metavar: str, help: str) -> Option:
    """An option that is given by its place in the command, without a name."""
    return Option(metavar, help, positional=True)
