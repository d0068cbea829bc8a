"""`fit` with a teacher: what it leaves, that it goes on to the same bits, and what it says where it cannot."""

import json
import re
import shutil
from dataclasses import replace

import pytest
import timm
import torch
import transformers
from safetensors.torch import load_file

import vitreous
from support.colours import COLOURS, make_bundle, make_images
from support.greys import stop_after
from vitreous import UserError
from vitreous.callbacks import Callbacks
from vitreous.verbs.fit import fit
from vitreous.weights.bundle import load_bundle, save_bundle

WAYS = {"view": {}, "image": {"objective.answers": "image"}}
SMALL = {"model.depth": 1, "model.width": 32, "model.heads": 2, "model.mlp_width": 32}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("data") / "images", count=8)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    return make_bundle(tmp_path_factory.mktemp("teacher") / "teacher")


def taught(data, teacher, out, way="view", **more):
    given = {"model": "F/4@16", "epochs": 3, "workers": 0, **more}
    changes = {**SMALL, **WAYS[way], "augment.mixup": 0.2, "batch_size": 6, **given.pop("overrides", {})}
    return fit(data, distill=teacher, out=out, overrides=changes, **given)


def weights_of(place):
    """Of a run, or of a bundle."""
    return load_file((place / "bundle" if (place / "bundle").is_dir() else place) / "model.safetensors")


def same(one, other):
    one, other = weights_of(one), weights_of(other)
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def runs(tmp_path_factory, data, teacher):
    """A finished run for each way, with its page."""
    place = tmp_path_factory.mktemp("runs")
    return {way: (place / way, taught(data, teacher, place / way, way)) for way in WAYS}


def test_it_leaves_a_model_with_two_tokens_that_names_its_teacher(runs, teacher):
    place, result = runs["view"]
    bundle = load_bundle(place)
    assert bundle.model.config.distilled
    assert bundle.model.config.prefix == 2
    config = json.loads((place / "config.json").read_text())
    assert config["request"]["distill"] == str(teacher)
    assert config["teacher"]
    assert config["training"]["objective"]["kind"] == "distill"
    card, page = (place / "bundle/README.md").read_text(), (place / "report.html").read_text()
    (line,) = (line for line in card.splitlines() if f"`{teacher}`" in line)
    assert "weight 0.5" in line
    assert str(teacher) in page
    assert re.search(r"<dt>(<abbr [^>]*>)?Teacher<", page)
    assert "Teacher agreement" in page
    assert result.validation is not None
    assert "temperature 3" in (runs["image"][0] / "bundle/README.md").read_text()


def test_both_classifiers_have_learned_and_the_logits_are_their_mean(runs):
    model = vitreous.load(runs["view"][0])
    vit, images = model.vit, torch.randn(3, 3, 16, 16)
    assert vit.head.weight.abs().sum() > 0
    assert vit.head_dist.weight.abs().sum() > 0
    assert not torch.equal(vit.head.weight, vit.head_dist.weight)
    with torch.no_grad():
        z, layout = vit.embed(images)
        z = vit.encode(z, layout)
        torch.testing.assert_close(vit(images), (vit.head(z[:, 0]) + vit.head_dist(z[:, 1])) / 2)


@pytest.mark.slow
def test_timm_and_transformers_open_the_student(runs, tmp_path):
    """Both judge the whole way: what was trained here answers the same in their distilled DeiT."""
    place, _ = runs["view"]
    ours, images = vitreous.load(place).vit, torch.randn(3, 3, 16, 16)
    theirs = timm.create_model(f"local-dir:{place / 'bundle'}", pretrained=True).eval()
    vitreous.export_weights(place, tmp_path / "hf", to="huggingface")
    deit = transformers.DeiTForImageClassificationWithTeacher.from_pretrained(tmp_path / "hf").eval()
    with torch.no_grad():
        expected = ours(images)
        torch.testing.assert_close(theirs(images), expected, atol=1e-4, rtol=0)
        found = deit(images)
        torch.testing.assert_close(found.logits, expected, atol=1e-4, rtol=0)
        z, layout = ours.embed(images)
        torch.testing.assert_close(found.distillation_logits, ours.head_dist(ours.encode(z, layout)[:, 1]))
    vitreous.import_weights(tmp_path / "hf", tmp_path / "back")
    assert same(tmp_path / "back", place)


def test_no_checkpoint_holds_the_teacher(runs):
    """A student of 1 block and a teacher of another width: none of its shapes is there."""
    for place, _ in runs.values():
        newest = sorted((place / "checkpoints").glob("step-*"))[-1]
        names = set(load_file(newest / "module.safetensors"))
        assert names == {f"model.{name}" for name in weights_of(place)}


