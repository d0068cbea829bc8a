"""Where the files lie that `vitreous data get` fetches for a yardstick."""

from __future__ import annotations

from pathlib import Path

from vitreous.data.datasets.place import data_root
from vitreous.errors import UserError

REAL = "real"
"""What a person calls ImageNet's ReaL labels."""
_FILE = Path("imagenet-real") / "real.json"


def find_labels(labels: str | Path) -> Path:
    """The file of labels that a person named; "real" is where `vitreous data get imagenet-real` puts ReaL's."""
    if str(labels) != REAL:
        return Path(labels)
    place = data_root() / _FILE
    if not place.is_file():
        raise UserError(
            f"labels='{REAL}': ImageNet's ReaL labels are not at {place}; run `vitreous data get imagenet-real`, set "
            "VITREOUS_DATA to the folder that has them, or give the path of real.json."
        )
    return place
