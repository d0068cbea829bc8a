"""The routes of the page: `/`, its files, and what it asks for.

Every question but the first is about a view, which the first one gave: the page sends it back as the request's body.
So the server keeps nothing of anybody's image, and a stroke of the brush costs no upload of a photograph.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Annotated, TypeVar

import numpy as np
import torch
from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic_core import to_json
from torch import Tensor

from vitreous.data.augment import to_pixels
from vitreous.data.builtin import builtin_data
from vitreous.data.decode import ImageError, open_image, read_header
from vitreous.errors import DamagedModelError, UserError
from vitreous.explain.occlusion import paint_over
from vitreous.explain.overlay import COLOURS, COVER
from vitreous.glossary import GLOSSARY
from vitreous.server.bodies import read_body
from vitreous.server.errors import ApiError
from vitreous.server.page.inspection import (
    ModelCard,
    PackedInside,
    PackedMaps,
    SeenImage,
    cells_of,
    class_maps,
    inspect_layers,
    logits_covered,
    model_card,
    pack,
    pack_probabilities,
    patch_attention_maps,
    see_image,
)
from vitreous.server.routes import MethodName
from vitreous.server.served_model import Chosen, ServedModel
from vitreous.weights.bundle import Bundle

T = TypeVar("T")
Merge = Annotated[int | None, Query(ge=0, le=64)]
MAX_CELLS = 2**14  # of a model's grid: what a page can paint on
HEX = frozenset("0123456789abcdef")
CONTENT_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
EXPLAINED = ("layer", "head", "merge")  # words that the page explains beside its controls
PHOTOGRAPH = "grace_hopper.jpg"  # in the public domain; most installations of Matplotlib bring it along

router = APIRouter(include_in_schema=False)  # between the page and its server: no promise to anybody else


@cache
def page_files() -> Mapping[str, tuple[bytes, str, str]]:
    """The page's own files by name: content, content type, and a tag that changes with the content."""
    files = {}
    for entry in resources.files("vitreous.server.page").joinpath("static").iterdir():
        if kind := CONTENT_TYPES.get(entry.name.rpartition(".")[2]):
            content = entry.read_bytes()
            files[entry.name] = content, kind, f'"{sha256(content).hexdigest()[:32]}"'
    return files


@router.api_route("/", methods=["GET", "HEAD"])
async def index(request: Request) -> Response:
    return await static(request, "index.html")


@router.api_route("/page/static/{name}", methods=["GET", "HEAD"])
async def static(request: Request, name: str) -> Response:
    """A file, or that it has not changed for a browser that has it."""
    if name not in page_files():
        raise ApiError(404, "the page has no file of this name.")
    content, kind, tag = page_files()[name]
    headers = {"ETag": tag, "Cache-Control": "no-cache"}  # kept, but asked for each time: versions change
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=f"{kind}; charset=utf-8", headers=headers)


@cache
def builtin_samples() -> tuple[tuple[str, bytes], ...]:
    """Name and content of image files to try a model on: a photograph where there is one, and one image of each
    built-in class."""
    import matplotlib

    images = []
    photograph = Path(matplotlib.get_data_path()) / "sample_data" / PHOTOGRAPH
    if photograph.is_file():  # some distributions leave it out
        images.append(("Grace Hopper", photograph.read_bytes()))
    source = builtin_data().splits["test"]
    for label, name in enumerate(source.classes):
        file = io.BytesIO()
        source.read(int((source.labels == label).nonzero()[0][0]), channels=1).save(file, "PNG")
        images.append((name, file.getvalue()))
    return tuple(images)


@router.get("/page/samples/{number}")
async def sample(request: Request, number: int) -> Response:
    samples = request.app.state.samples or await asyncio.to_thread(builtin_samples)
    if not 0 <= number < len(samples):
        raise ApiError(404, f"sample {number}: there are samples 0 to {len(samples) - 1}.")
    content = samples[number][1]
    kind = f"image/{read_header(content).format.lower()}"
    return Response(content, media_type=kind, headers={"Cache-Control": "private, max-age=3600"})


@dataclass(frozen=True)
class PageStart:
    """What the page must know before anything else."""

    models: list[ModelCard]
    samples: list[str]
    colours: str  # base64 of (256, 3) uint8: the colour of each level of a map
    cover: str  # base64 of (256,) uint8: how much of the image it covers
    glossary: dict[str, str]  # a sentence for each word of `EXPLAINED`


@router.get("/page/start")
async def start(request: Request) -> Response:
    """Made once: to know what explains a network may take passes through it."""
    state = request.app.state
    async with state.page_lock:
        if state.page_start is None:
            state.page_start = await asyncio.to_thread(_start, state.models.all().values(), state.samples)
    return state.page_start


