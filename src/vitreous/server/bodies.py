"""What a request brings, read within limits: how much, how fast, and how much of all requests at once."""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from typing import Generic, TypeVar

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import ClientDisconnect

from vitreous.config.server import ServerSettings
from vitreous.inputs import format_bytes
from vitreous.server.errors import ApiError, not_valid
from vitreous.server.metrics import ServerMetrics

METER = "vitreous.body"
"""Where a request's scope has its `BodyMeter`."""
MIN_THREAD_BYTES = 65_536  # of JSON that is read in a thread, so that nobody else waits for it
MAX_IMAGE_ITEMS = 1000  # of JSON in which an image is one of them

Fields = TypeVar("Fields", bound=BaseModel)
Parameters = TypeVar("Parameters", bound=BaseModel)


class BodyBudget:
    """How many bytes of bodies the server holds at once."""

    def __init__(self, limit: int) -> None:
        self.limit, self.held = limit, 0


class BodyMeter:
    """What one request holds of the budget, from its first byte until it is answered."""

    def __init__(self, budget: BodyBudget, metrics: ServerMetrics) -> None:
        self._budget, self.metrics = budget, metrics
        self._held = 0

    def add(self, count: int) -> None:
        """So many bytes more; refused where all requests together have too many."""
        self._held += count
        self._budget.held += count
        if self._budget.held > self._budget.limit:
            raise ApiError(503, "the server is reading too much at once; try again later.", retry_after=1)

    def close(self) -> None:
        """Give back what was held."""
        self._budget.held -= self._held


async def read_body(request: Request, settings: ServerSettings) -> bytes:
    """All bytes of a request's body.

    One that announces too many is refused before any is read, and one that does not announce them when it has sent
    them. A client that pauses for too long, or is slow beyond reason, is cut off: each span of `pause_seconds` is
    judged by itself, so that a fast beginning does not pay for the rest.
    """
    if (encoding := request.headers.get("content-encoding", "identity").lower()) != "identity":
        raise ApiError(415, f"Content-Encoding {encoding[:20]!r}: bodies are taken as they are; leave it out.")
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > settings.max_body_bytes:
        raise _too_large(settings)
    meter: BodyMeter = request.scope[METER]
    body, started = bytearray(), time.monotonic()
    judged, judged_at = 0, started  # bytes that had come, and when, at the end of the last span
    while True:
        part, more = await _next_part(request, settings)
        meter.add(len(part))
        body += part
        if len(body) > settings.max_body_bytes:
            raise _too_large(settings)
        now = time.monotonic()
        if not more:
            meter.metrics.body_seconds.observe(now - started)
            return bytes(body)
        if now - judged_at > settings.pause_seconds:
            if len(body) - judged < (now - judged_at) * settings.min_bytes_per_second:
                raise _too_slow()
            judged, judged_at = len(body), now


async def _next_part(request: Request, settings: ServerSettings) -> tuple[bytes, bool]:
    """Some bytes, and whether more will come."""
    try:
        async with asyncio.timeout(settings.pause_seconds):
            message = await request.receive()
    except TimeoutError:
        raise _too_slow() from None
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    return message.get("body", b""), message.get("more_body", False)


def _too_large(settings: ServerSettings) -> ApiError:
    limit = format_bytes(settings.max_body_bytes)
    return ApiError(413, f"the request has more than {limit}, the limit; send a smaller image.")


def _too_slow() -> ApiError:
    return ApiError(408, "the request's body came too slowly; send it again.", headers={"Connection": "close"})


async def parse_fields(body: bytes, kind: type[Fields], max_items: int) -> Fields:
    """The fields of JSON that has at most so many items in all.

    They are counted before they are read: of brackets alone, parsed JSON takes twenty times the room of its text.
    """
    if sum(map(body.count, (b",", b"[", b"{"))) > max_items:
        raise ApiError(413, f"the JSON has more than {max_items:,} items, the limit; send bytes instead.")
    try:
        if len(body) < MIN_THREAD_BYTES:
            return kind.model_validate_json(body)
        return await asyncio.to_thread(kind.model_validate_json, body)
    except ValidationError as error:
        raise not_valid(error) from None


def decode_base64(text: str, field: str) -> bytes:
    """The bytes that a text stands for, be it plain base64 or an address that holds its data itself."""
    if text.startswith(("http:", "https:", "file:")):
        raise ApiError(400, f"{field}: addresses are not fetched; send the image itself, in base64.")
    if text.startswith("data:"):
        text = text.partition(",")[2]
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ApiError(400, f"{field}: this is not base64; send the bytes of the image's file in base64.") from None


class ImageFields(BaseModel, Generic[Parameters]):
    """An image in JSON, in Hugging Face's form. What is not known is refused: nobody should take it for heeded."""

    model_config = ConfigDict(extra="forbid")
    inputs: str = Field(description="The bytes of the image's file, in base64.")
    parameters: Parameters | None = None


class NoParameters(BaseModel):
    """Of a question that has none."""

    model_config = ConfigDict(extra="forbid")


async def read_image(
    request: Request, settings: ServerSettings, parameters: type[Parameters]
) -> tuple[bytes, Parameters]:
    """The bytes of the image's file, and the parameters beside it.

    Whatever a body that is no JSON is called, but a form, it is taken for an image's own bytes.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        raise ApiError(
            415, "forms are not read; send the image's bytes as the body: curl --data-binary @cat.jpg ADDRESS."
        )
    body = await read_body(request, settings)
    if kind != "application/json":
        return body, parameters()
    fields = await parse_fields(body, ImageFields[parameters], MAX_IMAGE_ITEMS)  # type: ignore[valid-type]
    if len(fields.inputs) < MIN_THREAD_BYTES:
        image = decode_base64(fields.inputs, "inputs")
    else:
        image = await asyncio.to_thread(decode_base64, fields.inputs, "inputs")
    return image, fields.parameters or parameters()
