"""Many small images in one file: CIFAR-10 and CIFAR-100, MNIST-style idx, .npz. All are held in memory."""

from __future__ import annotations

import io
import math
import os
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitreous.data.decode import Header, check_channels
from vitreous.data.rng import Index
from vitreous.data.source import Data, Labels, Source, Split, check_classes
from vitreous.data.unpack import GzipReader, NpzReader, read_pixels, read_plain_pickle
from vitreous.errors import UserError
from vitreous.inputs import open_input, read_text, utf8_text
from vitreous.memory import check_memory

Pixels = NDArray[np.uint8]


class ArraySource(Source):
    """Images of one size in memory."""

    def __init__(
        self, where: str, images: Tensor, labels: Labels, classes: tuple[str, ...], rows: Index | None = None
    ) -> None:
        """images: (N, C, H, W) uint8, shared by all subsets; rows (n,): which of them, None for all; labels: (n,)."""
        assert images.dtype == torch.uint8
        assert images.ndim == 4
        self.where, self.images, self.labels, self.classes = where, images, labels, classes
        self._rows = np.arange(len(images)) if rows is None else rows

    def name(self, index: int) -> str:
        return f"{self.where}#{self._rows[index]}"

    def key(self, index: int) -> str:
        return str(self._rows[index])

    @property
    def shape(self) -> tuple[int, int, int]:
        _, channels, height, width = self.images.shape
        return channels, height, width

    def pixels(self, index: int) -> Pixels:
        """(C, H, W): one image as it is."""
        return self.images[int(self._rows[index])].numpy()

    def gather(self, indices: Index) -> Tensor:
        return self.images[torch.from_numpy(self._rows[indices])]

    def read(self, index: int, *, channels: int = 3, at_least: int | None = None) -> Image.Image:
        check_channels(channels)
        pixels = self.pixels(index)
        image = Image.fromarray(pixels[0] if len(pixels) == 1 else np.ascontiguousarray(pixels.transpose(1, 2, 0)))
        return image.convert("RGB" if channels == 3 else "L")

    def header(self, index: int) -> Header:
        channels, height, width = self.shape
        return Header(width, height, "RGB" if channels == 3 else "L", "packed")

    def content(self, index: int) -> bytes:
        return self.pixels(index).tobytes()

    def encoded(self, index: int) -> bytes:
        file = io.BytesIO()
        self.read(index, channels=self.shape[0]).save(file, "PNG")
        return file.getvalue()

    def size(self, index: int) -> int:
        return self.images[0].numel()


def open_packed_folder(root: Path) -> Data | None:
    """CIFAR or idx data in `root`, or in a folder of the official name in it; None if there are none."""
    for folder in (root, *(root / name for name in _CIFAR_FOLDERS)):
        for marker, form in _CIFAR.items():
            if (folder / marker).is_file():
                patterns = {"train": form.train, "test": form.test}
                found = {s: [form.read(path) for path in sorted(folder.glob(p))] for s, p in patterns.items()}
                return _join(folder, found, form.names(folder))
    return _open_idx(root)


_CIFAR_FOLDERS = ("cifar-10-batches-bin", "cifar-100-binary", "cifar-10-batches-py", "cifar-100-python")


class _Cifar(NamedTuple):
    """One published form of CIFAR: the files of its splits, and how they are read."""

    train: str  # a pattern, as that of test
    test: str
    read: Callable[[Path], tuple[Pixels, Labels]]
    names: Callable[[Path], tuple[str, ...]]


def _read_binary(path: Path, labels: int) -> tuple[Pixels, Labels]:
    """Records of `labels` bytes, the finest label last, and 3 x 32 x 32 pixels."""
    size = labels + 3072
    with open_input(path) as file:
        needed = 2 * os.fstat(file.fileno()).st_size
        check_memory(needed, str(path), "take a machine with more memory, or check the file")
        raw = np.fromfile(file, dtype=np.uint8)
    if len(raw) == 0 or len(raw) % size:
        raise UserError(f"{path}: {len(raw)} bytes are not whole records of {size}; download the file again.")
    records = raw.reshape(-1, size)
    return records[:, labels:].reshape(-1, 3, 32, 32), records[:, labels - 1].astype(np.int64)


