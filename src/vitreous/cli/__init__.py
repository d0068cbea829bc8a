"""The command `vitreous`: parses, calls a job, prints.

Each verb is a function in a file of its name, and that file is imported only when the verb is named: `vitreous --help`
needs no parser, and a verb imports its heavy things when it runs. A verb returns the exit status, or None for 0. A verb
may have two words, such as `data get`: what verbs of one first word share is that word.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitreous import __version__
from vitreous.cli.failures import explain_failure
from vitreous.cli.processes import only_main_prints, print_failure
from vitreous.cli.streams import reliable_streams
from vitreous.distributed.launcher import refuse_many
from vitreous.errors import MachineError, UserError
from vitreous.interrupt import Interrupted, interruptible
from vitreous.memory import check_address_space

if TYPE_CHECKING:
    from vitreous.cli.verb import Verb

GROUPS = {
    "train and use": {
        "data get": "Download a public dataset, check it, and unpack it; the commands then open it as data:NAME.",
        "data list": "List the public datasets that `data get` knows, with their classes, splits, size and licence.",
        "data pack": "Pack data into WebDataset shards: few large files, read from start to end, here or from afar.",
        "inspect": "Check data before training: counts, sizes, unreadable files, duplicates, leaks between splits.",
        "fit": "Train a model on images, from scratch or from given weights.",
        "predict": "Label images, one line per image.",
        "evaluate": "Measure a model on labelled data: accuracy, calibration, each class, what is confused with what.",
        "serve": "Answer for models over HTTP, and show a page to look through them.",
        "bench": "Measure how fast a model answers on this machine, in each engine that is installed.",
        "compare": "Compare models fairly: the same data, splits, augmentation, tuning, and time or FLOPs.",
        "transfer": "Transfer a model to many tasks, by the paper's yardsticks: VTAB-1k, full, linear, k-NN, few-shot.",
        "report": "Write a web page about a model: its training, its accuracy, what it looks at, how to use it.",
    },
    "look inside": {
        "explain": "Show what a model looked at, as an overlay on each image.",
        "walkthrough": "Follow an image through the paper's equations, step by step, on a web page.",
        "plot-weights": "Plot patch filters, position similarity and attention distance, as in the paper's figure 7.",
        "score-explanations": "Measure how good explanations are: deletion, insertion, agreement with masks.",
        "analyze": "Compare what models learned, depth by depth, or which inductive bias they have.",
    },
    "learn without labels": {
        "pretrain": "Learn features without labels: MAE, DINO, DINOv2 or masked patch prediction.",
        "self-train": "Learn from a few labelled and many unlabelled images: Noisy Student.",
        "probe": "Measure what a model's frozen features are worth: k-NN, linear probe, few-shot.",
        "reconstruct": "Show how a masked autoencoder (MAE) fills in the hidden patches of images.",
    },
    "models and weights": {
        "models": "List the model presets with their parameters, GFLOPs and activation memory.",
        "import": "Turn anyone's ViT weights into a bundle: Google, timm, Hugging Face, DeiT, DINO, DINOv2, MAE.",
        "export": "Write a model in a format that other programs read: Hugging Face, timm, Google, OpenVINO or ONNX.",
    },
}
"""Every verb by the task it belongs to, with the first line of its help."""
VERBS = {verb: line for group in GROUPS.values() for verb, line in group.items()}
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
        print(overview(GROUPS), file=sys.stderr)
        return 2
    verb, *rest = args
    if verb in ("--version", "-V"):
        print(f"vitreous {__version__}")
        return None
    if verb in ("--help", "-h"):
        print(overview(GROUPS))
        return None
    if verb.startswith("--tyro-"):  # shell completion, which is about all verbs
        return _parse_any(args)
    if family := {name: line for name, line in VERBS.items() if name.startswith(f"{verb} ")}:
        return _run_family(verb, family, rest)
    if verb not in VERBS:
        from vitreous.cli.unknown import unknown_verb

        raise unknown_verb(verb, VERBS)
    return _parse(verb, rest)


def _run_family(first: str, family: dict[str, str], args: list[str]) -> int | None:
    """A verb of two words, of which the first is known."""
    from vitreous.cli.overview import overview

    if not args or args[0] in ("--help", "-h"):
        print(overview({"commands": family}, first), file=None if args else sys.stderr)
        return None if args else 2
    verb = f"{first} {args[0]}"
    if verb not in family:
        from vitreous.cli.unknown import unknown_second_word

        raise unknown_second_word(first, args[0], family)
    return _parse(verb, args[1:])


def _parse(verb: str, args: list[str]) -> int | None:
    from vitreous.cli.parsing import parse
    from vitreous.cli.terminal import say_logs

    check_address_space(LIBRARIES)
    kind: Any = load_verb(verb)
    if not isinstance(kind, type):
        from vitreous.cli import old_parsing

        say_logs()
        return old_parsing.parse(verb, kind, args)
    if not getattr(kind, "distributed", False):
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

    return parse_any({verb: load_verb(verb) for verb in VERBS}, args)


def load_verb(verb: str) -> Any:
    """The class of a verb; of one not moved yet, its function."""
    import inspect
    import keyword
    import re
    from importlib import import_module

    from vitreous.cli.verb import load_verb as load

    try:
        return load(verb)
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("vitreous.verbs"):
            raise
    name = verb.replace("-", "_").replace(" ", "_") + ("_" if keyword.iskeyword(verb) else "")
    function: Callable[..., Any] = getattr(import_module(f"vitreous.cli.{name}"), name)
    # The help is wrapped to the terminal, so where the source breaks its lines must not show.
    function.__doc__ = re.sub(r"\n {8,}", " ", inspect.cleandoc(function.__doc__ or ""))
    return function
