"""What packed data are wrapped in, unwrapped with bounds: gzip, zip with NumPy arrays, pickles of plain data, MATLAB's
files (which SciPy reads).

A file may claim any size, and unpack to a thousand times its own: what it would take is compared with the memory that
there is before anything is read. Nothing in a pickle is run.
"""

from __future__ import annotations

import io
import math
import pickle
import warnings
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from vitreous.errors import UserError
from vitreous.inputs import open_input, read_bytes
from vitreous.memory import available_memory, check_memory

BLOCK_BYTES = 2**16


def read_pixels(stream: IO[bytes] | GzipReader, size: int) -> NDArray[np.uint8]:
    """(n,): `size` bytes of a stream, or as many as there are."""
    found = np.empty(size, np.uint8)  # pages that nothing is written to take no memory
    done = 0
    while done < size and (piece := stream.read(min(2**20, size - done))):
        found[done : done + len(piece)] = np.frombuffer(piece, np.uint8)
        done += len(piece)
    return found[:done]


class GzipReader:
    """The unpacked bytes of a gzip file, as many as are asked for and no more."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self.file, self.path = file, path
        self._unpacker = zlib.decompressobj(wbits=31)  # with gzip's header and its sum

    def read(self, size: int, /) -> bytes:
        found = bytearray()
        try:
            while len(found) < size and not self._unpacker.eof:
                packed = self._unpacker.unconsumed_tail or self.file.read(BLOCK_BYTES)
                if not packed:
                    raise UserError(f"{self.path}: damaged or cut short; download the file again.")
                found += self._unpacker.decompress(packed, size - len(found))
        except zlib.error as error:
            raise UserError(f"{self.path}: damaged or cut short ({error}); download the file again.") from None
        return bytes(found)


class NpzReader:
    """The arrays of an .npz file by name: each is read when it is asked for, once its size is known."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = open_input(path)
        try:
            self._zip = zipfile.ZipFile(self._file)
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
            self._file.close()
            raise self._refused(error) from None
        self.names = frozenset(name.removesuffix(".npy") for name in self._zip.namelist() if name.endswith(".npy"))

    def __enter__(self) -> NpzReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()
        self._file.close()

    def read(self, name: str) -> NDArray[Any]:
        try:
            with self._zip.open(f"{name}.npy") as member:
                return self._read(name, member, self._zip.getinfo(f"{name}.npy").file_size)
        except UserError:
            raise
        # The last ones: an encrypted member, a compression that is not known, a header nested beyond all measure.
        except (
            *(ValueError, OSError, EOFError, KeyError, TypeError, SyntaxError, zipfile.BadZipFile, zlib.error),
            *(RuntimeError, NotImplementedError, RecursionError, MemoryError, TokenError),
        ) as error:
            raise self._refused(error) from None

    def _read(self, name: str, member: Any, stored: int) -> NDArray[Any]:
        readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
        version = npy.read_magic(member)
        if version not in readers:
            raise ValueError(f"format {version} of {name}")
        with warnings.catch_warnings(action="ignore"):  # of headers that an old Python wrote
            shape, by_columns, kind = readers[version](member)
        if kind.hasobject:
            raise ValueError(f"{name} holds Python objects")
        if min(shape, default=0) < 0:
            raise ValueError(f"{name} has the shape {shape}")
        size = math.prod(shape) * kind.itemsize
        if size > stored:
            raise UserError(f"{self.path}: {name} is cut short, {stored:,} of {size:,} bytes; make the file again.")
        check_memory(3 * size, f"{self.path}, {name}", "take a machine with more memory, or fewer images")
        raw = read_pixels(member, size)
        if len(raw) < size:
            raise EOFError(f"{name} is cut short")
        return np.frombuffer(raw, dtype=kind).reshape(shape, order="F" if by_columns else "C")

    def _refused(self, error: Exception) -> UserError:
        why = str(error)[:200] or type(error).__name__
        return UserError(f"{self.path}: not an .npz of plain arrays ({why}); save it with numpy.savez.")


class _Array:
    """Stands for `numpy.ndarray`: pickles make one without anything, then give it its state."""

    found: NDArray[np.uint8] | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, by_columns, raw = state
        if isinstance(kind, _Kind) and kind.name in ("u1", "|u1") and isinstance(raw, bytes):
            pixels = np.frombuffer(bytearray(raw), np.uint8)
            self.found = pixels.reshape(shape, order="F" if by_columns else "C")


class _Kind:
    """Stands for `numpy.dtype`."""

    def __init__(self, name: Any, *_: Any) -> None:
        self.name = name.decode("ascii", "replace") if isinstance(name, bytes) else name

    def __setstate__(self, state: Any) -> None: ...


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _encode_latin1(text: str, encoding: str) -> bytes:
    """How Python 3 writes bytes in an old pickle: the only use of codecs that is let through."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it asks for the codec {encoding!r}")
    return text.encode("latin1")


# What stands for NumPy's own constructors, and nothing else: each makes plain data of plain data.
_PLAIN: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _reconstruct,
    ("numpy", "dtype"): _Kind,
    ("_codecs", "encode"): _encode_latin1,
}


class _PlainUnpickler(pickle._Unpickler):
    """Numbers, texts, lists, dicts and arrays of bytes; whatever else a pickle asks for is refused. It is the one in
    Python, for the one in C makes a table as long as the largest number in the pickle."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _PLAIN:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return _PLAIN[module, name]


def read_plain_pickle(path: Path) -> dict[bytes, Any]:
    """A dict with keys in bytes, of a file of plain data; arrays of bytes are arrays, any others None."""
    most = available_memory()
    content = read_bytes(path, 2**30 if most is None else min(2**30, most // 3))
    try:
        found = _PlainUnpickler(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a damaged pickle raises nearly anything
        why = str(error)[:200] or type(error).__name__
        raise UserError(f"{path}: refused, not plain CIFAR data ({why}); download the file again.") from None
    if not isinstance(found, dict):
        raise UserError(f"{path}: holds no dictionary, so it is not CIFAR; download the file again.")
    plain = {}
    for key, value in found.items():
        with suppress(UnicodeEncodeError):
            key = key.encode() if isinstance(key, str) else key
        plain[key] = value.found if isinstance(value, _Array) else value
    return plain


def read_mat(path: Path, *names: str) -> tuple[NDArray[Any], ...]:
    """The variables of these names in a MATLAB file of level 5, each an array of at least two axes; a struct is an
    array with named fields. SciPy may crash on a damaged file: only for datasets whose checksums were compared."""
    try:
        from scipy.io import loadmat
    except ImportError:
        raise UserError(
            f"{path}: is read with the package scipy; install it with pip install 'vitreous[mat]'."
        ) from None
    with open_input(path) as file:
        check_memory(4 * path.stat().st_size, str(path), "take a machine with more memory, or check the file")
        try:
            found = loadmat(file, variable_names=names)
        except Exception as error:  # a damaged file raises nearly anything
            why = str(error)[:200] or type(error).__name__
            raise UserError(f"{path}: not a whole MATLAB file of level 5 ({why}); get it again.") from None
    if missing := [name for name in names if name not in found]:
        raise UserError(f"{path}: has no variable {missing[0]!r}; get the file again.")
    return tuple(found[name] for name in names)
