"""Readers of datasets that are arrays in a few files: CIFAR, MNIST, SVHN, dSprites, smallNORB, PatchCamelyon.

What does not fit into memory stays on the disk, and images are read from there one by one.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.data.datasets.vtab import hash_order
from vitreous.data.packed import ArraySource, Pixels, open_packed_folder
from vitreous.data.source import Data, Labels, Source, Split, check_classes
from vitreous.data.unpack import read_mat
from vitreous.errors import UserError
from vitreous.inputs import open_input

Arrays = tuple[NDArray[np.uint8], Labels]  # images (n, C, H, W), perhaps on the disk, and their labels (n,)


def array_data(
    root: Path, parts: Mapping[Split, Arrays], classes: Sequence[str], kind: type[ArraySource] = ArraySource
) -> Data:
    found: dict[Split, Source] = {}
    for split, (images, labels) in parts.items():
        if len(images) != len(labels):
            raise UserError(f"{root}: {len(images):,} images and {len(labels):,} labels; get the files again.")
        if len(labels) and not 0 <= labels.min() <= labels.max() < len(classes):
            raise UserError(f"{root}: a label that is not one of the {len(classes)} classes; get the files again.")
        found[split] = kind(f"{root}/{split}", torch.from_numpy(images), labels, tuple(classes))
    check_classes(root, found, tuple(classes))
    return Data(found, tuple(classes))


def read_packed(root: Path) -> Data:
    """CIFAR's binary version, or idx files."""
    found = open_packed_folder(root)
    if found is None:
        raise UserError(f"{root}: neither CIFAR nor idx files are in it; get the dataset again.")
    return found


def read_svhn(root: Path) -> Data:
    """train_32x32.mat and test_32x32.mat: X (32, 32, 3, n) and y (n, 1), where 10 stands for the digit 0."""
    parts: dict[Split, Arrays] = {}
    names: tuple[Split, ...] = ("train", "test")
    for split in names:
        path = root / f"{split}_32x32.mat"
        pixels, labels = read_mat(path, "X", "y")
        if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[2] != 3:
            raise UserError(f"{path}: X is {pixels.dtype} of the shape {pixels.shape}, not colour; get it again.")
        digits = labels.ravel().astype(np.int64)
        parts[split] = np.ascontiguousarray(pixels.transpose(3, 2, 0, 1)), np.where(digits == 10, 0, digits)
    return array_data(root, parts, [str(digit) for digit in range(10)])


class SpriteSource(ArraySource):
    """Images of zeros and ones, shown as black and white."""

    def pixels(self, index: int) -> Pixels:
        return super().pixels(index) * np.uint8(255)

    def gather(self, indices: NDArray[np.int64]) -> Tensor:
        return super().gather(indices) * 255


ORIENTATION, LOCATION = 3, 4  # columns of dSprites' factors: colour, shape, scale, orientation (40), x (32), y (32)


def read_dsprites(root: Path, column: int, values: int, bins: int = 16) -> Data:
    """imgs.npy and latents_classes.npy, as dSprites' .npz has them: one factor of `values` values, in equal bins. The
    owners made no splits. 80, 10 and 10 % are for training, validation and test as in VTAB, in the order of a hash of
    the images' numbers."""
    images, factors = _mapped(root / "imgs.npy"), _mapped(root / "latents_classes.npy")
    if images.dtype != np.uint8 or images.ndim != 3 or factors.ndim != 2 or len(factors) != len(images):
        raise UserError(f"{root}: imgs and latents_classes are not those of dSprites; get the file again.")
    labels = np.asarray(factors[:, column], dtype=np.int64) * bins // values
    whole = array_data(root, {"train": (images[:, None], labels)}, [str(one) for one in range(bins)], SpriteSource)
    order = hash_order(map(str, range(len(images))), "dsprites")
    train, val = len(order) * 80 // 100, len(order) * 10 // 100
    cuts: dict[Split, NDArray[np.int64]] = {
        "train": order[:train],
        "val": order[train : train + val],
        "test": order[train + val :],
    }
    return Data({split: whole.train.subset(np.sort(rows)) for split, rows in cuts.items()}, whole.classes)


ELEVATION, AZIMUTH = 1, 2  # columns of smallNORB's info: instance, elevation (9), azimuth (0 to 34, even), lighting
NORB_FILES: dict[Split, str] = {
    "train": "smallnorb-5x46789x9x18x6x2x96x96-training",
    "test": "smallnorb-5x01235x9x18x6x2x96x96-testing",
}
_NORB_KINDS = {0x1E3D4C51: "<f4", 0x1E3D4C53: "<f8", 0x1E3D4C54: "<i4", 0x1E3D4C55: "u1", 0x1E3D4C56: "<i2"}


