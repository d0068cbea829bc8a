"""`vitreous data get`."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from vitreous.cli.verb import Verb, verb

log = logging.getLogger("vitreous")


@dataclass(frozen=True, kw_only=True)
class DataRoot:
    """Where public datasets are."""

    root: str | Path | None = None
    """DIR: The folder of all datasets. Default: $VITREOUS_DATA, else ~/.cache/vitreous/data."""


@dataclass(frozen=True)
class DataGet(DataRoot, Verb[Path]):
    """Download a public dataset, check it, and unpack it; the commands then open it as data:NAME.

    If it is interrupted, repeat the same command: the download resumes. Files that only a person may get (those of
    ImageNet, for instance) are named, with the folder to put them in. `vitreous data list` shows the names.
    """

    name: str
    """NAME: Which dataset, such as pets or cifar100."""
    resumes: ClassVar[bool] = True
    json_help: ClassVar[str] = ""

    def run(self) -> Path:
        """The folder of the dataset; what is not on this machine yet is downloaded, checked and unpacked."""
        from vitreous.data.datasets.store import data_root, find_dataset, is_here
        from vitreous.fetch.install import downloads_of, install
        from vitreous.storage.lock import hold_folder
        from vitreous.storage.overwrite import readable_errors

        dataset, root = find_dataset(self.name), data_root(self.root)
        folder = root / dataset.name
        if is_here(dataset, root):
            log.info(f"{folder}: {dataset.title} is already there.")
            return folder
        downloads = downloads_of(dataset, root)
        with readable_errors(downloads):
            downloads.mkdir(parents=True, exist_ok=True)
        with hold_folder(downloads, log.info, "getting this dataset"):
            return install(dataset, root, progress=self.told.download)

    def show(self, result: Path) -> None:
        """The folder."""
        print(result)


get_data = verb(DataGet, "get_data")