def _read_python_batch(path: Path, label_key: bytes) -> tuple[Pixels, Labels]:
    found = read_plain_pickle(path)
    pixels, labels = found.get(b"data"), found.get(label_key)
    if not isinstance(pixels, np.ndarray) or pixels.ndim != 2 or pixels.shape[1] != 3072:
        raise UserError(f"{path}: has no uint8 'data' of n x 3072, so it is not CIFAR; download the file again.")
    if not isinstance(labels, list) or len(labels) != len(pixels) or not all(type(x) is int for x in labels):
        raise UserError(f"{path}: has no {label_key.decode()!r}, one number per image; download the file again.")
    return pixels.reshape(-1, 3, 32, 32), np.array(labels, dtype=np.int64)


def _python_names(path: Path, key: bytes) -> tuple[str, ...]:
    found = read_plain_pickle(path).get(key, []) if path.is_file() else []
    if not isinstance(found, list) or not all(isinstance(name, bytes | str) for name in found):
        raise UserError(f"{path}: {key.decode()!r} is not a list of names; download the file again.")
    return _texts(found)


def _texts(names: list[bytes | str]) -> tuple[str, ...]:
    return tuple(utf8_text(name.decode("utf-8", "replace") if isinstance(name, bytes) else name) for name in names)


# By a file that each form has.
_CIFAR = {
    "data_batch_1.bin": _Cifar(
        "data_batch_*.bin",
        "test_batch.bin",
        lambda path: _read_binary(path, labels=1),
        lambda folder: _lines(folder / "batches.meta.txt"),
    ),
    "train.bin": _Cifar(
        "train.bin",
        "test.bin",
        lambda path: _read_binary(path, labels=2),
        lambda folder: _lines(folder / "fine_label_names.txt"),
    ),
    "data_batch_1": _Cifar(
        "data_batch_[0-9]",
        "test_batch",
        lambda path: _read_python_batch(path, b"labels"),
        lambda folder: _python_names(folder / "batches.meta", b"label_names"),
    ),
    "train": _Cifar(
        "train",
        "test",
        lambda path: _read_python_batch(path, b"fine_labels"),
        lambda folder: _python_names(folder / "meta", b"fine_label_names"),
    ),
}


_IDX = re.compile(r"(?P<dataset>.*-)?(?P<split>train|t10k|test|val)[-_]images[-.]idx3-ubyte(?:\.gz)?")


def _open_idx(root: Path) -> Data | None:
    parts: dict[str, list[tuple[Pixels, Labels]]] = {}
    found = [(path, match) for path in sorted(root.iterdir()) if (match := _IDX.fullmatch(path.name))]
    found = [(path, match) for path, match in found if path.is_file()]
    if len(names := sorted({match["dataset"] or "" for _, match in found})) > 1:
        shown = ", ".join(name.rstrip("-") or "one without a name" for name in names)
        raise UserError(f"{root}: several datasets ({shown}); put the files of one into a folder of its own.")
    for path, match in found:
        split = "test" if match["split"] == "t10k" else match["split"]
        labels_path = path.with_name(path.name.replace("images", "labels").replace("idx3", "idx1"))
        if not labels_path.is_file():  # packed otherwise
            packed, named = labels_path.suffix == ".gz", labels_path
            labels_path = named.with_suffix("") if packed else named.with_name(named.name + ".gz")
            if not labels_path.is_file():
                raise UserError(f"{named}: the labels are missing; put the file beside its images.")
        if split not in parts:  # the same split packed and unpacked, side by side
            parts[split] = [(_read_idx(path, 3)[:, None], _read_idx(labels_path, 1).astype(np.int64))]
    return _join(root, parts, _lines(root / "classes.txt")) if parts else None


def _read_idx(path: Path, axes: int) -> Pixels:
    """The uint8 array of this many axes in an idx file, packed by gzip or not."""
    with open_input(path) as file:
        whole = os.fstat(file.fileno()).st_size
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        stream = GzipReader(file, path) if packed else file
        head = stream.read(4 + 4 * axes)
        if len(head) < 4 + 4 * axes or head[:4] != bytes((0, 0, 8, axes)):
            raise UserError(f"{path}: not an idx file of bytes with {axes} axes; check what it is.")
        shape = tuple(int(side) for side in np.frombuffer(head, dtype=">u4", offset=4))
        size = math.prod(shape)
        if not packed and size > whole - len(head):
            raise UserError(f"{path}: cut short, {whole - len(head)} of {size} bytes; download the file again.")
        check_memory(2 * size, f"{path}, {size:,} pixels", "take a machine with more memory, or check the file")
        body = read_pixels(stream, size)
    if len(body) != size:
        raise UserError(f"{path}: cut short, {len(body)} of {size} bytes; download the file again.")
    return body.reshape(shape)


