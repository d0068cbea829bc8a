"""`fit` with token labels: what is made, kept, learned and said, and that nothing is made or learned twice."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import vitreous
from support.colours import COLOURS, PREPROCESS, make_bundle, make_images, pixels
from support.fake_clock import fake_clock
from support.greys import stop_after
from support.tiny_conv import make_conv_bundle, register
from vitreous import UserError, ViT
from vitreous.callbacks import Callbacks
from vitreous.config.objective import Supervised, TokenLabel
from vitreous.data.opening import open_data
from vitreous.evaluation.score_maps import region_logits
from vitreous.training.folder import read_config
from vitreous.training.page import write_report
from vitreous.training.recipes.student import with_token_labels
from vitreous.training.recipes.supervised import DatasetStats, recipe
from vitreous.training.teaching.teacher import open_teacher
from vitreous.training.teaching.token_labels import label_tokens, read_examples
from vitreous.verbs.fit import fit
from vitreous.weights.bundle import load_bundle, save_bundle

MODEL = {"model.width": 16, "model.depth": 2, "model.heads": 2, "model.mlp_width": 16}
PLAIN = {**MODEL, "batch_size": 8, "evaluations": 1}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Each test has maps of its own."""
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache/computed/token-labels"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("data") / "colours", count=8)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    return make_bundle(tmp_path_factory.mktemp("teacher") / "teacher")


def taught(data, teacher, out, heard=None, **more):
    said = [] if heard is None else heard
    callbacks = more.pop("callbacks", Callbacks(message=said.append))
    given = {"model": "N/4@16", "epochs": 3, "workers": 0, "overrides": PLAIN, "callbacks": callbacks, **more}
    return fit(data, token_labels=teacher, out=out, **given)


def looks(heard, teacher):
    """The whole numbers that were said of the teacher: images to look at, and known ones."""
    return [
        found for line in heard if (found := re.findall(r"(?<![\d.])\d+(?!\.?\d)", line.partition(str(teacher))[2]))
    ]


def tensors(run, place="bundle/model.safetensors"):
    return load_file(Path(run) / place)


def same(one, other):
    return one.keys() == other.keys() and all(tensor.equal(other[name]) for name, tensor in one.items())


@pytest.fixture(scope="module")
def finished(data, teacher, tmp_path_factory):
    """One training that several tests look at: its result, and what was said."""
    heard = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITREOUS_CACHE", str(tmp_path_factory.mktemp("cache")))
        return taught(data, teacher, tmp_path_factory.mktemp("runs") / "taught", heard), heard


def test_every_patch_learns_what_the_teacher_says(finished, teacher):
    result, heard = finished
    run = Path(result.run)
    assert result.finished
    assert read_config(run).training.objective.kind == "token-label"
    assert looks(heard, teacher) == [["21"]]
    records = [line for line in (run / "metrics.jsonl").read_text().splitlines() if "token_agreement" in line]
    assert len(records) == result.steps
    assert tensors(run, "patch_classifier/patch_classifier.safetensors")["weight"].any()
    assert not [name for name in tensors(run) if "patch_classifier" in name]
    assert vitreous.load(run).predict(pixels("red", 5)).label in COLOURS


def test_the_card_and_the_page_name_the_teacher_and_show_what_it_teaches(finished, teacher):
    result, _ = finished
    run = Path(result.run)
    card = (run / "bundle/README.md").read_text()
    (line,) = (line for line in card.splitlines() if f"`{teacher}`" in line)
    assert "weight 0.5" in line
    page = (run / "report.html").read_text()
    assert str(teacher) in page
    shown = read_examples(run)
    assert len(shown) == 8
    assert page.count('class="taught"') == 8
    assert all(f"<figcaption>{Path(one.image).parent.name}" in page for one in shown)
    assert "http" not in page.split("</style>")[1].replace("http://www.w3.org", "")


