"""The prediction for each image: one row per image, in a file from which anybody can compute their own figure.

CSV and JSON lines are written as predictions are made, Parquet in groups of rows: memory does not grow with them.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from torch import Tensor

from vitreous.errors import UserError
from vitreous.inputs import utf8_text
from vitreous.model.predictions import class_probabilities
from vitreous.storage.files import new_file
from vitreous.storage.overwrite import GENERATOR, check_file

TOP = 5  # how many of the likeliest classes are written
ROWS_PER_GROUP = 8192  # rows of a Parquet file that are kept until they are written together
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "'")
"""How a cell begins that a spreadsheet would compute or swallow, and the apostrophe that keeps it from doing so."""


class ImagePrediction(NamedTuple):
    """The prediction for one image, and its true labels."""

    path: str
    labels: tuple[str, ...]  # each of which counts as right; one, unless the data have several for an image
    right: bool  # whether the first of `top` is one of them
    probability: float  # of its labels, all together
    top: tuple[tuple[str, float], ...]  # the likeliest classes with their probabilities, the likeliest first


Write = Callable[[Sequence[ImagePrediction]], None]


def image_predictions(
    logits: Tensor, accepted: Sequence[Sequence[int]], labels: Sequence[str], paths: Sequence[str]
) -> list[ImagePrediction]:
    """The predictions of logits (B, K); of equal logits the first is taken, as `score_classes` does.

    accepted: (B,) which classes count as right; labels: (K,) their names; paths: (B,) the images' names.
    """
    probabilities = class_probabilities(logits.double())
    best = probabilities.argsort(dim=1, descending=True, stable=True)[:, :TOP]
    found = []
    for row, truth, path, first in zip(probabilities, accepted, paths, best.tolist(), strict=True):
        top = tuple((labels[k], float(row[k])) for k in first)
        own = float(row[list(truth)].sum())
        found.append(ImagePrediction(path, tuple(labels[k] for k in truth), first[0] in truth, own, top))
    return found


def check_prediction_file(path: str | Path) -> Path:
    """The file to write predictions to; refused before anything is measured if it could not be written afterwards."""
    path = check_file(path)
    if path.suffix.lower() not in FORMATS:
        raise UserError(f"{path}: predictions go to a file that ends in {', '.join(FORMATS)}; give it such a name.")
    if path.suffix.lower() == ".parquet":
        _pyarrow(path)
    return path


@contextmanager
def prediction_file(path: Path, classes: int, *, several: bool = False) -> Iterator[Write]:
    """A function that takes rows; when the block ends well, the file is whole and in its place.

    classes: K of the model. several: images may have more than one label, so the file has a list of them.
    """
    with new_file(path) as file, FORMATS[path.suffix.lower()](file, min(TOP, classes), several) as write:
        yield write


@contextmanager
def _write_csv(file: BinaryIO, top: int, several: bool) -> Iterator[Write]:
    """A column for everything: path, label, right, probability, top1, probability1, top2, ...

    A text that a spreadsheet would take for a formula has an apostrophe before it, and so has one that begins with an
    apostrophe: whoever takes one away from each text that has it reads what was written.
    """

    def write_line(cells: Sequence[str]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(cells)
        file.write(text.getvalue().encode())

    def write(rows: Sequence[ImagePrediction]) -> None:
        for row in rows:
            label = json.dumps([utf8_text(name) for name in row.labels]) if several else row.labels[0]
            best = [cell for name, probability in row.top for cell in (_cell(name), repr(probability))]
            right = "true" if row.right else "false"
            write_line([_cell(row.path), _cell(label), right, repr(row.probability), *best])

    names = [name for k in range(1, top + 1) for name in (f"top{k}", f"probability{k}")]
    write_line(["path", "labels" if several else "label", "right", "probability", *names])
    yield write


def _cell(text: str) -> str:
    text = utf8_text(text)
    return f"'{text}" if text.startswith(_FORMULA) else text


@contextmanager
def _write_json_lines(file: BinaryIO, top: int, several: bool) -> Iterator[Write]:
    """An object for each image: {"path", "label", "right", "probability", "top": [{"label", "probability"}, ...]}."""

    def write(rows: Sequence[ImagePrediction]) -> None:
        for row in rows:
            file.write(json.dumps(_fields(row, several), allow_nan=False).encode() + b"\n")

    yield write


@contextmanager
def _write_parquet(file: BinaryIO, top: int, several: bool) -> Iterator[Write]:
    """The fields of the JSON lines as columns; `top` is a list of structures."""
    pa, parquet = _pyarrow(Path(getattr(file, "name", "predictions.parquet")))
    best = pa.list_(pa.struct([("label", pa.string()), ("probability", pa.float64())]))
    label = ("labels", pa.list_(pa.string())) if several else ("label", pa.string())
    columns = [("path", pa.string()), label, ("right", pa.bool_()), ("probability", pa.float64()), ("top", best)]
    schema = pa.schema(columns, metadata={"generator": GENERATOR})
    writer = parquet.ParquetWriter(file, schema)
    pending: list[dict[str, Any]] = []  # until there are enough for a group of rows

    def write_group() -> None:
        writer.write_table(pa.Table.from_pylist(pending, schema=schema))
        pending.clear()

    def write(rows: Sequence[ImagePrediction]) -> None:
        pending.extend(_fields(row, several) for row in rows)
        if len(pending) >= ROWS_PER_GROUP:
            write_group()

    yield write
    if pending:
        write_group()
    writer.close()


def _fields(row: ImagePrediction, several: bool) -> dict[str, Any]:
    names = [utf8_text(name) for name in row.labels]
    return {
        "path": utf8_text(row.path),
        **({"labels": names} if several else {"label": names[0]}),
        "right": row.right,
        "probability": row.probability,
        "top": [{"label": utf8_text(name), "probability": probability} for name, probability in row.top],
    }


def _pyarrow(path: Path) -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError(
            f"{path}: writing Parquet needs pyarrow, which is not installed; pip install 'vitreous[parquet]', or give "
            "a name that ends in .csv or .jsonl."
        ) from None
    return pyarrow, pyarrow.parquet


FORMATS = {".csv": _write_csv, ".jsonl": _write_json_lines, ".parquet": _write_parquet}
"""By the end of the file's name, in lower case."""
