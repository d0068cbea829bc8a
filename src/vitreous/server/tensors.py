"""Tensors of the Open Inference Protocol: numbers in JSON, or bytes that follow the JSON.

The latter is the binary tensor data extension: the header Inference-Header-Content-Length says where the JSON ends, and
`binary_data_size` of each tensor how many bytes are its own. A BYTES tensor is a sequence of byte strings, each after
its length.
"""

from __future__ import annotations

import math
import struct
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from vitreous.arguments import shown
from vitreous.server.bodies import decode_base64
from vitreous.server.errors import ApiError, too_many_images

IMAGES, PIXELS = "images", "pixels"  # names of the inputs: image files, or decoded images


class InputTensor(BaseModel):
    """A tensor that a request brings."""

    name: str
    datatype: str
    shape: list[int] = Field(max_length=8)
    data: list[Any] | None = None
    parameters: dict[str, Any] = {}


class RequestedOutput(BaseModel):
    """A tensor that a request wants."""

    name: str
    parameters: dict[str, Any] = {}


class InferRequest(BaseModel):
    """A request of the protocol."""

    id: str | None = None
    inputs: list[InputTensor] = Field(max_length=8)
    outputs: list[RequestedOutput] | None = Field(None, max_length=8)
    parameters: dict[str, Any] = {}


class OutputTensor(BaseModel):
    """A tensor of an answer."""

    name: str
    datatype: Literal["FP32", "BYTES"]
    shape: list[int]
    data: list[Any] | None = None
    parameters: dict[str, Any] | None = None


class InferResponse(BaseModel):
    """An answer of the protocol."""

    model_name: str
    model_version: str
    id: str | None = None
    outputs: list[OutputTensor]


def read_images(request: InferRequest, binary: bytes, limit: int) -> list[bytes | NDArray[np.uint8]]:
    """The images of a request: files' bytes, or arrays (H, W, C).

    More than `limit` are refused before they are split: a few bytes can claim to be millions of images.
    """
    if len(request.inputs) != 1:
        raise ApiError(400, f"inputs: give one, {IMAGES} (BYTES) or {PIXELS} (UINT8); there are {len(request.inputs)}.")
    given = request.inputs[0]
    size = given.parameters.get("binary_data_size")
    if size is None:
        if binary:
            raise ApiError(400, f"{shown(given.name)}: bytes follow the JSON, and no binary_data_size tells whose.")
    elif size != len(binary):
        raise ApiError(
            400, f"{shown(given.name)}: binary_data_size says {shown(size)}, and {len(binary)} bytes follow the JSON."
        )
    if size is None and given.data is None:
        raise ApiError(400, f"{shown(given.name)}: it has no data.")
    if (given.name, given.datatype) == (IMAGES, "BYTES"):
        return [*(_read_files(given, limit) if size is None else _split_bytes(given, binary, limit))]
    if (given.name, given.datatype) == (PIXELS, "UINT8"):
        return [*_read_pixels(given, binary if size is not None else None, limit)]
    raise ApiError(
        400, f"{shown(given.name)} {shown(given.datatype)}: give {IMAGES} (BYTES, files of images) or {PIXELS} (UINT8)."
    )


def _read_files(given: InputTensor, limit: int) -> list[bytes]:
    """The files of a tensor (N,) or (N, 1) in JSON, in base64."""
    texts = [one for row in given.data or () for one in (row if isinstance(row, list) else [row])]
    if not all(isinstance(text, str) for text in texts):
        raise ApiError(400, f"{IMAGES}: in JSON they are texts, the bytes of files in base64.")
    if len(texts) > limit:
        raise too_many_images(limit)
    _check_count(given, len(texts))
    return [decode_base64(text, IMAGES) for text in texts]


def _split_bytes(given: InputTensor, binary: bytes, limit: int) -> list[bytes]:
    """The byte strings of a BYTES tensor: each follows its length, 4 bytes, little-endian."""
    texts: list[bytes] = []
    offset = 0
    while offset < len(binary):
        if len(texts) == limit:
            raise too_many_images(limit)
        end = offset + 4
        length = struct.unpack_from("<I", binary, offset)[0] if end <= len(binary) else len(binary)
        if end + length > len(binary):
            raise ApiError(400, f"{IMAGES}: the bytes end before the image does; check the lengths.")
        texts.append(binary[end : end + length])
        offset = end + length
    _check_count(given, len(texts))
    return texts


def _check_count(given: InputTensor, count: int) -> None:
    if not given.shape or min(given.shape) < 1 or math.prod(given.shape) != count:
        raise ApiError(
            400, f"{given.name}: shape {shown(given.shape)} and {count} images do not fit; give [{max(count, 1)}]."
        )


def _read_pixels(given: InputTensor, binary: bytes | None, limit: int) -> list[NDArray[np.uint8]]:
    """Each image (H, W, C) of a tensor (N, C, H, W)."""
    shape = given.shape
    if len(shape) != 4 or min(shape) < 1 or shape[1] not in (1, 3):
        raise ApiError(400, f"{PIXELS}: shape {shown(shape)}; give [count, 3, height, width], or 1 for grey.")
    if shape[0] > limit:
        raise too_many_images(limit)
    values = _flatten_uint8(given.data or []) if binary is None else np.frombuffer(binary, np.uint8)
    if values.size != math.prod(shape):
        raise ApiError(400, f"{PIXELS}: shape {shown(shape)} and {values.size} numbers do not fit.")
    return list(values.reshape(shape).transpose(0, 2, 3, 1))


def _flatten_uint8(data: list[Any]) -> NDArray[np.uint8]:
    """The numbers of nested lists in row-major order."""
    while data and set(map(type, data)) == {list} and len(set(map(len, data))) == 1:
        data = [one for row in data for one in row]
    try:
        if set(map(type, data)) == {int}:  # not the truth values that Python takes for numbers
            return np.frombuffer(bytes(data), np.uint8)
    except ValueError:  # beyond 255
        pass
    raise ApiError(400, f"{PIXELS}: give whole numbers from 0 to 255, nested as the shape or in one row.")


def write_tensor(name: str, values: NDArray[Any], *, binary: bool) -> tuple[OutputTensor, bytes]:
    """A tensor of float32 or of strings for a response, and the bytes that follow the JSON, if any."""
    texts = values.dtype.kind in "OU"
    tensor = OutputTensor(name=name, datatype="BYTES" if texts else "FP32", shape=list(values.shape))
    if not binary:
        tensor.data = values.reshape(-1).tolist()
        return tensor, b""
    content = (
        b"".join(struct.pack("<I", len(text)) + text for text in (one.encode() for one in values.reshape(-1).tolist()))
        if texts
        else np.ascontiguousarray(values, "<f4").tobytes()
    )
    tensor.parameters = {"binary_data_size": len(content)}
    return tensor, content