def test_the_page_is_written_again_without_images_or_examples(finished, data, tmp_path):
    result, _ = finished
    run = shutil.copytree(result.run, tmp_path / "run")
    for damaged in ("{broken", "[]", '{"images": 3}', '{"images": [{"image": "a.png"}]}'):
        (run / "token-labels.json").write_text(damaged)
        assert read_examples(run) == ()
    write_report(run)
    assert 'class="taught"' not in (run / "report.html").read_text()


def test_the_maps_are_the_teachers_answers_for_the_whole_image(data, teacher, tmp_path):
    """By hand: the image squeezed to 16x16, the classifier on each patch, softmax; columns in the data's order."""
    turned = load_bundle(teacher)
    order = [2, 0, 1]
    with torch.no_grad():
        turned.model.head.weight.copy_(turned.model.head.weight[order].clone())
        turned.model.head.bias.copy_(turned.model.head.bias[order].clone())
    other = save_bundle(tmp_path / "turned", turned.model, PREPROCESS, [COLOURS[i] for i in order])
    source = open_data(data).train
    found = {
        place: label_tokens(open_teacher(place, source.classes), training(), source, 0, None, Callbacks()).maps.read(
            torch.arange(len(source))
        )
        for place in (teacher, other)
    }
    model = load_bundle(teacher).model
    for index in (0, 5, 20):
        image = Image.open(source.name(index)).resize((16, 16), Image.Resampling.BICUBIC)
        images = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None] / 127.5 - 1
        expected = region_logits(model, images).softmax(-1)[0]
        torch.testing.assert_close(found[teacher][index], expected, atol=1e-3, rtol=0)
    torch.testing.assert_close(found[teacher], found[other], atol=1e-3, rtol=0)
    assert found[teacher].argmax(-1).unique().numel() > 1  # or columns could be exchanged unseen


def training():
    """A training with token labels, as a recipe has it."""
    return with_token_labels(recipe("plain", DatasetStats(3, 24, 20, 3, model="N/4@16")))


def test_a_convolutional_teacher(data, tmp_path, monkeypatch):
    register(monkeypatch)
    place, model = make_conv_bundle(tmp_path / "conv")
    source = open_data(data).train
    labels = label_tokens(open_teacher(place, source.classes), training(), source, 0, None, Callbacks())
    found = labels.maps.read(torch.arange(len(source)))
    assert found.shape == (24, 8, 8, 3)  # its feature map
    image = Image.open(source.name(3)).resize((16, 16), Image.Resampling.BICUBIC)
    images = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None] / 127.5 - 1
    with torch.no_grad():
        expected = model.head(model.feature_map(images)[0].permute(1, 2, 0)).softmax(-1)
    torch.testing.assert_close(found[3], expected, atol=1e-3, rtol=0)


@pytest.mark.slow
def test_maps_are_made_once_for_all_trainings_on_these_images(data, teacher, tmp_path, cache, no_page):
    """Another seed sets other images aside for validation: only those that were are new."""
    taught(data, teacher, tmp_path / "one")
    heard = []
    taught(data, teacher, tmp_path / "two", heard, seed=1)
    assert looks(heard, teacher) == [["2", "19"]]
    heard = []
    moved = shutil.copytree(data, tmp_path / "moved")
    taught(moved, teacher, tmp_path / "three", heard)
    assert looks(heard, teacher) == []
    assert len(list(cache.iterdir())) == 1


@pytest.mark.slow
def test_a_training_that_was_stopped_ends_with_the_same_bits(data, teacher, tmp_path, no_page):
    changes = {**PLAIN, "augment.mixtoken": 1.0, "augment.cutmix": 1.0, "ema": 0.9, "save_seconds": 0}
    whole = taught(data, teacher, tmp_path / "whole", overrides=changes)
    part = tmp_path / "part"
    for steps in (1, 2):
        stopped = taught(data, teacher, part, overrides=changes, callbacks=Callbacks(should_stop=stop_after(steps)))
        assert not stopped.finished
    again = taught(data, teacher, part, overrides=changes)
    assert again.finished
    assert same(tensors(whole.run), tensors(again.run))
    patches = "patch_classifier/patch_classifier.safetensors"
    assert same(tensors(whole.run, patches), tensors(again.run, patches))


