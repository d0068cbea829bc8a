"""`pretrain` as a person uses it: tiny trainings without labels, every promise of the run folder."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from support.greys import stop_after
from support.tiny_pretraining import KEPT, LIVE, TINY, draw, last_checkpoint
from support.tiny_pretraining import quick_pretrain as quick
from vitreous import UserError
from vitreous.jobs.fit import fit
from vitreous.jobs.pretrain import pretrain
from vitreous.jobs.report import write_report
from vitreous.run.opening import open_pictures
from vitreous.run.request import Listeners
from vitreous.run.start import ASIDE, set_aside
from vitreous.weights.bundle import load_bundle

pytestmark = pytest.mark.usefixtures("tiny")


@pytest.fixture(scope="module")
def flat(tmp_path_factory):
    """A folder of pictures without class folders."""
    root = tmp_path_factory.mktemp("flat")
    for i, pixels in enumerate(draw()[0]):
        Image.fromarray(pixels).save(root / f"{i}.png")
    return root


def tensors(run):
    return load_file(run / "bundle/model.safetensors")


@pytest.mark.parametrize("method", TINY)
def test_a_run_leaves_what_the_next_person_needs(packed, tmp_path, method):
    run = tmp_path / "run"
    heard = []
    result = quick(packed, run, method, listeners=Listeners(say=heard.append))
    assert result.finished
    assert result.steps == 6
    assert 0 <= result.metrics["knn"] <= 1
    assert result.alarms == ()
    assert f"({method}, without labels): 40 train, 12 val pictures" in heard[0]
    files = {"config.json", "result.json", "metrics.jsonl", "checkpoints", "bundle", "report.html"}
    assert {path.name for path in run.iterdir()} == files | KEPT.get(method, set())
    bundle = load_bundle(run)
    assert bundle.model.config.classes == 0
    assert bundle.labels == ()
    assert bundle.info["training"]["objective"]["kind"] == method.removesuffix("v2")
    assert "without labels" in (run / "bundle/README.md").read_text()
    page = (run / "report.html").read_text()
    assert page.count("<svg") >= 3
    assert "Too few steps to tell whether features collapse" in page
    assert "http" not in page.replace("http://www.w3.org", "")
    again = []
    assert quick(packed, run, method, listeners=Listeners(say=again.append)) == result
    assert "finished" in again[0]


@pytest.mark.parametrize("method", ["mae", "dino"])
def test_a_lost_report_is_written_again_as_it_was(packed, tmp_path, method):
    run = tmp_path / "run"
    result = quick(packed, run, method)
    page = (run / "report.html").read_text()
    (run / "report.html").unlink()
    said = []
    assert quick(packed, run, method, listeners=Listeners(say=said.append)) == result
    assert said == [f"{run} is finished; only its report.html was missing, and is written again."]
    assert (run / "report.html").read_text() == page
    assert write_report(run, out=tmp_path / "page.html").read_text() == page
    with pytest.raises(UserError, match="without labels, so there is no classifier to measure; leave the data out"):
        write_report(run, data=packed)


def test_without_its_pictures_a_report_is_written_without_them(flat, tmp_path):
    data = shutil.copytree(flat, tmp_path / "data")
    quick(data, tmp_path / "run")
    assert "Reconstructions" in (tmp_path / "run/report.html").read_text()
    shutil.rmtree(data)
    assert "Reconstructions" not in write_report(tmp_path / "run").read_text()


@pytest.mark.parametrize("method", TINY)
def test_interrupted_anywhere_it_ends_with_the_same_bits(packed, tmp_path, method):
    """Stopped politely after two steps, then killed after the fourth; every step is saved."""
    often = {"save_seconds": "0"}
    quick(packed, tmp_path / "whole", method, changes=often)
    part = quick(packed, tmp_path / "part", method, changes=often, listeners=Listeners(stop=stop_after(2)))
    assert not part.finished

    def crash(event):
        if event.step == 5:
            raise RuntimeError("the power is gone")

    with pytest.raises(RuntimeError):
        quick(packed, tmp_path / "part", method, changes=often, listeners=Listeners(step=crash))
    assert quick(packed, tmp_path / "part", method, changes=often).finished
    assert (tmp_path / "whole/metrics.jsonl").read_text() == (tmp_path / "part/metrics.jsonl").read_text()
    last = last_checkpoint(tmp_path / "whole")
    for file in (*last.glob("*.safetensors"), tmp_path / "whole/bundle/model.safetensors"):
        one, other = load_file(file), load_file(tmp_path / "part" / file.relative_to(tmp_path / "whole"))
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one), file


@pytest.mark.parametrize("method", TINY)
def test_labels_are_not_learned_from(packed, tmp_path, method):
    (images, _), (others, truth) = draw(), draw(12, seed=1)
    np.savez(tmp_path / "wrong.npz", x_train=images, y_train=np.arange(40) // 20, x_val=others, y_val=truth)
    quick(packed, tmp_path / "one", method)
    quick(tmp_path / "wrong.npz", tmp_path / "other", method)
    one, other = tensors(tmp_path / "one"), tensors(tmp_path / "other")
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("method", ["mae", "dino", "masked-patch"])
def test_the_last_weights_are_kept_and_of_dino_the_teachers(packed, tmp_path, method):
    quick(packed, tmp_path, method)
    last = last_checkpoint(tmp_path)
    state = load_file(last / "module.safetensors")
    kept = tensors(tmp_path)
    assert all(torch.equal(kept[name], state["model." + name]) for name in kept)
    if method == "dino":
        assert not torch.equal(kept["blocks.0.attn.qkv.weight"], state["student.blocks.0.attn.qkv.weight"])


@pytest.mark.parametrize("method", TINY)
def test_a_folder_without_class_folders_is_enough(flat, tmp_path, method):
    result = quick(flat, tmp_path / "run", method)
    assert result.finished
    assert result.pictures == 36
    assert result.metrics.keys() == {LIVE.get(method, "information")}
    assert np.isfinite(list(result.metrics.values())).all()
    with pytest.raises(UserError, match="no class folders"):
        fit(flat, epochs=1, out=tmp_path / "fit", workers=0)


def test_test_pictures_are_not_trained_on(tmp_path):
    for part, count in (("train", 20), ("test", 12)):
        (tmp_path / "data" / part).mkdir(parents=True)
        for i, pixels in enumerate(draw(count)[0]):
            Image.fromarray(pixels).save(tmp_path / "data" / part / f"{i}.png")
    said = []
    result = quick(tmp_path / "data", tmp_path / "run", listeners=Listeners(say=said.append))
    assert result.pictures == 18
    assert any("no class folders): 20 train, 12 test pictures" in text for text in said)
    with pytest.raises(UserError, match="no class folders"):
        fit(tmp_path / "data", epochs=1, out=tmp_path / "fit", workers=0)


def test_it_goes_on_with_the_same_data_only(tmp_path):
    images, labels = draw(40)
    data, run = tmp_path / "data.npz", tmp_path / "run"

    def begin(count, classes):
        np.savez(data, images=images[:count], labels=classes[:count])
        return quick(data, run, listeners=Listeners(stop=stop_after(1)))

    begin(40, labels)
    with pytest.raises(UserError, match=r"has 20 train pictures, and had 40 when .*run began; bring them back"):
        begin(20, labels)
    with pytest.raises(UserError, match=r"its classes have changed since .*run began"):
        begin(40, labels + 1)
    assert not begin(40, labels).finished
    config = json.loads((run / "config.json").read_text())
    config["training"]["objective"]["sharpness"] = 1
    (run / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"config.json: objective: 'sharpness' is unknown to this vitreous"):
        begin(40, labels)


def test_a_class_of_one_picture_does_not_matter(tmp_path):
    images, labels = draw(20)
    labels[0] = 2
    np.savez(tmp_path / "data.npz", images=images, labels=labels)
    assert quick(tmp_path / "data.npz", tmp_path / "run").finished


def test_pictures_set_aside_are_few_and_not_trained_on(packed):
    data = open_pictures("builtin")
    parts = set_aside(data, seed=0)
    assert len(parts.splits["val"]) <= ASIDE + len(data.classes)
    names = [{part.name(i) for i in range(len(part))} for part in (parts.train, parts.splits["val"])]
    assert not names[0] & names[1]


def test_supervised_is_a_fit_with_labels(packed, tmp_path):
    result = pretrain(packed, method="supervised", model="P/4@8", epochs=1, out=tmp_path / "run", workers=0)
    assert result.method == "supervised"
    assert 0 <= result.metrics["accuracy"] <= 1
    assert load_bundle(result.run).labels == ("0", "1")


MISTAKES = {
    "method 'best': choose one of mae, dino, dinov2, masked-patch or supervised": {"method": "best"},
    "budget and epochs: give one": {"budget": "1m"},
    "image_size=0: give a whole number of at least 1": {"image_size": 0},
    "objective.maks: there is no such field; did you mean objective.mask": {"changes": {"objective.maks": "0.5"}},
    "mask=2.0: give the share": {"changes": {"objective.mask": "2"}},
    "lora: has no part in learning without labels": {"changes": {"lora": "4"}},
    "augment.mixup: has no part": {"changes": {"augment.mixup": "0.2"}},
}


@pytest.mark.parametrize(("says", "more"), MISTAKES.items())
def test_mistakes_are_answered(packed, tmp_path, says, more):
    with pytest.raises(UserError) as error:
        quick(packed, tmp_path / "run", **more)
    assert says in str(error.value)


def test_other_mistakes(packed, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="there are no pictures here"):
        quick(tmp_path / "empty", tmp_path / "run")
    quick(packed, tmp_path / "done")
    with pytest.raises(UserError, match="holds a training with method='mae', not 'dino'"):
        quick(packed, tmp_path / "done", "dino")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        quick(packed, tmp_path / "file" / "run")


def test_single_fields_can_be_set(packed, tmp_path):
    quick(packed, tmp_path / "run", changes={"objective.mask": "0.5", "optimizer.learning_rate": "2e-3"})
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert config["training"]["objective"]["mask"] == 0.5
    assert config["training"]["optimizer"]["learning_rate"] == 2e-3


@pytest.mark.clock
def test_a_budget_becomes_a_number_of_steps(packed, tmp_path):
    for budget in ("6s", "30s", "90s"):  # the longer ones for slow machines
        result = pretrain(packed, method="dino", budget=budget, out=tmp_path / budget, workers=0)
        assert result.finished
        if result.steps > 1:
            break
    assert result.steps > 1
