"""Parts of a large prediction done by a Ray cluster: each of its workers opens the model once and writes its parts.

Ray Data hands out parts, not images: it starts as many workers as there is room for, more when machines join, and
repeats the part of a worker that died. What must outlive all of that is in the parts' own files.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import torch

from vitreous.config.fields import from_fields
from vitreous.data.source import Source
from vitreous.errors import MachineError, UserError
from vitreous.inference.part_plan import ModelRequest
from vitreous.inference.parts import PartFolder, PartRecord, PartWorker
from vitreous.inputs import reason
from vitreous.interrupt import SIGNALS
from vitreous.threads import usable_cores

OBJECT_STORE_BYTES = 512 * 2**20
"""Of memory that the workers of one machine share: little passes through, for they write files."""
CONNECT_SECONDS = 5.0


def require_ray() -> None:
    try:
        import ray.data  # noqa: F401
    except ImportError:
        raise UserError("ray: it is not installed; pip install 'vitreous[ray]'.") from None


@dataclass(frozen=True)
class Cluster:
    """The machines that Ray has now; more may join."""

    processors: int
    gpus: int
    processors_per_gpu: int = 1  # on the machine with the fewest

    def do(
        self,
        folder: PartFolder,
        request: ModelRequest,
        sources: Sequence[Source],
        missing: Sequence[int],
        batch_size: int | None,
    ) -> Iterator[PartRecord]:
        """Have the missing parts done, and give the record of each as soon as it is. sources: all images."""
        import ray.data
        from ray.exceptions import RayError

        if not missing:
            return
        on_gpu = self.gpus and folder.plan.engine == "torch" and request.device != "cpu"
        resources = {"num_gpus": 1, "num_cpus": self.processors_per_gpu} if on_gpu else {"num_cpus": 1}
        workers = self.gpus if on_gpu else self.processors
        listing = ray.put(list(sources))  # once per machine, and workers share its arrays
        parts = ray.data.from_items(
            [{"part": part} for part in missing],
            override_num_blocks=len(missing),  # each of its own, so that a worker takes one at a time
        )
        parts.context.enable_progress_bars = False
        done = parts.map(
            ClusterWorker,
            fn_constructor_args=(folder, request, [listing], batch_size, resources["num_cpus"]),
            compute=ray.data.ActorPoolStrategy(min_size=min(workers, len(missing)) or 1, max_size=len(missing)),
            **resources,
        )
        try:
            for row in done.iter_rows():
                if row.get("user_error"):
                    raise UserError(row["user_error"])
                if row.get("machine_error"):
                    raise MachineError(row["machine_error"])
                yield from_fields(PartRecord, json.loads(row["record"]), "a worker's reply")
        except RayError as error:
            why = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise MachineError(
                f"ray: a worker could not go on ({why}); repeat the command, which keeps what is done."
            ) from error


Row = dict[str, Any]
"""What passes between Ray and a worker: the number of a "part"; back comes its "record" as JSON, or the sentence of a
"user_error" or "machine_error"."""


class ClusterWorker:
    """One process of the cluster. It returns its errors, for Ray would try again what it raises."""

    def __init__(
        self, folder: PartFolder, request: ModelRequest, listing: list[Any], batch_size: int | None, threads: int
    ) -> None:
        """listing: [where Ray keeps the sources of all images]."""
        self.folder, self.request, self.listing = folder, request, listing[0]
        self.batch_size, self.threads = batch_size, threads

    def __call__(self, row: Row) -> Row:
        part = int(row["part"])
        try:
            images = self.folder.plan.images_of(part, self.sources)
            record = self.folder.finished(part, images) or self.worker.do(part, images)
        except UserError as error:
            return {"user_error": str(error)}
        except MachineError as error:
            return {"machine_error": str(error)}
        except MemoryError as error:
            return {"machine_error": f"ray: a worker has too little memory ({error}); give a smaller batch_size."}
        return {"record": json.dumps(asdict(record))}

    @cached_property
    def sources(self) -> list[Source]:
        import ray

        return ray.get(self.listing)

    @cached_property
    def worker(self) -> PartWorker:
        torch.set_num_threads(self.threads)
        model, digest = self.request.open()
        if digest != self.folder.plan.model:
            raise UserError(f"{model.path}: not the model of the predictions in {self.folder.out}; give that one.")
        return PartWorker(self.folder, model, self.batch_size, self.threads)


@contextmanager
def open_cluster(address: str | None) -> Iterator[Cluster]:
    """Ray's cluster at an address, or else the one that Ray finds; where there is none, this machine's processors.

    One that is connected to already is left connected.
    """
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # its lines are about its own parts
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    ours = not ray.is_initialized()
    in_main = threading.current_thread() is threading.main_thread()  # elsewhere nobody may set handlers
    handlers = {number: signal.getsignal(number) for number in SIGNALS} if in_main else {}
    try:
        if ours:
            with _silenced():
                _connect(address)
        for number, handler in handlers.items():  # Ray has put its own in their place
            signal.signal(number, handler)
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)
        found = ray.cluster_resources()
        yield Cluster(int(found.get("CPU", 0)), int(found.get("GPU", 0)), min_processors_per_gpu(ray.nodes()))
    finally:
        if ours:
            ray.shutdown()


def min_processors_per_gpu(nodes: Sequence[Mapping[str, Any]]) -> int:
    """The processors for each GPU on that of Ray's machines that has fewest, at least one.

    The mean over all machines is more than some of them have, and a worker that asks for it would wait for ever there.
    """
    there = [node["Resources"] for node in nodes if node.get("Alive") and node["Resources"].get("GPU", 0) >= 1]
    return max(1, min((int(has.get("CPU", 0) // has["GPU"]) for has in there), default=1))


@contextmanager
def _silenced() -> Iterator[None]:
    """Within, what native code writes to standard error goes nowhere."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _connect(address: str | None) -> None:
    import ray

    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    named = address or os.environ.get("RAY_ADDRESS")
    if named:
        _check_reachable(named)
    try:
        ray.init(address=address or "auto", **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        if named:
            advice = "give Ray's address; where the cluster wants a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"
            raise _no_cluster(named, error, advice) from None
        ray.init(
            address="local",
            num_cpus=usable_cores(),
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            **quiet,
        )


def _check_reachable(address: str) -> None:
    """Refuse an address where nobody listens, for which Ray would wait for minutes."""
    found = re.fullmatch(r"(?:ray://)?\[?([^\[\]/]+?)\]?:(\d{1,5})", address)
    if found is None:
        return  # "auto", "local", or for Ray to judge
    try:
        socket.create_connection((found[1], int(found[2])), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError, UnicodeError) as error:  # the last of a name that no machine can have
        raise _no_cluster(address, error) from None


def _no_cluster(address: str, error: Exception, advice: str = "start one, or give its address") -> UserError:
    why = (reason(error).splitlines() or ["no answer"])[0].rstrip(".")
    return UserError(f"ray: there is no cluster at {address} ({why}); {advice}.")
