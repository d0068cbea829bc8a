"""The verbs that look inside a model, as a person uses them."""

import json
import re

import numpy as np
import pytest
from PIL import Image
from test_cli import check_mistake, run

from support.colours import make_bundle, make_images
from vitreous.config.objective import Mae
from vitreous.objectives.mae import MaskedAutoencoder
from vitreous.weights.bundle import load_bundle


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return str(make_bundle(tmp_path_factory.mktemp("bundle") / "b"))


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("images") / "p", count=2)


def test_an_overlay_a_image_under_its_name(capsys, bundle, images, tmp_path):
    status, out, err = run(capsys, "explain", bundle, str(images), "--out", str(tmp_path / "o"))
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert len(lines) == 6
    assert lines[0].startswith(f"{images}/blue/0.png  blue ")
    assert lines[0].endswith(f"  relevance: {tmp_path}/o/0-relevance.png")
    names = sorted(path.name for path in (tmp_path / "o").iterdir())
    assert names == [f"{name}-relevance.png" for name in ("0-2", "0-3", "0", "1-2", "1-3", "1")], (
        "names repeat between colours"
    )
    with Image.open(tmp_path / "o" / "0-relevance.png") as made:
        assert made.size == (9 * 24, 9 * 20)  # enlarged to be seen


def test_a_grid_of_heads_and_the_numbers(capsys, bundle, images, tmp_path):
    image = str(images / "red" / "0.png")
    asked = ("--method", "attention", "--layer", "all", "--head", "all", "--save-arrays", "--json")
    status, out, _ = run(capsys, "explain", bundle, image, *asked, "--out", str(tmp_path))
    said = json.loads(out)
    assert status == 0
    assert (said["path"], said["method"], said["label"]) == (image, "attention", "red")
    assert said["files"] == [f"{tmp_path}/0-attention{kind}" for kind in (".png", "-grid.png", ".npz")]
    with np.load(tmp_path / "0-attention.npz") as kept:
        assert kept["maps"].shape == (1, 2, 2, 2)
        assert kept["map"].shape == (20, 24)


def test_no_image_that_was_given_is_written_over(capsys, bundle, tmp_path):
    """Not even one whose name is that of another's overlay."""
    folder = make_images(tmp_path / "p", count=1) / "red"
    (folder / "0.png").rename(folder / "cat.png")
    for name in ("cat-attention", "cat-attention-grid"):
        Image.new("RGB", (24, 20), "red").save(folder / f"{name}.png")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    given = (*sorted(map(str, before)), "--out", str(folder))
    status, out, _ = run(capsys, "explain", bundle, *given, "--method", "attention", "--head", "all", "--json")
    assert status == 0
    assert all(path.read_bytes() == content for path, content in before.items())
    written = [file for line in out.splitlines() for file in json.loads(line)["files"]]
    assert len(set(written)) == 6
    assert f"{folder}/cat-2-attention.png" in written


def test_pages_of_images_of_one_name_do_not_collide(capsys, bundle, images, tmp_path):
    given = [str(images / colour / "0.png") for colour in ("red", "blue")]
    status, _, _ = run(capsys, "walkthrough", bundle, *given, "--out", str(tmp_path))
    assert status == 0
    pages = [(tmp_path / name).read_text() for name in ("0-walkthrough.html", "0-2-walkthrough.html")]
    assert pages[0] != pages[1]


def test_another_class_and_a_place(capsys, bundle, images, tmp_path):
    image = str(images / "red" / "0.png")
    _, out, _ = run(capsys, "explain", bundle, image, "--target", "blue", "--out", str(tmp_path))
    assert "  blue " in out
    status, out, _ = run(capsys, "explain", bundle, image, "--query", "12,10", "--out", str(tmp_path))
    assert status == 0
    assert "attention: " in out


def test_a_image_that_cannot_be_read(capsys, bundle, images, tmp_path):
    (tmp_path / "bad.png").write_text("text")
    given = (str(tmp_path / "bad.png"), str(images / "red" / "0.png"))
    status, out, err = run(capsys, "explain", bundle, *given, "--out", str(tmp_path / "o"))
    assert status == 1
    assert out.count("\n") == err.count("\n") == 1
    assert "bad.png: " in err
    status, out, _ = run(capsys, "explain", bundle, *given, "--out", str(tmp_path / "o"), "--json")
    assert status == 1
    bad, good = (json.loads(line) for line in out.splitlines())
    assert set(bad) == {"path", "error"}
    assert good["label"] == "red"


