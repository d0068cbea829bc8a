"""Reading the bodies of requests within limits on size, speed and the total of all requests."""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from email.message import Message
from email.parser import BytesHeaderParser
from typing import Generic, TypeVar

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import ClientDisconnect

from vitreous.config.server import ServerSettings
from vitreous.server.errors import ApiError, too_large, validation_error
from vitreous.server.metrics import ServerMetrics

BODY_METER = "vitreous.body"  # key of a request's `BodyMeter` in its ASGI scope
MIN_THREAD_BYTES = 65_536  # JSON of this size is parsed in a thread, not in the event loop
MAX_IMAGE_ITEMS = 1000  # of JSON with one image in base64
MAX_FORM_PARTS = 16
MIN_LINE_BREAK_BYTES = 4096  # an image's file of this size without any line break: one in 10^13

Fields = TypeVar("Fields", bound=BaseModel)
Parameters = TypeVar("Parameters", bound=BaseModel)


class BodyBudget:
    """Limits the bytes of all bodies that the server holds at once."""

    def __init__(self, limit: int) -> None:
        self.limit, self.held = limit, 0


class BodyMeter:
    """The bytes of one request in the budget, from its first byte until it is answered."""

    def __init__(self, budget: BodyBudget, metrics: ServerMetrics) -> None:
        self._budget, self.metrics = budget, metrics
        self._held = 0

    def add(self, count: int) -> None:
        """Count more bytes; refuse them if all requests together hold too many."""
        self._held += count
        self._budget.held += count
        if self._budget.held > self._budget.limit:
            raise ApiError(503, "the server is reading too much at once; try again later.", retry_after=1)

    def close(self) -> None:
        self._budget.held -= self._held


async def read_body(request: Request, settings: ServerSettings) -> bytes:
    """All bytes of a request's body.

    A body that is too large is refused by its Content-Length, else once it has sent too much. So is one that pauses for
    too long or comes too slowly: the speed is judged in each span of `pause_seconds`, however fast it began.
    """
    if (encoding := request.headers.get("content-encoding", "identity").lower()) != "identity":
        raise ApiError(415, f"Content-Encoding {encoding[:20]!r}: bodies are taken as they are; leave it out.")
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > settings.max_body_bytes:
        raise too_large(settings.max_body_bytes)
    meter: BodyMeter = request.scope[BODY_METER]
    body, started = bytearray(), time.monotonic()
    judged, judged_at = 0, started  # bytes received until the end of the last span, and its time
    while True:
        part, more = await _next_part(request, settings)
        meter.add(len(part))
        body += part
        if len(body) > settings.max_body_bytes:
            raise too_large(settings.max_body_bytes)
        now = time.monotonic()
        if not more:
            meter.metrics.body_seconds.observe(now - started)
            return bytes(body)
        if now - judged_at > settings.pause_seconds:
            if len(body) - judged < (now - judged_at) * settings.min_bytes_per_second:
                raise _too_slow()
            judged, judged_at = len(body), now


async def _next_part(request: Request, settings: ServerSettings) -> tuple[bytes, bool]:
    try:
        async with asyncio.timeout(settings.pause_seconds):
            message = await request.receive()
    except TimeoutError:
        raise _too_slow() from None
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    return message.get("body", b""), message.get("more_body", False)


def _too_slow() -> ApiError:
    return ApiError(408, "the request's body came too slowly; send it again.", headers={"Connection": "close"})


async def parse_fields(body: bytes, kind: type[Fields], max_items: int) -> Fields:
    """Parse JSON of at most `max_items` items, counted first: parsed JSON can take 20 times the memory of its text."""
    if sum(map(body.count, (b",", b"[", b"{"))) > max_items:
        raise ApiError(413, f"the JSON has more than {max_items:,} items, the limit; send bytes instead.")
    try:
        if len(body) < MIN_THREAD_BYTES:
            return kind.model_validate_json(body)
        return await asyncio.to_thread(kind.model_validate_json, body)
    except ValidationError as error:
        raise validation_error(error) from None


def decode_base64(text: str, field: str) -> bytes:
    """The bytes of plain base64 or of a data: URL."""
    if text.startswith(("http:", "https:", "file:")):
        raise ApiError(400, f"{field}: addresses are not fetched; send the image itself, in base64.")
    if text.startswith("data:"):
        text = text.partition(",")[2]
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ApiError(400, f"{field}: this is not base64; send the bytes of the image's file in base64.") from None


def _lost_line_breaks(body: bytes) -> bool:
    """Whether `curl -d` has sent this: text, or a file from which it has taken every line break."""
    file = len(body) >= MIN_LINE_BREAK_BYTES or body.startswith(b"\x89PNG\x1a")
    return (file or body.isascii()) and b"\n" not in body and b"\r" not in body


def _read_form(body: bytes, content_type: str, parameters: type[Parameters]) -> tuple[bytes, Parameters]:
    """The only file of a form (RFC 7578), and the parameters that its other fields are."""
    header = Message()
    header["Content-Type"] = content_type
    boundary = str(header.get_param("boundary", "")).encode("latin-1", "replace")
    parts = (b"\r\n" + body).split(b"\r\n--" + boundary, MAX_FORM_PARTS + 2) if boundary else []
    if len(parts) < 3 or not parts[-1].startswith(b"--"):
        raise ApiError(400, f"the form is incomplete, or has more than {MAX_FORM_PARTS} fields; send one with a file.")
    files, texts = [], {}
    for part in parts[1:-1]:
        head, _, content = part.partition(b"\r\n\r\n")
        field = BytesHeaderParser().parsebytes(head.lstrip())
        if field.get_filename() is not None:
            files.append(content)
        else:
            texts[str(field.get_param("name", header="content-disposition"))] = content.decode("utf-8", "replace")
    if len(files) != 1:
        raise ApiError(400, f"the form has {len(files)} files; send one, such as with curl -F image=@FILE.")
    try:
        return files[0], parameters.model_validate(texts)
    except ValidationError as error:
        raise validation_error(error) from None


class ImageFields(BaseModel, Generic[Parameters]):
    """An image in JSON, in the form of Hugging Face's API. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")
    inputs: str = Field(description="The bytes of the image's file, in base64.")
    parameters: Parameters | None = None


class NoParameters(BaseModel):
    """Of a route without parameters."""

    model_config = ConfigDict(extra="forbid")


async def read_image(
    request: Request, settings: ServerSettings, parameters: type[Parameters]
) -> tuple[bytes, Parameters]:
    """The bytes of the image's file, and the parameters beside it.

    A body that is neither JSON nor a form is an image's file, whatever its content type.
    """
    content_type = request.headers.get("content-type", "")
    kind = content_type.partition(";")[0].strip().lower()
    body = await read_body(request, settings)
    if kind == "multipart/form-data":
        return _read_form(body, content_type, parameters)
    if kind == "application/x-www-form-urlencoded" and _lost_line_breaks(body):
        raise ApiError(400, "this is form data, not an image; send the file with curl --data-binary @FILE, not -d.")
    if kind != "application/json":
        return body, parameters()
    fields = await parse_fields(body, ImageFields[parameters], MAX_IMAGE_ITEMS)  # type: ignore[valid-type]
    if len(fields.inputs) < MIN_THREAD_BYTES:
        image = decode_base64(fields.inputs, "inputs")
    else:
        image = await asyncio.to_thread(decode_base64, fields.inputs, "inputs")
    return image, fields.parameters or parameters()
