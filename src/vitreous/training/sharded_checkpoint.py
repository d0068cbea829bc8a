"""Checkpoints of sharded trainings: every process writes its part, while the next steps are taken.

The folder is that of every checkpoint (`training.checkpoint`) with `shards/` in place of the safetensors files, in the
format of `torch.distributed.checkpoint`. Its list of contents is a pickle, the only one in a format of ours. It is read
by an unpickler that knows the classes of such a list and no others, after the manifest has vouched for every file, and
from a run folder only: nobody's model comes in this form.
"""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from threading import Event
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save

from vitreous.distributed.world import World
from vitreous.errors import UserError
from vitreous.storage.files import fsync_folder, remove_folder, replace_folder
from vitreous.storage.manifest import write_manifest
from vitreous.storage.overwrite import readable_errors
from vitreous.training.checkpoint import FILES, SHARDS, Checkpoint, prune, remove_damaged, save_state, step_folder

_KNOWN = {
    "torch.distributed.checkpoint.metadata": (
        "BytesStorageMetadata ChunkStorageMetadata Metadata MetadataIndex StorageMeta TensorProperties "
        "TensorStorageMetadata _MEM_FORMAT_ENCODING"
    ),
    "torch.distributed.checkpoint.filesystem": "_StorageInfo",
    "torch.serialization": "_get_layout",  # looks up torch.strided and its like by name
    "torch": "Size",
    "pathlib": "PosixPath WindowsPath",
    "pathlib._local": "PosixPath WindowsPath",  # where Python 3.13 has them
}
"""What a list of contents is made of, by module; and the dtypes of torch. Nothing here does anything when called."""


class ShardedSaver:
    """Saves one checkpoint at a time, beside the training, through a process group of its own."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.group = dist.new_group(backend="gloo")
        self._pending: Any = None
        self._complete = Event()
        self._error: BaseException | None = None

    def save(self, folder: Path, checkpoint: Checkpoint) -> None:
        """Begin to write a checkpoint; its tensors are copied before this returns."""
        self.finish()
        final = step_folder(folder, checkpoint.step)
        temporary = final.with_name(f".{final.name}.new")

        def prepare() -> None:
            with readable_errors(final):
                remove_damaged(final)
                remove_folder(temporary)
                (temporary / SHARDS).mkdir(parents=True)
                save_state(temporary, checkpoint)

        self.world.on_main(prepare)
        state = {part: getattr(checkpoint, part) for part in FILES if getattr(checkpoint, part)}
        self._complete.clear()
        self._pending = async_save(state, checkpoint_id=temporary / SHARDS, process_group=self.group)
        if self.world.is_main:  # done here means done by all: the list of contents comes last
            self._pending.add_done_callback(lambda done: self._rename(done, temporary, final))
        else:
            self._pending.add_done_callback(lambda done: self._complete.set())

    def _rename(self, done: Any, temporary: Path, final: Path) -> None:
        """In the first process, beside its steps: complete the folder, and put it in its place."""
        try:
            done.result()
            with readable_errors(final):
                write_manifest(temporary)
                fsync_folder(temporary)
                replace_folder(temporary, final)
                prune(final.parent)
        except BaseException as error:  # for the main thread, which looks when it saves again
            self._error = error
        self._complete.set()

    def finish(self) -> None:
        """Wait until the last checkpoint is in its place; what went wrong with it is raised now."""
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        self._complete.wait()
        try:
            if self._error is not None:
                raise self._error
            pending.result()
        except CheckpointException as error:  # of any process: what the system said is inside
            with readable_errors(Path("checkpoints")):
                for failure, _ in error.failures.values():
                    if isinstance(failure, OSError):
                        raise failure from error
            raise UserError(f"a checkpoint could not be written ({error}); the last one is whole.") from error


def read_shards(folder: Path) -> dict[str, dict[str, Tensor]]:
    """By part the whole tensors of a checkpoint that has been found whole, put together from what each wrote."""
    reader = _Reader(folder / SHARDS)
    listed = reader.read_metadata().state_dict_metadata
    flat: dict[str, Any] = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in listed.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that one process reads them all is what is wanted
        load(flat, storage_reader=reader, no_dist=True)
    found: dict[str, dict[str, Tensor]] = {part: {} for part in FILES}
    for name, tensor in flat.items():
        part, _, own = name.partition(".")
        found[part][own] = tensor
    return found


class _Reader(FileSystemReader):
    """torch's reader, with a list of contents that can do nothing but list."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The list; one that asks for anything that no such list needs is refused, and nothing of it is run."""
        path = Path(self.path) / ".metadata"
        try:
            with path.open("rb") as file:
                found = _Listing(file).load()
        except OSError:
            raise
        except Exception as error:  # a pickle that is damaged raises anything
            raise UserError(f"{path}: not a list of shards ({str(error)[:200]}); restore it from a copy.") from None
        if not isinstance(found, Metadata):
            raise UserError(
                f"{path}: not a list of shards, but of type {type(found).__name__}; restore it from a copy."
            )
        found.storage_meta = found.storage_meta or StorageMeta()
        found.storage_meta.load_id = self.load_id
        return found


class _Listing(pickle.Unpickler):
    """Gives a pickle the classes that a list of contents needs, and no others."""

    def find_class(self, module: str, name: str) -> Any:
        if name in _KNOWN.get(module, "").split():
            return super().find_class(module, name)
        if module == "torch" and isinstance(kind := vars(torch).get(name), torch.dtype):
            return kind
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")
