"""The process group of the processes that torchrun started; they find each other at the launcher's store.

The shared store of torchrun's c10d rendezvous outlives the processes, and after a restart still holds the keys of
earlier ones. torchrun's restart count does not identify a rendezvous: each machine counts for itself. So the main
process draws an id.
"""

from __future__ import annotations

import atexit
import os
import secrets
import time
from contextlib import suppress
from datetime import timedelta
from threading import Thread
from traceback import walk_tb
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore
from torch.distributed import distributed_c10d
from torch.distributed.rendezvous import rendezvous

from vitreous.distributed import heartbeat
from vitreous.distributed.heartbeat import RESUME, START, Heartbeat, collectives, first_line, rendezvous_failure
from vitreous.distributed.launcher import global_rank, local_rank, world_size
from vitreous.distributed.world import World, find_device
from vitreous.errors import MachineError, UserError
from vitreous.interrupt import Interrupted, received_signal

COLLECTIVE_TIMEOUT = timedelta(minutes=30)
"""For which a process waits for another that is alive: it may be reading a large checkpoint."""
DEBUG = "VITREOUS_DEBUG_COLLECTIVES"
"""Environment variable that compares every collective among the processes, at the cost of a request each."""
POLL_SECONDS = 0.1  # between two checks of the main process for requests of the rendezvous id


class PeerFailedError(MachineError):
    """Another process failed or is lost; the message says which."""


def join_world(device: str) -> World:
    """The world of the processes that torchrun started; without torchrun, of this process alone."""
    if (size := world_size()) == 1:
        return World(device=find_device(device))
    if not dist.is_initialized():
        _init_process_group(global_rank(), size)
    try:
        found = find_device(device)
        if found.type == "cuda" and found.index is None:  # each process has the GPU of its local rank
            found = find_device(f"cuda:{local_rank()}")
            torch.cuda.set_device(found)
        return World(global_rank(), size, found)
    except UserError as error:
        announce_failure(error)
        raise


def _init_process_group(rank: int, size: int) -> None:
    global _heartbeat
    collectives.entered, collectives.checker = START, None
    _heartbeat = Heartbeat(rank, size)
    atexit.register(leave)
    try:
        with collectives.enter("rendezvous"):
            store, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=heartbeat.RENDEZVOUS_SECONDS)))
            if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
                store = PrefixStore(f"vitreous/{agree_on_id(store, rank, size)}", store)
            _heartbeat.start(store)  # now, so that a process that hangs from here on is noticed
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            group = PrefixStore("vitreous/group", store)
            dist.init_process_group(backend, store=group, rank=rank, world_size=size, timeout=COLLECTIVE_TIMEOUT)
    except (RuntimeError, ValueError, TimeoutError) as error:
        message = rendezvous_failure(rank, size, first_line(error))
        _heartbeat.claim_failure(message)
        _heartbeat.leave()
        raise MachineError(message) from error
    if os.environ.get(DEBUG, "0") != "0":
        collectives.checker = _heartbeat


def agree_on_id(store: Any, rank: int, size: int) -> str:
    """A new id for this rendezvous, the same in all processes. Each process writes a nonce to the store, and the main
    process answers with the id: the answer to a new nonce cannot be an old one."""
    nonce = secrets.token_hex(8)
    if rank == 0:  # no need to wait here: the heartbeat notices a missing process
        Thread(target=_send_id, args=(store.clone(), nonce, size), name="rendezvous", daemon=True).start()
        return nonce
    store.set(f"vitreous/nonce/{rank}", nonce)
    try:
        found: str = store.get(f"vitreous/id/{nonce}").decode()
    except dist.DistStoreError:
        raise TimeoutError(f"process 0 did not come in {heartbeat.RENDEZVOUS_SECONDS:.0f} s") from None
    store.set(f"vitreous/{found}/came/{rank}", "")
    return found


def _send_id(store: Any, own_id: str, size: int) -> None:
    """In the main process: answer with the id until all others have it, or are too late."""
    waiting, answered = set(range(1, size)), dict[int, str]()
    seconds_left = heartbeat.RENDEZVOUS_SECONDS + heartbeat.GRACE_SECONDS
    with suppress(RuntimeError):  # the store is gone, which others notice
        while waiting and seconds_left > 0:
            waiting = {rank for rank in waiting if not store.check([f"vitreous/{own_id}/came/{rank}"])}
            for rank in waiting:
                key = f"vitreous/nonce/{rank}"
                nonce = store.get(key).decode() if store.check([key]) else None
                if nonce is not None and nonce != answered.get(rank):
                    store.set(f"vitreous/id/{nonce}", own_id)
                    answered[rank] = nonce
            time.sleep(POLL_SECONDS)
            seconds_left -= POLL_SECONDS


def announce_failure(error: BaseException) -> BaseException | None:
    """Tell the other processes what ends this one, so that they end too. If the error only follows from the end of
    another process (torch raises a plain RuntimeError then, so the store is asked), return the error that says so."""
    if _heartbeat is None:
        return None
    if isinstance(error, RuntimeError):
        reason = _heartbeat.poll_failure()
        if reason is None and _is_from_collective(error):
            message = f"process {_heartbeat.rank}: the connection to the others failed ({first_line(error)}); {RESUME}"
            reason = _heartbeat.claim_failure(message)
        if reason is not None:
            return PeerFailedError(reason) if (number := received_signal()) is None else Interrupted(number)
    _heartbeat.claim_failure(f"{type(error).__name__}: {error}")
    return None


def _is_from_collective(error: RuntimeError) -> bool:
    frames = (frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__))
    return isinstance(error, dist.DistError) or distributed_c10d.__file__ in frames


def is_first_failure() -> bool:
    """Whether this process failed first, and so prints the error."""
    return global_rank() == 0 if _heartbeat is None else _heartbeat.is_first  # before the rendezvous, all fail alike


def leave() -> None:
    """Leave the process group, if there is one: no other process waits for this one any more."""
    global _heartbeat
    if _heartbeat is None:
        return
    _heartbeat.leave()
    if _heartbeat.failure is None and dist.is_initialized():
        with suppress(RuntimeError):
            dist.destroy_process_group()
        _heartbeat = None


_heartbeat: Heartbeat | None = None  # of this process, which is part of one group at most
