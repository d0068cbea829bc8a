"""`vitreous explain` as a person uses it."""

import json

import numpy as np
import pytest
from colours import make_bundle, make_pictures
from PIL import Image
from test_cli import run


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return str(make_bundle(tmp_path_factory.mktemp("bundle") / "b"))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return make_pictures(tmp_path_factory.mktemp("pictures") / "p", count=2)


def test_an_overlay_a_picture_under_its_name(capsys, bundle, pictures, tmp_path):
    status, out, err = run(capsys, "explain", bundle, str(pictures), "--out", str(tmp_path / "o"))
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert len(lines) == 6
    assert lines[0].startswith(f"{pictures}/blue/0.png  blue ")
    assert lines[0].endswith(f"  relevance: {tmp_path}/o/0-relevance.png")
    names = sorted(path.name for path in (tmp_path / "o").iterdir())
    assert names == [f"{name}-relevance.png" for name in ("0-2", "0-3", "0", "1-2", "1-3", "1")], (
        "names repeat between colours"
    )
    with Image.open(tmp_path / "o" / "0-relevance.png") as made:
        assert made.size == (24, 20)


def test_a_grid_of_heads_and_the_numbers(capsys, bundle, pictures, tmp_path):
    picture = str(pictures / "red" / "0.png")
    asked = ("--method", "attention", "--layer", "all", "--head", "all", "--save-arrays", "--json")
    status, out, _ = run(capsys, "explain", bundle, picture, *asked, "--out", str(tmp_path))
    said = json.loads(out)
    assert status == 0
    assert (said["path"], said["method"], said["label"]) == (picture, "attention", "red")
    assert said["files"] == [f"{tmp_path}/0-attention{kind}" for kind in (".png", "-grid.png", ".npz")]
    with np.load(tmp_path / "0-attention.npz") as kept:
        assert kept["maps"].shape == (1, 2, 2, 2)
        assert kept["map"].shape == (20, 24)


def test_no_picture_that_was_given_is_written_over(capsys, bundle, tmp_path):
    """Not even one whose name is that of another's overlay."""
    folder = make_pictures(tmp_path / "p", count=1) / "red"
    (folder / "0.png").rename(folder / "cat.png")
    for name in ("cat-attention", "cat-attention-grid"):
        Image.new("RGB", (24, 20), "red").save(folder / f"{name}.png")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    status, out, _ = run(
        capsys, "explain", bundle, str(folder), "--out", str(folder), "--method", "attention", "--head", "all", "--json"
    )
    assert status == 0
    assert all(path.read_bytes() == content for path, content in before.items())
    written = [file for line in out.splitlines() for file in json.loads(line)["files"]]
    assert len(set(written)) == 6
    assert f"{folder}/cat-2-attention.png" in written


def test_pages_of_pictures_of_one_name_do_not_collide(capsys, bundle, pictures, tmp_path):
    given = [str(pictures / colour / "0.png") for colour in ("red", "blue")]
    status, _, _ = run(capsys, "explain", bundle, *given, "--steps", "--out", str(tmp_path))
    assert status == 0
    pages = [(tmp_path / name).read_text() for name in ("0-steps.html", "0-2-steps.html")]
    assert pages[0] != pages[1]


def test_another_class_and_a_place(capsys, bundle, pictures, tmp_path):
    picture = str(pictures / "red" / "0.png")
    _, out, _ = run(capsys, "explain", bundle, picture, "--class", "blue", "--out", str(tmp_path))
    assert "  blue " in out
    status, out, _ = run(capsys, "explain", bundle, picture, "--query", "12,10", "--out", str(tmp_path))
    assert status == 0
    assert "attention: " in out


def test_a_picture_that_cannot_be_read(capsys, bundle, pictures, tmp_path):
    (tmp_path / "bad.png").write_text("text")
    given = (str(tmp_path / "bad.png"), str(pictures / "red" / "0.png"))
    status, out, err = run(capsys, "explain", bundle, *given, "--out", str(tmp_path / "o"))
    assert status == 1
    assert out.count("\n") == err.count("\n") == 1
    assert "bad.png: not a picture" in err
    status, out, _ = run(capsys, "explain", bundle, *given, "--out", str(tmp_path / "o"), "--json")
    assert status == 1
    bad, good = (json.loads(line) for line in out.splitlines())
    assert set(bad) == {"path", "error"}
    assert good["label"] == "red"


