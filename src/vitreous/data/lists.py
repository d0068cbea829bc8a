"""Images named in a list: CSV or JSONL, with one line per image."""

from __future__ import annotations

import csv
import os
from array import array
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from vitreous.data.folder import FolderSource, Names
from vitreous.data.source import SPLIT_NAMES, Data, Source, Split, check_classes, order_classes
from vitreous.errors import UserError
from vitreous.inputs import open_input, parse_json, utf8_text
from vitreous.memory import check_memory

MAX_LINE_BYTES = 2**16  # a longer line is no path and a label, and a file without line ends would fill the memory


class ListLine(NamedTuple):
    """One line of a list."""

    path: str
    label: str
    split: Split


def open_paths(path: Path) -> Source:
    """The images that a CSV or JSONL names, in its order, whatever labels and splits it gives them, if any."""
    check_memory(2 * path.stat().st_size, str(path), "give a shorter list")
    names, rows_of = Names(), _csv_rows if path.suffix.lower() == ".csv" else _jsonl_rows
    with open_input(path) as file:
        for row in rows_of(path, file, labelled=False):
            names.append(row.path)
    return FolderSource(path.parent, names, np.full(len(names), -1, dtype=np.int64), ())


def open_list(path: Path) -> Data:
    """Data from a CSV or JSONL with path, label and perhaps split; paths count from the file's own folder."""
    check_memory(6 * path.stat().st_size, str(path), "give a shorter list")  # of short lines, numbers are the most
    numbers: dict[str, int] = {}
    names: dict[Split, Names] = {"train": Names(), "val": Names(), "test": Names()}
    labels: dict[Split, array[int]] = {split: array("q") for split in names}
    rows_of = _csv_rows if path.suffix.lower() == ".csv" else _jsonl_rows
    with open_input(path) as file:
        for row in rows_of(path, file):
            if not numbers:
                first = path.parent / row.path  # paths seen from another folder are refused at once
                if not os.path.lexists(first):
                    raise UserError(
                        f"{path}: there is no file {first}; write paths as seen from the folder of the list."
                    )
            labels[row.split].append(numbers.setdefault(row.label, len(numbers)))
            names[row.split].append(row.path)
    if not numbers:
        raise UserError(f"{path}: the list is empty; give one line per image, with path and label.")
    classes = order_classes(numbers)
    number_of = {name: i for i, name in enumerate(classes)}
    ordered = np.array([number_of[name] for name in numbers], dtype=np.int64)
    splits: dict[Split, Source] = {
        split: FolderSource(path.parent, names[split], ordered[np.array(found)], classes)
        for split, found in labels.items()
        if found
    }
    check_classes(path, splits, classes)
    return Data(splits, classes)


def _csv_rows(path: Path, file: BinaryIO, *, labelled: bool = True) -> Iterator[ListLine]:
    table = csv.DictReader(_lines(path, file))
    try:
        needed = ("path", "label") if labelled else ("path",)
        if not {*needed} <= {*(table.fieldnames or ())}:
            have = ", ".join(islice(table.fieldnames or ("nothing",), 6))
            columns = "columns path,label and perhaps split" if labelled else "column path"
            raise UserError(f"{path}: the first line must name the {columns}; it has {have[:200]}.")
        for name in ("path", "label", "split"):
            if list(table.fieldnames or ()).count(name) > 1:
                raise UserError(f"{path}: the first line names the column {name!r} twice; rename or remove one.")
        for row in table:
            if more := row.get(None):  # what csv calls the fields that no column is for
                raise UserError(
                    f"{path}, line {table.line_num}: {more[0]!r:.80} is in no column; quote a path or label that has "
                    "a comma."
                )
            yield _row(path, table.line_num, row, labelled)
    except csv.Error as error:
        raise UserError(f"{path}, line {table.line_num}: not CSV ({error}); save it as CSV in UTF-8.") from None


def _jsonl_rows(path: Path, file: BinaryIO, *, labelled: bool = True) -> Iterator[ListLine]:
    for number, line in enumerate(_lines(path, file), start=1):
        if line.strip():
            row = parse_json(line, f"{path}, line {number}")
            if not isinstance(row, dict):
                raise UserError(f'{path}, line {number}: must be an object such as {{"path": ..., "label": ...}}.')
            yield _row(path, number, row, labelled)


def _row(path: Path, number: int, row: dict[str, Any], labelled: bool) -> ListLine:
    name, label = row.get("path"), row.get("label") if labelled else "?"
    label = label.strip() if isinstance(label, str) else label
    if not name or label is None or label == "":
        raise UserError(f"{path}, line {number}: path and label must both be given.")
    if not isinstance(name, str) or not isinstance(label, str | int | float) or "\0" in name:
        raise UserError(f"{path}, line {number}: path must be a text, and label a text or a number.")
    split = (labelled and row.get("split")) or "train"
    known = SPLIT_NAMES.get(split.strip().lower()) if isinstance(split, str) else None
    if known is None:
        raise UserError(f"{path}, line {number}: split {split!r:.80} must be train, val or test.")
    try:  # as the system's own calls take it, whatever the locale; bytes that are no text may stand as surrogates
        name = os.fsdecode(name.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        raise UserError(f"{path}, line {number}: path {name!a:.80} is no name that a file can have.") from None
    label = int(label) if isinstance(label, float) and label.is_integer() else label  # some writers give 1 as 1.0
    return ListLine(name, utf8_text(str(label)), known)


def _lines(path: Path, file: BinaryIO) -> Iterator[str]:
    """The lines of a UTF-8 text with or without its mark, each with its end."""
    number = 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise UserError(f"{path}, line {number}: longer than {MAX_LINE_BYTES:,} bytes; give one line per image.")
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"{path}, line {number}: not text in UTF-8 ({error.reason}); save it as UTF-8.") from None
