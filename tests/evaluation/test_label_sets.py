"""Images with several labels: arithmetic by hand, ReaL's own file, and what is refused."""

import json
import math
from dataclasses import replace
from importlib import resources

import pytest
import torch
from PIL import Image

from support.colours import PREPROCESS, make_bundle, make_images, pixels
from vitreous import UserError, ViT
from vitreous.evaluation.classify import score_classes
from vitreous.evaluation.label_sets import read_label_sets
from vitreous.verbs.evaluate import evaluate
from vitreous.weights.bundle import load_bundle, save_bundle
from vitreous.weights.labels import imagenet_names

LABELS = ("blue", "green", "red")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return load_bundle(make_bundle(tmp_path_factory.mktemp("bundle") / "b"))


@pytest.fixture(scope="module")
def imagenet(bundle, tmp_path_factory):
    """The same as a classifier of ImageNet that answers its first three classes only."""
    model = ViT(replace(bundle.model.config, classes=1000)).eval()
    weights = bundle.model.state_dict()
    nothing = {"head.weight": torch.zeros(997, 32), "head.bias": torch.full((997,), -1000.0)}
    model.load_state_dict(weights | {name: torch.cat([weights[name], rest]) for name, rest in nothing.items()})
    return load_bundle(save_bundle(tmp_path_factory.mktemp("imagenet") / "b", model, PREPROCESS, imagenet_names()))


def validation_images(root, colours):
    """A flat folder of images that are called as ImageNet's validation images."""
    root.mkdir(parents=True)
    for number, colour in enumerate(colours, start=1):
        Image.fromarray(pixels(colour, number)).save(root / f"ILSVRC2012_val_{number:08d}.png")
    return root


def write(path, labels):
    path.write_text(json.dumps(labels))
    return path


def test_by_hand():
    """Four images, answers 0, 1, 5, 2: right are the first, for 0 is one of two labels, and the third, of one.

    Confidences 0.5, 0.5, 0.9 and 0.9: the bin of 0.5 has 1 of 2 right, that of 0.9 has 1 of 2 right. The fourth
    image's label 6 is the sixth best of seven, so it is not among five.
    """
    rest = [0.1] * 5
    chance = torch.tensor(
        [
            [0.5, *rest, 0.0],
            [0.1, 0.5, *rest[:4], 0.0],
            [0.02, 0.02, 0.02, 0.02, 0.02, 0.9, 0.0],
            [0.03, 0.025, 0.9, 0.02, 0.015, 0.004, 0.006],
        ]
    )
    scores = chance.clamp_min(1e-30).log()
    found = score_classes(scores, [(3, 0), (2,), (5,), (6,)])
    assert (found.n, found.top1, found.top5, found.labels_per_image) == (4, 0.5, 0.75, 1.25)
    assert found.ece == pytest.approx(0.5 * abs(0.5 - 0.5) + 0.5 * abs(0.5 - 0.9))
    # the first image's two labels have 0.5 and 0.1 together
    assert found.loss == pytest.approx(-(math.log(0.6) + math.log(0.1) + math.log(0.9) + math.log(0.006)) / 4)
    half = 1.96 * math.sqrt(0.25 / 4 + 1.96**2 / 64) / (1 + 1.96**2 / 4)
    assert found.top1_interval == pytest.approx((0.5 - half, 0.5 + half), abs=1e-4)


def test_a_flat_folder_of_validation_images_with_labels_by_number(imagenet, tmp_path):
    """Of five images one has no label; the model knows every colour, so the label sets alone decide."""
    data = validation_images(tmp_path / "val", ["red", "green", "blue", "red", "blue"])
    sets = write(tmp_path / "real.json", [[0, 2], [1], [], [0, 1], [0]])
    found = evaluate(imagenet, data, label_sets=sets, out=tmp_path / "a.jsonl", batch_size=3)
    assert (found.split, found.result.n, found.without) == ("all", 4, 1)
    assert found.result.top1 == 0.75  # the second red image has the labels blue and green
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [row["labels"] for row in rows] == [
        *(["tench", "great white shark"], ["goldfish"], ["tench", "goldfish"], ["tench"]),
    ]
    assert [row["right"] for row in rows] == [True, True, False, True]
    for row in rows:
        of = {one["label"]: one["probability"] for one in row["top"]}
        assert row["label_probability"] == pytest.approx(sum(of[label] for label in row["labels"]))


def test_class_folders_are_ignored_and_labels_may_go_by_name(bundle, tmp_path):
    data = make_images(tmp_path / "p", count=2)
    for path in data.glob("*/*.png"):
        path.rename(path.with_name(f"{path.parent.name}-{path.name}"))
    (data / "red").rename(data / "anything")
    sets = {f"x/{colour}-{i}.png": [colour] for colour in LABELS for i in (0, 1)}
    sets["x/red-1.png"] = ["green"]
    del sets["x/blue-0.png"]
    found = evaluate(bundle, data, label_sets=write(tmp_path / "l.json", sets))
    assert (found.result.n, found.without, found.result.top1) == (5, 1, 0.8)


