"""What the page asks about a model and a view, found by `vitreous.explain` and packed for the page.

A view is (C, H, W) uint8, what the model sees of an image. Letters in shapes: K classes, L layers, h heads, N patches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.config.data import Preprocess
from vitreous.data.augment import eval_view, normalise, seen_box
from vitreous.data.decode import original_size
from vitreous.data.view import read_for_view
from vitreous.errors import UserError
from vitreous.explain.inside import Inside, attention_between_patches, look_inside
from vitreous.explain.methods import check_request, chosen_layers, compute_maps, default_method
from vitreous.explain.occlusion import CELLS, logits_without, occluded_grid
from vitreous.explain.request import METHODS, ExplanationRequest, Method
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
from vitreous.server.page.packing import PackedMaps, pack, pack_floats, pack_maps, pack_view
from vitreous.server.served import Served
from vitreous.weights.bundle import Bundle

MOST_NUMBERS = 8 * 2**20
"""Of attention between patches; where there are more, what is looked at is told more coarsely."""


@dataclass(frozen=True)
class ModelCard:
    """A model as the page presents it."""

    name: str
    about: str
    """A few words: what kind of network it is, and what computes it."""
    labels: tuple[str, ...]
    size: tuple[int, int]
    """Height and width of what it sees."""
    grid: tuple[int, int]
    """Rows and columns of patches, or of what stands for them."""
    cell: tuple[float, float]
    """Height and width of a patch, as shares of the view."""
    layers: int
    """With attention; 0 where nothing is known of any."""
    heads: int
    methods: tuple[Method, ...]
    """That can explain it."""
    method: Method | None
    """The one that suits it."""
    starts: dict[Method, int]
    """The layer at which each method that has layers is best."""
    pooling: bool
    """Whether attention pooling, with a map of its own, follows the layers."""
    merges: bool
    """Whether its tokens can be merged."""
    merge: int
    """How many of them each block merges of itself."""
    covering: Literal["left out", "painted"]
    """What becomes of covered patches."""
    missing: str | None
    """In a sentence, what cannot be shown of it, and why."""


@dataclass(frozen=True)
class SeenImage:
    """What a model sees of an image, and what it answers."""

    width: int
    height: int
    """Of the whole image, upright, in pixels."""
    box: tuple[float, float, float, float]
    """Left, top, right and bottom of what is seen of it."""
    view: str
    """Base64 of a PNG: to be sent with all other questions about the image."""
    chances: str | None
    """Base64 of (K,) float32; null without a classifier."""


@dataclass(frozen=True)
class Chances:
    """What a model answers: base64 of (K,) float32; null without a classifier."""

    chances: str | None


@dataclass(frozen=True)
class PackedInside:
    """What was seen inside, in every layer."""

    attention: PackedMaps
    """(L, h, rows, columns); with attention pooling its own follow the last layer's."""
    rollout: PackedMaps
    """(L, rows, columns)."""
    colours: str
    """Base64 of (L, N, 3) uint8."""
    groups: str | None
    """Base64 of (L, N) uint16, little-endian: for each patch the first of those that are one token."""
    chances: str | None
    """Base64 of (K,) float32; null without a classifier."""


def model_card(served: Served) -> ModelCard:
    """What the page must know of a model before any image."""
    preprocess, bundle = served.preprocess, served.bundle
    about = f"{served.deployed.config.describe()}, {served.engine.name} {served.engine.precision}"
    grid, cell = cells_of(served)
    network = None if bundle is None else bundle.model
    attentive = network if isinstance(network, TracesAttention) else None
    methods = () if network is None else tuple(name for name in METHODS if _refusal(network, name, preprocess) is None)
    depth = 0 if attentive is None else attentive.config.depth
    return ModelCard(
        name=served.name,
        about=about,
        labels=served.labels,
        size=preprocess.size,
        grid=grid,
        cell=cell,
        layers=depth,
        heads=0 if attentive is None else attentive.config.heads,
        methods=methods,
        method=None if network is None or not methods else _suited(network, methods, preprocess),
        starts={name: chosen_layers(depth, name, None)[0] for name in methods if depth and name != "occlusion"},
        pooling=attentive is not None and attentive.config.pool == "attention",
        merges=network is not None and _can_merge(network),
        merge=0 if attentive is None else attentive.config.merge,
        covering="left out" if network is not None and can_leave_patches_out(network) else "painted",
        missing=_missing(network, methods),
    )