_NPZ_KEYS = {
    "train": (("x_train", "y_train"), ("train_images", "train_labels"), ("images", "labels")),
    "val": (("x_val", "y_val"), ("val_images", "val_labels")),
    "test": (("x_test", "y_test"), ("test_images", "test_labels")),
}


def open_npz(path: Path) -> Data:
    """Data from NumPy arrays: images (n, H, W), (n, H, W, C) or (n, C, H, W), labels (n,) or (n, 1)."""
    with NpzReader(path) as file:
        keys = {split: next((k for k in pairs if set(k) <= file.names), None) for split, pairs in _NPZ_KEYS.items()}
        parts = {
            split: [(_npz_images(path, pair[0], file.read(pair[0])), _npz_labels(path, pair[1], file.read(pair[1])))]
            for split, pair in keys.items()
            if pair is not None
        }
        classes: tuple[str, ...] = ()
        if "classes" in file.names:
            names = file.read("classes")
            if names.ndim != 1 or names.dtype.kind not in "US":
                raise UserError(f"{path}: classes is {names.dtype} of shape {names.shape}; give a list of names.")
            classes = _texts(names.tolist())
    if not parts:
        raise UserError(f"{path}: has no arrays called x_train and y_train, or images and labels; rename them so.")
    return _join(path, parts, classes)


def _npz_images(path: Path, key: str, array: NDArray[Any]) -> Pixels:
    """(n, C, H, W) uint8."""
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and array.shape[3] in (1, 3):
        array = array.transpose(0, 3, 1, 2)
    elif array.ndim != 4 or array.shape[1] not in (1, 3):
        raise UserError(f"{path}: {key} has the shape {array.shape}; give (n, H, W), (n, H, W, 3) or (n, 3, H, W).")
    if array.dtype == np.uint16:
        array = (array.astype(np.uint32) + 128) // 257
    elif array.dtype.kind == "f" and array.size and array.min() >= 0 and array.max() <= 1:
        array = np.rint(array * 255)
    elif array.dtype != np.uint8:
        raise UserError(f"{path}: {key} is {array.dtype}; give uint8 from 0 to 255, or floats from 0 to 1.")
    return np.ascontiguousarray(array, dtype=np.uint8)


def _npz_labels(path: Path, key: str, array: NDArray[Any]) -> Labels:
    """(n,) int64."""
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise UserError(f"{path}: {key} is {array.dtype} of shape {array.shape}; give one whole number per image.")
    return array.astype(np.int64)


def _join(where: Path, parts: dict[Any, list[tuple[Pixels, Labels]]], names: tuple[str, ...]) -> Data:
    """Data of the parts that have images; classes without a name are called by their number."""
    joined: dict[Split, tuple[Pixels, Labels]] = {}
    for split, batches in parts.items():
        if not batches:
            continue
        images, labels = (np.concatenate(arrays) for arrays in zip(*batches, strict=True))
        if len(images) != len(labels):
            raise UserError(
                f"{where}: the {split} part has {len(images)} images and {len(labels)} labels; they must match."
            )
        joined[split] = images, labels
    every = np.unique(np.concatenate([labels for _, labels in joined.values()]))
    if not len(every):
        raise UserError(f"{where}: there are no images in it; check what it is.")
    if every[0] < 0:
        raise UserError(f"{where}: label {every[0]}: labels are whole numbers from 0 on; check them.")
    if names and every[-1] >= len(names):
        raise UserError(
            f"{where}: label {every[-1]} is not one of the {len(names)} classes that have names; check both."
        )
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise UserError(f"{where}: two classes are called {twice[0]!r}; give each a name of its own.")
    # Numbers without names need not be dense: of labels 0 and a billion, two classes are made.
    numbers = np.arange(len(names)) if names else every
    classes = names or tuple(map(str, every.tolist()))
    splits: dict[Split, Source] = {
        split: ArraySource(f"{where}/{split}", torch.from_numpy(images), np.searchsorted(numbers, labels), classes)
        for split, (images, labels) in joined.items()
    }
    check_classes(where, splits, classes)
    return Data(splits, classes)


def _lines(path: Path) -> tuple[str, ...]:
    if not path.is_file():
        return ()
    return tuple(line.strip() for line in read_text(path).splitlines() if line.strip())
