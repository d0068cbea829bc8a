"""torchrun's environment variables: the number of processes and the rank of this one. Without torch."""

from __future__ import annotations

import os

from vitreous.errors import UserError


def world_size() -> int:
    """The number of processes that torchrun started; 1 without it."""
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return int(os.environ["WORLD_SIZE"]) if all(name in os.environ for name in names) else 1


def global_rank() -> int:
    return int(os.environ["RANK"]) if world_size() > 1 else 0


def local_world_size() -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if world_size() > 1 else 1


def local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", "0")) if world_size() > 1 else 0


def refuse_many(verb: str) -> None:
    """Refuse to run in several processes."""
    if (size := world_size()) > 1:
        raise UserError(f"{verb}: runs in one process, and torchrun has started {size}; start it without torchrun.")
