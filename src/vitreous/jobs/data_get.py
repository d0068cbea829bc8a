"""`vitreous data get`: public datasets, brought to this machine."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from vitreous.arguments import checked
from vitreous.data.datasets.place import data_root, find_dataset, is_here
from vitreous.errors import UserError
from vitreous.fetch.install import downloads_of, install
from vitreous.storage.failures import readable_errors
from vitreous.storage.lock import hold_folder

log = logging.getLogger("vitreous")


@checked
def get_data(
    name: str, *, root: str | Path | None = None, progress: Callable[[str, int, int], None] | None = None
) -> Path:
    """The folder of a dataset of the table; what is not on this machine yet is downloaded, checked and unpacked.

    root: the folder of all datasets. Default: $VITREOUS_DATA, else `data` in the folder for caches. progress: called
    with what is being done, and bytes done and in all.
    """
    dataset = find_dataset(name)
    place = data_root(root)
    final = place / dataset.name
    if is_here(dataset, place):
        log.info(f"{final}: {dataset.title} is already there.")
        return final
    downloads = downloads_of(dataset, place)
    with readable_errors(downloads):
        try:
            downloads.mkdir(parents=True, exist_ok=True)
        except ValueError as error:  # a name with a null byte
            raise UserError(f"{str(place)!a}: cannot be used ({error}); choose another folder.") from None
    with hold_folder(downloads, log.info, "getting this dataset"):
        return install(dataset, place, progress=progress)
