"""The routes of the page: `/`, its files, and what it asks for.

Every question but the first is about a view, which the first one gave: the page sends it back as the request's body.
So the server keeps nothing of anybody's image, and a stroke of the brush costs no upload of a photograph.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, TypeVar

import numpy as np
import torch
from fastapi import APIRouter, Query, Request, Response
from pydantic_core import to_json
from torch import Tensor

from vitreous.data.augment import to_pixels
from vitreous.data.decode import ImageError, open_image, read_header
from vitreous.errors import DamagedModelError, UserError
from vitreous.explain.draw import COLOURS, COVER
from vitreous.explain.occlusion import paint_over
from vitreous.explain.request import Method
from vitreous.server.bodies import read_body
from vitreous.server.choosing import choose_model
from vitreous.server.page.files import page_files
from vitreous.server.page.looking import (
    Chances,
    ModelCard,
    PackedInside,
    SeenImage,
    cells_of,
    class_maps,
    inside,
    model_card,
    pack_chances,
    patch_attention_maps,
    scores_covered,
    see_image,
)
from vitreous.server.page.packing import PackedMaps, pack
from vitreous.server.page.samples import sample_images
from vitreous.server.refusal import RefusedError
from vitreous.server.served import Served
from vitreous.weights.bundle import Bundle

T = TypeVar("T")
Merge = Annotated[int | None, Query(ge=0, le=64)]
MOST_CELLS = 2**14
"""Of a model's grid: what a page can paint on."""
HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True)
class PageStart:
    """What the page must know before anything else."""

    models: list[ModelCard]
    samples: list[str]
    colours: str
    """Base64 of (256, 3) uint8: the colour of each level of a map."""
    cover: str
    """Base64 of (256,) uint8: how much of the image it covers."""


def page_router(models: Mapping[str, Served]) -> APIRouter:
    """The page at `/`, and below `/page` what belongs to it."""
    router = APIRouter(include_in_schema=False)  # between the page and its server: no promise to anybody else
    _add_files(router)
    _add_questions(router, models)

    answers: list[Response] = []
    first = asyncio.Lock()

    @router.get("/page/start")
    async def start() -> Response:
        """Made once: to know what explains a network may take passes through it."""
        async with first:
            if not answers:
                answers.append(await asyncio.to_thread(_start, models.values()))
        return answers[0]

    return router


def _start(models: Iterable[Served]) -> Response:
    cards = [model_card(served) for served in models]
    return _packed(PageStart(cards, list(sample_images()), pack(COLOURS), pack(COVER)))


def _add_files(router: APIRouter) -> None:
    @router.api_route("/", methods=["GET", "HEAD"])
    async def index(request: Request) -> Response:
        return page_files()["index.html"].response(request)

    @router.api_route("/page/static/{name}", methods=["GET", "HEAD"])
    async def static(request: Request, name: str) -> Response:
        if name not in page_files():
            raise RefusedError(404, "the page has no file of this name.")
        return page_files()[name].response(request)

    @router.get("/page/samples/{number}")
    async def sample(number: int) -> Response:
        files = list((await asyncio.to_thread(sample_images)).values())
        if not 0 <= number < len(files):
            raise RefusedError(404, f"sample {number}: there are samples 0 to {len(files) - 1}.")
        kind = "image/png" if files[number].startswith(b"\x89PNG") else "image/jpeg"
        return Response(files[number], media_type=kind, headers={"Cache-Control": "private, max-age=3600"})


def _add_questions(router: APIRouter, models: Mapping[str, Served]) -> None:
    @router.post("/page/image")
    async def image(request: Request, model: str | None = None) -> SeenImage:
        """The body is an image's file."""
        served = choose_model(models, model)
        with served.places.arriving():
            body = await read_body(request, served.settings)
        with served.places.take(1):
            seen = await served.see(body, see_image)
            return seen.answered(await served.scores_of_view(seen.view))

    @router.post("/page/inside")
    async def look(request: Request, model: str | None = None, merge: Merge = None) -> Response:
        served, bundle = _looked_into(models, model)
        view = await _read_view(request, served)
        return await _looking(served, lambda: _packed(inside(bundle, view, merge)))

    @router.post("/page/maps")
    async def maps(
        request: Request, method: Method, target: int, model: str | None = None, merge: Merge = None
    ) -> Response:
        served, bundle = _looked_into(models, model)
        view = await _read_view(request, served)
        return await _looking(served, lambda: _packed(class_maps(bundle, view, method, target, merge)))

    @router.post("/page/attention")
    async def attention(request: Request, layer: int, model: str | None = None, merge: Merge = None) -> Response:
        served, bundle = _looked_into(models, model)
        view = await _read_view(request, served)
        return await _looking(served, lambda: _packed(patch_attention_maps(bundle, view, layer, merge)))

    @router.post("/page/cover")
    async def cover(
        request: Request,
        cells: Annotated[str, Query(max_length=MOST_CELLS // 4)],
        model: str | None = None,
        merge: Merge = None,
    ) -> Chances:
        """cells: which are covered, row by row, four to a hexadecimal digit, the first in its highest bit.

        So the address stays short, however many are covered: proxies take 8 kB of it.
        """
        served = choose_model(models, model)
        covered = _read_cells(cells, cells_of(served)[0])
        if served.bundle is None:
            served.places.check_before_reading()
        else:
            served.check_looks()
        view = await _read_view(request, served)
        if not served.labels:
            return Chances(None)
        if (bundle := served.bundle) is None:
            with served.places.take(1):
                painted = paint_over(view, covered, served.preprocess)
                return Chances(pack_chances(await served.scores_of_view(painted)))
        return Chances(pack_chances(await _looking(served, lambda: scores_covered(bundle, view, covered, merge))))


def _looked_into(models: Mapping[str, Served], model: str | None) -> tuple[Served, Bundle]:
    """The model that a request is about, and its bundle; refused before the body is read where it cannot be done."""
    served = choose_model(models, model)
    if served.bundle is None:
        raise RefusedError(409, f"{served.name} is an exported model: it answers, and cannot be looked into.")
    served.check_looks()
    return served, served.bundle


async def _read_view(request: Request, served: Served) -> Tensor:
    """(C, H, W) uint8: the view in a request's body."""
    body = await read_body(request, served.settings)
    return await _refusing(asyncio.to_thread(_decode_view, body, served))


def _decode_view(body: bytes, served: Served) -> Tensor:
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
        raise RefusedError(422, f"cells: give one bit for each of {count} cells, four to a hexadecimal digit.")
    bits = [int(digit, 16) >> shift & 1 for digit in digits for shift in (3, 2, 1, 0)]
    return torch.tensor(bits[:count], dtype=torch.bool).reshape(grid)


async def _looking(served: Served, job: Callable[[], T]) -> T:
    return await _refusing(served.look(job))


async def _refusing(work: Awaitable[T]) -> T:
    """The same, with a mistake of whoever asked told as such."""
    try:
        return await work
    except ImageError as error:
        raise RefusedError(422, error.reason) from None
    except DamagedModelError:
        raise
    except UserError as error:
        raise RefusedError(422, str(error)) from None
