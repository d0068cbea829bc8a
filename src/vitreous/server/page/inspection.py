"""What the page asks about a model and a view, found by `vitreous.explain` and packed for the page.

A view is (C, H, W) uint8, what the model sees of an image. Letters in shapes: K classes, L layers, h heads, N patches.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitreous.config.data import Preprocess
from vitreous.data.augment import eval_view, normalise, seen_box, to_image
from vitreous.data.decode import original_size
from vitreous.data.view import read_for_view
from vitreous.errors import UserError
from vitreous.explain.all_layers import attention_between_patches, trace_all_layers
from vitreous.explain.methods import check_request, chosen_layers, compute_maps, default_method
from vitreous.explain.occlusion import CELLS, logits_without, occluded_grid
from vitreous.explain.request import EXPLANATION_METHODS, ExplanationRequest
from vitreous.model.network import (
    MergesTokens,
    Network,
    TracesAttention,
    can_leave_patches_out,
    check_numbers,
    evaluating,
    require,
)
from vitreous.model.predictions import class_probabilities
from vitreous.server.served_model import ServedModel
from vitreous.weights.bundle import Bundle

MAX_ATTENTION_NUMBERS = 8 * 2**20  # between patches; where there are more, what is looked at is told more coarsely


ALL_LAYERS_METHODS = ("attention", "rollout")  # which `inspect_layers` gives; the page asks for others by class


@dataclass(frozen=True)
class MethodCard:
    """An explanation method as the page presents it for a model."""

    title: str
    hint: str  # one sentence
    explains_class: bool
    layered: bool  # whether it looks at one layer at a time


@dataclass(frozen=True)
class ModelCard:
    """A model as the page presents it."""

    name: str
    summary: str  # a few words: what kind of network it is, and what computes it
    labels: tuple[str, ...]
    size: tuple[int, int]  # height and width of what it sees
    grid: tuple[int, int]  # rows and columns of patches, or of what stands for them
    cell: tuple[float, float]  # height and width of a patch, as fractions of the view
    layers: int  # with attention; 0 where nothing is known of any
    heads: int
    methods: tuple[str, ...]  # that can explain it
    method: str | None  # the one that suits it
    method_cards: dict[str, MethodCard]  # of each of `methods`
    starts: dict[str, int]  # the layer at which each method that has layers is best
    pooling: bool  # whether attention pooling, with a map of its own, follows the layers
    merges: bool  # whether its tokens can be merged
    merge: int  # how many of them each block merges of itself
    covering: Literal["left out", "painted"]  # what becomes of covered patches
    missing: str | None  # in a sentence, what cannot be shown of it, and why


@dataclass(frozen=True)
class SeenImage:
    """What a model sees of an image, and what it answers."""

    width: int  # of the whole image, upright, in pixels
    height: int
    box: tuple[float, float, float, float]  # left, top, right and bottom of what is seen of it
    view: str  # base64 of a PNG: to be sent with all other questions about the image
    probabilities: str | None = None  # base64 of (K,) float32; null without a classifier


@dataclass(frozen=True)
class PackedMaps:
    """Maps of patches, each as 256 levels of its own range."""

    shape: tuple[int, ...]  # (..., rows, columns)
    levels: str  # base64 of uint8, all of them in order; 0 is the map's lowest number, 255 its highest
    ranges: str  # base64 of float32, little-endian: lowest and highest of each map


@dataclass(frozen=True)
class PackedInside:
    """What was seen inside, in every layer."""

    attention: PackedMaps  # (L, h, rows, columns); with attention pooling its own follow the last layer's
    rollout: PackedMaps  # (L, rows, columns)
    colours: str  # base64 of (L, N, 3) uint8
    groups: str | None  # base64 of (L, N) uint16, little-endian: for each patch the first of those that are one token
    probabilities: str | None  # base64 of (K,) float32; null without a classifier


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


def pack_probabilities(logits: Tensor | None) -> str | None:
    """logits: (K,)."""
    return None if logits is None else pack_floats(class_probabilities(logits))


def model_card(served: ServedModel) -> ModelCard:
    """What the page must know of a model before any image."""
    preprocess, bundle = served.preprocess, served.bundle
    summary = f"{served.inference_model.config.describe()}, {served.engine.name} {served.engine.precision}"
    grid, cell = cells_of(served)
    network = None if bundle is None else bundle.model
    attentive = network if isinstance(network, TracesAttention) else None
    methods: tuple[str, ...] = ()
    method: str | None = None
    if network is not None:
        requests = {name: ExplanationRequest(method=name) for name in EXPLANATION_METHODS}
        methods = tuple(
            name
            for name, request in requests.items()
            if (EXPLANATION_METHODS[name].explains_class or name in ALL_LAYERS_METHODS)
            and _works(partial(check_request, network, request, preprocess.size))
        )
        suited = default_method(network, size=preprocess.size) if methods else None
        method = suited if suited in methods else next(iter(methods), None)
    depth = 0 if attentive is None else attentive.config.depth
    return ModelCard(
        name=served.name,
        summary=summary,
        labels=served.labels,
        size=preprocess.size,
        grid=grid,
        cell=cell,
        layers=depth,
        heads=0 if attentive is None else attentive.config.heads,
        methods=methods,
        method=method,
        method_cards={name: _method_card(name, attentive is not None) for name in methods},
        starts={
            name: chosen_layers(depth, name, None)[0] for name in methods if depth and EXPLANATION_METHODS[name].layer
        },
        pooling=attentive is not None and attentive.config.pool == "attention",
        merges=network is not None and _works(partial(_merging, network, 1)),
        merge=0 if attentive is None else attentive.config.merge,
        covering="left out" if network is not None and can_leave_patches_out(network) else "painted",
        missing=_missing(network, methods),
    )


def _method_card(name: str, traces_attention: bool) -> MethodCard:
    row = EXPLANATION_METHODS[name]
    hint = row.hint if traces_attention or row.feature_map is None else row.feature_map_hint
    return MethodCard(row.title, hint, row.explains_class, traces_attention and row.layer is not None)


def cells_of(served: ServedModel) -> tuple[tuple[int, int], tuple[float, float]]:
    """Rows and columns of what can be covered, and the height and width of one as shares of the view."""
    size, config = served.preprocess.size, served.inference_model.config
    grid = (min(CELLS, size[0]), min(CELLS, size[1]))
    if served.bundle is not None:
        grid = occluded_grid(served.bundle.model, size)
        if can_leave_patches_out(served.bundle.model) or isinstance(served.bundle.model, TracesAttention):
            patch = getattr(config, "patch", 1)
            return grid, (patch / size[0], patch / size[1])  # the last patch may reach beyond the view
    return grid, (1 / grid[0], 1 / grid[1])


def see_image(image: bytes, preprocess: Preprocess) -> tuple[SeenImage, Tensor]:
    """What is seen of an image's file, and its view, losslessly.

    A large JPEG is read at a smaller scale: the page has the whole of it already.
    """
    decoded = read_for_view(image, preprocess)
    height, width, _ = original_size(decoded)
    view, file = eval_view(decoded, preprocess), io.BytesIO()
    to_image(view).save(file, "PNG", compress_level=1)
    packed = base64.b64encode(file.getvalue()).decode("ascii")
    return SeenImage(width, height, seen_box(height, width, preprocess), packed), view


def inspect_layers(bundle: Bundle, view: Tensor, merge: int | None) -> PackedInside:
    """All layers at once. merge: how many tokens each block merges; None for as many as the model does of itself."""
    network = _merging(bundle.model, merge)
    attentive = require(network, TracesAttention, "inside")
    with evaluating(network):
        seen = trace_all_layers(attentive, _image(bundle, view))
    check_numbers(seen.logits, "scores", bundle.path)
    attention = seen.attention if seen.pooling is None else torch.cat([seen.attention, seen.pooling[None]])
    groups = None if seen.groups is None else pack(seen.groups.cpu().numpy().astype("<u2"))
    return PackedInside(
        attention=pack_maps(attention),
        rollout=pack_maps(seen.rollout),
        colours=pack(seen.colours),
        groups=groups,
        probabilities=pack_probabilities(seen.logits if bundle.labels else None),
    )


def class_maps(bundle: Bundle, view: Tensor, method: str, target: int, merge: int | None) -> PackedMaps:
    """(L or 1, rows, columns): what spoke for a class, from each layer where the method has layers."""
    network = _merging(bundle.model, merge)
    layered = isinstance(network, TracesAttention) and EXPLANATION_METHODS[method].layer is not None
    layer: Literal["all"] | None = "all" if layered else None
    asked = ExplanationRequest(method=method, layer=layer, target=str(target))
    check_request(network, asked, bundle.preprocess.size)
    if not 0 <= target < len(bundle.labels):
        raise UserError(f"target {target}: the model has classes 0 to {len(bundle.labels) - 1}.")
    with evaluating(network):
        image = _image(bundle, view)
        targets = torch.tensor([target], device=image.device)
        explained = compute_maps(network, image, method, layer=layer, targets=targets)
    check_numbers(explained.maps, "maps", bundle.path)
    return pack_maps(explained.maps[0, :, 0])


def patch_attention_maps(bundle: Bundle, view: Tensor, layer: int, merge: int | None) -> PackedMaps:
    """(h, N, rows, columns): what each patch looks at in one layer."""
    network = _merging(bundle.model, merge)
    attentive = require(network, TracesAttention, "attention")
    with evaluating(network):
        attention = attention_between_patches(attentive, _image(bundle, view), layer)
    rows, columns = occluded_grid(network, bundle.preprocess.size)
    maps = attention.reshape(*attention.shape[:2], rows, columns)
    while maps.numel() > MAX_ATTENTION_NUMBERS:
        maps = F.avg_pool2d(maps, 2, ceil_mode=True)
    return pack_maps(maps)


def logits_covered(bundle: Bundle, view: Tensor, covered: Tensor, merge: int | None) -> Tensor:
    """(K,): the logits with some cells (rows, columns) covered: left out where the network can, painted over else."""
    if covered.all():
        raise UserError("cells: the whole image is covered, so there is nothing to look at; uncover some.")
    network, image = _merging(bundle.model, merge), _image(bundle, view)
    with torch.inference_mode(), evaluating(network):
        logits = logits_without(network, image, covered.reshape(1, -1).to(image.device))[0]
    check_numbers(logits, "scores", bundle.path)
    return logits


def _image(bundle: Bundle, view: Tensor) -> Tensor:
    """(1, C, H, W) normalised, where the network is."""
    return normalise(view[None].to(bundle.model.device), bundle.preprocess)


def _merging(network: Network, merge: int | None) -> Network:
    return network if merge is None else require(network, MergesTokens, "merge").with_merge(merge)


def _works(check: Callable[[], object]) -> bool:
    try:
        check()
    except UserError:  # no tokens to merge, or positions and attention that need each in its place; no such method
        return False
    return True


def _missing(network: Network | None, methods: tuple[str, ...]) -> str | None:
    """What the page says it cannot show."""
    if network is None:
        return (
            "This is an exported model: a graph that gives answers alone. Serve the bundle that it was made of to see "
            "what it looked at; covering shows what matters to it all the same."
        )
    if not isinstance(network, TracesAttention):
        return (
            "This network has no attention and no tokens, so there are no heads, layers or colours to see; "
            f"{' and '.join((*methods, 'covering'))} show what its answer rests on."
        )
    if not network.config.classes:
        return "This model has no classifier, so there are no answers to explain; its attention and tokens are shown."
    return None
