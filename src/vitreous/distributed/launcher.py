"""What torchrun says in the environment: how many processes it started, and which this is. Without torch."""

from __future__ import annotations

import os

from vitreous.errors import UserError


def world_size() -> int:
    """How many processes torchrun started for this command; 1 without it."""
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return int(os.environ["WORLD_SIZE"]) if all(name in os.environ for name in names) else 1


def global_rank() -> int:
    return int(os.environ["RANK"]) if world_size() > 1 else 0


def local_world_size() -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if world_size() > 1 else 1


def local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", "0")) if world_size() > 1 else 0


def refuse_many(verb: str) -> None:
    """Refuse to be one of several processes, for a verb that knows nothing of the others."""
    if (size := world_size()) > 1:
        raise UserError(f"{verb}: runs in one process, and torchrun has started {size}; start it without torchrun.")
