"""What crosses from data to an objective: views of images with their geometry, targets, and who they are.

Letters: B images, V views of each, C channels, H x W pixels, N patches, K classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from vitreous.data.rng import sample_keys
from vitreous.memory import check_memory

Tensors = TypeVar("Tensors", "Batch", "ViewBatch")


@dataclass(frozen=True)
class ViewBatch:
    """Views of one kind, several of each image, and where in the image they were cut. Whatever belongs to places of an
    image (a mask, a label for each token) can follow: cut `box`, resize, mirror. Rotations and shears of an
    augmentation policy are not told."""

    images: (
        Tensor  # (B, V, C, H, W) float32, normalised; uint8 where the loader was told not to; on the loader's device
    )
    # (B, V, 4) float32: top, left, height and width as fractions of the upright image; a shifted view may reach beyond
    # the border of what evaluation sees, where its pixels are reflected.
    box: Tensor
    flipped: Tensor  # (B, V) bool: mirrored left to right after it was cut


@dataclass(frozen=True)
class Batch:
    """Views of some images with their targets, as an objective gets them."""

    views: dict[str, ViewBatch]  # by the names that the objective asked for; "image" is the plain one
    targets: Tensor  # (B,) int64, or (B, K) float32 that sum to 1 where images were mixed or their labels are soft
    index: Tensor  # (B,) int64: which images of the source these are
    keys: Tensor  # (B,) int64: of the seed, the epoch and the index; what is random about a sample follows from it
    partner: Tensor | None = field(default=None, kw_only=True)  # (B,) int64: which image has been mixed into each
    lam: Tensor | None = field(
        default=None, kw_only=True
    )  # (B,) float32: where images were mixed, what is left of each
    # (B, N, K) float32 that sum to 1: what a teacher says of each patch of the plain view, row by row.
    token_targets: Tensor | None = field(default=None, kw_only=True)

    @staticmethod
    def of(
        images: Tensor, targets: Tensor | None = None, index: Tensor | None = None, *, seed: int = 0, epoch: int = 0
    ) -> Batch:
        """A batch of uncut images (B, C, H, W), with unknown targets and numbers from 0 unless they are given."""
        numbers = torch.arange(len(images)) if index is None else index
        keys = torch.from_numpy(sample_keys(seed, epoch, numbers.numpy()))
        box = torch.tensor([0.0, 0.0, 1.0, 1.0]).expand(len(images), 1, 4)
        views = {"image": ViewBatch(images[:, None], box, torch.zeros(len(images), 1, dtype=torch.bool))}
        return Batch(views, torch.full_like(numbers, -1) if targets is None else targets, numbers, keys)

    @property
    def images(self) -> Tensor:
        """(B, C, H, W): the plain view."""
        return self.views["image"].images[:, 0]

    def to(self, device: torch.device) -> Batch:
        """The same on another device."""
        return _mapped(self, lambda tensor: to_device(tensor, device))

    def split(self, parts: int) -> list[Batch]:
        """Parts of nearly equal size; none is empty."""

        def rows_of(number: int) -> Batch:
            return _mapped(self, lambda rows: rows.tensor_split(parts)[number])

        return [rows_of(number) for number in range(min(parts, len(self.index)))]


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The same on another device; to a GPU through pinned memory, so that nobody waits for the copy."""
    pinned = device.type == "cuda" and tensor.device.type == "cpu"
    return (tensor.pin_memory() if pinned else tensor).to(device, non_blocking=True)


def _mapped(record: Tensors, change: Callable[[Tensor], Tensor]) -> Tensors:
    """The record with every tensor in it changed, field by field and by name."""
    return replace(record, **{field.name: _changed(getattr(record, field.name), change) for field in fields(record)})


def _changed(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if value is None:
        return None
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {name: _changed(one, change) for name, one in value.items()}
    return _mapped(value, change)


class Rows:
    """Rows that come batch by batch, written at once into one tensor allocated beforehand. Kept as they come, they
    would pin the heap around the freed activations of their batches: some 100 kB for each image, gigabytes for a large
    dataset."""

    def __init__(self, count: int) -> None:
        """count: rows there will be at most."""
        self.count, self.done = count, 0
        self._all: Tensor | None = None

    def add(self, rows: Tensor) -> None:
        """Take in a copy of these (B, ...), which all have the same shape and type."""
        if self._all is None:
            needed = self.count * rows[:1].numel() * rows.element_size()
            check_memory(needed, f"what is kept of {self.count:,} images", "give fewer images")
            self._all = torch.empty(self.count, *rows.shape[1:], dtype=rows.dtype)
        self._all[self.done : self.done + len(rows)] = rows
        self.done += len(rows)

    def all(self) -> Tensor:
        """(n, ...): those that came, in their order; an ordinary tensor, which training may use."""
        return torch.empty(0) if self._all is None else self._all[: self.done]
