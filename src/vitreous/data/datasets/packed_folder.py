"""The reader of CIFAR and MNIST-style data, whose files `data/packed.py` knows."""

from __future__ import annotations

from pathlib import Path

from vitreous.data.packed import open_packed_folder
from vitreous.data.source import Data
from vitreous.errors import UserError


def read_packed(root: Path) -> Data:
    """CIFAR's binary version, or idx files."""
    found = open_packed_folder(root)
    if found is None:
        raise UserError(f"{root}: neither CIFAR nor idx files are in it; get the dataset again.")
    return found
