"""The table of datasets: to add one, put one more row into the dict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from vitreous.data.datasets import annotated, labelled
from vitreous.data.datasets.dataset import Dataset, File


def _with_checksums(rows: tuple[Dataset, ...]) -> dict[str, Dataset]:
    """The rows with what checksums.txt publishes of their files: FOLDER/NAME, size, SHA-256 and MD5, or - for none."""
    lines = Path(__file__).with_name("checksums.txt").read_text(encoding="utf-8").splitlines()
    words = (line.split() for line in lines if not line.startswith("#"))
    known = {name: [None if one == "-" else one for one in published] for name, *published in words}

    def published(dataset: Dataset, file: File) -> File:
        if (name := f"{dataset.folder}/{file.name}") not in known:
            return file
        size, sha256, md5 = known[name]
        return replace(file, size=None if size is None else int(size), sha256=sha256, md5=md5)

    return {row.name: replace(row, files=tuple(published(row, file) for file in row.files)) for row in rows}


DATASETS: dict[str, Dataset] = _with_checksums((*labelled.ROWS, *annotated.ROWS))
