"""Models side by side: what is written is what was measured, for any model and any data, and nonsense is refused."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from support.colours import COLOURS, make_bundle, make_images
from vitreous import UserError, ViT, ViTConfig, analyze
from vitreous.cli import main
from vitreous.config.data import Preprocess
from vitreous.data.augment import eval_view, normalise
from vitreous.data.opening import open_data
from vitreous.evaluation.probe import fit_linear
from vitreous.explain.analysis.depth_measures import summarise
from vitreous.explain.analysis.depths import NOISE, pool_depths
from vitreous.explain.analysis.measures import BANDS, band_noise, linear_cka
from vitreous.studies.analysis import WEIGHT_DECAY, choose_images
from vitreous.verbs.evaluate import evaluate
from vitreous.weights.bundle import Bundle, load_bundle, save_bundle

SHAPE = {"width": 16, "depth": 3, "heads": 2, "mlp_width": 32, "patch": 4, "image_size": (16, 16), "classes": 0}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    for split, count in (("train", 8), ("test", 5)):
        make_images(root / split, count=count, seed=1000 * count)
    return root


@pytest.fixture(scope="module")
def colours(tmp_path_factory):
    return make_bundle(tmp_path_factory.mktemp("bundle") / "colours")


def plain(**changes):
    config = ViTConfig(**{**SHAPE, **changes})
    labels = tuple(f"class {k}" for k in range(config.classes))
    return Bundle(ViT(config, seed=5).eval(), Preprocess(size=config.image_size), labels)


@pytest.fixture
def no_page(monkeypatch):
    """Plots take most of the time, and few tests look at them."""
    monkeypatch.setattr("vitreous.report.analysis.analysis_page", lambda numbers: "")


def images_of(source, preprocess):
    """(n, 3, H, W), read by hand: the images are as large as the input but for their borders."""

    views = [eval_view(source.read(i), preprocess) for i in range(len(source))]
    return normalise(torch.stack(views), preprocess)


@pytest.fixture(scope="module")
def found(tmp_path_factory, data, colours):
    """A model that knows the classes beside one without classifier, class token and square input."""
    other = plain(image_size=(8, 24), class_token=False, pool="mean", registers=2)
    return analyze([colours, other], data=data, out=tmp_path_factory.mktemp("out") / "deep" / "folder")


def test_everything_is_there_by_depth(found):
    first, second = found.numbers.models
    written = json.loads(found.json.read_text())
    assert set(written) == {"generator", "data", "summary", "models", "cka", "noise_strength", "remarks"}
    assert set(written["data"]) == {"from", "split", "images", "data_description", "classes", "seed"}
    assert {"name", "shape", "grid", "attention_distance", "probe", "noise"} <= set(written["models"][0])
    assert written["models"][1]["token_rank"] == list(second.measures["token_rank"])
    assert written["models"][0]["noise"]["clean"] == {
        "value": first.noise.clean.value, "interval": list(first.noise.clean.interval), "n": 15,
    }  # fmt: skip
    assert (first.name, second.name) == ("colours", "model 2")
    assert (first.grid, second.grid) == ((2, 2), (2, 6))
    for model, depth in ((first, 1), (second, 3)):
        for name in ("attention_distance", "mutual_information"):
            assert np.shape(model.measures[name]) == (depth, 2)  # two heads
        for name in ("head_similarity", "query_similarity"):
            assert np.shape(model.measures[name]) == (depth,)
        for name in ("token_similarity", "token_rank", "image_rank", "log_amplitude", "token_spectrum"):
            assert len(model.measures[name]) == depth + 1
        assert np.shape(model.measures["depth_similarity"]) == (depth, depth)
        assert len(model.probe.accuracy) == depth + 1
        assert model.probe.representation.n == 15
    data = found.numbers.data
    assert (data.split, data.images, data.data_description, data.classes) == ("test", 15, 24, 3)


def test_probes_and_likeness_are_what_they_say(found, data, colours):
    """The same by hand for one depth, from the images on."""
    bundle, opened = load_bundle(colours), open_data(data)
    (known, y_known), (asked, y_asked) = (
        pool_depths(bundle.model, images_of(opened.splits[part], bundle.preprocess)) for part in ("train", "test")
    )
    labels = torch.from_numpy(opened.splits["test"].labels)
    for features, expected in (
        ((known[:, 0], asked[:, 0]), found.numbers.models[0].probe.accuracy[0]),
        ((known[:, 1], asked[:, 1]), found.numbers.models[0].probe.accuracy[1]),
        ((y_known, y_asked), found.numbers.models[0].probe.representation),
    ):
        probe = fit_linear(features[0], torch.from_numpy(opened.train.labels), 3, weight_decays=[WEIGHT_DECAY])
        assert expected.value == (probe(features[1]).argmax(1) == labels).double().mean().item()
    pairs = {pair.models: pair.values for pair in found.numbers.cka}
    assert set(pairs) == {(0, 0), (0, 1), (1, 1)}
    assert np.shape(pairs[0, 1]) == (2, 4)
    assert pairs[0, 0][0][1] == pytest.approx(linear_cka(asked[:, 0], asked[:, 1]), abs=1e-4)
    assert np.diag(pairs[1, 1]) == pytest.approx(1)


def test_the_best_depth_is_not_chosen_on_the_measured_images(found):
    """However high another depth is there."""
    model = found.numbers.models[0]
    low, high = (replace(model.probe.representation, value=value) for value in (0.25, 0.75))
    for best, value in ((0, 0.25), (1, 0.75)):
        probed = replace(model, probe=replace(model.probe, accuracy=(low, high), best_depth=best))
        rows = {row.measure: row.values for row in summarise([probed])}
        assert rows["linear probe of the mean patch token, n = 15"] == (value,)


def test_noise_meets_the_models_own_classifier(found, data, colours):
    bundle, source = load_bundle(colours), open_data(data).splits["test"]
    noise = found.numbers.models[0].noise
    assert noise.clean.value == evaluate(bundle, data).result.top1
    assert noise.bands == BANDS
    images = images_of(source, bundle.preprocess)
    for band, accuracy in zip(BANDS, noise.accuracy, strict=True):
        added = torch.stack([torch.from_numpy(band_noise((3, 16, 16), band, 0, i)) for i in range(15)]) * NOISE / 0.5
        with torch.no_grad():
            right = bundle.model(images + added).argmax(1) == torch.from_numpy(source.labels)
        assert accuracy.value == right.double().mean().item()
    assert [remark.partition(":")[0] for remark in found.numbers.remarks] == ["model 2"], "which is judged by a probe"


def test_the_page_shows_the_numbers_and_needs_nothing_else(found):
    page = found.page.read_text()
    assert page.count("<svg") == 5 + 2 + 5 + 2 + 2 + 3
    assert not re.search(r'(src|href)="(?!data:|#)', page)
    assert "<script" not in page
    for row in found.numbers.summary:
        assert row.measure.replace("'", "&#39;") in page
    assert len(found.numbers.summary) == 14
    fractions = [row.values[0] for row in found.numbers.summary if row.share]
    assert len(fractions) == 6, "the attention distance, two probes, and the accuracy under three kinds of noise"
    measured = found.numbers.models[0]
    assert {measured.probe.representation.value, measured.noise.clean.value} <= set(fractions)
    for value in fractions:
        assert f"{100 * value:.1f}\u00a0%" in page


def test_names_that_are_html_stay_text(tmp_path, data):
    model = plain()
    path = save_bundle(tmp_path / "<b>bold & co", model.model, model.preprocess, ())
    page = analyze([path], data=data, out=tmp_path / "out").page.read_text()
    assert "<b>bold" not in page
    assert "&lt;b&gt;bold &amp; co" in page


def test_one_and_many_of_the_same_name(tmp_path, data, no_page):
    model = plain()
    for place in ("a", "b"):
        save_bundle(tmp_path / place / "bundle", model.model, model.preprocess, ())
        save_bundle(tmp_path / place / "same", model.model, model.preprocess, ())
    names = [tmp_path / "a", tmp_path / "b" / "bundle", tmp_path / "a" / "same", tmp_path / "b" / "same"]
    found = analyze(names, data=data, out=tmp_path / "out").numbers
    assert [one.name for one in found.models] == ["a", "b", "same (3)", "same (4)"]
    values = [replace(one, name="") for one in found.models]
    assert values[0] == values[1] == values[2] == values[3]
    assert all(np.diag(pair.values) == pytest.approx(1) for pair in found.cka)


def test_images_without_labels(tmp_path, data, monkeypatch):
    """Whether the folder is flat or has one class only: what needs no labels is measured, and that is said."""
    flat = tmp_path / "flat"
    flat.mkdir()
    for i, path in enumerate(sorted(data.glob("train/*/*.png"))):
        (flat / f"{i}.png").write_bytes(path.read_bytes())
    found = analyze([plain()], data=flat, out=tmp_path / "out")
    written = json.loads(found.json.read_text())
    assert not {"probe", "noise"} & set(written["models"][0])
    assert written["data"] | {"from": ""} == {
        "from": "", "split": "all", "images": 24, "data_description": None, "classes": None, "seed": 0,
    }  # fmt: skip
    assert len(found.numbers.remarks) == 2, "that there are no labels, and what is left out"
    assert sum(row.share for row in found.numbers.summary) == 1, "the attention distance, and no accuracy"
    assert all(row.measure.replace("'", "&#39;") in found.page.read_text() for row in found.numbers.summary)
    monkeypatch.setattr("vitreous.report.analysis.analysis_page", lambda numbers: "")
    assert analyze([plain()], data=data / "train" / "red", out=tmp_path / "out").numbers.data.images == 8


def test_unreadable_images_are_named_once(tmp_path, no_page):
    root = make_images(tmp_path / "p", count=80)
    (root / "red" / "0.png").write_bytes(b"")
    found = analyze([plain(), plain(registers=1)], data=root, out=tmp_path / "out").numbers
    assert sum("0.png" in remark for remark in found.remarks) == 1


def test_which_images_are_taken(data, tmp_path):
    opened = open_data(data)
    chosen = choose_images(opened, 9, seed=0)
    assert chosen.split == "test"
    assert np.bincount(chosen.measured.labels).tolist() == np.bincount(chosen.learned.labels).tolist() == [3, 3, 3]
    again, other = choose_images(opened, 9, seed=0), choose_images(opened, 9, seed=1)
    names = [[one.measured.name(i) for i in range(9)] for one in (chosen, again, other)]
    assert names[0] == names[1] != names[2]
    half = choose_images(open_data(data / "train"), 500, seed=0)
    assert (half.split, len(half.measured), len(half.learned)) == ("half of the train split", 12, 12)
    held = {half.measured.name(i) for i in range(12)}
    assert not held & {half.learned.name(i) for i in range(12)}


def test_bad_input(data, tmp_path, no_page, subtests):
    model = plain()
    one = make_images(tmp_path / "one", count=1)
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    damaged = plain()
    with torch.no_grad():
        damaged.model.cls_token.fill_(float("nan"))
    for name, (arguments, says) in {
        "none": (([], data), "models"),
        "few": (([model], one), r"\b8\b"),
        "empty": (([model], tmp_path / "empty"), "empty"),
        "missing": (([model], tmp_path / "nothing"), "nothing"),
        "damaged": (([damaged], data), "model 1"),
        "damaged, no labels": (([damaged], data / "train" / "red"), "model 1"),
        "one patch": (([plain(patch=16)], data), "model 1"),
    }.items():
        with subtests.test(name), pytest.raises(UserError, match=says):
            analyze(arguments[0], data=arguments[1], out=tmp_path / "out")
    with pytest.raises(UserError, match=r"count=3.* 8"):
        analyze([model], data=data, out=tmp_path / "out", count=3)
    with pytest.raises(UserError, match="file"):
        analyze([model], data=data, out=tmp_path / "file" / "out")


def test_models_of_other_classes_are_judged_by_a_probe(data, tmp_path, no_page):
    found = analyze([plain(classes=5)], data=data, out=tmp_path / "out").numbers
    assert found.models[0].name == "model 1"
    assert "model 1" in found.remarks[0]
    assert found.models[0].noise.clean == found.models[0].probe.representation


VARIANTS = {
    "relative positions": {"position": "relative"},
    "no positions": {"position": "none"},
    "norm after": {"norm": "after"},
    "attention pooling": {"pool": "attention"},
    "distillation token": {"distilled": True, "classes": 3},
    "tanh classifier": {"classifier": "mlp", "classes": 3},
    "swiglu, layer scale, normalised queries": {"mlp": "swiglu", "layer_scale": 0.1, "qk_norm": True},
    "padded, wide": {"pad": True, "image_size": (10, 23)},
    "one head": {"heads": 1},
    "a row of patches": {"image_size": (4, 16)},
}


def test_any_model(data, tmp_path, no_page, subtests):
    """What it says of a model with the data's classes is what `evaluate` says."""
    for name, changes in VARIANTS.items():
        with subtests.test(name):
            bundle = plain(**changes)
            if bundle.labels:
                torch.nn.init.normal_(bundle.model.head.weight, generator=torch.Generator().manual_seed(0))
                bundle = replace(bundle, labels=COLOURS)
            found = analyze([bundle], data=data, out=tmp_path / "out").numbers.models[0]
            assert np.isfinite(found.measures["mutual_information"]).all()
            if bundle.labels:
                assert found.noise.clean.value == evaluate(bundle, data).result.top1


def test_the_command(capsys, tmp_path, data, colours, no_page):
    main(["analyze", str(colours), "--data", str(data), "--out", str(tmp_path / "out"), "--count", "12"])
    shown = capsys.readouterr().out
    assert re.search(r"\b12\b.*\btest\b", shown)
    assert "colours" in shown
    assert str(tmp_path / "out" / "analysis.html") in shown
    main(["analyze", str(colours), "--data", str(data), "--out", str(tmp_path / "out"), "--json"])
    assert json.loads(capsys.readouterr().out)["models"][0]["shape"]["classes"] == len(COLOURS)
    with pytest.raises(SystemExit) as end:
        main(["analyze", str(tmp_path / "none"), "--data", str(data), "--out", str(tmp_path / "out")])
    assert end.value.code == 2
    assert str(tmp_path / "none") in capsys.readouterr().err