def test_one_label_each_says_the_same_as_class_folders(bundle, tmp_path):
    data = make_images(tmp_path / "p", count=3)
    mixed = load_bundle(bundle.path)
    with torch.no_grad():
        mixed.model.head.weight.add_(torch.randn(3, 32, generator=torch.Generator().manual_seed(3)))
    plain = evaluate(mixed, data).result
    for path in data.glob("*/*.png"):
        path.rename(path.with_name(f"{path.parent.name}-{path.name}"))
    sets = {path.name: [path.parent.name] for path in data.glob("*/*.png")}
    found = evaluate(mixed, data, label_sets=write(tmp_path / "l.json", sets)).result
    assert (found.top1, found.top5, found.ece) == (plain.top1, plain.top5, pytest.approx(plain.ece))
    assert found.bins == plain.bins


def test_an_unreadable_image_moves_no_labels(imagenet, tmp_path):
    data = validation_images(tmp_path / "val", ["red", "green", "blue"])
    (data / "ILSVRC2012_val_00000001.png").write_bytes(b"")
    found = evaluate(imagenet, data, label_sets=write(tmp_path / "real.json", [[2], [1], [0]]))
    assert (found.result.n, found.result.top1, len(found.unreadable)) == (2, 1.0, 1)


def test_real_itself():
    """The file that Beyer et al. published, as timm carries it: 50,000 images, of which 46,837 have labels."""
    with resources.as_file(resources.files("timm") / "data" / "_info" / "imagenet_real_labels.json") as path:
        found = read_label_sets(path, [str(k) for k in range(1000)])
    assert found.numbered is not None
    assert (len(found.numbered), sum(map(bool, found.numbered))) == (50_000, 46_837)
    assert found.of("val/n03/ILSVRC2012_val_00000002.JPEG") == (970, 795)
    assert found.of("ILSVRC2012_val_00000001.JPEG") == ()


def test_real_is_found_where_data_are_kept(imagenet, tmp_path, monkeypatch):
    data = validation_images(tmp_path / "val", ["red", "green"])
    monkeypatch.setenv("VITREOUS_DATA", str(tmp_path / "data"))
    with pytest.raises(UserError, match=r"imagenet-real/real\.json.*`vitreous data get"):
        evaluate(imagenet, data, label_sets="real")
    (tmp_path / "data" / "imagenet-real").mkdir(parents=True)
    place = write(tmp_path / "data" / "imagenet-real" / "real.json", [[2], [2, 0]])
    found = evaluate(imagenet, data, label_sets="real")
    assert (found.label_sets, found.result.top1) == (str(place), 0.5)
    written = json.loads(json.dumps(found.to_json()))
    assert {"n", "top1", "top1_interval", "top5", "ece", "loss", "labels_per_image", "bins"} <= set(written)
    assert (written["label_sets"], written["labels"][0]) == (str(place), "tench")
    assert (found.to_json()["engine"], found.to_json()["without"]) == ("torch-fp32", 0)


def test_labels_by_number_are_refused_where_classes_are_in_another_order(imagenet, bundle, tmp_path):
    data = validation_images(tmp_path / "val", ["red", "green"])
    sets = write(tmp_path / "real.json", [[2], [1]])
    with pytest.raises(UserError, match=r"real\.json.*1,000"):
        evaluate(replace(imagenet, labels=imagenet.labels[::-1]), data, label_sets=sets)
    with pytest.raises(UserError, match=r"real\.json.* 3 "):
        evaluate(bundle, data, label_sets=sets)


def test_what_is_refused(bundle, imagenet, tmp_path, subtests):
    data = validation_images(tmp_path / "val", ["red", "green"])
    for model, labels, named in (
        (bundle, [[0], [3]], "l.json.* 2: .*'3'.* 0 .* 2"),
        (bundle, [[0], [-1]], "l.json.*'-1'"),
        (bundle, [[0], [True]], "l.json.*'True'"),
        (bundle, [[0], ["tench"]], "l.json.*'tench'"),
        (bundle, [[0], 1], "l.json.* 2: "),
        (bundle, [], "l.json"),
        (bundle, "real", "l.json"),
        (bundle, {}, "l.json"),
        (bundle, {"a/x.png": [0], "b/x.png": [1]}, r"l.json.*x\.png"),
        (bundle, {"x.png": [0]}, "l.json.* 2 "),
        (imagenet, [[0]], r"ILSVRC2012_val_00000002\.png.*l.json.* 1 "),
        (imagenet, [[], []], "l.json.* 2 "),
    ):
        with subtests.test(labels=labels), pytest.raises(UserError, match=named):
            evaluate(model, data, label_sets=write(tmp_path / "l.json", labels))


def test_images_without_numbers_are_refused_where_labels_go_by_them(imagenet, tmp_path):
    data = make_images(tmp_path / "p")
    with pytest.raises(UserError, match=r"0\.png.*ILSVRC2012_val_00000001"):
        evaluate(imagenet, data, label_sets=write(tmp_path / "l.json", [[0]]))
