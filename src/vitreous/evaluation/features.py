"""Features or logits of many images, batch by batch, and their cache.

The cache has one .safetensors file each, by the content that features or logits were computed from. Data that were
renamed, moved or copied are found again, changed ones never. The tensors' digest is checked when they are read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from vitreous.callbacks import Progress
from vitreous.config.data import Preprocess
from vitreous.config.model import model_to_json
from vitreous.data.batch import Batch, Rows
from vitreous.data.decode import ImageError
from vitreous.data.source import Source
from vitreous.distributed.world import SINGLE_PROCESS, World
from vitreous.errors import MachineError, UserError, no_readable_images
from vitreous.model.network import Network
from vitreous.storage.cache import cache_key, cache_path, evict, mark_used, not_cached
from vitreous.storage.files import write_file
from vitreous.weights.bundle import weights_digest

PROGRESS_IMAGES = 256  # images between two calls of `Progress`


def compute_features(
    function: Callable[[Tensor], Tensor],
    batches: Iterable[Batch],
    count: int,
    progress: Callable[[int], None] | None = None,
    on_batch: Callable[[Batch, Tensor], None] | None = None,
    world: World = SINGLE_PROCESS,
) -> tuple[Tensor, Tensor]:
    """(n, D) float32 features or logits, and (n,) int64 labels, in the order of the batches.

    function: (B, C, H, W) to (B, D): `engine.logits`, `engine.representations`, or a network in evaluation mode. It is
        called without gradients.
    count: images in the batches; fewer may come, where some cannot be read.
    progress: called after each batch with the number of images done.
    on_batch: called with each batch and its features or logits, (B, D).
    world: where several processes look together, `batches` are this one's, and the result is that of all.
    """
    features, labels = Rows(count), Rows(count)
    for batch in batches:
        with torch.inference_mode():
            found = function(batch.images).float()
        features.add(found)
        labels.add(batch.targets)
        if on_batch is not None:
            on_batch(batch, found)
        if progress is not None:
            progress(labels.done)
    if not world.any_rank(labels.done > 0):
        raise no_readable_images()
    return world.all_gather_rows(features.all()), world.all_gather_rows(labels.all())


@dataclass(frozen=True)
class StoredFeatures:
    """What was computed of a source."""

    features: Tensor  # (n, D) float32
    index: Tensor  # (n,) int64: which images of the source they are of
    unreadable: dict[int, str] = field(default_factory=dict)  # the others: index to reason


@dataclass
class FeatureCache:
    """Features by key. `remarks` has what people should know: damaged files, a cache that cannot be written."""

    remarks: list[str] = field(default_factory=list)

    def get(self, key: str) -> StoredFeatures | None:
        """What is stored, or None; a damaged file counts as none."""
        path = _path(key)
        if not path.exists():
            return None
        try:
            found = _read(path)
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            self.remarks.append(f"{path}: damaged ({error}); its features were computed again.")
            return None
        mark_used(path)
        return found

    def put(self, key: str, stored: StoredFeatures) -> None:
        """Store it; where that is impossible, say so and go on without."""
        about = {"sha256": _digest(stored.features, stored.index), "unreadable": json.dumps(stored.unreadable)}
        tensors = {"features": stored.features.contiguous(), "index": stored.index.contiguous()}
        try:
            write_file(_path(key), save(tensors, metadata=about))
        except (UserError, MachineError) as error:
            self.remarks.append(not_cached("features, which the next command computes again,", error))
        else:
            evict(except_for=_path(key))


def features_key(model: Network | str, preprocess: Preprocess, source: Source) -> str:
    """The key of a source's features. model: the network that computes them, or a digest of what does."""
    about = model if isinstance(model, str) else [model_to_json(model.config), weights_digest(model)]
    return cache_key("features", about, asdict(preprocess), _digest_images(source))


def logits_key(teacher: str, source: Source, progress: Progress | None = None) -> str:
    """The key of a teacher's logits for a source's classes. teacher: a digest of all that its logits follow from."""
    return cache_key("logits", teacher, source.classes, _digest_images(source, progress))


def _digest_images(source: Source, progress: Progress | None = None) -> str:
    """A digest of all images in their order; of one that cannot be read, the reason counts."""
    digest = sha256()
    for index in range(len(source)):
        try:
            content = source.digest(index).hex()
        except ImageError as error:
            content = error.reason
        digest.update(f"{content}\n".encode())
        report(progress, index + 1, len(source))
    return digest.hexdigest()


def report(progress: Progress | None, done: int, total: int) -> None:
    """Report now and then, and never of a handful of images."""
    if progress is not None and total > PROGRESS_IMAGES and (done % PROGRESS_IMAGES == 0 or done == total):
        progress(done, total)


def _path(key: str) -> Path:
    return cache_path("features", f"{key}.safetensors")


def _read(path: Path) -> StoredFeatures:
    with safe_open(path, framework="pt") as file:
        about = file.metadata() or {}
        features, index = file.get_tensor("features"), file.get_tensor("index")
    if about["sha256"] != _digest(features, index):
        raise ValueError("its SHA-256 is not the one that was stored with it")
    unreadable = {int(number): str(reason) for number, reason in json.loads(about["unreadable"]).items()}
    return StoredFeatures(features, index, unreadable)


def _digest(features: Tensor, index: Tensor) -> str:
    digest = sha256(features.contiguous().numpy().data)
    digest.update(index.contiguous().numpy().data)
    return digest.hexdigest()
