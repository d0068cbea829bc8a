"""The command `vitreous`: parses, runs a verb, prints its result.

`vitreous.verbs.GROUPS` is the table of verbs. A verb's file is imported only if the verb is named: `vitreous --help`
needs no parser, and a verb imports torch when it runs. A verb may have two words, such as `data get`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitreous import __version__
from vitreous.cli.failures import explain_failure
from vitreous.cli.terminal import only_main_process_prints, print_failure, printable, reliable_streams
from vitreous.distributed.launcher import refuse_many
from vitreous.errors import MachineError, UserError
from vitreous.interrupt import Interrupted, interruptible
from vitreous.memory import check_address_space, retain_memory
from vitreous.threads import limit_spinning

if TYPE_CHECKING:
    from vitreous.cli.verb import Verb

owns_process = False
"""Whether this process was started for one command: a budget then includes its start-up."""
LIBRARY_ADDRESS_BYTES = 600 * 10**6  # of torch and other libraries; some abort the process if they get fewer
COMMAND_GROUPS = {"data": "Public datasets."}
"""First words that several verbs share, and their help."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command and exit with its status.

    0: done. 1: the machine refused (memory, disk, handles, output). 2: a mistake of the user. 128 + n: ended by signal
    n. 141: the reader of the output closed the pipe. Any other error is a bug and keeps its traceback.
    """
    global owns_process
    owns_process = argv is None
    args = list(sys.argv[1:] if argv is None else argv)
    with reliable_streams(), only_main_process_prints():
        status = _exit_status(args)
    if status:
        sys.exit(status)


def _exit_status(args: list[str]) -> int:
    """Run a command and print its failure, if any."""
    failure: Exception | None
    try:
        with interruptible():
            try:
                Path.cwd()
            except FileNotFoundError:
                raise UserError(
                    "the folder you are in was deleted; go to another (cd) and repeat the command."
                ) from None
            try:
                status = _run(args)
            except SystemExit as end:  # of tyro, after --help or an error
                status = end.code if isinstance(end.code, int) else int(end.code is not None)
            sys.stdout.flush()
            return status or 0
    except Interrupted as end:
        return 128 + end.number
    except BrokenPipeError:  # as `head` does
        return 141
    except (UserError, MachineError) as error:
        failure = error
    except (OSError, MemoryError, RuntimeError, ImportError) as error:
        failure = explain_failure(error)
        if failure is None:
            raise
    print_failure(f"vitreous: {printable(str(failure))}")  # a file's name may have a line end
    return 2 if isinstance(failure, UserError) else 1


def _run(args: list[str]) -> int | None:
    from vitreous.cli.overview import overview, unknown_verb

    first, family = args[0] if args else "", ""
    if first in ("--version", "-V"):
        print(f"vitreous {__version__}")
        return None
    if first.startswith("--tyro-"):  # shell completion needs all verbs
        from vitreous.cli.parsing import parse_any

        parse_any({verb: load_verb(verb) for verb in verb_table()}, COMMAND_GROUPS, args)
        return None
    verbs = list(verb_table())
    if first in COMMAND_GROUPS:
        family, args = first, args[1:]
        verbs = [name for name in verbs if name.startswith(f"{family} ")]
    if not args or args[0] in ("--help", "-h"):
        groups = summaries()
        if family:
            groups = {
                "commands": {verb: line for group in groups.values() for verb, line in group.items() if verb in verbs}
            }
        print(overview(groups, family), file=None if args else sys.stderr)
        return None if args else 2
    verb = f"{family} {args[0]}".lstrip()
    if verb not in verbs:
        raise unknown_verb(args[0], verbs, family)
    return _execute(verb, args[1:])


def _execute(name: str, args: list[str]) -> int:
    """Parse a command, run it and show the result; its exit status."""
    from vitreous.cli.parsing import parse
    from vitreous.cli.terminal import log_to_stderr, print_json, process_started, shown_progress

    check_address_space(LIBRARY_ADDRESS_BYTES)
    limit_spinning()  # before torch loads
    kind = load_verb(name)
    if not kind.distributed:
        refuse_many(name)
    log_to_stderr()
    verb, as_json = parse(name, kind, args)
    retain_memory()  # before anything is computed

    def show(result: Any) -> None:
        if not as_json:
            verb.show(result)
        elif verb.streams:
            for one in verb.to_json(result):
                print_json(one, indent=None)
        else:
            print_json(verb.to_json(result))

    started = process_started() if owns_process else None
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


def verb_table() -> dict[str, str | type[Verb[Any]]]:
    """Every verb by its name: "FILE.Class" in this package, else the class."""
    return {_name(verb): verb for group in _groups().values() for verb in group}


def _groups() -> dict[str, tuple[str | type[Verb[Any]], ...]]:
    return import_module("vitreous.verbs").GROUPS


def _name(verb: str | type[Verb[Any]]) -> str:
    """The command: "count-images" for the class `CountImages`, "data get" for `DataGet`."""
    kind = verb.partition(".")[2] if isinstance(verb, str) else verb.__name__
    first, *more = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", kind).lower().split("-")
    return (" " if first in COMMAND_GROUPS else "-").join([first, *more])


def load_verb(name: str) -> type[Verb[Any]]:
    if isinstance(verb := verb_table()[name], type):
        return verb
    file, _, kind = verb.partition(".")
    return getattr(import_module(f"vitreous.verbs.{file}"), kind)


def summaries() -> dict[str, dict[str, str]]:
    """Each group of verbs, with the first line of each verb's help."""
    return {title: {_name(verb): _summary(verb) for verb in group} for title, group in _groups().items()}


def _summary(verb: str | type[Verb[Any]]) -> str:
    """The first line of a verb's docstring, read from the file in this package: importing all takes too long."""
    if isinstance(verb, type):
        text = verb.__doc__ or ""
    else:
        file, _, kind = verb.partition(".")
        source = (Path(__file__).parents[1] / "verbs" / f"{file}.py").read_text(encoding="utf-8")
        text = source.partition(f"\nclass {kind}(")[2].partition('"""')[2]
    return text.partition("\n")[0].removesuffix('"""')
