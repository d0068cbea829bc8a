"""A new data format: one line per image, its path, a tab, its class."""

import csv

import numpy as np

from vitreous.data.folder import FolderSource, Names
from vitreous.data.formats import DataFormat
from vitreous.data.source import Data, check_classes, order_classes


def open_tsv(path):
    """The data that the lines of a file name, all to train on; paths count from its folder."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file, delimiter="\t"))
    classes = order_classes(label for _, label in rows)
    labels = np.array([classes.index(label) for _, label in rows], dtype=np.int64)
    source = FolderSource(path.parent, Names(name for name, _ in rows), labels, classes)
    check_classes(path, {"train": source}, classes)
    return Data({"train": source}, classes)


FORMAT = DataFormat("a .tsv", open_tsv, suffixes=(".tsv",))
