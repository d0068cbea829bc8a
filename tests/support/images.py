"""Small images and files that the tests of the data room share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def noise(height: int, width: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    """Random pixels (h, w, C), or (h, w) for one channel."""
    shape = (height, width, channels) if channels > 1 else (height, width)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def smooth(height: int, width: int, seed: int = 0) -> Image.Image:
    """An image with large soft shapes, as photographs have."""
    small = Image.fromarray(noise(6, 6, seed=seed))
    return small.resize((width, height), Image.Resampling.BICUBIC)


def make_tree(root: Path, counts: dict[str, int], suffix: str = ".png", size: tuple[int, int] = (24, 20)) -> Path:
    """Class folders with so many images each, all different."""
    seed = 0
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for i in range(count):
            seed += 1
            smooth(*size, seed=seed).save(root / name / f"{i:03d}{suffix}")
    return root
