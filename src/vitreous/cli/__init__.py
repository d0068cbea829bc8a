"""The command `vitreous`: parses, calls a job, prints. Heavy things are imported when a verb runs, not before.

Each verb is a function in a file of its name. It returns the exit status, or None for 0.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import tyro

from vitreous import __version__
from vitreous.cli.analyze import analyze
from vitreous.cli.evaluate import evaluate
from vitreous.cli.explain import explain
from vitreous.cli.export import export
from vitreous.cli.fit import fit
from vitreous.cli.import_ import import_
from vitreous.cli.inspect import inspect
from vitreous.cli.models import models
from vitreous.cli.predict import predict
from vitreous.cli.pretrain import pretrain
from vitreous.cli.probe import probe
from vitreous.cli.report import report
from vitreous.cli.terminal import say_logs
from vitreous.errors import UserError

VERBS: dict[str, Callable[..., Any]] = {
    "fit": fit,
    "predict": predict,
    "evaluate": evaluate,
    "explain": explain,
    "report": report,
    "inspect": inspect,
    "models": models,
    "pretrain": pretrain,
    "import": import_,
    "export": export,
    "probe": probe,
    "analyze": analyze,
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command and exit with its status; a person's mistake is one sentence on stderr and status 2."""
    args = list(sys.argv[1:] if argv is None else argv)
    if args in (["--version"], ["-V"]):
        print(f"vitreous {__version__}")
        return
    say_logs()
    try:
        status = tyro.extras.subcommand_cli_from_dict(
            VERBS, prog="vitreous", description="A Vision Transformer you can see through.", args=args
        )
        sys.stdout.flush()
    except UserError as error:
        print(f"vitreous: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # whoever read our lines wanted no more, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    if status:
        sys.exit(status)