@pytest.mark.slow
def test_making_that_was_killed_goes_on_and_ends_with_the_same_bits(
    data, teacher, tmp_path, cache, no_page, monkeypatch
):
    monkeypatch.setattr("vitreous.training.teaching.teacher.inference_batch", lambda config: 4)
    monkeypatch.setattr("vitreous.evaluation.score_maps.FILE_SECONDS", 0.0)
    whole = taught(data, teacher, tmp_path / "whole")
    shutil.rmtree(cache)
    calls = []

    def dying(network, images):
        calls.append(len(images))
        if len(calls) == 4:
            raise RuntimeError("the power is gone")
        return region_logits(network, images)

    monkeypatch.setattr("vitreous.training.teaching.token_labels.region_logits", dying)
    with pytest.raises(RuntimeError):
        taught(data, teacher, tmp_path / "part")
    heard = []
    again = taught(data, teacher, tmp_path / "part", heard)
    assert looks(heard, teacher) == [["9", "12"]]
    assert calls == [4, 4, 4, 4, 4, 4, 1]
    assert same(tensors(whole.run), tensors(again.run))


def test_a_damaged_file_is_said_and_made_again(data, teacher, finished, tmp_path, cache, no_page):
    source = open_data(data).train
    label_tokens(open_teacher(teacher, source.classes), training(), source, 0, None, Callbacks())
    (path,) = cache.glob("*/*.npy")
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    heard = []
    again = taught(data, teacher, tmp_path / "again", heard)
    assert any(line.startswith(f"{path}: ") for line in heard)
    assert same(tensors(finished[0].run), tensors(again.run))


def test_going_on_without_the_teacher_is_possible_while_its_labels_are_kept(
    data, teacher, finished, tmp_path, cache, no_page
):
    place = shutil.copytree(teacher, tmp_path / "teacher")
    callbacks = Callbacks(should_stop=stop_after(2))
    assert not taught(data, place, tmp_path / "run", callbacks=callbacks).finished
    place.rename(tmp_path / "elsewhere")
    shutil.rmtree(cache)
    for exchange in (lambda: None, lambda: make_other(place)):
        exchange()
        with pytest.raises(UserError, match=rf"{place}: .*{tmp_path / 'run'}"):
            taught(data, place, tmp_path / "run")
    shutil.rmtree(place)
    (tmp_path / "elsewhere").rename(place)
    assert not taught(data, place, tmp_path / "run", callbacks=Callbacks(should_stop=stop_after(1))).finished
    shutil.rmtree(place)
    again = taught(data, place, tmp_path / "run")
    assert again.finished
    assert again.spent.flops == finished[0].spent.flops  # the teacher's are counted as if it were there
    with pytest.raises(UserError, match=f"token-labels='{place}'"):  # another request
        fit(data, model="N/4@16", epochs=3, workers=0, overrides=PLAIN, out=tmp_path / "run")


def make_other(place, classes=3, labels=COLOURS):
    model = ViT("N/4@16", depth=1, width=16, heads=2, mlp_width=16, classes=classes, seed=9)
    return save_bundle(place, model, PREPROCESS, labels)


