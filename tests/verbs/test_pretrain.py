"""`pretrain` as a person uses it: tiny trainings without labels, every promise of the run folder."""

import json
import re
import shutil
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from support.fake_clock import fake_clock
from support.greys import stop_after
from support.tiny_pretraining import KEPT, LIVE, TINY, draw, last_checkpoint
from support.tiny_pretraining import quick_pretrain as quick
from vitreous import UserError, reconstruct
from vitreous.callbacks import Callbacks
from vitreous.data.decode import ImageError
from vitreous.data.opening import open_images
from vitreous.objectives.mae import load_autoencoder
from vitreous.training.folder import read_config
from vitreous.training.page import write_report, write_run_page
from vitreous.training.start import MIN_HELD_OUT, hold_out
from vitreous.verbs.fit import fit, pretrain
from vitreous.weights.bundle import load_bundle

pytestmark = pytest.mark.usefixtures("tiny")


@pytest.fixture(scope="module")
def flat(tmp_path_factory):
    """A folder of images without class folders."""
    root = tmp_path_factory.mktemp("flat")
    for i, pixels in enumerate(draw()[0]):
        Image.fromarray(pixels).save(root / f"{i}.png")
    return root


@pytest.fixture(scope="module")
def finished(packed, tmp_path_factory):
    """`finished(method)`: a training with its page that several tests look at, made when it is first asked for."""
    place = tmp_path_factory.mktemp("finished")

    @cache
    def train(method):
        said = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("vitreous.training.train.write_run_page", write_run_page)  # whoever asks first
            result = quick(packed, place / method, method, callbacks=Callbacks(message=said.append))
        return SimpleNamespace(run=place / method, result=result, said=said)

    return train


def tensors(run):
    return load_file(run / "bundle/model.safetensors")


@pytest.mark.parametrize("method", TINY)
def test_a_run_leaves_what_the_next_person_needs(finished, packed, method):
    run, result, said = vars(finished(method)).values()
    assert result.finished
    assert result.steps == 6
    assert 0 <= result.metrics["knn"] <= 1
    assert result.alarms == ()
    assert all(text in said[0] for text in (method, "40 train", "12 val"))
    files = {"config.json", "result.json", "metrics.jsonl", "checkpoints", "bundle", "report.html"}
    assert {path.name for path in run.iterdir()} == files | KEPT.get(method, set())
    bundle = load_bundle(run)
    assert bundle.model.config.classes == 0
    assert bundle.labels == ()
    assert bundle.info["training"]["objective"]["kind"] == method.removesuffix("v2")
    assert (run / "bundle/README.md").exists()
    page = (run / "report.html").read_text()
    assert page.count("<svg") >= 3
    assert "http" not in page.replace("http://www.w3.org", "")
    again, steps = [], []
    assert quick(packed, run, method, callbacks=Callbacks(message=again.append, step=steps.append)) == result
    assert steps == []
    assert str(run) in again[0]


@pytest.mark.parametrize("method", ["mae", "dino"])
def test_a_lost_report_is_written_again_as_it_was(finished, packed, tmp_path, method):
    run, result, _ = vars(finished(method)).values()
    page = (run / "report.html").read_text()
    (run / "report.html").unlink()
    said = []
    assert quick(packed, run, method, callbacks=Callbacks(message=said.append)) == result
    assert len(said) == 1
    assert "report.html" in said[0]
    assert (run / "report.html").read_text() == page
    assert write_report(run, out=tmp_path / "page.html").read_text() == page
    with pytest.raises(UserError, match=f"{run}: .*{packed}"):
        write_report(run, data=packed)


def test_the_page_of_dino_shows_what_each_head_attends_to(finished):
    """On images that were set aside: an image, and one map per head of the last layer."""
    run, _, _ = vars(finished("dino")).values()
    page = (run / "report.html").read_text()
    model = load_bundle(run).model.config
    heads = re.findall(r"<figcaption>layer (\d+), head (\d+)</figcaption>", page)
    assert {int(layer) for layer, _ in heads} == {model.depth - 1}
    images = page.count("<figcaption>image</figcaption>")
    assert 0 < images <= 4
    assert [int(head) for _, head in heads] == [*range(model.heads)] * images
    assert "<figcaption>image</figcaption>" not in (finished("mae").run / "report.html").read_text()


def test_without_its_images_a_report_is_written_without_them(flat, tmp_path):
    data = shutil.copytree(flat, tmp_path / "data")
    quick(data, tmp_path / "run")
    page = (tmp_path / "run/report.html").read_text()
    shutil.rmtree(data)
    assert page.count("data:image/png") > write_report(tmp_path / "run").read_text().count("data:image/png")