def read_smallnorb(root: Path, column: int, classes: Sequence[str]) -> Data:
    """The left camera's images; half of the test split is for validation, as in VTAB, by a hash of the numbers."""
    parts: dict[Split, Arrays] = {}
    for split, name in NORB_FILES.items():
        pairs, info = read_norb(root / f"{name}-dat.mat"), read_norb(root / f"{name}-info.mat")
        if pairs.ndim != 4 or pairs.dtype != np.uint8 or info.ndim != 2 or info.shape[1] < 4:
            raise UserError(f"{root}: {name} is not smallNORB's; get the files again.")
        labels = np.asarray(info[:, column], dtype=np.int64) // (2 if column == AZIMUTH else 1)
        parts[split] = pairs[:, :1], labels
    whole = array_data(root, parts, classes)
    test = whole.splits["test"]
    order = hash_order(map(str, range(len(test))), "smallnorb")
    half = len(order) // 2
    splits: dict[Split, Source] = {
        "train": whole.train,
        "val": test.subset(np.sort(order[:half])),
        "test": test.subset(np.sort(order[half:])),
    }
    return Data(splits, whole.classes)


def read_norb(path: Path) -> NDArray[Any]:
    """An array in smallNORB's own format, left on the disk: its kind, how many axes, their sizes, then the values."""
    with open_input(path) as file:
        size = os.fstat(file.fileno()).st_size
        head = np.frombuffer(file.read(8), "<i4")
        kind = _NORB_KINDS.get(int(head[0])) if len(head) == 2 else None
        if kind is None or not 1 <= head[1] <= 8:
            raise UserError(f"{path}: does not start as files of smallNORB do; get it again.")
        sides = np.frombuffer(file.read(4 * max(3, int(head[1]))), "<i4")  # at least three are written
        shape = tuple(int(side) for side in sides[: head[1]])
        start = 8 + 4 * max(3, int(head[1]))
        if len(shape) < head[1] or min(shape) < 1:
            raise UserError(f"{path}: an array of the shape {shape}; get it again.")
        needed = start + int(np.prod(shape, dtype=object)) * np.dtype(kind).itemsize
        if size != needed:
            raise UserError(f"{path}: {size:,} bytes where {needed:,} are needed; get it again.")
        # Copied on writing, so that torch takes it as its own; nothing writes.
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    return np.frombuffer(content, kind, offset=start).reshape(shape)


def prepare_camelyon(root: Path) -> None:
    """Turn each HDF5 file into a NumPy file, from which images can be read one by one by any process."""
    import h5py

    for split in ("train", "valid", "test"):
        for key in ("x", "y"):
            path = root / f"camelyonpatch_level_2_split_{split}_{key}.h5"
            try:
                with h5py.File(path, "r") as file:
                    _save_rows(file[key], root / f"{split}_{key}.npy")
            except (OSError, KeyError) as error:
                raise UserError(f"{path}: not PatchCamelyon's ({str(error)[:200]}); get it again.") from None
            path.unlink()


def _save_rows(rows: Any, path: Path, at_once: int = 4096) -> None:
    final = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=rows.shape)
    for start in range(0, len(rows), at_once):
        final[start : start + at_once] = rows[start : start + at_once]
    final.flush()


def read_camelyon(root: Path) -> Data:
    """train, valid and test: images x (n, 96, 96, 3) and labels y (n, 1, 1, 1), 1 where there is tumour."""
    parts: dict[Split, Arrays] = {}
    names: dict[Split, str] = {"train": "train", "val": "valid", "test": "test"}
    for split, name in names.items():
        images, labels = _mapped(root / f"{name}_x.npy"), _mapped(root / f"{name}_y.npy")
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3:
            raise UserError(f"{root / name}_x.npy: not colour images; get PatchCamelyon again.")
        parts[split] = images.transpose(0, 3, 1, 2), np.asarray(labels, dtype=np.int64).reshape(-1)
    return array_data(root, parts, ["no tumour", "tumour"])


def _mapped(path: Path) -> NDArray[Any]:
    """An array in a .npy file, left on the disk; no Python objects are read."""
    try:
        found = np.load(path, mmap_mode="c", allow_pickle=False)
    except FileNotFoundError:
        raise UserError(f"{path}: is missing; get the dataset again.") from None
    except (ValueError, OSError, EOFError, SyntaxError) as error:
        raise UserError(f"{path}: not an array of plain values ({str(error)[:200]}); get it again.") from None
    if not isinstance(found, np.ndarray):  # an .npz by another name
        raise UserError(f"{path}: not one array; get it again.")
    return found
