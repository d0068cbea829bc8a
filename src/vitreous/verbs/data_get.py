"""`vitreous data get`."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from vitreous.cli.verb import Verb, verb
from vitreous.errors import UserError

log = logging.getLogger("vitreous")


@dataclass(frozen=True, kw_only=True)
class DataRoot:
    """Where public datasets are."""

    root: str | Path | None = None
    """DIR: The folder of all datasets. Default: $VITREOUS_DATA, else ~/.cache/vitreous/data."""


@dataclass(frozen=True)
class DataGet(DataRoot, Verb[Path]):
    """Download a public dataset, check it, and unpack it; the commands then open it as data:NAME.

    A download that broke off goes on where it was. What only a person may get (ImageNet, say) is named, with the place
    to put it. `vitreous data list` shows the names.
    """

    name: str
    """NAME: Which dataset, such as pets or cifar100."""
    json_help: ClassVar[str] = ""

    def run(self) -> Path:
        """The folder of the dataset, downloaded, checked and unpacked if it is not there yet."""
        from vitreous.data.datasets.place import data_root, find_dataset, is_here
        from vitreous.fetch.install import downloads_of, install
        from vitreous.storage.failures import readable_errors
        from vitreous.storage.lock import hold_folder

        dataset, place = find_dataset(self.name), data_root(self.root)
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
            return install(dataset, place, progress=self.told.download)

    def show(self, result: Path) -> None:
        """The folder."""
        print(result)


get_data = verb(DataGet)
