"""What a model saw in one image: the question, and the answer on the image's own pixels."""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps

from vitreous.data.augment import normalise
from vitreous.data.view import ImageInput, look_at
from vitreous.errors import UserError
from vitreous.explain.draw import encode, mark, overlay, tile
from vitreous.explain.methods import Maps, Method, check_request, compute_maps, default_method
from vitreous.explain.place import Place, place_cells, place_patches
from vitreous.inputs import as_text
from vitreous.model.network import TracesAttention, check_numbers, evaluating
from vitreous.storage.files import new_file, write_output
from vitreous.storage.overwrite import check_file, sign_zip
from vitreous.weights.bundle import Bundle
from vitreous.wording import shown

Layer = int | Literal["all"]
Head = int | Literal["mean", "all"]
PANEL = 320
"""Pixels of the longer side of an image in a grid."""
ENLARGED_SIDE = 224
"""Pixels that the longer side of a tiny image's overlay has at most when it is saved enlarged."""


@dataclass(frozen=True)
class Explanation:
    """What a model saw in one image."""

    path: str
    """Empty for what has none, such as an image of Pillow's."""
    image: Image.Image = field(repr=False)
    """Upright and whole, as a person sees it."""
    method: Method
    layers: tuple[int, ...]
    """The layers that `maps` has; () where a map belongs to no single one."""
    heads: tuple[int, ...]
    """The heads that `maps` has; () where it joins them."""
    maps: NDArray[np.float32] = field(repr=False)
    """(layers or 1, heads or 1, rows, columns): the numbers of the patches, as the method gives them."""
    place: Place
    """Where the patches lie on the image."""
    label: str | None = None
    """The class that was explained, or else the likeliest; None where the model has no classifier."""
    score: float | None = None
    """How likely the model holds that class, 0 to 1."""
    query: tuple[float, float] | None = None
    """The place whose attention is shown, x and y in pixels; None where it is that of the answer."""

    @property
    def map(self) -> NDArray[np.float32]:
        """(height, width) of the image: the mean of `maps` at each pixel, 0 where the model did not look."""
        return self.place.upsample(self.maps.mean(axis=(0, 1)))

    def overlay(self, longest: int | None = None) -> Image.Image:
        """The map over the image; what the model did not see is dark, and the place that was asked for has a ring.

        longest: pixels that its longer side has at most; None for the image's own size.
        """
        image, place = self._at_most(longest) if longest else (self.image, self.place)
        return self._drawn(image, place, self.maps.mean(axis=(0, 1)))

    def grid(self) -> Image.Image:
        """Every map over the image: one row per layer, one column per head; a single row or column is wrapped."""
        small, place = self._at_most(PANEL)
        panels, captions = [], []
        for i, layer in enumerate(self.maps):
            for j, head in enumerate(layer):
                panels.append(self._drawn(small, place, head))
                said = [f"layer {self.layers[i]}"] if self.layers else []
                captions.append(", ".join(said + ([f"head {self.heads[j]}"] if self.heads else [])))
        rows, columns = self.maps.shape[:2]
        return tile(panels, captions, columns if min(rows, columns) > 1 else min(4, rows * columns))

    def _at_most(self, longest: int) -> tuple[Image.Image, Place]:
        """The image, made smaller where its longer side has more pixels than this, and where its patches lie."""
        small = self.image.copy()
        small.thumbnail((longest, longest))
        return small, self.place.scaled(small.height, small.width)

    def _drawn(self, image: Image.Image, place: Place, patches: NDArray[np.float32]) -> Image.Image:
        """The patches' numbers over the image, which may be smaller than the one that was given."""
        made = overlay(image, place.upsample(patches), place.seen())
        if self.query is not None:
            mark(made, self.query[0] * made.width / self.image.width, self.query[1] * made.height / self.image.height)
        return made

    def save(self, path: str | Path) -> None:
        """Write the overlay as an image; the format follows the name.

        Tiny images are enlarged by a whole factor, so that a person can see something. An overlay that was saved there
        before is replaced; any other file, such as the image itself, is not.
        """
        file = check_file(path)
        kind = Image.registered_extensions().get(file.suffix.lower(), file.suffix)
        try:
            drawn = self.overlay()
            if (factor := ENLARGED_SIDE // max(drawn.size)) > 1:
                drawn = ImageOps.scale(drawn, factor, Image.Resampling.NEAREST)
            content = encode(drawn, kind)
        except (OSError, ValueError, KeyError):  # a kind that Pillow does not know, or only reads
            raise UserError(f"{path}: no image of this kind can be written; give a name such as cat.png.") from None
        write_output(file, content)

    def save_arrays(self, path: str | Path) -> None:
        """Write `arrays` as an .npz, over an earlier one of ours at most."""
        with new_file(check_file(path)) as file:
            np.savez_compressed(file, **self.arrays())  # type: ignore[arg-type]
            sign_zip(file)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The numbers: map (height, width), maps (layers, heads, rows, columns), layers, heads, and `place.box`."""
        return {
            "map": self.map,
            "maps": self.maps,
            "layers": np.array(self.layers, np.int64),
            "heads": np.array(self.heads, np.int64),
            "box": np.array(self.place.box),
        }


class Question:
    """A question to a model that was found to make sense; `vitreous.jobs.explain.explain` says what it may ask."""

    def __init__(
        self,
        bundle: Bundle,
        *,
        method: Method | None = None,
        layer: Layer | None = None,
        head: Head = "mean",
        target: str | None = None,
        query: tuple[float, float] | None = None,
    ) -> None:
        self.bundle, self.layer, self.head, self.query = bundle, layer, head, query
        size = bundle.preprocess.size
        self.method: Method = method or default_method(bundle.model, query=query is not None, size=size)
        self.target = None if target is None else class_number(bundle, target)
        check_request(
            bundle.model, self.method, layer, head, target=target is not None, query=query is not None, size=size
        )

    def answer(self, image: ImageInput) -> Explanation:
        """What the model saw in this image."""
        bundle, preprocess = self.bundle, self.bundle.preprocess
        seen = look_at(image, preprocess)
        model, whole, place = bundle.model, seen.whole, None
        device = model.device
        if isinstance(model, TracesAttention):
            place = place_patches(whole.height, whole.width, preprocess, model.config.patch)
        with evaluating(model):
            found = compute_maps(
                model,
                normalise(seen.view[None], preprocess).to(device),
                self.method,
                layer=self.layer,
                targets=None if self.target is None else torch.tensor([self.target], device=device),
                query=None if self.query is None or place is None else place.patch_at(*self.query),
            )
        rows, columns = found.maps.shape[3:]
        place = place or place_cells(whole.height, whole.width, preprocess, (rows, columns))
        check_numbers(found.scores, "scores", bundle.path)
        maps, heads = self._heads(found)
        label, score = self._label(found)
        name = str(image) if isinstance(image, str | Path) else ""
        return Explanation(name, whole, self.method, found.layers, heads, maps, place, label, score, self.query)

    def _heads(self, found: Maps) -> tuple[NDArray[np.float32], tuple[int, ...]]:
        """The maps (layers, heads or 1, rows, columns) of the heads that were asked for, and which these are."""
        check_numbers(found.maps, "maps", self.bundle.path)
        maps: NDArray[np.float32] = found.maps[0].cpu().numpy()
        if self.head == "mean":
            return maps.mean(axis=1, keepdims=True), ()
        if self.head == "all":
            return maps, tuple(range(maps.shape[1]))
        number = self.head % maps.shape[1]
        return maps[:, number : number + 1], (number,)

    def _label(self, found: Maps) -> tuple[str | None, float | None]:
        if not self.bundle.model.config.classes:
            return None, None
        chances = found.scores[0].softmax(dim=0)
        number = int(chances.argmax()) if self.target is None else self.target
        return self.bundle.labels[number], float(chances[number])


def class_number(bundle: Bundle, name: str) -> int:
    """Which of the model's classes has this name."""
    if not bundle.labels:
        raise UserError(
            f"class {shown(name)}: the model has no classifier, so there is no class to explain; leave it out."
        )
    name = as_text(name)  # as class folders are called, whatever the locale made of it
    if name in bundle.labels:
        return bundle.labels.index(name)
    near = get_close_matches(name, bundle.labels, n=3, cutoff=0.5) or bundle.labels[:3]
    raise UserError(
        f"class {shown(name)}: not one of the model's {len(bundle.labels)} classes, such as {', '.join(near)}."
    )