@pytest.mark.parametrize("method", TINY)
def test_interrupted_anywhere_it_ends_with_the_same_bits(finished, packed, tmp_path, no_page, method):
    """Stopped politely after two steps, then killed after the fourth; every step is saved."""
    whole, often = finished(method).run, {"save_seconds": "0"}
    part = quick(packed, tmp_path / "part", method, overrides=often, callbacks=Callbacks(should_stop=stop_after(2)))
    assert not part.finished

    def crash(event):
        if event.step == 5:
            raise RuntimeError("the power is gone")

    with pytest.raises(RuntimeError):
        quick(packed, tmp_path / "part", method, overrides=often, callbacks=Callbacks(step=crash))
    assert quick(packed, tmp_path / "part", method, overrides=often).finished
    assert (whole / "metrics.jsonl").read_text() == (tmp_path / "part/metrics.jsonl").read_text()
    last = last_checkpoint(whole)
    for file in (*last.glob("*.safetensors"), whole / "bundle/model.safetensors"):
        one, other = load_file(file), load_file(tmp_path / "part" / file.relative_to(whole))
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one), file


@pytest.mark.parametrize("method", TINY)
def test_labels_are_not_learned_from(finished, tmp_path, no_page, method):
    (images, _), (others, truth) = draw(), draw(12, seed=1)
    np.savez(tmp_path / "wrong.npz", x_train=images, y_train=np.arange(40) // 20, x_val=others, y_val=truth)
    quick(tmp_path / "wrong.npz", tmp_path / "other", method)
    one, other = tensors(finished(method).run), tensors(tmp_path / "other")
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_last_weights_are_kept_and_of_dino_the_teachers(finished):
    for method in ("mae", "dino", "masked-patch"):
        run = finished(method).run
        state, kept = load_file(last_checkpoint(run) / "module.safetensors"), tensors(run)
        assert all(torch.equal(kept[name], state["model." + name]) for name in kept), method
        if method == "dino":
            assert not torch.equal(kept["blocks.0.attn.qkv.weight"], state["student.blocks.0.attn.qkv.weight"])


def test_the_decoder_is_kept_and_rebuilds_what_it_did(finished):
    run = finished("mae").run
    objective = load_autoencoder(run / "decoder", load_bundle(run).model)
    state = load_file(last_checkpoint(run) / "module.safetensors")
    kept = {name: tensor for name, tensor in objective.state_dict().items() if name != "taken"}  # that counts steps
    assert all(torch.equal(tensor, state[name]) for name, tensor in kept.items())


def test_what_tells_colours_is_kept(finished):
    run = finished("masked-patch").run
    kept = load_file(run / "colours/colours.safetensors")
    state = load_file(last_checkpoint(run) / "module.safetensors")
    assert kept.keys() == {"mask_token", "pred.weight", "pred.bias"}
    assert all(torch.equal(tensor, state[f"colours.{name}"]) for name, tensor in kept.items())
    assert kept["pred.weight"].shape == (512, 16)
    described = json.loads((run / "colours/config.json").read_text())
    assert described["objective"] == {
        "kind": "masked-patch", "mask": 0.5, "by_mask_token": 0.8, "by_other_patch": 0.1, "bits": 3,
    }  # fmt: skip


def test_reconstructions_show_the_image_what_was_seen_and_the_rest(finished, tmp_path):
    run = finished("mae").run
    for i, pixels in enumerate(draw(2)[0]):
        Image.fromarray(pixels).save(tmp_path / f"{i}.png")
    (tmp_path / "broken.png").write_text("not an image")
    given = [tmp_path / "0.png", tmp_path / "broken.png", tmp_path / "1.png"]
    found = list(reconstruct(run, given, out=tmp_path / "out"))
    assert isinstance(found[1], ImageError)
    assert [one.file.name for one in found[::2]] == ["0-reconstructed.png", "1-reconstructed.png"]
    panels = found[0].image
    assert (np.asarray(Image.open(found[0].file)) == np.asarray(panels)).all()
    assert panels.size == (3 * (160 + 6) + 6, 160 + 18 + 2 * 6)
    pixels = np.asarray(panels)[24:184]
    whole, seen, rebuilt = (pixels[:, 6 + i * 166 :][:, :160][10::20, 10::20] for i in range(3))
    assert (whole == np.asarray(Image.open(tmp_path / "0.png"))).all()
    hidden = (seen == 128).all(axis=2)
    assert hidden.mean() == 0.75
    assert (seen[~hidden] == whole[~hidden]).all()
    assert (rebuilt[~hidden] == whole[~hidden]).all()
    again = next(reconstruct(run, tmp_path / "0.png", out=None))
    assert (again.path, again.file) == (tmp_path / "0.png", None)
    assert (np.asarray(again.image) == np.asarray(panels)).all()
    for method in ("dino", "masked-patch"):
        with pytest.raises(UserError, match=str(finished(method).run)):
            reconstruct(finished(method).run, tmp_path / "0.png")


def test_fine_tuning_takes_the_run(finished, packed, tmp_path, no_page):
    run = finished("mae").run
    result = fit(packed, weights=run, recipe="mae-finetune", epochs=1, out=tmp_path / "fit", workers=0)
    tuned, base = load_bundle(result.run).model, tensors(run)
    assert tuned.config.pool == "mean"
    assert tuned.config.drop_path > 0
    assert tuned.config.classes == 2
    assert (tuned.blocks[0].mlp.fc1.weight - base["blocks.0.mlp.fc1.weight"]).abs().max() < 0.1


@pytest.mark.parametrize("method", TINY)
def test_a_folder_without_class_folders_is_enough(flat, tmp_path, no_page, method):
    result = quick(flat, tmp_path / "run", method)
    assert result.finished
    assert result.images == 36
    assert result.metrics.keys() == {LIVE.get(method, "information")}
    assert np.isfinite(list(result.metrics.values())).all()


def test_test_images_are_not_trained_on(tmp_path, no_page):
    for part, count in (("train", 20), ("test", 12)):
        (tmp_path / "data" / part).mkdir(parents=True)
        for i, pixels in enumerate(draw(count)[0]):
            Image.fromarray(pixels).save(tmp_path / "data" / part / f"{i}.png")
    said = []
    result = quick(tmp_path / "data", tmp_path / "run", callbacks=Callbacks(message=said.append))
    assert result.images == 18
    assert any("20 train, 12 test" in text for text in said)
    for folder in (tmp_path / "data", tmp_path / "data/train"):  # neither has class folders
        with pytest.raises(UserError, match=str(folder)):
            fit(folder, epochs=1, out=tmp_path / "fit", workers=0)


def test_it_goes_on_with_the_same_data_only(tmp_path):
    images, labels = draw(40)
    data, run = tmp_path / "data.npz", tmp_path / "run"

    def begin(count, classes):
        np.savez(data, images=images[:count], labels=classes[:count])
        return quick(data, run, callbacks=Callbacks(should_stop=stop_after(1)))

    begin(40, labels)
    with pytest.raises(UserError, match=rf"{data}: .* 20 .* 40 .*{run}"):
        begin(20, labels)
    with pytest.raises(UserError, match=rf"{data}: .*{run}"):
        begin(40, labels + 1)
    assert not begin(40, labels).finished
    config = json.loads((run / "config.json").read_text())
    config["training"]["objective"]["sharpness"] = 1
    (run / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"config.json: .*'sharpness'"):
        begin(40, labels)


def test_a_class_of_one_image_does_not_matter(tmp_path, no_page):
    images, labels = draw(20)
    labels[0] = 2
    np.savez(tmp_path / "data.npz", images=images, labels=labels)
    assert quick(tmp_path / "data.npz", tmp_path / "run").finished


def test_images_set_aside_are_few_and_not_trained_on():
    data = open_images("builtin")
    parts = hold_out(data, seed=0)
    assert len(parts.splits["val"]) <= MIN_HELD_OUT + len(data.classes)
    names = [{part.name(i) for i in range(len(part))} for part in (parts.train, parts.splits["val"])]
    assert not names[0] & names[1]


def test_supervised_is_a_fit_with_labels(packed, tmp_path, no_page):
    result = pretrain(packed, method="supervised", model="P/4@8", epochs=1, out=tmp_path / "run", workers=0)
    assert result.method == "supervised"
    assert 0 <= result.metrics["accuracy"] <= 1
    assert load_bundle(result.run).labels == ("0", "1")


MISTAKES = {
    "method 'best': .*mae, dino, dinov2, masked-patch .*supervised": {"method": "best"},
    "budget and epochs": {"budget": "1m"},
    r"image_size=0: .*\b1\b": {"image_size": 0},
    r"objective\.maks: .*objective\.mask\b": {"overrides": {"objective.maks": "0.5"}},
    r"mask=2\b": {"overrides": {"objective.mask": "2"}},
    "lora": {"overrides": {"lora": "4"}},
    r"augment\.mixup": {"overrides": {"augment.mixup": "0.2"}},
}


def test_mistakes_are_refused(finished, packed, tmp_path, subtests):
    for named, more in MISTAKES.items():
        with subtests.test(named), pytest.raises(UserError, match=named):
            quick(packed, tmp_path / "run", **more)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=str(tmp_path / "empty")):
        quick(tmp_path / "empty", tmp_path / "run")
    with pytest.raises(UserError, match=f"{finished('mae').run}: .*method='mae'.*'dino'"):
        quick(packed, finished("mae").run, "dino")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=str(tmp_path / "file")):
        quick(packed, tmp_path / "file" / "run")


def test_single_fields_can_be_set(packed, tmp_path):
    changes = {"objective.mask": "0.5", "optimizer.learning_rate": "2e-3"}
    quick(packed, tmp_path / "run", overrides=changes, callbacks=Callbacks(should_stop=stop_after(1)))
    training = read_config(tmp_path / "run").training
    assert training.objective.mask == 0.5
    assert training.optimizer.learning_rate == 2e-3


def test_a_budget_becomes_a_number_of_steps(packed, tmp_path, no_page):
    with fake_clock(step_seconds=0.1) as clock:
        began = clock()
        result = pretrain(packed, method="dino", budget="8s", out=tmp_path / "run", workers=0)
        assert clock() - began < 8
    assert result.finished
    assert result.steps > 10