def test_weights_print_a_summary_and_write_figures(capsys, bundle, images, tmp_path):
    status, out, _ = run(capsys, "plot-weights", bundle, "--data", str(images), "--out", str(tmp_path / "w"))
    assert status == 0
    assert re.search(r"^filters .*\d%", out, re.MULTILINE)
    assert re.search(r"^attention distance .* \d+$", out, re.MULTILINE)  # of equal attention to all patches
    assert re.search(r"^layer +mean +head 0 +head 1$", out, re.MULTILINE)
    assert {path.name for path in (tmp_path / "w").iterdir()} >= {"filters.svg", "positions.png", "distance.svg"}
    status, out, _ = run(capsys, "plot-weights", bundle, "--json", "--out", str(tmp_path / "w"))
    assert json.loads(out)["attention_distance"] is None


def test_scores_show_every_baseline(capsys, bundle, images):
    status, out, _ = run(capsys, "score-explanations", bundle, str(images), "--methods", "attention")
    assert status == 0
    assert re.search(r"\b6 \w+", out)
    for name in ("even", "centre", "centre of what is seen", "attention"):
        assert any(line.startswith(f"{name} ") for line in out.splitlines())
    status, out, _ = run(capsys, "score-explanations", bundle, str(images), "--count", "3", "--json")
    said = json.loads(out)
    assert said["images"] == 3
    assert list(said["baselines"]) == ["even", "centre", "centre of what is seen"]
    assert list(said["methods"]) == ["attention", "rollout", "relevance", "gradcam", "occlusion"]


def test_scores_of_one_split(capsys, bundle, tmp_path):
    make_images(tmp_path / "p" / "train", count=2)
    make_images(tmp_path / "p" / "test", count=1)
    data = (str(tmp_path / "p"), "--methods", "attention", "--json")
    assert json.loads(run(capsys, "score-explanations", bundle, *data)[1])["images"] == 3, "test"
    assert json.loads(run(capsys, "score-explanations", bundle, *data, "--split", "train")[1])["images"] == 6


def test_reconstructions_are_named_after_their_images(capsys, monkeypatch, images, tmp_path):
    """What they show is tested on a trained autoencoder."""
    decoder = tmp_path / "mae" / "decoder"
    decoder.mkdir(parents=True)
    given = [str(images / name) for name in ("red/0.png", "red/1.png", "blue/0.png")]
    (tmp_path / "bad.png").write_text("text")
    model = load_bundle(make_bundle(tmp_path / "mae" / "bundle")).model
    autoencoder = MaskedAutoencoder(model, Mae(decoder_width=8, decoder_depth=1, decoder_heads=2))
    monkeypatch.setattr("vitreous.objectives.mae.load_autoencoder", lambda folder, vit: autoencoder)
    names = (given[0], str(tmp_path / "bad.png"), given[2])
    status, out, err = run(capsys, "reconstruct", str(tmp_path / "mae"), *names, "--out", str(tmp_path / "o"))
    assert status == 1
    files = [f"{tmp_path}/o/{name}" for name in ("0-reconstructed.png", "0-2-reconstructed.png")]
    assert out.splitlines() == [f"{path}: {file}" for path, file in zip(given[::2], files, strict=True)]
    assert err.startswith(f"vitreous: {tmp_path}/bad.png: ")
    with Image.open(files[1]) as made:
        assert made.size == (3 * (160 + 6) + 6, 160 + 18 + 2 * 6)
    (tmp_path / "file").touch()
    check_mistake(
        capsys,
        ("reconstruct", str(tmp_path / "mae"), given[0], "--out", str(tmp_path / "file")),
        f"vitreous: {tmp_path}/file: ",
    )


IN_IMAGES = {"the folder itself": "", "a class": "red", "a new folder": "overlays"}


