"""The table of datasets: to add one, put one more row into the dict."""

from __future__ import annotations

from vitreous.data.datasets import classic, natural, specialized, structured
from vitreous.data.datasets.entry import Dataset

DATASETS: dict[str, Dataset] = {
    dataset.name: dataset for part in (classic, natural, specialized, structured) for dataset in part.ROWS
}
