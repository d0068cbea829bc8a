"""Something said once in a command, whichever of its processes comes upon it first."""

from __future__ import annotations

import logging
import mmap
import os

log = logging.getLogger("vitreous")

_SAID_BY = mmap.mmap(-1, 8)
"""The group of processes that has said it: memory that processes forked later share."""


def say_once(sentence: str) -> None:
    """Log the sentence, unless a process of the same group, which is that of one command, has logged one here."""
    group = (os.getpgrp() if hasattr(os, "getpgrp") else 1).to_bytes(8, "little")
    if _SAID_BY[:] != group:
        _SAID_BY[:] = group
        log.info(sentence)
