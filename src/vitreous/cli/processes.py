"""One command in several processes, as torchrun starts them: the main process prints, and whichever fails first."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vitreous.distributed.launcher import global_rank, world_size

GROUP = "vitreous.distributed.process_group"
"""The module that imports torch; where a command has not imported it, no processes have met."""


@contextmanager
def only_main_prints() -> Iterator[None]:
    """Within, all processes but the main one print nothing."""
    if world_size() == 1:
        yield
        return
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # lost connections are reported in a sentence
    before = sys.stdout, sys.stderr
    with Path(os.devnull).open("w") as nowhere:
        if global_rank() > 0:
            sys.stdout = sys.stderr = nowhere
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before
            if (group := sys.modules.get(GROUP)) is not None:
                group.leave()


def print_failure(message: str) -> None:
    """Say why this command ends, unless another process does."""
    if world_size() == 1:
        print(message, file=sys.stderr)
        return
    group = sys.modules.get(GROUP)
    if group.is_first_failure() if group else global_rank() == 0:
        print(message, file=sys.__stderr__, flush=True)
