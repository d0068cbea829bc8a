"""`vitreous score-explanations`: how good explanations are, in numbers, beside maps that look at nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitreous.arguments import Count, checked
from vitreous.config.data import Preprocess
from vitreous.data.augment import normalise
from vitreous.data.decode import ImageError, open_values, read_header
from vitreous.data.source import Data, Source, Split
from vitreous.data.view import Sample, look_at
from vitreous.errors import UserError
from vitreous.explain.methods import METHODS, Method, check_request, compute_maps
from vitreous.explain.place import Map, Place, place_patches
from vitreous.explain.score import centre_map, centre_patches, localise, removal_curves, seen_centre_map
from vitreous.inference.needs import check_explanation_memory
from vitreous.inference.opening import choose_split, open_classifier, open_images
from vitreous.model.network import LeavesPatchesOut, check_numbers, evaluating, require
from vitreous.model.vit import ViT
from vitreous.weights.bundle import Bundle

BASELINES = ("even", "centre", "centre of what is seen")
BATCH = 8
NEEDS_PATCHES = "scores of explanations"
"""What is told to need a ViT: patches are left out, and lie on the image as its patches do."""


@dataclass(frozen=True)
class MethodScore:
    """Means over the images for one method or baseline."""

    name: str
    deletion: float
    """Mean probability of the class while patches are taken away, the most important first: lower is better."""
    insertion: float
    """The same while only so many are shown: higher is better."""
    energy: float | None = None
    """Share of the map on the mask; None without masks."""
    pointing: float | None = None
    """Share of the images whose highest point is on the mask."""
    iou: float | None = None
    """Mean of each image's best intersection over union."""
    seconds: float | None = None
    """To compute a map of one image, prediction included; None for a baseline."""


@dataclass(frozen=True)
class ExplanationScores:
    """How methods compare on the same images; baselines first."""

    images: int
    scores: tuple[MethodScore, ...]
    left_out: dict[str, str]
    """Images that cannot be read, and masks that mark nothing: path to reason."""

    def to_json(self) -> dict[str, Any]:
        """{"images", "baselines", "methods", "left_out"}, each of the two in the middle by name."""
        parts: dict[str, Any] = {"baselines": {}, "methods": {}}
        for one in self.scores:
            kind = "baselines" if one.name in BASELINES else "methods"
            metrics = {key: value for key, value in asdict(one).items() if key != "name" and value is not None}
            parts[kind][one.name] = {key: round(value, 4) for key, value in metrics.items()}
        return {"images": self.images, **parts, "left_out": self.left_out}


