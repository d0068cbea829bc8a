"""Probes of whole models on whole data: the right splits, features computed once, and known accuracies."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file

from support.colours import COLOURS, make_bundle, make_images, pixels
from support.commands import check_refused, run_command
from vitreous import UserError, ViT, ViTConfig, probe
from vitreous.cli import main
from vitreous.config.data import Preprocess
from vitreous.data.opening import open_data
from vitreous.data.source import Data
from vitreous.evaluation.intervals import wilson
from vitreous.weights.bundle import Bundle, load_bundle
from vitreous.weights.seen_images import find_seen_images


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "computed" / "features"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return load_bundle(make_bundle(tmp_path_factory.mktemp("bundle") / "b"))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    for split, count in (("train", 12), ("val", 4), ("test", 5)):
        make_images(root / split, count=count, seed=1000 * count)
    return root


def test_every_protocol_on_a_task_that_is_easy(bundle, data):
    nearest = probe(bundle, data)
    assert (nearest.judged, nearest.n, nearest.known, nearest.classes, nearest.width) == ("test", 15, 36, 3, 32)
    assert [score.setting for score in nearest.scores] == [{"k": 10}, {"k": 20}]
    assert re.search(r"\b100, 200\b.*\b36\b", nearest.remarks[0])
    linear = probe(bundle, data, protocol="linear")
    assert linear.known == 36 + 12, "what chose the regularisation is learned from, too"
    few = probe(bundle, data, protocol="fewshot")
    assert [score.setting["shots"] for score in few.scores] == [1, 5, 10]
    assert all(len(score.draws) == 5 for score in few.scores)
    for found in (*nearest.scores, *linear.scores):
        assert found.accuracy == 1.0
        assert found.interval == wilson(15, 15)
    assert few.scores[-1].accuracy > 0.9


def test_features_are_computed_once_for_all_protocols(bundle, data, cache):
    assert probe(bundle, data).computed == 36 + 15
    first = probe(bundle, data, protocol="linear")
    assert first.computed == 12  # it alone needs the val split
    assert len(list(cache.iterdir())) == 3
    again = [probe(bundle, data, protocol=name) for name in ("linear", "knn", "fewshot")]
    assert [found.computed for found in again] == [0, 0, 0]
    assert again[0].scores == first.scores
    damaged = sorted(cache.iterdir())[0]
    damaged.write_bytes(damaged.read_bytes()[:-3])
    mended = probe(bundle, data, protocol="linear")
    assert mended.computed in (36, 12, 15)
    assert damaged.name in mended.remarks[0]
    assert mended.scores == first.scores
    (chosen,) = probe(bundle, data, protocol="linear").remarks
    assert re.search(r"\bval\b", chosen)


def test_which_part_is_judged(bundle, tmp_path):
    make_images(tmp_path / "p" / "train", count=10)
    make_images(tmp_path / "p" / "val", count=3, seed=7)
    assert (probe(bundle, tmp_path / "p").judged, probe(bundle, tmp_path / "p").n) == ("val", 9)
    found = probe(bundle, tmp_path / "p" / "train", protocol="linear")
    assert (found.judged, found.n, found.known) == ("a fifth of the train split, held out", 6, 24)


def test_measured_images_choose_nothing(bundle, tmp_path):
    """Where val is measured, the regularisation is the same whatever the labels of val are."""
    for split, count in (("train", 12), ("val", 6)):
        make_images(tmp_path / split, count=count, seed=1000 * count)
    data = open_data(tmp_path)
    val = data.splits["val"]
    mixed = replace(data, splits={**data.splits, "val": val.with_labels(np.roll(val.labels, 6), val.classes)})
    one, other = (probe(bundle, each, protocol="linear") for each in (data, mixed))
    assert (one.judged, one.scores[0].setting) == ("val", other.scores[0].setting)
    assert one.scores[0].accuracy != other.scores[0].accuracy
    assert len(one.remarks) == 1
    seen = replace(bundle, seen_images=find_seen_images(data))
    assert str(len(val)) in " ".join(set(probe(seen, data).remarks) - set(probe(bundle, data).remarks))


def test_a_model_without_classifier_that_has_other_input(tmp_path):
    shape = {"width": 16, "depth": 1, "heads": 2, "mlp_width": 16, "patch": 4, "image_size": (8, 16), "classes": 0}
    config = ViTConfig(**shape, class_token=False, pool="mean", registers=2)
    bundle = Bundle(ViT(config).eval(), Preprocess(size=(8, 16)), ())
    found = probe(bundle, make_images(tmp_path / "p", count=10), protocol="linear")
    assert found.scores[0].accuracy > 0.5


def test_the_linear_probe_learns_from_val_too_once_it_has_chosen(bundle, tmp_path):
    """The green images of train are few and odd; those of val are what test has."""
    make_images(tmp_path / "p" / "train", count=6, colours=("blue", "red"))
    (tmp_path / "p" / "train" / "green").mkdir()
    Image.fromarray(pixels("red", 5)).save(tmp_path / "p" / "train" / "green" / "odd.png")
    make_images(tmp_path / "p" / "val", count=6, seed=1)
    make_images(tmp_path / "p" / "test", count=6, seed=2)
    assert probe(bundle, tmp_path / "p", protocol="linear").scores[0].accuracy == 1.0


def test_unreadable_images_are_named_from_the_cache_too(bundle, tmp_path):
    root = make_images(tmp_path / "p", count=40)
    (root / "red" / "0.png").write_bytes(b"")
    for _ in range(2):
        found = probe(bundle, root)
        assert list(found.unreadable) == [str(root / "red" / "0.png")]
        assert found.n + found.known == 119


def test_bad_input(bundle, data, tmp_path):
    with pytest.raises(UserError, match=r"shots=13: .*'blue'.*\b12\b"):
        probe(bundle, data, protocol="fewshot", shots=[1, 13])
    with pytest.raises(UserError, match=r"shots\[0\]=0: "):
        probe(bundle, data, protocol="fewshot", shots=[0])
    with pytest.raises(UserError, match="shots"):
        probe(bundle, data, protocol="fewshot", shots=[])
    with pytest.raises(UserError, match=r"protocol='magic': .*knn, linear, fewshot"):
        probe(bundle, data, protocol="magic")
    flat = open_data(data / "train", labelled=False)
    with pytest.raises(UserError):
        probe(bundle, flat)
    one_each = make_images(tmp_path / "one", count=1)
    with pytest.raises(UserError, match=r"^3 "):
        probe(bundle, one_each)
    judged = open_data(data / "test").train
    with pytest.raises(UserError, match="train"):
        probe(bundle, Data({"val": judged, "test": judged}, COLOURS))


def test_damaged_weights_are_named(data):
    model = ViT(ViTConfig(width=16, depth=1, heads=2, mlp_width=16, patch=8, image_size=(16, 16), classes=0)).eval()
    with torch.no_grad():
        model.cls_token.fill_(float("nan"))
    with pytest.raises(UserError, match="model"):
        probe(Bundle(model, Preprocess(size=(16, 16)), ()), data)


def test_classes_with_few_images(bundle, tmp_path):
    make_images(tmp_path / "p" / "train", count=1)
    make_images(tmp_path / "p" / "test", count=2, seed=9)
    linear = probe(bundle, tmp_path / "p", protocol="linear")
    assert len(linear.remarks) == 1, "that no validation could choose the regularisation"
    few = probe(bundle, tmp_path / "p", protocol="fewshot")
    assert [score.setting["shots"] for score in few.scores] == [1]
    assert re.search(r"\b5, 10\b.*'blue'.*\b1\b", few.remarks[0])
    nearest = probe(bundle, tmp_path / "p")
    assert [score.setting for score in nearest.scores] == [{"k": 3}]


def test_the_command(capsys, tmp_path, data):
    bundle = str(make_bundle(tmp_path / "b"))
    main(["probe", bundle, str(data), "--protocol", "fewshot", "--shots", "2,3", "--json"])
    said = json.loads(capsys.readouterr().out)
    assert [score["shots"] for score in said["scores"]] == [2, 3]
    assert {"accuracy", "interval", "std", "draws"} <= set(said["scores"][0])
    assert np.mean(said["scores"][0]["draws"]) == pytest.approx(said["scores"][0]["accuracy"])
    main(["probe", bundle, str(data)])
    shown = capsys.readouterr().out
    assert re.search(r"\b15\b.*\(test\).*\b36\b.*\b3\b.*\b32\b", shown)
    assert re.search(r"100\.00%.*79\.6%.*100\.0%", shown)
    for args, says in {
        ("--protocol", "fewshot", "--shots", "a"): "--shots a",
        ("--shots", "1"): "knn",
        ("--protocol", "fewshot", "--shots", "99"): "shots=99",
    }.items():
        check_refused(run_command("probe", bundle, data, *args), says)


PETS = ("Bengal", "Persian", "Russian_Blue", "Siamese", "american_bulldog", "beagle", "boxer", "chihuahua")


@pytest.mark.slow
def test_pets_with_real_weights(shared_data, tmp_path):
    """The nearest neighbours by features that are computed without the package's reading and scaling."""
    weights = shared_data / "vit_ti16_augreg_in21k_ft_in1k.safetensors"
    paths = {
        split: [path for pet in PETS for path in sorted((shared_data / "pets" / split / pet).iterdir())[:count]]
        for split, count in (("train", 10), ("test", 4))
    }
    for split, chosen in paths.items():
        for path in chosen:
            (tmp_path / "pets" / split / path.parent.name).mkdir(parents=True, exist_ok=True)
            (tmp_path / "pets" / split / path.parent.name / path.name).symlink_to(path)
    model = ViT("Ti/16", seed=None).eval()
    model.load_state_dict(load_file(weights))
    known, asked = (features_by_hand(model, paths[split]) for split in ("train", "test"))
    known_labels, labels = (torch.tensor([PETS.index(p.parent.name) for p in paths[s]]) for s in ("train", "test"))
    similarity, neighbours = (F.normalize(asked) @ F.normalize(known).T).topk(10)
    votes = torch.zeros(32, 8).scatter_add_(1, known_labels[neighbours], (similarity / 0.07).exp())
    right = (votes.argmax(1) == labels).sum().item()
    assert right > 28, "chance is 4"
    said = {"preprocess": "mean=0.5,std=0.5,crop=0.9,interpolation=bicubic", "engine": "torch"}
    nearest = probe(weights, tmp_path / "pets", **said)
    assert (nearest.n, nearest.known, nearest.classes) == (32, 80, 8)
    assert nearest.scores[0].accuracy == pytest.approx(right / 32, abs=1.1 / 32), "a pixel's rounding decides some"
    linear = probe(weights, tmp_path / "pets", protocol="linear", **said)
    assert linear.computed == 0
    assert linear.scores[0].accuracy > 0.75
    few = probe(weights, tmp_path / "pets", protocol="fewshot", **said).scores
    assert 0.5 < few[0].accuracy < min(few[1].accuracy, few[2].accuracy)


def features_by_hand(model, paths):
    """(n, D): short side to 224 / 0.9, the centre, values in -1..1, as these weights were trained."""
    images = []
    for path in paths:
        image = Image.open(path).convert("RGB")
        scale = round(224 / 0.9) / min(image.size)
        image = image.resize([round(side * scale) for side in image.size], Image.Resampling.BICUBIC)
        left, top = ((side - 224) // 2 for side in image.size)
        pixels_HWC = np.asarray(image.crop((left, top, left + 224, top + 224)), np.float32)
        images.append(torch.from_numpy(pixels_HWC).permute(2, 0, 1) / 127.5 - 1)
    with torch.no_grad():
        return torch.cat([model.representation(torch.stack(images[k : k + 16])) for k in range(0, len(images), 16)])