def _start(models: Iterable[ServedModel], samples: tuple[tuple[str, bytes], ...]) -> Response:
    cards, words = [model_card(served) for served in models], {word: GLOSSARY[word] for word in EXPLAINED}
    names = [name for name, _ in samples or builtin_samples()]
    return _packed(PageStart(cards, names, pack(COLOURS), pack(COVER), words))


@router.post("/page/image")
async def image(request: Request, served: Chosen) -> SeenImage:
    """The body is an image's file."""
    with served.queue.receiving():
        body = await read_body(request, served.settings)
    with served.queue.take(1):
        seen, view = await served.decode(body, see_image)
        return replace(seen, probabilities=pack_probabilities(await served.logits_of_view(view)))


def _bundle(served: Chosen) -> Bundle:
    """Of a model that can be looked into; refused before the body is read where it cannot be done."""
    if served.bundle is None:
        raise ApiError(409, f"{served.name} is an exported model: it answers, and cannot be looked into.")
    served.check_explanations()
    return served.bundle


Inspected = Annotated[Bundle, Depends(_bundle)]


@router.post("/page/inside")
async def inside(request: Request, served: Chosen, bundle: Inspected, merge: Merge = None) -> Response:
    view = await _read_view(request, served)
    return await _translated(served.explain(lambda: _packed(inspect_layers(bundle, view, merge))))


@router.post("/page/maps")
async def maps(
    request: Request, served: Chosen, bundle: Inspected, method: MethodName, target: int, merge: Merge = None
) -> Response:
    view = await _read_view(request, served)
    return await _translated(served.explain(lambda: _packed(class_maps(bundle, view, method, target, merge))))


@router.post("/page/attention")
async def attention(request: Request, served: Chosen, bundle: Inspected, layer: int, merge: Merge = None) -> Response:
    view = await _read_view(request, served)
    return await _translated(served.explain(lambda: _packed(patch_attention_maps(bundle, view, layer, merge))))


@router.post("/page/cover")
async def cover(
    request: Request, served: Chosen, cells: Annotated[str, Query(max_length=MAX_CELLS // 4)], merge: Merge = None
) -> dict[str, str | None]:
    """The probabilities with some cells covered.

    cells: which are covered, row by row, four to a hexadecimal digit, the first in its highest bit. So the address
    stays short, however many are covered: proxies take 8 kB of it.
    """
    covered = _read_cells(cells, cells_of(served)[0])
    if served.bundle is None:
        served.queue.check_before_receiving()
    else:
        served.check_explanations()
    view = await _read_view(request, served)
    if not served.labels:
        return {"probabilities": None}
    if (bundle := served.bundle) is None:
        with served.queue.take(1):
            logits = await served.logits_of_view(paint_over(view, covered, served.preprocess))
    else:
        logits = await _translated(served.explain(lambda: logits_covered(bundle, view, covered, merge)))
    return {"probabilities": pack_probabilities(logits)}


async def _read_view(request: Request, served: ServedModel) -> Tensor:
    """(C, H, W) uint8: the view in a request's body."""
    body = await read_body(request, served.settings)
    return await _translated(asyncio.to_thread(_decode_view, body, served))


def _decode_view(body: bytes, served: ServedModel) -> Tensor:
    """Of nothing but a PNG of the right size, which its header tells: a stranger's image is not decoded here."""
    expected, header = served.preprocess, read_header(body, name="the view")
    if header.format != "PNG" or (header.height, header.width) != expected.size:
        height, width = expected.size
        raise UserError(
            f"the view is a {header.format} of {header.width} x {header.height} pixels, and {served.name} sees "
            f"{width} x {height}; send the PNG that /page/image gave."
        )
    pixels = to_pixels(open_image(body, channels=expected.channels, name="the view"))
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


def _packed(reply: PageStart | PackedInside | PackedMaps) -> Response:
    """As JSON of its own making: megabytes of it, made where the event loop does not wait."""
    return Response(to_json(reply), media_type="application/json")


def _read_cells(digits: str, grid: tuple[int, int]) -> Tensor:
    """(rows, columns) bool."""
    count = grid[0] * grid[1]
    if len(digits) != -(-count // 4) or not set(digits) <= HEX:
        raise ApiError(422, f"cells: give one bit for each of {count} cells, four to a hexadecimal digit.")
    bits = [int(digit, 16) >> shift & 1 for digit in digits for shift in (3, 2, 1, 0)]
    return torch.tensor(bits[:count], dtype=torch.bool).reshape(grid)


async def _translated(work: Awaitable[T]) -> T:
    """The same, with a mistake of whoever asked told as such."""
    try:
        return await work
    except ImageError as error:
        raise ApiError(422, error.reason) from None
    except DamagedModelError:
        raise
    except UserError as error:
        raise ApiError(422, str(error)) from None