@checked
def score_explanations(
    model: str | Path | Bundle,
    data: str | Path | Data,
    *,
    methods: Sequence[Method] = METHODS,
    masks: str | Path | None = None,
    split: Split | None = None,
    count: Count | None = None,
    preprocess: Preprocess | str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ExplanationScores:
    """How much better than maps that look at nothing the methods explain the model's own answers.

    masks: a folder with a mask for each image under the same name, as .png: where what the answer is about lies.
        Values 1, 2 and 3 are a trimap, of which 1 and the outline 3 count and 2 does not; in any other mask all but 0.
    count: so many images, spread evenly over the data; None for all.
    """
    bundle = open_classifier(model, preprocess)
    require(bundle.model, ViT, NEEDS_PATCHES)
    require(bundle.model, LeavesPatchesOut, NEEDS_PATCHES)
    check_explanation_memory(bundle, "attention")
    for method in methods:
        check_request(bundle.model, method, None, "mean", target=False, query=False)
    _, source = choose_split(open_images(data), split)
    if count is not None and not 1 <= count <= len(source):
        raise UserError(f"count={count}: the data have {len(source)} images; give a number from 1 to that.")
    chosen = range(len(source)) if count is None else [i * len(source) // count for i in range(count)]
    if masks is not None:
        for index in chosen:
            _check_mask(_mask_path(Path(masks), source, index), source, index)
    sums = _Sums(bundle, methods)
    left_out: dict[str, str] = {}
    done = 0
    for batch in _batches(bundle, source, chosen, None if masks is None else Path(masks), left_out):
        with evaluating(bundle.model):
            sums.add(batch)
        done += len(batch.places)
        if progress is not None:
            progress(done, len(chosen) - len(left_out))
    if not done:
        raise UserError(f"{data}: none of its images can be read.")
    return ExplanationScores(done, sums.means(done), left_out)


@dataclass(frozen=True)
class _Batch:
    images: Tensor
    """(B, C, H, W), normalised."""
    places: list[Place]
    masks: list[NDArray[np.bool_]] | None
    indices: list[int]

    def noise(self) -> NDArray[np.float64]:
        """(B, rows, columns): random numbers that belong to each image, however the images are batched."""
        return np.stack([np.random.default_rng(index).random(self.places[0].grid) for index in self.indices])


class _Sums:
    """Adds up metrics by method."""

    def __init__(self, bundle: Bundle, methods: Sequence[Method]) -> None:
        self.bundle, self.model = bundle, require(bundle.model, ViT, NEEDS_PATCHES)
        self.methods = methods
        self.sums: dict[str, dict[str, float]] = {name: {} for name in (*BASELINES, *methods)}

    def add(self, batch: _Batch) -> None:
        with torch.no_grad():
            scores = self.model(batch.images)
        check_numbers(scores, "scores", self.bundle.path)
        targets = scores.argmax(dim=1)
        for method in self.methods:
            start = time.perf_counter()
            maps = compute_maps(self.model, batch.images, method, targets=targets).maps.mean(dim=(1, 2)).clamp(min=0)
            self._sum(method, seconds=time.perf_counter() - start)
            patches = maps.numpy()
            self._removal(method, batch, patches, targets)
            self._localise(
                method, batch, (place.upsample(one) for place, one in zip(batch.places, patches, strict=True))
            )
        self._removal("even", batch, batch.noise(), targets)
        self._removal("centre", batch, np.stack([centre_patches(place) for place in batch.places]), targets)
        seen = np.stack([centre_patches(place, place.box) for place in batch.places])
        self._removal("centre of what is seen", batch, seen, targets)
        self._localise("even", batch, (np.ones(place.size, np.float32) for place in batch.places))
        self._localise("centre", batch, (centre_map(place) for place in batch.places))
        self._localise("centre of what is seen", batch, (seen_centre_map(place) for place in batch.places))

    def means(self, images: int) -> tuple[MethodScore, ...]:
        return tuple(
            MethodScore(name, **{key: value / images for key, value in sums.items()})
            for name, sums in self.sums.items()
        )

    def _removal(self, name: str, batch: _Batch, patches: NDArray[np.floating], targets: Tensor) -> None:
        # Patches that a map does not tell apart come in a random order: that of rows would favour a cut of the image.
        keys = [values.reshape(len(values), -1) for values in (batch.noise(), patches)]
        order = np.lexsort([-key for key in keys], axis=1)
        deletion, insertion = removal_curves(self.model, batch.images, torch.from_numpy(order), targets)
        self._sum(name, deletion=float(deletion.mean(dim=1).sum()), insertion=float(insertion.mean(dim=1).sum()))

    def _localise(self, name: str, batch: _Batch, maps: Iterable[Map]) -> None:
        if batch.masks is None:
            return
        for map, mask in zip(maps, batch.masks, strict=True):
            self._sum(name, **localise(map, mask)._asdict())

    def _sum(self, name: str, **metrics: float) -> None:
        for key, value in metrics.items():
            self.sums[name][key] = self.sums[name].get(key, 0.0) + value


def _batches(
    bundle: Bundle, source: Source, chosen: Sequence[int], masks: Path | None, left_out: dict[str, str]
) -> Iterator[_Batch]:
    """The chosen images with their masks, a few at a time; those that cannot be used are noted."""
    preprocess, patch = bundle.preprocess, require(bundle.model, ViT, NEEDS_PATCHES).config.patch
    read: list[tuple[int, Tensor, Place, NDArray[np.bool_] | None]] = []
    for position, index in enumerate(chosen):
        try:
            seen = look_at(Sample(source, index), preprocess)
            mask = None if masks is None else _read_mask(_mask_path(masks, source, index), seen.whole)
            place = place_patches(seen.whole.height, seen.whole.width, preprocess, patch)
            read.append((index, seen.view, place, mask))
        except ImageError as error:
            left_out[error.name] = error.reason
        if read and (len(read) == BATCH or position == len(chosen) - 1):
            indices, views, places, found = zip(*read, strict=True)
            images = normalise(torch.stack(views), preprocess)
            yield _Batch(images, list(places), None if masks is None else list(found), list(indices))
            read = []


def _mask_path(masks: Path, source: Source, index: int) -> Path:
    path = (masks / source.key(index)).with_suffix(".png")
    if not path.is_file():
        raise UserError(
            f"{path}: there is no such mask, but an image {source.key(index)}; add it, or remove the image."
        )
    return path


def _check_mask(path: Path, source: Source, index: int) -> None:
    """Refuse a mask of another size than its image's before anything is computed; the camera's turn is not known yet.

    What cannot be read is left out when its turn comes.
    """
    try:
        mask, image = read_header(path), source.header(index)
    except ImageError:
        return
    if sorted((mask.width, mask.height)) != sorted((image.width, image.height)):
        raise _other_size(path, (mask.width, mask.height), (image.width, image.height))


def _other_size(path: Path, mask: tuple[int, int], image: tuple[int, int]) -> UserError:
    """Of width and height each."""
    return UserError(
        f"{path}: the mask is {mask[0]}x{mask[1]} and its image {image[0]}x{image[1]} pixels; make them the same."
    )


def _read_mask(path: Path, image: Image.Image) -> NDArray[np.bool_]:
    """(height, width): which pixels count."""
    values = open_values(path)
    if values.shape != (image.height, image.width):
        raise _other_size(path, (values.shape[1], values.shape[0]), image.size)
    trimap = values.min() >= 1 and values.max() <= 3
    mask: NDArray[np.bool_] = values != 2 if trimap else values != 0
    if not mask.any():
        raise ImageError(str(path), "the mask marks no pixel.")
    return mask
