"""The predictions for single images: figures computed from the file alone are those that were printed."""

import csv
import json
import math
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from support.colours import make_bundle, make_images
from vitreous import UserError
from vitreous.callbacks import Callbacks
from vitreous.evaluation.prediction_file import (
    EVALUATED,
    EVALUATED_SETS,
    check_prediction_file,
    evaluated_rows,
    prediction_file,
    prediction_row,
)
from vitreous.verbs.evaluate import evaluate
from vitreous.weights.bundle import load_bundle, save_bundle

ROW = prediction_row("a.png", [("cat", 0.75), ("dog", 0.25)]) | {
    "label": "cat", "label_probability": 0.75, "right": True
}  # fmt: skip


@pytest.fixture(scope="module")
def unsure(tmp_path_factory):
    """A model that is sometimes wrong and never quite sure."""
    bundle = load_bundle(make_bundle(tmp_path_factory.mktemp("bundle") / "b"))
    with torch.no_grad():
        bundle.model.head.weight.mul_(0.05).add_(torch.randn(3, 32, generator=torch.Generator().manual_seed(1)) * 1)
    return bundle


def read_csv(path):
    """The rows, texts without the apostrophe that keeps them from being formulas."""
    with path.open(newline="", encoding="utf-8") as file:
        return [{name: text.removeprefix("'") for name, text in row.items()} for row in csv.DictReader(file)]


def from_csv(path):
    return [
        (row["path"], row["label"], row["right"] == "true", float(row["label_probability"]),
         [(row[f"prediction{k}"], float(row[f"probability{k}"])) for k in ("", 2, 3)])
        for row in read_csv(path)
    ]  # fmt: skip


def from_jsonl(path):
    rows = map(json.loads, path.read_text().splitlines())
    return [
        (row["path"], row["label"], row["right"], row["label_probability"],
         [(one["label"], one["probability"]) for one in row["top"]])
        for row in rows
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "read"), [("predictions.csv", from_csv), ("predictions.jsonl", from_jsonl)])
def test_the_printed_figures_follow_from_the_file(unsure, tmp_path, name, read):
    data = make_images(tmp_path / "p", count=30)
    found = evaluate(unsure, data, out=tmp_path / name, batch_size=7)
    assert found.predictions == str(tmp_path / name)
    rows, result = read(tmp_path / name), found.result
    assert len(rows) == result.n == 90
    assert [path for path, *_ in rows] == sorted(map(str, data.glob("*/*.png")))
    assert all(label == Path(path).parent.name for path, label, *_ in rows)
    assert all(right == (label == top[0][0]) for _, label, right, _, top in rows)
    assert all(own == dict(top)[label] for _, label, _, own, top in rows)
    top1 = sum(right for _, _, right, _, _ in rows) / 90
    assert 0.2 < top1 < 0.98
    assert result.top1 == pytest.approx(top1)
    assert result.loss == pytest.approx(sum(-math.log(own) for _, _, _, own, _ in rows) / 90)
    gaps = [0.0] * 15
    for _, _, right, _, top in rows:
        gaps[math.ceil(15 * top[0][1]) - 1] += right - top[0][1]
    assert result.ece == pytest.approx(sum(map(abs, gaps)) / 90)
    for label, entry in result.per_class.items():
        own = [right for _, truth, right, _, _ in rows if truth == label]
        assert entry == {"n": len(own), "accuracy": pytest.approx(sum(own) / len(own))}


def test_the_best_answers_against_numpy():
    scores = torch.randn(4, 9, generator=torch.Generator().manual_seed(0))
    scores[3] = 0  # equal scores: the first
    labels, paths = [f"class {k}" for k in range(9)], list("abcd")
    found = evaluated_rows(scores, [[0], [3], [1, 4], [8]], labels, paths, several=True)
    chance = np.exp(scores.double().numpy())
    chance /= chance.sum(axis=1, keepdims=True)
    for row, own in zip(found, chance, strict=True):
        best = np.argsort(-own, kind="stable")[:5]
        assert [one["label"] for one in row["top"]] == [f"class {k}" for k in best]
        assert [one["probability"] for one in row["top"]] == pytest.approx(own[best])
        assert (row["prediction"], row["probability"]) == (f"class {best[0]}", pytest.approx(own[best[0]]))
    assert found[2]["labels"] == ["class 1", "class 4"]
    assert found[2]["label_probability"] == pytest.approx(chance[2, 1] + chance[2, 4])
    assert found[3]["prediction"] == "class 0"


