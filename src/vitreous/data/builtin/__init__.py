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


def write_images(folder: str | Path, each: int = 1) -> Path:
    """Some of the test images as PNG files named after their classes, to try a model on."""
    source = builtin_data().splits["test"]
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    for label, name in enumerate(source.classes):
        for number in range(each):
            index = int((source.labels == label).nonzero()[0][number])
            source.read(index, channels=1).save(place / f"{name.replace('/', '-').replace(' ', '-')}-{number + 1}.png")
    return place