def test_weights_print_a_summary_and_write_figures(capsys, bundle, pictures, tmp_path):
    status, out, _ = run(capsys, "explain", bundle, "--weights", "--data", str(pictures), "--out", str(tmp_path / "w"))
    assert status == 0
    assert "of the variance" in out
    assert "would be looking everywhere alike" in out
    assert {path.name for path in (tmp_path / "w").iterdir()} >= {"filters.svg", "positions.png", "distance.svg"}
    status, out, _ = run(capsys, "explain", bundle, "--weights", "--json", "--out", str(tmp_path / "w"))
    assert json.loads(out)["attention_distance"] is None


def test_scores_show_every_baseline(capsys, bundle, pictures):
    status, out, _ = run(capsys, "explain", bundle, str(pictures), "--score", "--method", "attention")
    assert status == 0
    assert "6 pictures" in out
    for name in ("even", "centre", "centre of what is seen", "attention"):
        assert any(line.startswith(f"{name} ") for line in out.splitlines())
    status, out, _ = run(capsys, "explain", bundle, str(pictures), "--score", "--count", "3", "--json")
    said = json.loads(out)
    assert said["pictures"] == 3
    assert list(said["baselines"]) == ["even", "centre", "centre of what is seen"]
    assert list(said["methods"]) == ["attention", "rollout", "relevance", "gradcam", "occlusion"]


def test_mistakes(capsys, bundle, pictures, tmp_path):
    picture = str(pictures / "red" / "0.png")
    (tmp_path / "file").touch()
    for args, says in {
        (): "no pictures: give at least one",
        (picture, "--layer", "last"): "--layer last: give a number from 0, or all.",
        (picture, "--layer", "3"): "layer 3: the model has layers 0 to 0",
        (picture, "--head", "first"): "--head first: give a number from 0, or mean or all.",
        (picture, "--method", "attention", "--head", "9"): "head 9: the model has heads 0 to 1",
        (picture, "--class", "rad"): "class 'rad': not one of the model's 3 classes, such as red",
        (picture, "--query", "3"): "--query 3: give two numbers, such as 120,80",
        (picture, "--query", "30,5"): "query 30,5: the picture is 24 wide and 20 high",
        (picture, "--query", "1,5"): "query 1,5: the model sees only the part from 3,0 to 23,20",
        (picture, "--out", str(tmp_path / "file")): "file: cannot be written to",
        (picture, "--masks", "m"): "--masks m: belongs to --score",
        (picture, "--data", "d"): "--data d: belongs to --weights",
        (picture, "--weights"): "--weights looks at no single picture",
        ("--weights", "--score"): "--weights and --score: choose one",
        ("--score",): "--score: give one place with pictures",
        (str(pictures), "--score", "--layer", "99"): "--layer 99: does not go with --score",
        (str(pictures), "--score", "--class", "zz"): "--class zz: does not go with --score",
        (str(pictures), "--score", "--out", "x"): "--out x: does not go with --score",
        ("--weights", "--masks", "m"): "--masks m: does not go with --weights, which takes --count, --data",
        ("--weights", "--out", str(tmp_path / "file")): "a part of this path is a file",
        ("--weights", "--save-arrays"): "--save-arrays: does not go with --weights",
        (picture, "--steps", "--json"): "--json: does not go with --steps",
        (picture, "--steps", "--class", "red"): "--class red: does not go with --steps",
        (picture, "--reconstruct", "--preprocess", "crop=1"): "--preprocess crop=1: does not go with --reconstruct",
        (str(pictures), "--score", "--masks", str(tmp_path)): "there is no such mask",
        (str(pictures), "--score", "--count", "0"): "count=0: the data have 6 pictures",
        ("--weights", "--data", str(pictures), "--count", "0"): "count=0: must be at least 1",
    }.items():
        status, out, err = run(capsys, "explain", bundle, *args)
        assert (status, out) == (2, ""), args
        assert says in err
        assert err.count("\n") == 1
