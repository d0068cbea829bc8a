"""What torchrun says by the environment: how many processes it started, and which this is. Known without torch."""

from __future__ import annotations

import os

from vitreous.errors import UserError

TOGETHER = ("fit", "pretrain")
"""Verbs that know of other processes."""


def launched() -> int:
    """How many processes torchrun started for this command; 1 without it."""
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return int(os.environ["WORLD_SIZE"]) if all(name in os.environ for name in names) else 1


def own_rank() -> int:
    """Which of them this is, from 0."""
    return int(os.environ["RANK"]) if launched() > 1 else 0


def local_processes() -> int:
    """How many of them share this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if launched() > 1 else 1


def local_rank() -> int:
    """Which of those this is, from 0."""
    return int(os.environ.get("LOCAL_RANK", "0")) if launched() > 1 else 0


def refuse_many(verb: str) -> None:
    """Refuse to be one of several processes, for a verb that knows nothing of the others."""
    if (count := launched()) > 1:
        raise UserError(
            f"{verb}: torchrun has started {count} processes, and only {' and '.join(TOGETHER)} work together; start "
            f"{verb} without it."
        )