def cells_of(served: Served) -> tuple[tuple[int, int], tuple[float, float]]:
    """Rows and columns of what can be covered, and the height and width of one as shares of the view."""
    size, config = served.preprocess.size, served.deployed.config
    grid = (min(CELLS, size[0]), min(CELLS, size[1]))
    if served.bundle is not None:
        grid = occluded_grid(served.bundle.model, size)
        if can_leave_patches_out(served.bundle.model) or isinstance(served.bundle.model, TracesAttention):
            patch = getattr(config, "patch", 1)
            return grid, (patch / size[0], patch / size[1])  # the last patch may reach beyond the view
    return grid, (1 / grid[0], 1 / grid[1])


@dataclass(frozen=True)
class SeenView:
    """What a model sees of an image, before it has answered."""

    width: int
    height: int
    box: tuple[float, float, float, float]
    view: Tensor
    packed: str
    """The view as the page is given it."""

    def answered(self, scores: Tensor | None) -> SeenImage:
        """The reply to the image; scores: (K,), None without a classifier."""
        return SeenImage(self.width, self.height, self.box, self.packed, pack_chances(scores))


def see_image(image: bytes, preprocess: Preprocess) -> SeenView:
    """The view of an image's file. A large JPEG is read at a smaller scale: the page has the whole of it already."""
    decoded = read_for_view(image, preprocess)
    height, width, _ = original_size(decoded)
    view = eval_view(decoded, preprocess)
    return SeenView(width, height, seen_box(height, width, preprocess), view, pack_view(view))


def pack_chances(scores: Tensor | None) -> str | None:
    """How likely each class is, by its scores (K,)."""
    return None if scores is None else pack_floats(class_probabilities(scores))


def inside(bundle: Bundle, view: Tensor, merge: int | None) -> PackedInside:
    """All layers at once. merge: how many tokens each block merges; None for as many as the model does of itself."""
    network = _merging(bundle.model, merge)
    attentive = require(network, TracesAttention, "inside")
    with evaluating(network):
        seen = look_inside(attentive, _image(bundle, view))
    check_numbers(seen.logits, "scores", bundle.path)
    groups = None if seen.groups is None else pack(seen.groups.cpu().numpy().astype("<u2"))
    return PackedInside(
        attention=pack_maps(_with_pooling(seen)),
        rollout=pack_maps(seen.rollout),
        colours=pack(seen.colours),
        groups=groups,
        chances=pack_chances(seen.logits if bundle.labels else None),
    )


def class_maps(bundle: Bundle, view: Tensor, method: Method, target: int, merge: int | None) -> PackedMaps:
    """(L or 1, rows, columns): what spoke for a class, from each layer where the method has layers."""
    network = _merging(bundle.model, merge)
    layer: Literal["all"] | None = "all" if isinstance(network, TracesAttention) and method != "occlusion" else None
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
    while maps.numel() > MOST_NUMBERS:
        maps = F.avg_pool2d(maps, 2, ceil_mode=True)
    return pack_maps(maps)


def scores_covered(bundle: Bundle, view: Tensor, covered: Tensor, merge: int | None) -> Tensor:
    """(K,): the scores with some cells (rows, columns) covered: left out where the network can, painted over else."""
    if covered.all():
        raise UserError("cells: the whole image is covered, so there is nothing to look at; uncover some.")
    network, image = _merging(bundle.model, merge), _image(bundle, view)
    with torch.inference_mode(), evaluating(network):
        scores = logits_without(network, image, covered.reshape(1, -1).to(image.device))[0]
    check_numbers(scores, "scores", bundle.path)
    return scores


def _image(bundle: Bundle, view: Tensor) -> Tensor:
    """(1, C, H, W) normalised, where the network is."""
    return normalise(view[None], bundle.preprocess).to(bundle.model.device)


def _with_pooling(seen: Inside) -> Tensor:
    return seen.attention if seen.pooling is None else torch.cat([seen.attention, seen.pooling[None]])


def _merging(network: Network, merge: int | None) -> Network:
    return network if merge is None else require(network, MergesTokens, "merge").with_merge(merge)


def _can_merge(network: Network) -> bool:
    try:
        _merging(network, 1)
    except UserError:  # no tokens, or positions and attention that need each in its place
        return False
    return True


def _suited(network: Network, methods: tuple[Method, ...], preprocess: Preprocess) -> Method:
    suited = default_method(network, size=preprocess.size)
    return suited if suited in methods else methods[0]


def _refusal(network: Network, method: Method, preprocess: Preprocess) -> str | None:
    try:
        check_request(network, ExplanationRequest(method=method), preprocess.size)
    except UserError as error:
        return str(error)
    return None


def _missing(network: Network | None, methods: tuple[Method, ...]) -> str | None:
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