def test_names_of_any_bytes_and_formulas_in_cells(tmp_path):
    rows = [
        ROW | {"path": "caf\udce9.png", "label": "=1+1", "right": False},
        ROW | {"path": '@home,\n"x".png', "label": "'quoted", "right": False},
    ]
    for name in ("a.csv", "a.jsonl"):
        with prediction_file(tmp_path / name, 2, EVALUATED) as write:
            write(rows)
    raw = (tmp_path / "a.csv").read_bytes()
    assert raw.splitlines()[1] == b"caf\\xe9.png,cat,0.75,dog,0.25,'=1+1,0.75,false"
    cells = [cell for line in csv.reader(raw.decode().splitlines(keepends=True)) for cell in line]
    assert not any(cell.startswith(("=", "+", "-", "@")) for cell in cells)
    assert [(row["path"], row["label"]) for row in read_csv(tmp_path / "a.csv")] == [
        ("caf\\xe9.png", "=1+1"),
        ('@home,\n"x".png', "'quoted"),
    ]
    written = [json.loads(line) for line in (tmp_path / "a.jsonl").read_bytes().splitlines()]
    assert [row["path"] for row in written] == ["caf\\xe9.png", '@home,\n"x".png']


def test_several_labels_are_a_list(tmp_path):
    row = ROW | {"labels": ["cat", "-dog"], "label_probability": 1.0}
    for name in ("a.csv", "a.jsonl"):
        with prediction_file(tmp_path / name, 2, EVALUATED_SETS) as write:
            write([row])
    assert json.loads(read_csv(tmp_path / "a.csv")[0]["labels"]) == ["cat", "-dog"]
    assert json.loads((tmp_path / "a.jsonl").read_text())["labels"] == ["cat", "-dog"]


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_only_files_of_ours_are_replaced(unsure, tmp_path, name):
    data, place = make_images(tmp_path / "p"), tmp_path / name
    evaluate(unsure, data, out=place)
    before = place.read_bytes()
    evaluate(unsure, data, out=place)
    assert place.read_bytes() == before
    place.write_text("path,label,my,own\n" if name == "a.csv" else '{"path": "a", "label": "b"}\n')
    with pytest.raises(UserError, match=name):
        evaluate(unsure, data, out=place)


def test_nothing_is_left_where_the_measurement_fails(unsure, tmp_path):
    data, place = make_images(tmp_path / "p"), tmp_path / "out" / "a.csv"
    evaluate(unsure, data, out=place)
    before = place.read_bytes()

    def stop(what, done, total):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        evaluate(unsure, data, out=place, batch_size=4, callbacks=Callbacks(progress=stop))
    assert [path.name for path in place.parent.iterdir()] == ["a.csv"]
    assert place.read_bytes() == before


def test_what_cannot_be_written_is_said_before_anything_is_measured(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"answers\.txt.*\.csv.*\.jsonl.*\.parquet"):
        check_prediction_file(tmp_path / "answers.txt")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"a\.parquet.*pyarrow"):
        check_prediction_file(tmp_path / "a.parquet")


def test_classes_of_one_name_are_told_apart(unsure, tmp_path):
    place = save_bundle(tmp_path / "b", unsure.model, unsure.preprocess, ("crane", "green", "crane"))
    make_images(tmp_path / "p", colours=("green", "red"))
    (tmp_path / "p" / "red").rename(tmp_path / "p" / "crane")
    evaluate(place, tmp_path / "p", out=tmp_path / "a.jsonl")
    named = {top for row in from_jsonl(tmp_path / "a.jsonl") for top, _ in row[4]}
    assert named == {"crane (0)", "green", "crane (2)"}


@pytest.mark.skipif(find_spec("pyarrow") is None, reason="needs pyarrow, which is an extra")
def test_parquet(unsure, tmp_path):
    import pyarrow.parquet

    data, place = make_images(tmp_path / "p"), tmp_path / "a.parquet"
    for _ in range(2):  # the second one replaces a file of ours
        evaluate(unsure, data, out=place, batch_size=5)
    evaluate(unsure, data, out=tmp_path / "a.jsonl", batch_size=5)
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert pyarrow.parquet.read_table(place).to_pylist() == lines
