"""Predictions in one file, whose columns mean what those of an evaluation's file mean; and lists of images."""

import csv
import json

import pyarrow.parquet as parquet
import pytest

from support.colours import COLOURS, make_bundle, make_images
from vitreous import UserError
from vitreous.cli import main
from vitreous.verbs.evaluate import evaluate
from vitreous.verbs.predict import predict, predict_many


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return make_bundle(tmp_path_factory.mktemp("bundle") / "b")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("data") / "p", count=2)


def read(path):
    """The rows of a file, as texts: path, prediction, probability and the others."""
    if path.suffix == ".csv":
        with path.open(newline="") as file:
            return list(csv.DictReader(file))
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "A.PARQUET"])
def test_a_name_with_an_ending_is_a_file(bundle, images, tmp_path, name):
    expected = predict(bundle, images)
    for _ in range(2):  # the second one replaces a file of ours
        done = predict_many(bundle, images, tmp_path / name)
    assert (done.out, done.images, done.unreadable) == (tmp_path / name, 6, {})
    assert [path.name for path in tmp_path.iterdir()] == [name]
    found = parquet.read_table(tmp_path / name).to_pylist() if "PARQUET" in name else read(tmp_path / name)
    assert [row["path"] for row in found] == [one.path for one in expected]
    assert [row["prediction"] for row in found] == [colour for colour in COLOURS for _ in range(2)]
    assert [float(row["probability"]) for row in found] == pytest.approx([one.score for one in expected], abs=1e-6)
    assert all(row["error"] in (None, "") for row in found)
    assert "label" not in found[0], "nobody has said what is true"


def test_the_columns_of_an_evaluation_mean_the_same(bundle, images, tmp_path):
    predict_many(bundle, images, tmp_path / "predicted.jsonl")
    evaluate(bundle, images, out=tmp_path / "evaluated.jsonl")
    both = zip(read(tmp_path / "predicted.jsonl"), read(tmp_path / "evaluated.jsonl"), strict=True)
    for predicted, evaluated in both:
        for column in ("path", "prediction"):
            assert predicted[column] == evaluated[column]
        assert predicted["probability"] == pytest.approx(evaluated["probability"], abs=1e-6)
        assert evaluated["label"] == images.joinpath(evaluated["path"]).parent.name


def test_an_image_that_cannot_be_read_has_a_row(bundle, tmp_path):
    data = make_images(tmp_path / "p", count=40)
    (data / "green" / "3.png").write_text("not an image")
    done = predict_many(bundle, data, tmp_path / "a.csv", embed=False)
    assert list(done.unreadable) == [str(data / "green" / "3.png")]
    (bad,) = (row for row in read(tmp_path / "a.csv") if row["error"])
    assert (bad["path"], bad["prediction"], bad["probability3"]) == (str(data / "green" / "3.png"), "", "")


def test_embeddings_need_a_file_that_has_a_place_for_them(bundle, images, tmp_path):
    predict_many(bundle, images, tmp_path / "a.parquet", embed=True)
    assert {len(row["embedding"]) for row in parquet.read_table(tmp_path / "a.parquet").to_pylist()} == {32}
    with pytest.raises(UserError, match="embed: CSV"):
        predict_many(bundle, images, tmp_path / "a.csv", embed=True)
    assert not (tmp_path / "a.csv").exists()


@pytest.mark.parametrize(
    ("out", "more", "says"),
    [
        ("a.json", {}, r"a\.json.*\.jsonl"),
        ("a.txt", {}, r"a\.txt.*\.csv"),
        ("a.csv", {"part": "1/2"}, "part: "),
        ("a.csv", {"ray": "auto"}, "ray: "),
        ("mine.csv", {}, "mine.csv"),
    ],
)
def test_refused(bundle, images, tmp_path, out, more, says):
    (tmp_path / "mine.csv").write_text("path,prediction\nmy,own\n")
    with pytest.raises(UserError, match=says):
        predict_many(bundle, images, tmp_path / out, **more)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.csv"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("list.csv", "path\nred/0.png\nblue/1.png\n"),
        ("list.csv", "label,path,split\nx,red/0.png,hold\n,blue/1.png,test\n"),
        ("list.jsonl", '{"path": "red/0.png"}\n{"path": "blue/1.png", "label": "dog", "split": "train"}\n'),
    ],
)
def test_a_list_needs_no_labels(bundle, tmp_path, capsys, name, text):
    """And its own order is that of the predictions, whatever its splits."""
    data = make_images(tmp_path / "p", count=2)
    (data / name).write_text(text)
    assert [one.label for one in predict(bundle, [data / name])] == ["red", "blue"]
    main(["predict", str(bundle), str(data / name), str(data / "green"), "--top-k", "1"])
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == ["red", "blue", "green", "green"]
    predict_many(bundle, data / name, tmp_path / "folder")
    (part,) = (tmp_path / "folder").glob("part-*.parquet")
    assert parquet.read_table(part).column("prediction").to_pylist() == ["red", "blue"]


def test_a_list_without_paths_says_so(bundle, tmp_path):
    (tmp_path / "list.csv").write_text("file\na.png\n")
    with pytest.raises(UserError, match=r"list\.csv.* path;.*file"):
        predict(bundle, tmp_path / "list.csv")
