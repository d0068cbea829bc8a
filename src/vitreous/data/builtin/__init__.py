"""Real images that come with the package: a selection of Fashion-MNIST."""

from __future__ import annotations

from pathlib import Path

from vitreous.data.packed import open_packed_folder
from vitreous.data.source import Data


def builtin_data() -> Data:
    """Ten kinds of clothing, 28 x 28, grey: 250 training and 60 test images of each."""
    data = open_packed_folder(Path(__file__).parent)
    assert data is not None
    return data


def write_images(folder: str | Path) -> None:
    """A test image of each class as a PNG file named after it: `make demo` tries its model on them."""
    source = builtin_data().splits["test"]
    Path(folder).mkdir(parents=True, exist_ok=True)
    for label, name in enumerate(source.classes):
        index = int((source.labels == label).nonzero()[0][0])
        source.read(index, channels=1).save(Path(folder) / f"{name.replace('/', '-').replace(' ', '-')}-1.png")
