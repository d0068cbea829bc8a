"""Predictions in files: one row per image, with the same columns whoever writes them.

path, prediction (the likeliest class), probability (its own), and top, the likeliest classes with their probabilities.
`predict` adds error, and embedding if asked for; `evaluate` adds label (the true one; labels where the data have
several), label_probability and right. A row is a dict; CSV and JSON lines are written as predictions are made, Parquet
in groups of rows: memory does not grow with them.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from torch import Tensor

from vitreous.errors import UserError
from vitreous.inputs import utf8_text
from vitreous.model.predictions import class_probabilities
from vitreous.storage.files import new_file
from vitreous.storage.overwrite import GENERATOR, check_file

Row = dict[str, Any]
Write = Callable[[Iterable[Row]], None]

TOP = 5  # how many of the likeliest classes an evaluation writes
ROWS_PER_GROUP = 8192  # rows of a Parquet file that are kept until they are written together
SHARED = ("path", "prediction", "probability", "top")
EVALUATED = ("label", "label_probability", "right")
EVALUATED_SETS = ("labels", "label_probability", "right")
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "'")
"""How a cell begins that a spreadsheet would compute or swallow, and the apostrophe that keeps it from doing so."""


def predicted_columns(*, embed: bool) -> tuple[str, ...]:
    """What `predict` adds; where an image cannot be read, all but path and error are null."""
    return ("error", "embedding") if embed else ("error",)


def prediction_row(path: str, top: Sequence[tuple[str, float]] | None) -> Row:
    """The columns of all files. top: the likeliest labels with their probabilities; None if there is no prediction."""
    label, probability = top[0] if top else (None, None)
    listed = None if top is None else [{"label": name, "probability": one} for name, one in top]
    return {"path": path, "prediction": label, "probability": probability, "top": listed}


def evaluated_rows(
    logits: Tensor,
    accepted: Sequence[Sequence[int]],
    labels: Sequence[str],
    paths: Sequence[str],
    *,
    several: bool = False,
) -> list[Row]:
    """The rows of logits (B, K) where the truth is known; of equal logits the first is taken, as `score_classes` does.

    accepted: (B,) which classes count as right; labels: (K,) their names; paths: (B,) the images' names.
    """
    probabilities = class_probabilities(logits.double())
    best = probabilities.argsort(dim=1, descending=True, stable=True)[:, :TOP]
    found = []
    for row, truth, path, first in zip(probabilities, accepted, paths, best.tolist(), strict=True):
        names = [labels[k] for k in truth]
        true = {"labels": names} if several else {"label": names[0]}
        found.append(
            prediction_row(path, [(labels[k], float(row[k])) for k in first])
            | true
            | {"label_probability": float(row[list(truth)].sum()), "right": first[0] in truth}
        )
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
def prediction_file(path: Path, top: int, columns: Sequence[str]) -> Iterator[Write]:
    """A function that takes rows; when the block ends well, the file is whole and in its place.

    top: how many classes `top` has, at most; columns: what rows have beside `prediction_row`.
    """
    with new_file(path) as file, FORMATS[path.suffix.lower()](file, top, columns) as write:
        yield lambda rows: write(map(_utf8, rows))


def prediction_bytes(ending: str, rows: Iterable[Row], columns: Sequence[str]) -> bytes:
    """A whole file of that ending, ".jsonl" or ".parquet"."""
    file = io.BytesIO()
    with FORMATS[ending](file, 0, columns) as write:
        write(map(_utf8, rows))
    return file.getvalue()


def _utf8(value: Any) -> Any:
    """The same with the invalid bytes of file names escaped, as no format has a place for them."""
    if isinstance(value, str):
        return utf8_text(value)
    if isinstance(value, dict):
        return {name: one if name == "embedding" else _utf8(one) for name, one in value.items()}
    return [_utf8(one) for one in value] if isinstance(value, list) else value


@contextmanager
def _write_csv(file: BinaryIO, top: int, columns: Sequence[str]) -> Iterator[Write]:
    """A column for everything: path, prediction, probability, prediction2, probability2, ..., then the others.

    A text that a spreadsheet would take for a formula has an apostrophe before it, and so has one that begins with an
    apostrophe: whoever takes one away from each text that has it reads what was written.
    """
    if "embedding" in columns:
        raise UserError("embed: CSV has no place for lists of numbers; give a name that ends in .jsonl or .parquet.")

    def write_line(cells: Sequence[str]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(cells)
        file.write(text.getvalue().encode())

    def write(rows: Iterable[Row]) -> None:
        for row in rows:
            best = [value for one in (row["top"] or ())[1:] for value in one.values()]
            best += [None] * (2 * (top - 1) - len(best))
            values = (row["path"], row["prediction"], row["probability"], *best, *map(row.get, columns))
            write_line([_cell(value) for value in values])

    more = [name for k in range(2, top + 1) for name in (f"prediction{k}", f"probability{k}")]
    write_line(["path", "prediction", "probability", *more, *columns])
    yield write


def _cell(value: Any) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value)
    return f"'{text}" if isinstance(value, str) and text.startswith(_FORMULA) else text


@contextmanager
def _write_json_lines(file: BinaryIO, top: int, columns: Sequence[str]) -> Iterator[Write]:
    def write(rows: Iterable[Row]) -> None:
        for row in rows:
            fields = {name: row.get(name) for name in (*SHARED, *columns)}
            file.write(json.dumps(fields, allow_nan=False).encode() + b"\n")

    yield write


@contextmanager
def _write_parquet(file: BinaryIO, top: int, columns: Sequence[str]) -> Iterator[Write]:
    """The fields of the JSON lines as columns; `top` is a list of structures."""
    pa, parquet = _pyarrow(Path(getattr(file, "name", "the predictions")))
    text, number = pa.string(), pa.float64()
    types = {
        "path": text,
        "prediction": text,
        "probability": number,
        "top": pa.list_(pa.struct([("label", text), ("probability", number)])),
        "error": text,
        "embedding": pa.list_(pa.float32()),
        "label": text,
        "labels": pa.list_(text),
        "label_probability": number,
        "right": pa.bool_(),
    }
    columns = (*SHARED, *columns)
    schema = pa.schema([(name, types[name]) for name in columns], metadata={"generator": GENERATOR})
    pending: list[Row] = []  # until there are enough for a group of rows
    with parquet.ParquetWriter(file, schema) as writer:

        def write_group() -> None:
            writer.write_table(pa.Table.from_pylist(pending, schema=schema))
            pending.clear()

        def write(rows: Iterable[Row]) -> None:
            for row in rows:
                pending.append(row)
                if len(pending) == ROWS_PER_GROUP:
                    write_group()

        yield write
        if pending:
            write_group()


def _pyarrow(path: Path) -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError(
            f"{path}: Parquet needs pyarrow, which is not installed; pip install 'vitreous[parquet]', or give a name "
            "that ends in .csv or .jsonl."
        ) from None
    return pyarrow, pyarrow.parquet


FORMATS = {".csv": _write_csv, ".jsonl": _write_json_lines, ".parquet": _write_parquet}
"""By the end of the file's name, in lower case."""