@pytest.mark.slow
def test_images_that_cannot_be_read_have_no_labels_and_need_none(teacher, tmp_path, cache, no_page):
    """They are tried once: neither a training that goes on nor another seed asks the teacher about them again."""
    data = make_images(tmp_path / "data", count=40)
    place = shutil.copytree(teacher, tmp_path / "teacher")
    (data / "red/0.png").write_bytes(b"not an image")
    heard = []
    given = {"epochs": 1, "overrides": {**PLAIN, "split_seed": 0}}  # the same images are set aside with any seed
    result = taught(data, place, tmp_path / "one", heard, **given)
    assert result.finished
    assert any("red/0.png" in remark for remark in result.remarks)
    assert len(looks(heard, place)) == 1
    heard.clear()
    assert taught(data, place, tmp_path / "two", heard, seed=1, **given).finished
    stopped = taught(
        data, place, tmp_path / "three", callbacks=Callbacks(heard.append, should_stop=stop_after(2)), **given
    )
    assert not stopped.finished
    assert not taught(
        data, place, tmp_path / "three", callbacks=Callbacks(heard.append, should_stop=stop_after(1)), **given
    ).finished
    shutil.rmtree(place)
    again = taught(data, place, tmp_path / "three", heard, **given)
    assert again.finished
    assert same(tensors(again.run), tensors(result.run))
    assert looks(heard, place) == []


def test_nothing_but_images_that_cannot_be_read_is_left_to_look_at(data, teacher, tmp_path, cache):
    """Of copies and all: the Loader of such a source has no batch, and that is no mistake."""
    source = open_data(shutil.copytree(data, tmp_path / "data")).train
    made = label_tokens(open_teacher(teacher, source.classes), training(), source, 0, None, Callbacks())
    broken = [Path(source.name(index)) for index in (0, 9)]
    for path in broken:
        path.write_bytes(b"not an image")
    vanished = Path(source.name(4))
    vanished.unlink()
    heard = []
    for _ in range(2):
        labels = label_tokens(
            open_teacher(teacher, source.classes), training(), source, 0, None, Callbacks(heard.append)
        )
    assert looks(heard, teacher) == [["1", "21"]]
    kept = torch.tensor([1, 2, 20])
    assert labels.maps.read(kept).equal(made.maps.read(kept))


def test_a_policy_that_turns_images_gives_way_to_jitter():
    plain = replace(training(), objective=Supervised(0.1))
    for policy in ("trivial", "randaugment"):
        found = with_token_labels(replace(plain, augment=replace(plain.augment, policy=policy)))
        assert (found.augment.policy, found.augment.jitter) == ("none", 0.4)
        assert found.objective == TokenLabel(0.1)


# What is refused


def test_what_makes_no_sense_is_refused_and_leaves_nothing(data, teacher, tmp_path, subtests):
    without = make_other(tmp_path / "without", classes=0, labels=[])
    pink = make_other(tmp_path / "pink", labels=["blue", "green", "pink"])
    for named, given, more in (
        (str(without), without, {}),
        ("'red'", pink, {}),
        ("nowhere", tmp_path / "nowhere", {}),
        ("token_labels=''", "", {}),
        ("'bit'", teacher, {"model": "bit-r50x1", "overrides": {}}),
        ("distill and token_labels", teacher, {"distill": teacher}),
        ("objective.token_weight", None, {"overrides": {"objective.token_weight": 1.0}}),
    ):
        with subtests.test(named):
            with pytest.raises(UserError, match=named):
                taught(data, given, tmp_path / "run", **more)
            assert not (tmp_path / "run").exists()


def test_a_budget_that_is_too_short_for_the_teacher(data, teacher, tmp_path, monkeypatch):
    monkeypatch.setattr("vitreous.training.teaching.teacher.TIMING_SECONDS", 0.0)
    monkeypatch.setattr("vitreous.training.teaching.teacher.MAX_TEACHER_FRACTION", 1e-3)
    monkeypatch.setattr("vitreous.training.teaching.teacher.inference_batch", lambda config: 4)
    with fake_clock(reading_seconds=0.01), pytest.raises(UserError, match=f"budget 20s: .*{teacher}"):
        taught(data, teacher, tmp_path / "run", epochs=None, budget="20s")
