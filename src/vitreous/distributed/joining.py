"""Processes that torchrun started become one world: they find each other at the launcher's store, and watch each other.

With torch's shared store (the default of torchrun's c10d meeting) the store outlives the processes, and remembers what
those before them said there. torchrun's count of restarts is no name for a meeting: each machine counts for itself. So
the first process draws one.
"""

from __future__ import annotations

import atexit
import os
import secrets
import time
from contextlib import suppress
from datetime import timedelta
from threading import Thread
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from vitreous.distributed import watch
from vitreous.distributed.launcher import launched, local_rank, own_rank
from vitreous.distributed.watch import Failed, Watch, cannot_meet
from vitreous.distributed.world import World, find_device
from vitreous.errors import MachineError, UserError

COLLECTIVE = timedelta(minutes=30)
"""That one process may wait for another which is alive: it may be reading a large checkpoint."""
ASKING = 0.1
"""Seconds between two looks of the first process for others that want to know the meeting's name."""


class LostError(MachineError):
    """Another process failed or is gone, and it has been said which."""


def join_world(device: str) -> World:
    """This process among those that torchrun started; without torchrun, a world of its own."""
    if (size := launched()) == 1:
        return World(device=find_device(device))
    if not dist.is_initialized():
        _meet(own_rank(), size)
    try:
        return World(own_rank(), size, _own_device(device))
    except UserError as error:
        announce(error)
        raise


def announce(error: BaseException) -> LostError | None:
    """Tell the others what ends this process early, so that they end too; or what another has said, which does."""
    if _watch is None:
        return None
    if isinstance(error, RuntimeError) and _is_about_others(error):
        return LostError(_watch.wait_for_reason())
    _watch.claim(f"{type(error).__name__}: {error}")
    return None


def speaks() -> bool:
    """Whether it is this process's part to say what went wrong: the first one that failed does."""
    if _watch is not None:
        return _watch.failed is not Failed.ANOTHER
    return own_rank() == 0  # before they met, all fail alike


def _is_about_others(error: RuntimeError) -> bool:
    words = ("gloo", "nccl", "connection closed", "connection reset", "broken pipe")
    return isinstance(error, dist.DistError) or any(word in str(error).lower() for word in words)


def _meet(rank: int, size: int) -> None:
    global _watch
    _watch = Watch(rank, size)
    atexit.register(leave)
    try:
        store, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=watch.JOINING)))
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            store = PrefixStore(f"vitreous/{name_meeting(store, rank, size)}", store)
        _watch.begin(store)  # not later: whoever hangs from here on is noticed
        kinds = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        group = PrefixStore("vitreous/group", store)
        dist.init_process_group(kinds, store=group, rank=rank, world_size=size, timeout=COLLECTIVE)
    except (RuntimeError, ValueError, TimeoutError) as error:
        sentence = cannot_meet(rank, size, str(error).strip().splitlines()[0])
        _watch.claim(sentence)
        _watch.leave()
        raise MachineError(sentence) from error


def name_meeting(store: Any, rank: int, size: int) -> str:
    """A name for this meeting, the same in all processes, that none before had.

    Each process leaves a word of its own at the store, new each time, and the first answers to it with the name: an
    answer to one's own word cannot be an old one.
    """
    word = secrets.token_hex(8)
    if rank == 0:  # whoever does not come is noticed as ever, so there is no need to wait here
        Thread(target=_answer, args=(store.clone(), word, size), name="meeting", daemon=True).start()
        return word
    store.set(f"vitreous/here/{rank}", word)
    try:
        name: str = store.get(f"vitreous/meeting/{word}").decode()
    except dist.DistStoreError:
        raise TimeoutError(f"process 0 did not come in {watch.JOINING:.0f} s") from None
    store.set(f"vitreous/{name}/came/{rank}", "")
    return name


def _answer(store: Any, name: str, size: int) -> None:
    """In the first process: tell the others the name until all have heard it, or are too late."""
    waiting, answered, patience = set(range(1, size)), dict[int, str](), watch.JOINING + watch.GRACE
    with suppress(RuntimeError):  # the store is gone, which others notice
        while waiting and patience > 0:
            waiting = {rank for rank in waiting if not store.check([f"vitreous/{name}/came/{rank}"])}
            for rank in waiting:
                here = f"vitreous/here/{rank}"
                word = store.get(here).decode() if store.check([here]) else None
                if word is not None and word != answered.get(rank):
                    store.set(f"vitreous/meeting/{word}", name)
                    answered[rank] = word
            time.sleep(ASKING)
            patience -= ASKING


def _own_device(name: str) -> torch.device:
    """Of several accelerators in a machine, each process has the one of its local rank."""
    device = find_device(name)
    if device.type != "cuda" or device.index is not None:
        return device
    own = find_device(f"cuda:{local_rank()}")
    torch.cuda.set_device(own)
    return own


def leave() -> None:
    """End this process's part in the world, if it has one: nobody waits for it any more."""
    global _watch
    if _watch is None:
        return
    _watch.leave()
    if _watch.failed is Failed.NOBODY and dist.is_initialized():
        with suppress(RuntimeError):
            dist.destroy_process_group()
        _watch = None


_watch: Watch | None = None
"""Of this process, which is part of one world at most."""
