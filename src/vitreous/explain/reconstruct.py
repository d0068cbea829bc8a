"""What a masked autoencoder rebuilds, beside what it saw and what was there."""

from __future__ import annotations

import numpy as np
from PIL import Image
from torch import Tensor

from vitreous.config.data import Preprocess
from vitreous.data.batch import Batch
from vitreous.explain.draw import tile
from vitreous.objectives.mae import MaskedAutoencoder

GREY = 128
LEAST = 160
"""Small images are enlarged to this many pixels a side, pixel by pixel."""


def draw_reconstructions(objective: MaskedAutoencoder, batch: Batch, preprocess: Preprocess) -> Image.Image:
    """A row for each image of the batch: the image, the patches that were seen, and what became of the others."""
    rebuilt, hidden = objective.reconstruct(batch)
    side = objective.model.config.patch
    holes = hidden.repeat_interleave(side, dim=1).repeat_interleave(side, dim=2)  # (B, H, W) bool
    height, width = batch.images.shape[2:]  # with pad=True the grid is larger than the image
    panels, captions = [], []
    for image, made, hole in zip(batch.images, rebuilt, holes[:, :height, :width], strict=True):
        whole = to_bytes(image, preprocess)
        seen = whole.copy()
        seen[hole.numpy()] = GREY
        panels += [_image(whole), _image(seen), _image(to_bytes(made[:, :height, :width], preprocess))]
        captions += ["image", f"{1 - hole.float().mean().item():.0%} of it", "rebuilt"]
    return tile(panels, captions, columns=3)


def to_bytes(image: Tensor, preprocess: Preprocess) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """(C, H, W) as the model sees it, back to pixels (H, W, 3)."""
    pixels = image.permute(1, 2, 0).numpy() * np.array(preprocess.std) + np.array(preprocess.mean)
    made: np.ndarray[tuple[int, ...], np.dtype[np.uint8]] = np.rint(np.clip(pixels, 0, 1) * 255).astype(np.uint8)
    return np.broadcast_to(made, (*made.shape[:2], 3)).copy()


def _image(pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> Image.Image:
    image = Image.fromarray(pixels)
    times = -(-LEAST // min(image.size))
    return image.resize((image.width * times, image.height * times), Image.Resampling.NEAREST)
