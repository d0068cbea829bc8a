"""The answers of one part as the bytes of a file: Parquet, or JSON lines where pyarrow is not installed.

Every row has the same columns: path, label, score, top (a list of labels with their scores), error, and embedding where
it was asked for. Of an image that cannot be read all but path and error are null.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from io import BytesIO
from typing import Any

from vitreous.errors import UserError
from vitreous.inference.prediction.answers import Answer
from vitreous.inference.prediction.plan import Format
from vitreous.inputs import as_text
from vitreous.storage.overwrite import GENERATOR

Row = dict[str, Any]


def choose_format() -> Format:
    """Parquet where it can be written."""
    return "parquet" if find_spec("pyarrow") is not None else "jsonl"


def encode_answers(answers: Sequence[Answer], format_: Format, *, embed: bool) -> bytes:
    """One row for each answer, in order."""
    return ENCODERS[format_]([_row(answer, embed) for answer in answers], embed)


def _row(answer: Answer, embed: bool) -> Row:
    one = answer.prediction
    top = None if one.error is not None else [{"label": as_text(best.label), "score": best.score} for best in one.top]
    label = None if one.label is None else as_text(one.label)
    row: Row = {"path": as_text(one.path), "label": label, "score": one.score, "top": top, "error": one.error}
    if embed:
        row["embedding"] = None if answer.representation is None else answer.representation.tolist()
    return row


def _json_lines(rows: Sequence[Row], embed: bool) -> bytes:
    return b"".join(json.dumps(row, allow_nan=False).encode() + b"\n" for row in rows)


def _parquet(rows: Sequence[Row], embed: bool) -> bytes:
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ImportError:
        raise UserError(
            "these answers are in Parquet files, and pyarrow is not installed here; pip install 'vitreous[parquet]'."
        ) from None
    top = pa.list_(pa.struct([("label", pa.string()), ("score", pa.float32())]))
    columns = [("path", pa.string()), ("label", pa.string()), ("score", pa.float32()), ("top", top)]
    columns += [("error", pa.string()), *([("embedding", pa.list_(pa.float32()))] if embed else [])]
    schema = pa.schema(columns, metadata={"generator": GENERATOR})
    file = BytesIO()
    pa.parquet.write_table(pa.Table.from_pylist(list(rows), schema=schema), file)
    return file.getvalue()


ENCODERS: dict[Format, Callable[[Sequence[Row], bool], bytes]] = {"parquet": _parquet, "jsonl": _json_lines}
