"""What a model looked at in one image, on the image's own pixels."""

from __future__ import annotations

import math
from base64 import b64encode
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps

from vitreous.arguments import shown
from vitreous.data.augment import normalise
from vitreous.data.view import ImageInput, image_and_view
from vitreous.errors import UserError
from vitreous.explain.attention import describe_sinks, find_sinks
from vitreous.explain.methods import check_request, compute_maps, default_method
from vitreous.explain.overlay import SCALE, encode, mark, overlay, tile
from vitreous.explain.patch_geometry import PatchGeometry, place_cells, place_patches
from vitreous.explain.request import EXPLANATION_METHODS, ExplanationRequest
from vitreous.inputs import utf8_text
from vitreous.model.network import TracesAttention, check_numbers, evaluating
from vitreous.model.predictions import class_probabilities, predicted_class
from vitreous.storage.files import new_file, write_output
from vitreous.storage.overwrite import check_file, sign_zip
from vitreous.weights.bundle import Bundle

PANEL = 320  # pixels of the longer side of an image in a grid, at most
NOTEBOOK_SIDE = 480  # the same of an overlay that a notebook shows
ENLARGED_SIDE = 224  # pixels that the longer side of a tiny image's overlay has at most when it is saved enlarged


@dataclass(frozen=True)
class Explanation:
    """What a model looked at in one image."""

    path: str  # empty for an image that has none, such as one of Pillow's
    image: Image.Image = field(repr=False)  # upright and whole, as a person sees it
    method: str
    layers: tuple[int, ...]  # the layers that `maps` has; () if a map belongs to no single one
    heads: tuple[int, ...]  # the heads that `maps` has; () if it joins them
    maps: NDArray[np.float32] = field(repr=False)
    """(layers or 1, heads or 1, rows, columns): one number per patch, as the method gives them."""
    geometry: PatchGeometry  # where the patches lie on the image
    label: str | None = None
    """The class that was explained, or else the most probable; None of a model without a classifier."""
    score: float | None = None  # the probability of that class
    query: tuple[float, float] | None = None
    """The point whose attention is shown, x and y in pixels; None for the attention of the prediction."""
    sinks: tuple[int, ...] = ()
    """Patches that are attention sinks in one of the layers, counted row by row; of maps of attention only."""
    files: tuple[Path, ...] = ()  # what `vitreous explain` wrote of it

    @property
    def note(self) -> str:
        """What a reader must know of the map: whether it shows attention sinks; else nothing."""
        return describe_sinks(self.sinks, math.prod(self.maps.shape[2:]))

    @property
    def map(self) -> NDArray[np.float32]:
        """(height, width) of the image: the mean of `maps` at each pixel, 0 where the model did not look."""
        return self.geometry.upsample(self.maps.mean(axis=(0, 1)))

    def overlay(self, longest: int | None = None) -> Image.Image:
        """The map over the image, of which a frame shows what the model saw; the query point has a ring.

        longest: pixels of its longer side, at most; None for the image's own size.
        """
        image, place = self._at_most(longest) if longest else (self.image, self.geometry)
        return self._drawn(image, place, self.maps.mean(axis=(0, 1)))

    def panels(self, longest: int = PANEL) -> list[tuple[str, Image.Image]]:
        """Every map over the image, with its layer and head; longest: pixels of the longer side, at most."""
        small, place = self._at_most(longest)
        found = []
        for i, layer in enumerate(self.maps):
            for j, head in enumerate(layer):
                caption = [f"layer {self.layers[i]}"] if self.layers else []
                caption += [f"head {self.heads[j]}"] if self.heads else []
                found.append((", ".join(caption), self._drawn(small, place, head)))
        return found

    def grid(self) -> Image.Image:
        """Every map over the image: one row per layer, one column per head; a single row or column is wrapped."""
        captions, panels = zip(*self.panels(), strict=True)
        rows, columns = self.maps.shape[:2]
        across = columns if min(rows, columns) > 1 else min(4, rows * columns)
        return tile(panels, captions, across, f"{SCALE}; each map by itself")

    def _repr_html_(self) -> str:
        """The overlay with its caption, for a notebook."""
        label = "" if self.label is None else f"{self.label} {self.score:.1%}, "
        image = b64encode(encode(_enlarged(self.overlay(NOTEBOOK_SIDE)))).decode()
        return (
            f'<figure><img src="data:image/png;base64,{image}" alt="">'
            f"<figcaption>{escape(f'{label}{self.method}. {SCALE}. {self.note}')}</figcaption></figure>"
        )

    def _at_most(self, longest: int) -> tuple[Image.Image, PatchGeometry]:
        """The image, made smaller if its longer side has more pixels, and where its patches lie."""
        small = self.image.copy()
        small.thumbnail((longest, longest))
        return small, self.geometry.scaled(small.height, small.width)

    def _drawn(self, image: Image.Image, place: PatchGeometry, patches: NDArray[np.float32]) -> Image.Image:
        """The patches' numbers over the image, which may have been made smaller."""
        made = overlay(image, place.upsample(patches), place)
        if self.query is not None:
            mark(made, self.query[0] * made.width / self.image.width, self.query[1] * made.height / self.image.height)
        return made

    def save(self, path: str | Path) -> None:
        """Write the overlay as an image; the format follows the name.

        A tiny image is enlarged. An overlay that was saved there before is replaced; any other file is not.
        """
        file = check_file(path)
        kind = Image.registered_extensions().get(file.suffix.lower(), file.suffix)
        try:
            content = encode(_enlarged(self.overlay()), kind)
        except (OSError, ValueError, KeyError):  # a kind that Pillow does not know, or only reads
            raise UserError(f"{path}: no image of this kind can be written; give a name such as cat.png.") from None
        write_output(file, content)

    def save_arrays(self, path: str | Path) -> None:
        """Write `arrays` as an .npz, over an earlier one of ours at most."""
        with new_file(check_file(path)) as file:
            np.savez_compressed(file, **self.arrays())  # type: ignore[arg-type]
            sign_zip(file)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The numbers: map (height, width), maps (layers, heads, rows, columns), layers, heads, and `geometry.box`."""
        return {
            "map": self.map,
            "maps": self.maps,
            "layers": np.array(self.layers, np.int64),
            "heads": np.array(self.heads, np.int64),
            "box": np.array(self.geometry.box),
        }


def _enlarged(image: Image.Image) -> Image.Image:
    """A tiny image, enlarged by a whole factor, so that a person can see something."""
    factor = ENLARGED_SIDE // max(image.size)
    return ImageOps.scale(image, factor, Image.Resampling.NEAREST) if factor > 1 else image


class Explainer:
    """A model, and what to explain of its predictions: a request that was found to suit it."""

    def __init__(self, bundle: Bundle, request: ExplanationRequest | None = None) -> None:
        request, size = request or ExplanationRequest(), bundle.preprocess.size
        self.bundle, self.layer, self.head, self.query = bundle, request.layer, request.head, request.query
        self.method = request.method or default_method(bundle.model, query=self.query is not None, size=size)
        self.target = None if request.target is None else class_index(bundle, request.target)
        check_request(bundle.model, replace(request, method=self.method), size)

    def explain(self, image: ImageInput) -> Explanation:
        """What the model looked at in this image; computed on the model's device, returned on the CPU."""
        model, preprocess, path = self.bundle.model, self.bundle.preprocess, self.bundle.path
        seen = image_and_view(image, preprocess)
        whole, place = seen.image, None
        if isinstance(model, TracesAttention):
            place = place_patches(whole.height, whole.width, preprocess, model.config.patch)
        view, sinks = normalise(seen.view[None].to(model.device), preprocess), ()
        with evaluating(model):
            found = compute_maps(
                model,
                view,
                self.method,
                layer=self.layer,
                targets=None if self.target is None else torch.tensor([self.target], device=model.device),
                query=None if self.query is None or place is None else place.patch_at(*self.query),
            )
            if isinstance(model, TracesAttention) and not EXPLANATION_METHODS[self.method].explains_class:
                sinks = tuple(find_sinks(model, view, found.layers)[0].nonzero()[:, 0].tolist())
        logits, maps = found.logits[0].cpu(), found.maps[0].cpu()
        check_numbers(logits, "scores", path)
        check_numbers(maps, "maps", path)
        if place is None or place.grid != maps.shape[2:]:
            place = place_cells(whole.height, whole.width, preprocess, (maps.shape[2], maps.shape[3]))
        heads: tuple[int, ...] = ()
        if self.head == "all":
            heads = tuple(range(maps.shape[1]))
        elif self.head != "mean":
            heads = (self.head % maps.shape[1],)
        label, score = None, None
        if model.config.classes:
            probabilities = class_probabilities(logits)
            number = int(predicted_class(probabilities)) if self.target is None else self.target
            label, score = self.bundle.labels[number], float(probabilities[number])
        return Explanation(
            path=str(image) if isinstance(image, str | Path) else "",
            image=whole,
            method=self.method,
            layers=found.layers,
            heads=heads,
            maps=maps.numpy()[:, heads] if heads else maps.numpy().mean(axis=1, keepdims=True),
            geometry=place,
            label=label,
            score=score,
            query=self.query,
            sinks=sinks,
        )


def class_index(bundle: Bundle, name: str) -> int:
    """The index of the model's class of this name."""
    if not bundle.labels:
        raise UserError(
            f"target class {shown(name)}: the model has no classifier, so there is no class to explain; leave it out."
        )
    name = utf8_text(name)  # as class folders are called, whatever the locale made of it
    if name in bundle.labels:
        return bundle.labels.index(name)
    near = get_close_matches(name, bundle.labels, n=3, cutoff=0.5) or bundle.labels[:3]
    raise UserError(
        f"target class {shown(name)}: not one of the model's {len(bundle.labels)} classes, such as {', '.join(near)}."
    )
