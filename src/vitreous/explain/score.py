"""How good explanation methods are: by what the model loses without the patches they name, and by agreement with masks.

Letters in shapes: B images, N patches, K classes, S fractions.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitreous.data.augment import normalise
from vitreous.data.decode import ImageError, open_values, read_header
from vitreous.data.source import Source
from vitreous.data.view import Sample, image_and_view
from vitreous.errors import UserError
from vitreous.explain.methods import check_request, compute_maps
from vitreous.explain.patch_geometry import Map, PatchGeometry, place_patches
from vitreous.explain.request import ExplanationRequest
from vitreous.model.network import LeavesPatchesOut, check_numbers, evaluating, require
from vitreous.model.predictions import class_probabilities, predicted_class
from vitreous.model.vit import ViT
from vitreous.weights.bundle import Bundle

FRACTIONS = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Parts of the patches that are taken away, or shown; their mean is the area under the curve, by midpoints."""


class Localisation(NamedTuple):
    """How well a map agrees with a mask."""

    energy: float  # the fraction of the map that lies on the mask
    pointing: float
    """1 if the map's highest point lies on the mask, else 0; among equals, the fraction of those that do."""
    iou: float  # intersection over union with the mask, of the map cut at the height that suits this image best


def removal_curves(model: LeavesPatchesOut, images: Tensor, order: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Deletion and insertion, each (B, S): probability of the target without the first patches, and with only these.

    order: (B, N) the patches, the most important first. Patches are left out, as a ViT can, and nothing is painted in
    their place. A good explanation makes the first curve fall and the second rise at once.
    """
    count = order.shape[1]
    deletion: list[Tensor] = []
    insertion: list[Tensor] = []
    with torch.inference_mode():
        for fraction in FRACTIONS:
            cut = min(max(round(fraction * count), 1), count - 1)
            for curve, keep in ((deletion, order[:, cut:]), (insertion, order[:, :cut])):
                probabilities = class_probabilities(model(images, keep_ids=keep))
                curve.append(probabilities.gather(1, targets[:, None])[:, 0])
    return torch.stack(deletion, dim=1), torch.stack(insertion, dim=1)


def localise(map: NDArray[np.floating], mask: NDArray[np.bool_]) -> Localisation:
    """How well a map (height, width), nowhere negative, agrees with a mask of the same size that is not empty."""
    total = float(map.sum())
    highest = map == map.max()
    order = np.argsort(-map, axis=None, kind="stable")
    values, inside = map.ravel()[order], mask.ravel()[order]
    hits = np.cumsum(inside)
    union = np.arange(1, len(order) + 1) + hits[-1] - hits
    steps = np.append(values[1:] < values[:-1], True)  # a cut takes all pixels of one height or none
    return Localisation(
        energy=float(map[mask].sum()) / total if total > 0 else float(mask.mean()),
        pointing=float(mask[highest].mean()),
        iou=float((hits / union)[steps].max()),
    )


def gaussian(rows: NDArray[np.floating], columns: NDArray[np.floating], box: tuple[float, float, float, float]) -> Map:
    """(rows, columns): a Gaussian in the middle of a box, sigma a quarter of each side, at these rows and columns.

    box: left, top, right and bottom.
    """
    left, top, right, bottom = box
    down = (rows - (top + bottom) / 2) / ((bottom - top) / 4)
    across = (columns - (left + right) / 2) / ((right - left) / 4)
    return np.exp(-(down[:, None] ** 2 + across**2) / 2).astype(np.float32)


def centre_map(geometry: PatchGeometry, *, seen: bool = False) -> Map:
    """(height, width): a Gaussian in the middle of the image; seen: of what the model saw of it, and 0 elsewhere."""
    height, width = geometry.size
    box = geometry.box if seen else (0.0, 0.0, width, height)
    found = gaussian(np.arange(height) + 0.5, np.arange(width) + 0.5, box)
    return found * geometry.seen() if seen else found


def centre_patches(geometry: PatchGeometry, *, seen: bool = False) -> Map:
    """(rows, columns): the same at the patches' centres."""
    height, width = geometry.size
    return gaussian(*geometry.centres(), geometry.box if seen else (0.0, 0.0, width, height))


BASELINES = ("even", "centre", "centre of what is seen")
BATCH = 8
RESAMPLES = 1000  # of the bootstrap


@dataclass(frozen=True)
class MethodScore:
    """Means over the images for one method or baseline."""

    name: str
    deletion: float
    """Mean probability of the class while patches are removed, the most important first: lower is better."""
    insertion: float  # the same while only the most important are shown: higher is better
    energy: float | None = None  # fraction of the map on the mask; None without masks
    pointing: float | None = None  # fraction of the images whose highest point is on the mask
    iou: float | None = None  # mean of each image's best intersection over union
    seconds: float | None = None  # to compute the map of one image, prediction included; None for a baseline
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    """95 % intervals of these means but the seconds, by name: bootstrapped over the images."""


@dataclass(frozen=True)
class ExplanationScores:
    """How methods compare on the same images; baselines first."""

    images: int
    scores: tuple[MethodScore, ...]
    left_out: dict[str, str]  # images that cannot be read, and masks that mark nothing: path to reason

    def to_json(self) -> dict[str, Any]:
        """{"images", "baselines", "methods", "left_out"}, each of the two in the middle by name."""
        parts: dict[str, Any] = {"baselines": {}, "methods": {}}
        for one in self.scores:
            fields = asdict(one)
            intervals = {key: [round(end, 4) for end in ends] for key, ends in fields.pop("intervals").items()}
            metrics = {key: round(value, 4) for key, value in fields.items() if key != "name" and value is not None}
            parts["baselines" if one.name in BASELINES else "methods"][one.name] = {**metrics, "intervals": intervals}
        return {"images": self.images, **parts, "left_out": self.left_out}


def score_methods(
    bundle: Bundle,
    source: Source,
    methods: Sequence[str],
    *,
    masks: Path | None = None,
    count: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> ExplanationScores:
    """Score the methods, and baselines that ignore the image, on the classes that the model predicts.

    masks: a folder with a mask for each image under the same name, as .png.
    count: the number of images at most, spread evenly; None for all.
    """
    model = require(bundle.model, ViT, "scores of explanations")
    require(model, LeavesPatchesOut, "scores of explanations")
    for method in methods:
        check_request(model, ExplanationRequest(method=method))
    count = min(len(source) if count is None else count, len(source))
    chosen = [i * len(source) // count for i in range(count)]
    if masks is not None:
        for index in chosen:
            _check_mask(_mask_path(masks, source, index), source, index)
    values: Values = {name: defaultdict(list) for name in (*BASELINES, *methods)}
    left_out: dict[str, str] = {}
    done = 0
    for batch in _batches(bundle, source, chosen, masks, left_out):
        with evaluating(model):
            _score_batch(model, batch, methods, bundle.path, values)
        done += len(batch.indices)
        progress(done, len(chosen) - len(left_out))
    if not done:
        raise UserError(f"{source.name(0)}: neither this image nor any other can be read; give others.")
    return ExplanationScores(done, tuple(_mean_scores(name, found) for name, found in values.items()), left_out)


Values = dict[str, dict[str, list[float]]]  # of each method or baseline, by metric, one number per image


def _mean_scores(name: str, values: dict[str, list[float]]) -> MethodScore:
    metrics = {metric: found for metric, found in values.items() if metric != "seconds"}
    intervals = bootstrap_intervals(np.array(list(metrics.values())).T)
    means = {metric: fmean(found) for metric, found in values.items()}
    return MethodScore(name, **means, intervals=dict(zip(metrics, intervals, strict=True)))


def bootstrap_intervals(values: NDArray[np.floating], seed: int = 0) -> list[tuple[float, float]]:
    """95 % intervals of the means of each column of (n, metrics): percentiles of RESAMPLES draws of n rows.

    The same rows are drawn whenever n and the seed are the same, so that methods are compared on the same images.
    """
    n, rng = len(values), np.random.default_rng(seed)
    means = np.stack([values[rng.integers(0, n, n)].mean(axis=0) for _ in range(RESAMPLES)])
    return [(float(low), float(high)) for low, high in np.quantile(means, (0.025, 0.975), axis=0).T]


@dataclass(frozen=True)
class _Batch:
    images: Tensor  # (B, C, H, W), normalised, on the model's device
    geometries: list[PatchGeometry]
    masks: list[NDArray[np.bool_]] | None
    indices: list[int]


def _score_batch(model: ViT, batch: _Batch, methods: Sequence[str], path: Path | None, values: Values) -> None:
    """Add what each method and baseline scores on these images to `values`."""
    images, geometries = batch.images, batch.geometries
    # of each image its own, however images are batched
    noise = np.stack([np.random.default_rng(index).random(geometries[0].grid) for index in batch.indices])
    with torch.no_grad():
        logits = model(images)
    check_numbers(logits, "scores", path)
    targets = predicted_class(logits)

    def add(name: str, patches: NDArray[np.floating], maps: Iterable[Map]) -> None:
        # Patches of equal value come in a random order: row by row would favour a cut of the image.
        order = np.lexsort([-key.reshape(len(key), -1) for key in (noise, patches)], axis=1)
        deletion, insertion = removal_curves(model, images, torch.from_numpy(order).to(images.device), targets)
        values[name]["deletion"] += deletion.mean(dim=1).tolist()
        values[name]["insertion"] += insertion.mean(dim=1).tolist()
        if batch.masks is not None:
            for map, mask in zip(maps, batch.masks, strict=True):
                for metric, value in localise(map, mask)._asdict().items():
                    values[name][metric].append(value)

    for method in methods:
        start = time.perf_counter()
        found = compute_maps(model, images, method, targets=targets).maps.mean(dim=(1, 2)).clamp(min=0)
        patches = found.cpu().numpy()
        if patches.shape[1:] != (grid := geometries[0].grid):
            raise UserError(
                f"method {method}: its map is {patches.shape[1]}x{patches.shape[2]}, and the model sees "
                f"{grid[0]}x{grid[1]} patches; only a map with one number per patch can be scored."
            )
        values[method]["seconds"] += [(time.perf_counter() - start) / len(images)] * len(images)
        add(method, patches, (geometry.upsample(one) for geometry, one in zip(geometries, patches, strict=True)))
    add("even", noise, (np.ones(geometry.size, np.float32) for geometry in geometries))
    for name, seen in (("centre", False), ("centre of what is seen", True)):
        patches = np.stack([centre_patches(geometry, seen=seen) for geometry in geometries])
        add(name, patches, (centre_map(geometry, seen=seen) for geometry in geometries))


def _batches(
    bundle: Bundle, source: Source, chosen: Sequence[int], masks: Path | None, left_out: dict[str, str]
) -> Iterator[_Batch]:
    """The chosen images with their masks; those that cannot be used are added to `left_out`."""
    preprocess, model = bundle.preprocess, require(bundle.model, ViT, "scores of explanations")
    read: list[tuple[int, Tensor, PatchGeometry, NDArray[np.bool_] | None]] = []
    for position, index in enumerate(chosen):
        try:
            seen = image_and_view(Sample(source, index), preprocess)
            mask = None if masks is None else _read_mask(_mask_path(masks, source, index), seen.image)
            geometry = place_patches(seen.image.height, seen.image.width, preprocess, model.config.patch)
            read.append((index, seen.view, geometry, mask))
        except ImageError as error:
            left_out[error.name] = error.reason
        if read and (len(read) == BATCH or position == len(chosen) - 1):
            indices, views, geometries, found = zip(*read, strict=True)
            images = normalise(torch.stack(views).to(model.device), preprocess)
            yield _Batch(images, list(geometries), None if masks is None else list(found), list(indices))
            read = []


def _mask_path(masks: Path, source: Source, index: int) -> Path:
    path = (masks / source.key(index)).with_suffix(".png")
    if not path.is_file():
        raise UserError(
            f"{path}: there is no such mask, but an image {source.key(index)}; add it, or remove the image."
        )
    return path


def _check_mask(path: Path, source: Source, index: int) -> None:
    """Refuse a mask of another size than its image's, before anything is computed and the orientation is known.

    A mask or image that cannot be read is left out later.
    """
    try:
        mask, image = read_header(path), source.header(index)
    except ImageError:
        return
    if sorted((mask.width, mask.height)) != sorted((image.width, image.height)):
        raise _other_size(path, (mask.width, mask.height), (image.width, image.height))


def _other_size(path: Path, mask: tuple[int, int], image: tuple[int, int]) -> UserError:
    """mask, image: width and height."""
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
