"""One command in several processes, as torchrun starts them: the first one speaks, or whoever fails first."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vitreous.distributed.launcher import launched, own_rank


@contextmanager
def first_speaks() -> Iterator[None]:
    """Within, all processes but the first are silent; an error that leaves the block is heard."""
    if launched() == 1:
        yield
        return
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # lost connections are told in a sentence
    before = sys.stdout, sys.stderr
    with Path(os.devnull).open("w") as nowhere:
        if own_rank() > 0:
            sys.stdout = sys.stderr = nowhere
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before
            if (joining := sys.modules.get("vitreous.distributed.joining")) is not None:
                joining.leave()


def say(sentence: str) -> None:
    """Why this command ends, unless another process has said it."""
    if launched() == 1:
        print(sentence, file=sys.stderr)
        return
    from vitreous.distributed.joining import speaks

    if speaks():
        print(sentence, file=sys.__stderr__, flush=True)
