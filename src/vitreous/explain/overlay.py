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
from vitreous.explain.patch_geometry import PatchGeometry
from vitreous.objectives.mae import MaskedAutoencoder
from vitreous.storage.overwrite import GENERATOR

BRIGHTNESS = 0.75  # of the image below a map
CLIPPED = 0.03
"""Highest fraction of a map's pixels, all in the last colour: else a few attention sinks would take the whole scale."""
GAP = 6
CAPTION = 18

COLOURS: NDArray[np.uint8] = (colormaps["viridis"](np.linspace(0, 1, 256))[:, :3] * 255).astype(np.uint8)
"""(256, 3): the colour of each level of a map. Its brightness rises evenly, also for the colour-blind."""
COVER: NDArray[np.uint8] = np.full(256, 153, np.uint8)
"""(256,): how much of the image it covers, 0 to 255."""
SCALE = f"blue: least, yellow: most; the highest {100 * CLIPPED:.0f}\u00a0% share one colour"


def colour_levels(map: NDArray[np.floating], seen: NDArray[np.bool_] | None = None) -> NDArray[np.uint8]:
    """The colour of each number of a map: 0 for the least of those that were seen, 255 for all above the quantile."""
    inside = map if seen is None else map[seen]
    low, high = (float(value) for value in np.quantile(inside, (0, 1 - CLIPPED))) if inside.size else (0.0, 0.0)
    if high == low and inside.size:
        high = float(inside.max())  # all that there is lies in less than the fraction that is clipped
    return np.clip((map - low) * (255 / ((high - low) or 1.0)), 0, 255).astype(np.uint8)


def draw_below(image: Image.Image) -> Image.Image:
    """The image as it is below a map: grey, and a little darker, so that all colour is the map's."""
    return image.convert("L").point([round(BRIGHTNESS * value) for value in range(256)]).convert("RGB")


def overlay(image: Image.Image, map: NDArray[np.floating], geometry: PatchGeometry | None = None) -> Image.Image:
    """The image in grey with the map (height, width) over it in colours.

    geometry: where the model looked, which gets a thin frame; what it did not see stays grey.
    """
    seen = None if geometry is None else geometry.seen()
    level = colour_levels(map, seen)
    base = draw_below(image)
    cover = COVER[level] if seen is None else np.where(seen, COVER[level], 0).astype(np.uint8)
    made = Image.composite(Image.fromarray(COLOURS[level]), base, Image.fromarray(cover))
    if seen is not None and not seen.all():
        rows, columns = (np.flatnonzero(seen.any(axis=axis)) for axis in (1, 0))
        if len(rows) and len(columns):
            width = max(1, max(image.size) // 300)  # around what was seen, so that nothing of it is hidden
            box = columns[0] - width, rows[0] - width, columns[-1] + width, rows[-1] + width
            ImageDraw.Draw(made).rectangle([int(side) for side in box], outline="white", width=width)
    return made


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


def tile(images: Sequence[Image.Image], captions: Sequence[str], columns: int, legend: str = "") -> Image.Image:
    """Images of one size side by side, row after row, each with its caption above; below all, what colours mean."""
    width, height = images[0].size
    rows = -(-len(images) // columns)
    below = CAPTION if legend else 0
    size = columns * (width + GAP) + GAP, rows * (height + CAPTION + GAP) + GAP + below
    page = Image.new("RGB", size, "white")
    pen, font = ImageDraw.Draw(page), ImageFont.load_default(12)
    for i, (image, caption) in enumerate(zip(images, captions, strict=True)):
        left, top = GAP + i % columns * (width + GAP), GAP + i // columns * (height + CAPTION + GAP)
        pen.text((left + 2, top + 1), caption, fill="#404040", font=font)
        page.paste(image, (left, top + CAPTION))
    if legend:
        page.paste(Image.fromarray(COLOURS[None]).resize((96, 10)), (GAP, page.height - below + 2))
        pen.text((GAP + 104, page.height - below - 1), legend, fill="#404040", font=font)
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
        seen[hole.cpu().numpy()] = GREY
        panels += [_image(whole), _image(seen), _image(to_bytes(made[:, :height, :width], preprocess))]
        captions += ["image", f"{1 - hole.float().mean().item():.0%} of it", "rebuilt"]
    return tile(panels, captions, columns=3)


def to_bytes(image: Tensor, preprocess: Preprocess) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """(C, H, W) as the model sees it, back to pixels (H, W, 3)."""
    pixels = image.permute(1, 2, 0).cpu().numpy() * np.array(preprocess.std) + np.array(preprocess.mean)
    made: np.ndarray[tuple[int, ...], np.dtype[np.uint8]] = np.rint(np.clip(pixels, 0, 1) * 255).astype(np.uint8)
    return np.broadcast_to(made, (*made.shape[:2], 3)).copy()


def _image(pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> Image.Image:
    image = Image.fromarray(pixels)
    times = -(-MIN_SIDE // min(image.size))
    return image.resize((image.width * times, image.height * times), Image.Resampling.NEAREST)
