"""`vitreous explain`: what a model saw in a picture."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.config.data import Preprocess
from vitreous.data.augment import eval_view, normalise
from vitreous.data.decode import open_picture, read_header
from vitreous.explain.draw import overlay
from vitreous.explain.methods import Method, compute_maps
from vitreous.explain.place import Place, place_patches
from vitreous.weights.bundle import Bundle
from vitreous.weights.source import open_weights


@dataclass(frozen=True)
class Explanation:
    """What a model saw in one picture."""

    picture: Image.Image = field(repr=False)
    """Upright and whole, as a person sees it."""
    method: str
    layers: tuple[int, ...]
    """The layers that `maps` has; () where a map belongs to no single one."""
    maps: NDArray[np.float32] = field(repr=False)
    """(layers or 1, heads or 1, rows, columns): the numbers of the patches, as the method gives them."""
    place: Place
    """Where the patches lie on the picture."""
    label: str | None = None
    """The class that is explained, and how likely the model holds it; None where the method is about no class."""
    score: float | None = None

    @property
    def map(self) -> NDArray[np.float32]:
        """(height, width) of the picture: the mean of `maps` at each pixel, 0 where the model did not look."""
        return self.place.spread(self.maps.mean(axis=(0, 1)))

    def overlay(self) -> Image.Image:
        """The map over the picture; what the model did not see is dark."""
        return overlay(self.picture, self.map, self.place.seen())

    def save(self, path: str | Path) -> None:
        """Write the overlay as a picture."""
        self.overlay().save(path)


def explain(
    model: str | Path | Bundle,
    picture: str | Path | Image.Image,
    *,
    method: Method = "attention",
    layer: int | Literal["all"] | None = None,
    head: int | Literal["mean", "all"] = "mean",
    target: str | None = None,
    query: tuple[float, float] | None = None,
    preprocess: Preprocess | str | None = None,
) -> Explanation:
    """What the model saw in a picture, on the picture's own pixels."""
    bundle = model if isinstance(model, Bundle) else open_weights(model, preprocess)
    whole, seen = _read(picture, bundle.preprocess)
    place = place_patches(whole.height, whole.width, bundle.preprocess, bundle.model.config.patch)
    images = normalise(eval_view(seen, bundle.preprocess)[None], bundle.preprocess)
    found = compute_maps(bundle.model, images, method, layers=[layer] if isinstance(layer, int) else None)
    return Explanation(whole, method, found.layers, found.maps[0].numpy(), place)


def _read(picture: str | Path | Image.Image, preprocess: Preprocess) -> tuple[Image.Image, Image.Image]:
    """The whole picture, and the one that prediction reads, which may be decoded at half its size or less."""
    if isinstance(picture, Image.Image):
        return picture, picture
    path = Path(picture)
    seen = open_picture(path, channels=preprocess.channels, at_least=2 * max(preprocess.resized))
    header = read_header(path)
    if sorted(seen.size) == sorted((header.width, header.height)):
        return seen, seen
    return open_picture(path, channels=preprocess.channels), seen
