"""`run_command` with a peak of memory that tests before it cannot hide."""

from pathlib import Path

from support.commands import Outcome, run_command
from vitreous.allocator import give_back_memory


def run_measured(*argv: object, cwd: Path | None = None) -> Outcome:
    """The package keeps what it frees (`vitreous.allocator`): a command that takes no more than earlier ones freed
    would have a peak of 0. So that memory goes back to the system first.
    """
    give_back_memory()
    return run_command(*argv, cwd=cwd)
