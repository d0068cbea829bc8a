"""Maps as images: laid over the image they explain, and side by side; what a masked autoencoder rebuilds."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageDraw, ImageFont
from torch import Tensor

from vitreous.config.data import Preprocess
from vitreous.data.batch import Batch
from vitreous.objectives.mae import MaskedAutoencoder
from vitreous.storage.overwrite import GENERATOR

UNSEEN = 0.35  # brightness of what the model did not see
STRENGTH = 0.72  # how much of the image the strongest colour covers
GAP = 6
CAPTION = 18

_LEVELS = np.linspace(0, 1, 256)
COLOURS: NDArray[np.uint8] = (colormaps["inferno"](_LEVELS)[:, :3] * 255).astype(np.uint8)
"""(256, 3): the colour of each level of a map."""
COVER: NDArray[np.uint8] = (255 * STRENGTH * np.sqrt(_LEVELS)).astype(np.uint8)
"""(256,): how much of the image it covers, 0 to 255."""


def overlay(image: Image.Image, map: NDArray[np.floating], seen: NDArray[np.bool_] | None = None) -> Image.Image:
    """The image in grey with the map (height, width) over it: where it is high, glowing; where low, dark.

    The map is scaled to its own range, but for the highest half per cent, which a single patch may take for itself.
    seen: (height, width), where the model looked; the rest is darkened.
    """
    inside = map if seen is None else map[seen]
    low, high = (float(value) for value in np.quantile(inside, (0, 0.995))) if inside.size else (0.0, 0.0)
    if high == low and inside.size:
        high = float(inside.max())  # all that there is lies in less than half a per cent
    level = np.clip((map - low) * (255 / ((high - low) or 1.0)), 0, 255).astype(np.uint8)
    grey = image.convert("L")
    base = grey.point([round(0.75 * value) for value in range(256)]).convert("RGB")
    made = Image.composite(Image.fromarray(COLOURS[level]), base, Image.fromarray(COVER[level]))
    if seen is None:
        return made
    dark = grey.point([round(UNSEEN * value) for value in range(256)]).convert("RGB")
    return Image.composite(made, dark, Image.fromarray(seen.astype(np.uint8) * 255))


def encode(image: Image.Image, kind: str = "PNG") -> bytes:
    """The image as a file of this kind of Pillow's; its EXIF block says that vitreous made it."""
    made, exif = io.BytesIO(), Image.Exif()
    exif[ExifTags.Base.Software] = GENERATOR
    image.save(made, kind, exif=exif, **({"compress_level": 1} if kind == "PNG" else {}))
    return made.getvalue()


def mark(image: Image.Image, x: float, y: float) -> None:
    """Draw a ring around a point, dark on light and light on dark."""
    radius = max(3, min(image.size) // 40)
    pen = ImageDraw.Draw(image)
    for reach, colour in ((radius + 1, "black"), (radius, "white")):
        pen.ellipse((x - reach, y - reach, x + reach, y + reach), outline=colour, width=max(1, radius // 3))


def tile(images: Sequence[Image.Image], captions: Sequence[str], columns: int) -> Image.Image:
    """Images of one size side by side, row after row, each with its caption above."""
    width, height = images[0].size
    rows = -(-len(images) // columns)
    page = Image.new("RGB", (columns * (width + GAP) + GAP, rows * (height + CAPTION + GAP) + GAP), "white")
    pen, font = ImageDraw.Draw(page), ImageFont.load_default(12)
    for i, (image, caption) in enumerate(zip(images, captions, strict=True)):
        left, top = GAP + i % columns * (width + GAP), GAP + i // columns * (height + CAPTION + GAP)
        pen.text((left + 2, top + 1), caption, fill="#404040", font=font)
        page.paste(image, (left, top + CAPTION))
    return page


GREY = 128
MIN_SIDE = 160  # small images are enlarged to this many pixels a side, pixel by pixel


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
    times = -(-MIN_SIDE // min(image.size))
    return image.resize((image.width * times, image.height * times), Image.Resampling.NEAREST)