@pytest.mark.parametrize("way", WAYS)
def test_classes_in_another_order_teach_the_same(data, teacher, runs, tmp_path, no_page, way):
    bundle = load_bundle(teacher)
    order = [2, 0, 1]
    with torch.no_grad():
        bundle.model.head.weight.copy_(bundle.model.head.weight[order].clone())
        bundle.model.head.bias.copy_(bundle.model.head.bias[order].clone())
    save_bundle(tmp_path / "turned", bundle.model, bundle.preprocess, [COLOURS[i] for i in order])
    taught(data, tmp_path / "turned", tmp_path / "run", way)
    assert same(tmp_path / "run", runs[way][0])


def test_what_the_teacher_says_matters(data, teacher, runs, tmp_path, no_page):
    bundle = load_bundle(teacher)
    save_bundle(tmp_path / "wrong", bundle.model, bundle.preprocess, ("green", "red", "blue"))
    taught(data, tmp_path / "wrong", tmp_path / "run")
    assert not same(tmp_path / "run", runs["view"][0])


EXCHANGED = {
    "crop": lambda bundle: replace(bundle, preprocess=replace(bundle.preprocess, crop=0.9)),
    "labels": lambda bundle: replace(bundle, labels=("blue", "green", "pink")),  # of which it cannot teach all
}


@pytest.mark.parametrize("way", WAYS)
def test_interrupted_it_ends_with_the_same_bits_by_the_same_teacher_only(
    data, teacher, runs, tmp_path, no_page, monkeypatch, way
):
    """A teacher that is asked in every step must be there; one that was asked once, while its answers are kept."""
    own, run = shutil.copytree(teacher, tmp_path / "teacher"), tmp_path / "run"
    assert not taught(data, own, run, way, callbacks=Callbacks(should_stop=stop_after(4))).finished
    for exchange in EXCHANGED.values():
        shutil.rmtree(own)
        other = exchange(load_bundle(teacher))
        save_bundle(own, other.model, other.preprocess, other.labels)
        with pytest.raises(UserError, match=rf"{own}: .*{run}"):
            taught(data, own, run, way)
    shutil.rmtree(own)
    with monkeypatch.context() as patch:
        patch.setenv("VITREOUS_CACHE", str(tmp_path / "empty"))
        with pytest.raises(UserError, match=rf"{own}: .*{run}"):
            taught(data, own, run, way)
    if way == "view":
        with pytest.raises(UserError, match=rf"{own}: .*{run}"):
            taught(data, own, run, way)
        shutil.copytree(teacher, own)
    again = taught(data, own, run, way)
    assert again.finished
    assert same(run, runs[way][0])
    assert again.spent.flops == runs[way][1].spent.flops  # the teacher's are not forgotten with it


def test_another_teacher_is_another_request(data, teacher, runs, tmp_path):
    with pytest.raises(UserError, match=f"distill='{teacher}'"):
        taught(data, tmp_path / "another", runs["view"][0])


@pytest.mark.parametrize("model", ["bit-r11x0.5@16", "C+F/4@16"])
def test_students_of_other_families(data, teacher, tmp_path, no_page, model):
    fit(data, distill=teacher, model=model, epochs=1, workers=0, out=tmp_path / "run")
    config = load_bundle(tmp_path / "run").model.config
    assert getattr(config, "distilled", False) == (config.family == "vit")


def test_from_weights_the_student_keeps_its_one_classifier(data, teacher, tmp_path, no_page):
    """The teacher taught itself: its own weights, with an average of them and what is blended at the end."""
    result = fit(data, weights=teacher, distill=teacher, epochs=2, workers=0, out=tmp_path / "run")
    assert result.validation.top1 == 1.0
    bundle = load_bundle(tmp_path / "run")
    assert not bundle.model.config.distilled
    training = json.loads((tmp_path / "run/config.json").read_text())["training"]
    assert training["ema"] is not None
    assert training["objective"]["kind"] == "distill"


def test_operations_of_the_teacher_are_counted(data, teacher, runs, tmp_path, no_page):
    """The student's own: those of a network of the same shape that learned from labels alone."""
    alone = fit(
        data, model="F/4@16", epochs=3, workers=0, out=tmp_path / "run",
        overrides={**SMALL, "batch_size": 6, "model.distilled": True},
    )  # fmt: skip
    forward = vitreous.model.family.count_flops(load_bundle(teacher).model.config)
    extra = runs["view"][1].spent.flops - alone.spent.flops
    assert extra == pytest.approx(forward * alone.spent.images)
    extra = runs["image"][1].spent.flops - alone.spent.flops
    assert extra == pytest.approx(forward * alone.images)
