"""Numbers and images as text that a page can unpack quickly."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.data.augment import to_image


@dataclass(frozen=True)
class PackedMaps:
    """Maps of patches, each as 256 levels of its own range."""

    shape: tuple[int, ...]
    """(..., rows, columns)."""
    levels: str
    """Base64 of uint8, all of them in order; 0 is the map's lowest number, 255 its highest."""
    ranges: str
    """Base64 of float32, little-endian: lowest and highest of each map."""


def pack_maps(maps: Tensor) -> PackedMaps:
    """Maps (..., rows, columns) of any numbers."""
    flat = maps.detach().float().cpu().flatten(-2).flatten(0, -2)  # (maps, cells)
    low, high = flat.amin(dim=1, keepdim=True), flat.amax(dim=1, keepdim=True)
    width = torch.where(high > low, high - low, torch.ones_like(low))
    levels = ((flat - low) * (255 / width)).round().to(torch.uint8)
    return PackedMaps(tuple(maps.shape), pack(levels.numpy()), pack_floats(torch.cat([low, high], dim=1)))


def pack_floats(values: Tensor) -> str:
    """Base64 of float32, little-endian."""
    return pack(values.detach().float().cpu().numpy().astype("<f4"))


def pack(values: NDArray[np.generic]) -> str:
    """Base64 of an array's bytes."""
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode("ascii")


def pack_view(view: Tensor) -> str:
    """Base64 of a PNG of a view (C, H, W) uint8, C 1 or 3: without any loss."""
    file = io.BytesIO()
    to_image(view).save(file, "PNG", compress_level=1)
    return base64.b64encode(file.getvalue()).decode("ascii")
