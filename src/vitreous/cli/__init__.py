"""The command `vitreous`: parses, runs a verb, prints its result.

`vitreous.verbs.GROUPS` is the table of verbs. The file of a verb is imported only when the verb is named: `vitreous
--help` needs no parser, and a verb imports its heavy things when it runs. A verb may have two words, such as `data
get`: what verbs of one first word share is that word.
"""

from __future__ import annotations

import keyword
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitreous import __version__
from vitreous.cli.failures import explain_failure
from vitreous.cli.terminal import only_main_prints, print_failure, reliable_streams
from vitreous.distributed.launcher import refuse_many
from vitreous.errors import MachineError, UserError
from vitreous.interrupt import Interrupted, interruptible
from vitreous.memory import check_address_space

if TYPE_CHECKING:
    from vitreous.cli.verb import Verb

whole_process = False
"""Whether this process was started for one command, so that a person waits for all of it, start-up included."""
LIBRARIES = 600 * 10**6
"""Bytes of addresses that torch and the rest take; some of them end the process where there are fewer."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command and exit with its status.

    0: done. 1: the machine refused (memory, disk, handles, output), in one sentence. 2: a person's mistake, in one
    sentence. 128 + n: ended by signal n. 141: whoever read the output wanted no more. A traceback is a bug.
    """
    global whole_process
    whole_process = argv is None
    args = list(sys.argv[1:] if argv is None else argv)
    with reliable_streams(), only_main_prints():
        status = _attempt(args)
    if status:
        sys.exit(status)


def _attempt(args: list[str]) -> int:
    """The status of a command; whatever ended it has been said."""
    try:
        with interruptible():
            _check_place()
            try:
                status = _run(args)
            except SystemExit as end:  # the parser's own way, after help or a complaint
                status = end.code if isinstance(end.code, int) else int(end.code is not None)
            sys.stdout.flush()
            return status or 0
    except Interrupted as end:
        return 128 + end.number
    except BrokenPipeError:  # as `head` does
        return 141
    except (UserError, MachineError) as error:
        return _say(error)
    except (OSError, MemoryError, RuntimeError, ImportError) as error:
        explained = explain_failure(error)
        if explained is None:
            raise
        return _say(explained)


def _say(error: UserError | MachineError) -> int:
    from vitreous.cli.terminal import printable

    print_failure(f"vitreous: {printable(str(error))}")  # it may name a file with a line end in its name
    return 2 if isinstance(error, UserError) else 1


def _check_place() -> None:
    """Refuse to start in a folder that was deleted: no name means anything there."""
    try:
        Path.cwd()
    except FileNotFoundError:
        raise UserError("the folder you are in was deleted; go to another (cd) and repeat the command.") from None


def _run(args: list[str]) -> int | None:
    from vitreous.cli.overview import overview

    if not args:
        print(overview(summaries()), file=sys.stderr)
        return 2
    verb, *rest = args
    if verb in ("--version", "-V"):
        print(f"vitreous {__version__}")
        return None
    if verb in ("--help", "-h"):
        print(overview(summaries()))
        return None
    if verb.startswith("--tyro-"):  # shell completion, which is about all verbs
        return _parse_any(args)
    verbs = verb_table()
    if family := [name for name in verbs if name.startswith(f"{verb} ")]:
        return _run_family(verb, family, rest)
    if verb not in verbs:
        from vitreous.cli.unknown import unknown_verb

        raise unknown_verb(verb, verbs)
    return _parse(verb, rest)


def _run_family(word: str, family: list[str], args: list[str]) -> int | None:
    """A verb of two words, of which the first is known."""
    from vitreous.cli.overview import overview

    if not args or args[0] in ("--help", "-h"):
        lines = {name: line for group in summaries().values() for name, line in group.items() if name in family}
        print(overview({"commands": lines}, word), file=None if args else sys.stderr)
        return None if args else 2
    verb = f"{word} {args[0]}"
    if verb not in family:
        from vitreous.cli.unknown import unknown_verb

        raise unknown_verb(args[0], family, word)
    return _parse(verb, args[1:])


def _parse(verb: str, args: list[str]) -> int | None:
    from vitreous.cli.parsing import parse
    from vitreous.cli.terminal import say_logs

    check_address_space(LIBRARIES)
    kind = load_verb(verb)
    if not kind.distributed:
        refuse_many(verb)
    say_logs()
    return _execute(*parse(verb, kind, args))


def _execute(verb: Verb[Any], as_json: bool) -> int:
    """Do what a parsed command says and show the result; its exit status."""
    from vitreous.cli.progress import process_started, shown_progress
    from vitreous.cli.terminal import print_json

    def show(result: Any) -> None:
        if not as_json:
            verb.show(result)
        elif verb.streams:
            for one in verb.to_json(result):
                print_json(one, indent=None)
        else:
            print_json(verb.to_json(result))

    started = process_started() if whole_process else None
    with shown_progress(bar=not (verb.streams and sys.stdout.isatty()), started=started) as callbacks:
        try:
            result = replace(verb, callbacks=callbacks).run()
            if verb.streams:
                show(result)
        except Interrupted:
            if verb.resumes:
                callbacks.message("Stopped. What was saved is intact; repeat the same command to go on.")
            raise
    if not verb.streams:
        show(result)
    return verb.status(result)


def _parse_any(args: list[str]) -> int | None:
    from vitreous.cli.completion import parse_any

    return parse_any({verb: load_verb(verb) for verb in verb_table()}, args)


def _groups() -> dict[str, tuple[str | type[Verb[Any]], ...]]:
    found: dict[str, tuple[str | type[Verb[Any]], ...]] = import_module("vitreous.verbs").GROUPS
    return found


def verb_table() -> dict[str, str | type[Verb[Any]]]:
    """Every verb by its name: of this package the name once more, of another the class."""
    return {_name(verb): verb for group in _groups().values() for verb in group}


def _name(verb: str | type[Verb[Any]]) -> str:
    """What a person types: "count-images" for the class `CountImages`."""
    return verb if isinstance(verb, str) else re.sub(r"(?<=[a-z])(?=[A-Z])", "-", verb.__name__).lower()


def _home(verb: str) -> tuple[str, str]:
    """The file and the class of a verb of this package: "data_get" and "DataGet" of "data get"."""
    words = re.split("[ -]", verb)
    return "_".join(words) + "_" * keyword.iskeyword(verb), "".join(map(str.capitalize, words))


def load_verb(name: str) -> type[Verb[Any]]:
    """The class of a verb."""
    if isinstance(verb := verb_table()[name], type):
        return verb
    file, kind = _home(verb)
    found: type[Verb[Any]] = getattr(import_module(f"vitreous.verbs.{file}"), kind)
    return found


def summaries() -> dict[str, dict[str, str]]:
    """Each group of verbs, with the first line of each verb's help."""
    return {title: {_name(verb): _summary(verb) for verb in group} for title, group in _groups().items()}


def _summary(verb: str | type[Verb[Any]]) -> str:
    """The first line of a verb's docstring; of our own files it is read, for importing them all takes too long."""
    if isinstance(verb, type):
        text = verb.__doc__ or ""
    else:
        file, kind = _home(verb)
        path, begin = Path(__file__).parents[1] / "verbs" / f"{file}.py", f"\nclass {kind}("
        text = path.read_text(encoding="utf-8").partition(begin)[2].partition('"""')[2]
    return text.partition("\n")[0].removesuffix('"""')
