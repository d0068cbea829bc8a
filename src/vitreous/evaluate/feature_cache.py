"""Features that were computed once: a file each, named after what they are features of.

The name is a digest of the weights, the preprocessing and the images' own bytes, so renamed, moved or copied data are
found again, and changed ones never. A file is complete or not there, and its tensors have a digest that is checked.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from vitreous.config.data import Preprocess
from vitreous.config.model import model_to_json
from vitreous.data.datasets.place import cache_root
from vitreous.data.decode import ImageError
from vitreous.data.source import Source
from vitreous.errors import MachineError, UserError
from vitreous.model.network import Network
from vitreous.storage.files import write_file

if TYPE_CHECKING:
    from hashlib import _Hash as HASH

Progress = Callable[[int, int], None]
"""Called with how many images were read, and of how many."""
TOLD = 256
"""Images after which progress is told."""
FORMAT = 2
LIMIT = 2 * 2**30
"""Bytes that the cache may take: beyond that, what was not used for longest is removed."""


@dataclass(frozen=True)
class StoredFeatures:
    """What was computed of a source."""

    features: Tensor
    """(n, D) float32."""
    index: Tensor
    """(n,) int64: which images of the source they are of."""
    unreadable: dict[int, str] = field(default_factory=dict)
    """The others: index to reason."""


@dataclass
class FeatureCache:
    """Features by key: `get`, and `put` where there were none. What a person should know of it is in `remarks`."""

    folder: Path
    remarks: list[str] = field(default_factory=list)

    def get(self, key: str) -> StoredFeatures | None:
        """What is stored, or None; a damaged file counts as none."""
        path = self._path(key)
        if not path.exists():
            return None
        try:
            found = _read(path)
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            self.remarks.append(f"{path}: damaged ({error}); its features were computed again.")
            return None
        with suppress(OSError):  # a cache that may only be read is a good cache
            os.utime(path)
        return found

    def put(self, key: str, stored: StoredFeatures) -> None:
        """Store it; where that is impossible, say so and go on without."""
        try:
            _write(self._path(key), stored)
        except (UserError, MachineError) as error:
            self.remarks.append(
                f"{self.folder}: features could not be kept there, so the next command computes them again; set "
                f"VITREOUS_CACHE to a folder that can be written ({str(error).rstrip('.')})."
            )
            return
        with suppress(OSError):  # another process may be removing the same files
            self._shrink()

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.safetensors"

    def _shrink(self) -> None:
        files = sorted(self.folder.glob("*.safetensors"), key=lambda path: path.stat().st_mtime, reverse=True)
        total = 0
        for path in files:
            total += path.stat().st_size
            if total > LIMIT:
                path.unlink(missing_ok=True)


def default_folder() -> Path:
    """Where features are kept among the caches."""
    return cache_root() / "features"


def features_key(model: Network | str, preprocess: Preprocess, source: Source) -> str:
    """64 hexadecimal digits that differ if a weight, a buffer, the preprocessing or any image differs.

    model: the network, or a digest of whatever computes.
    """
    digest = sha256()
    about = model if isinstance(model, str) else model_to_json(model.config)
    digest.update(json.dumps([FORMAT, about, asdict(preprocess), len(source)]).encode())
    if isinstance(model, str):
        return _with_images(digest, source)
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy())
    return _with_images(digest, source)


def answers_key(teacher: str, source: Source, progress: Progress | None = None) -> str:
    """The same of a teacher's scores of the source's classes. teacher: a digest of all that its scores follow from."""
    asked = json.dumps([FORMAT, "answers", teacher, list(source.classes), len(source)])
    return _with_images(sha256(asked.encode()), source, progress)


def _with_images(digest: HASH, source: Source, progress: Progress | None = None) -> str:
    for index in range(len(source)):
        try:
            digest.update(sha256(source.content(index)).digest())
        except ImageError as error:
            digest.update(error.reason.encode())
        tell(progress, index + 1, len(source))
    return digest.hexdigest()


def tell(progress: Progress | None, done: int, total: int) -> None:
    """Tell now and then, where somebody wants to know, and never that a small thing is done."""
    if progress is not None and total > TOLD and (done % TOLD == 0 or done == total):
        progress(done, total)


def _read(path: Path) -> StoredFeatures:
    with safe_open(path, framework="pt") as file:
        about = file.metadata() or {}
        features, index = file.get_tensor("features"), file.get_tensor("index")
    if about["sha256"] != _digest(features, index):
        raise ValueError("its SHA-256 is not the one that was stored with it")
    unreadable = {int(number): str(reason) for number, reason in json.loads(about["unreadable"]).items()}
    return StoredFeatures(features, index, unreadable)


def _write(path: Path, stored: StoredFeatures) -> None:
    about = {"sha256": _digest(stored.features, stored.index), "unreadable": json.dumps(stored.unreadable)}
    tensors = {"features": stored.features.contiguous(), "index": stored.index.contiguous()}
    write_file(path, save(tensors, metadata=about))


def _digest(features: Tensor, index: Tensor) -> str:
    digest = sha256(features.contiguous().numpy().data)
    digest.update(index.contiguous().numpy().data)
    return digest.hexdigest()
