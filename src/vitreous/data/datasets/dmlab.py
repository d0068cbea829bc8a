"""VTAB's images of DeepMind Lab, from TensorFlow's record files to image files."""

from __future__ import annotations

from pathlib import Path

from vitreous.data.datasets.records import read_examples
from vitreous.data.source import Split
from vitreous.errors import UserError

CLASSES = 6


def prepare_dmlab(root: Path) -> None:
    """Write the images in the record files to train, val and test folders with a folder for each class."""
    parts: dict[Split, str] = {"train": "train", "val": "validation", "test": "test"}
    for split, name in parts.items():
        files = sorted(root.rglob(f"dmlab-{name}.tfrecord*"))
        if not files:
            raise UserError(f"{root}: there is no dmlab-{name}.tfrecord; get the archive again.")
        number = 0
        for path in files:
            for example in read_examples(path):
                image, label = (example.get(key, [None])[0] for key in ("image", "label"))
                if not isinstance(image, bytes) or not isinstance(label, int) or not 0 <= label < CLASSES:
                    raise UserError(f"{path}: an example without image and label; get the archive again.")
                final = root / split / str(label) / f"{number:06d}.jpg"
                final.parent.mkdir(parents=True, exist_ok=True)
                final.write_bytes(image)
                number += 1
            path.unlink()
