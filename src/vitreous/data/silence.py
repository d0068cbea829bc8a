"""When a process that makes batches is expected to do nothing: it waits for a server, and must not be taken for dead.

How long a server is waited for is decided where it is asked, so that is where it is told.
"""

from __future__ import annotations

import time
from typing import Any

_until: Any = None
"""In a process that makes batches: a number that its parent sees too, by the clock of `time.monotonic`."""


def report_to(until: Any) -> None:
    """From now on this process tells its parent, through a number that both see."""
    global _until
    _until = until


def expect_silence(seconds: float) -> None:
    """Say that from now on this process may wait for so long; anywhere else than in one that makes batches, nothing."""
    if _until is not None:
        _until.value = max(_until.value, time.monotonic() + seconds)