@pytest.mark.parametrize("verb", ["explain", "walkthrough", "reconstruct"])
def test_nothing_is_written_among_the_images_that_were_given(subtests, capsys, bundle, tmp_path, monkeypatch, verb):
    """`inspect` would count it, and the next explanation explain it; also where a link hides that it is inside."""
    folder = make_images(tmp_path / "p", count=1)
    before = sorted(folder.rglob("*"))
    (tmp_path / "link").symlink_to(folder, target_is_directory=True)
    (tmp_path / "run" / "decoder").mkdir(parents=True)
    model = str(tmp_path / "run") if verb == "reconstruct" else bundle
    for name, place in IN_IMAGES.items():
        for given, out in ((folder, folder / place), (tmp_path / "link", folder / place)):
            with subtests.test(name, given=str(given)):
                check_mistake(capsys, (verb, model, str(given), "--out", str(out)), f"out {out}: ", f"{folder}-")
    with subtests.test("by default"):
        monkeypatch.chdir(folder)
        check_mistake(capsys, (verb, model, "."), f"{folder}-")
    assert sorted(folder.rglob("*")) == before


def test_overlays_may_lie_beside_a_single_image(capsys, bundle, tmp_path):
    """A person who names a file may keep what belongs to it together."""
    folder = make_images(tmp_path / "p", count=1) / "red"
    assert run(capsys, "explain", bundle, str(folder / "0.png"), "--out", str(folder))[0] == 0
    assert (folder / "0-relevance.png").exists()


def test_the_device_is_the_one_that_was_named(capsys, bundle, images, tmp_path):
    image = str(images / "red" / "0.png")
    out = ("--out", str(tmp_path / "o"))
    assert run(capsys, "explain", bundle, image, "--device", "cpu", *out)[0] == 0
    for verb, *given in (("explain", image, *out), ("serve", "--port", "0")):
        for device in ("nonsense", "meta"):
            check_mistake(capsys, (verb, bundle, *given, "--device", device), f"device '{device}': ", "cpu")


def test_mistakes(subtests, capsys, bundle, images, tmp_path):
    image, data, file = str(images / "red" / "0.png"), str(images), str(tmp_path / "file")
    (tmp_path / "file").touch()
    for (verb, *args), names in {
        ("explain",): [],
        ("explain", image, "--layer", "last"): ["--layer last: ", "all"],
        ("explain", image, "--layer", "3"): ["layer 3: ", "0"],
        ("explain", image, "--head", "first"): ["--head first: ", "mean, all"],
        ("explain", image, "--method", "attention", "--head", "9"): ["head 9: ", "0", "1"],
        ("explain", image, "--target", "rad"): ["class 'rad': ", "3"],
        ("explain", image, "--query", "3"): ["--query 3: "],
        ("explain", image, "--query", "30,5"): ["query 30,5: ", "24", "20"],
        ("explain", image, "--query", "1,5"): ["query 1,5: ", "3,0", "23,20"],
        ("explain", image, "--out", file): [f"{file}: "],
        ("walkthrough",): [],
        ("walkthrough", image, "--query", "3"): ["--query 3: "],
        ("walkthrough", image, "--layer", "3"): ["layer 3: ", "0"],
        ("walkthrough", image, "--out", file): [f"{file}: "],
        ("reconstruct",): [],
        ("reconstruct", image): [f"{bundle}: ", "`vitreous pretrain "],
        ("plot-weights", "--out", file): [f"{file}: "],
        ("score-explanations", data, "--masks", str(tmp_path)): [str(tmp_path)],
        ("score-explanations", data, "--split", "val"): ["split='val': "],
    }.items():
        with subtests.test(" ".join([verb, *args])):
            check_mistake(capsys, (verb, bundle, *args), *names)


NOT_THEIRS = {
    "explain": ["--masks m", "--data d", "--count 3", "--split test"],
    "walkthrough": ["--method rollout", "--target red", "--save-arrays", "--masks m"],
    "reconstruct": ["--preprocess crop=1", "--layer 1"],
    "plot-weights": ["image.png", "--masks m", "--save-arrays", "--method rollout", "--query 1,2"],
    "score-explanations": ["more-data", "--layer 99", "--target zz", "--out x", "--head 1"],
}


def test_each_verb_takes_its_own_options_alone(subtests, capsys, bundle, images):
    for verb, options in NOT_THEIRS.items():
        given = [] if verb == "plot-weights" else [str(images)]
        for option in options:
            with subtests.test(f"{verb} {option}"):
                name = option.split()[0]
                check_mistake(capsys, (verb, bundle, *given, *option.split()), f"vitreous: {name}: ")
