"""`pretrain` as a person uses it: tiny trainings without labels, every promise of the run folder."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from vitreous.config.pretrain import Dino, Mae
from vitreous.jobs.opening import open_pictures
from vitreous.jobs.run import Listeners
from vitreous.jobs.start import ASIDE, set_aside

import vitreous.jobs.pretrain as job
from vitreous import UserError, ViTConfig
from vitreous.config.data import Augment, MultiCrop, Preprocess
from vitreous.config.train import Optimizer, Training
from vitreous.data.decode import PictureError
from vitreous.jobs.fit import fit
from vitreous.jobs.pretrain import pretrain
from vitreous.jobs.reconstruct import reconstruct
from vitreous.jobs.report import write_report
from vitreous.objectives.mae import load_autoencoder
from vitreous.recipes.pretrain import PRETRAINING
from vitreous.weights.bundle import load_bundle

SIZE = Preprocess(size=(8, 8))
TRAINING = Training(
    model=ViTConfig(width=16, depth=2, heads=2, mlp_width=32, patch=2, image_size=(8, 8), classes=0, drop_path=0.1),
    preprocess=SIZE,
    augment=Augment(jitter=0.2, grey=0.2),
    optimizer=Optimizer(name="muon", rate=1e-3, weight_decay=0.04, weight_decay_end=0.2),
    batch_size=12,
    evaluations=3,
)
CROPS = MultiCrop(local_views=2, local_size=(4, 4))
TINY = {
    "mae": (TRAINING, Mae(decoder_width=16, decoder_depth=1, decoder_heads=2)),
    "dino": (TRAINING, Dino(crops=CROPS, hidden=16, bottleneck=8, prototypes=16, momentum=0.9, keep=0.5, frozen=0.2)),
    "dinov2": (
        replace(TRAINING, model=replace(TRAINING.model, registers=2)),
        Dino(crops=CROPS, hidden=16, bottleneck=8, prototypes=16, momentum=0.9, koleo=0.1, masked=1.0),
    ),
}


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    """Recipes of the same kinds that take no time."""
    for name, (training, method) in TINY.items():
        monkeypatch.setitem(PRETRAINING, name, lambda s, made=(training, method): made)


def draw(count=40, seed=0):
    """(n, 8, 8, 3) uint8: noise, bright at the left or at the right, and which."""
    chance = np.random.default_rng(seed)
    labels = np.arange(count) % 2
    images = chance.integers(0, 100, (count, 8, 8, 3))
    for image, label in zip(images, labels, strict=True):
        image[:, 4 * label : 4 * label + 4] += 120
    return images.astype(np.uint8), labels


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    (images, labels), (others, truth) = draw(), draw(12, seed=1)
    path = tmp_path_factory.mktemp("data") / "pictures.npz"
    np.savez(path, x_train=images, y_train=labels, x_val=others, y_val=truth)
    return path


@pytest.fixture(scope="module")
def flat(tmp_path_factory):
    """A folder of pictures without class folders."""
    root = tmp_path_factory.mktemp("flat")
    for i, pixels in enumerate(draw()[0]):
        Image.fromarray(pixels).save(root / f"{i}.png")
    return root


def quick(data, out, method="mae", **more):
    return pretrain(data, method=method, epochs=2, out=out, workers=0, **more)


def tensors(run):
    return load_file(run / "bundle/model.safetensors")


@pytest.mark.parametrize("method", TINY)
def test_a_run_leaves_what_the_next_person_needs(packed, tmp_path, method):
    run = tmp_path / "run"
    heard = []
    result = quick(packed, run, method, listeners=Listeners(say=heard.append))
    assert result.finished
    assert result.steps == 6
    assert 0 <= result.figures["knn"] <= 1
    assert result.alarms == ()
    assert "without labels" in heard[0]
    bundle = load_bundle(run)
    assert bundle.model.config.classes == 0
    assert bundle.labels == ()
    assert bundle.info["method"]["kind"] == method.removesuffix("v2")
    assert "without labels" in (run / "bundle/README.md").read_text()
    page = (run / "report.html").read_text()
    assert page.count("<svg") >= 3
    assert "No sign of a collapse" in page
    assert "http" not in page.replace("http://www.w3.org", "")
    assert (run / "decoder").exists() == (method == "mae")
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
    with pytest.raises(UserError, match="without labels, so there is no classifier to measure; leave --data away"):
        write_report(run, data=packed)


def test_without_its_pictures_a_report_is_written_without_them(flat, tmp_path):
    data = shutil.copytree(flat, tmp_path / "data")
    quick(data, tmp_path / "run")
    assert "What it imagines" in (tmp_path / "run/report.html").read_text()
    shutil.rmtree(data)
    assert "What it imagines" not in write_report(tmp_path / "run").read_text()


@pytest.mark.parametrize("method", TINY)
def test_interrupted_anywhere_it_ends_with_the_same_bits(packed, tmp_path, method, monkeypatch):
    """Stopped politely after two steps, then killed after the fourth; every step is saved."""
    monkeypatch.setitem(job.Loop.__init__.__kwdefaults__, "save_seconds", 0.0)
    quick(packed, tmp_path / "whole", method)
    stop = iter([False, False, True])
    part = quick(packed, tmp_path / "part", method, listeners=Listeners(stop=lambda: next(stop)))
    assert not part.finished

    def crash(event):
        if event.step == 5:
            raise RuntimeError("the power is gone")

    with pytest.raises(RuntimeError):
        quick(packed, tmp_path / "part", method, listeners=Listeners(step=crash))
    assert quick(packed, tmp_path / "part", method).finished
    assert (tmp_path / "whole/metrics.jsonl").read_text() == (tmp_path / "part/metrics.jsonl").read_text()
    last = sorted((tmp_path / "whole/checkpoints").iterdir())[-1]
    for file in (*last.glob("*.safetensors"), tmp_path / "whole/bundle/model.safetensors"):
        one, other = load_file(file), load_file(tmp_path / "part" / file.relative_to(tmp_path / "whole"))
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one), file


STILL = {"optimizer.rate": "1e-12", "optimizer.muon_rate": "1e-12", "whiten": "true"}
"""Whitened, and then hardly trained."""


@pytest.mark.parametrize(("method", "networks"), [("mae", ["model."]), ("dino", ["model.", "student."])])
def test_a_whitened_start_reaches_student_and_teacher(packed, tmp_path, method, networks):
    """Patches of the training pictures become uncorrelated and equally strong."""
    quick(packed, tmp_path, method, changes=STILL)
    pixels = (torch.from_numpy(draw()[0]).permute(0, 3, 1, 2) / 255 - 0.5) / 0.5
    state = load_file(sorted((tmp_path / "checkpoints").iterdir())[-1] / "module.safetensors")
    for network in networks:
        weight, bias = (state[f"{network}patch_embed.proj.{name}"] for name in ("weight", "bias"))
        found = torch.nn.functional.conv2d(pixels, weight, bias, stride=2).transpose(0, 1).flatten(1)  # (16, n)
        assert found.mean(1).abs().max() < 1e-3
        strengths = torch.linalg.eigvalsh(torch.cov(found))[-12:]  # a patch has 12 numbers, the model 16
        assert strengths.min() > 0.9 * 16 / 12
        assert strengths.max() < 1.01 * 16 / 12


def test_what_goes_on_is_not_whitened_again(packed, tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(job, "whiten", lambda *args: started.append(args))
    for steps in (2, 9):
        stop = iter([False] * steps + [True] * 9)
        quick(packed, tmp_path, changes={"whiten": "true"}, listeners=Listeners(stop=lambda s=stop: next(s)))
        assert len(started) == 1


@pytest.mark.parametrize("method", TINY)
def test_labels_are_not_learned_from(packed, tmp_path, method):
    (images, _), (others, truth) = draw(), draw(12, seed=1)
    np.savez(tmp_path / "wrong.npz", x_train=images, y_train=np.arange(40) // 20, x_val=others, y_val=truth)
    quick(packed, tmp_path / "one", method)
    quick(tmp_path / "wrong.npz", tmp_path / "other", method)
    one, other = tensors(tmp_path / "one"), tensors(tmp_path / "other")
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("method", ["mae", "dino"])
def test_the_last_weights_are_kept_and_of_dino_the_teachers(packed, tmp_path, method):
    quick(packed, tmp_path, method)
    last = sorted((tmp_path / "checkpoints").iterdir())[-1]
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
    assert result.figures.keys() == {"loss" if method == "mae" else "information"}
    assert np.isfinite(list(result.figures.values())).all()
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
        stop = iter([False, True])
        return quick(data, run, listeners=Listeners(stop=lambda: next(stop)))

    begin(40, labels)
    with pytest.raises(UserError, match=r"has 20 train pictures, and had 40 when .*run began; bring them back"):
        begin(20, labels)
    with pytest.raises(UserError, match=r"its classes have changed since .*run began"):
        begin(40, labels + 1)
    assert not begin(40, labels).finished
    config = json.loads((run / "config.json").read_text())
    config["method"]["sharpness"] = 1
    (run / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"config.json: its method of pre-training has other fields than this version"):
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


def test_fine_tuning_takes_the_run(packed, tmp_path):
    quick(packed, tmp_path / "mae")
    result = fit(packed, weights=tmp_path / "mae", recipe="mae-finetune", epochs=1, out=tmp_path / "fit", workers=0)
    tuned, base = load_bundle(result.run).model, tensors(tmp_path / "mae")
    assert tuned.config.pool == "mean"
    assert tuned.config.drop_path > 0
    assert tuned.config.classes == 2
    assert (tuned.blocks[0].mlp.fc1.weight - base["blocks.0.mlp.fc1.weight"]).abs().max() < 0.1


def test_the_decoder_is_kept_and_rebuilds_what_it_did(packed, tmp_path):
    run = tmp_path / "run"
    quick(packed, run)
    objective = load_autoencoder(run / "decoder", load_bundle(run).model)
    last = sorted((run / "checkpoints").iterdir())[-1]
    state = load_file(last / "module.safetensors")
    kept = {
        name: tensor for name, tensor in objective.state_dict().items() if name != "taken"
    }  # steps, not the decoder
    assert all(torch.equal(tensor, state[name]) for name, tensor in kept.items())


def test_supervised_is_a_fit_with_labels(packed, tmp_path):
    result = pretrain(packed, method="supervised", model="P/4@8", epochs=1, out=tmp_path / "run", workers=0)
    assert result.method == "supervised"
    assert 0 <= result.figures["accuracy"] <= 1
    assert load_bundle(result.run).labels == ("0", "1")


COLLAPSING = replace(
    TINY["dino"][1], centre_momentum=1.0, teacher_temperature=(0.002, 0.002), momentum=0.5, frozen=0.0, keep=1.0
)


@pytest.fixture(scope="module")
def coloured(tmp_path_factory):
    """Pictures that any crop tells apart: each has a colour of its own."""
    chance = np.random.default_rng(0)
    images = chance.integers(0, 200, (60, 1, 1, 3)) + chance.integers(0, 50, (60, 8, 8, 3))
    path = tmp_path_factory.mktemp("coloured") / "pictures.npz"
    np.savez(path, images=images.astype(np.uint8), labels=(images.mean((1, 2)).argmax(1) == 0).astype(int))
    return path


def watch(monkeypatch, packed, run, method, steps=140):
    training = replace(TRAINING, augment=Augment(), optimizer=Optimizer(rate=2e-3, warmup=0.05), evaluations=1)
    monkeypatch.setitem(PRETRAINING, "dino", lambda s: (training, method))
    said, shown = [], []
    listeners = Listeners(say=said.append, step=lambda event: shown.append("collapsed" in event.record))
    result = pretrain(packed, method="dino", epochs=steps / 4, out=run, workers=0, listeners=listeners)
    return result, said, shown


def test_a_collapse_is_said_in_words_within_two_hundred_steps(packed, tmp_path, monkeypatch):
    result, said, shown = watch(monkeypatch, packed, tmp_path / "run", COLLAPSING, steps=200)
    assert result.alarms
    assert "the teacher says the same of every picture" in result.alarms[0]
    assert "lower method.centre_momentum" in result.alarms[0]
    assert result.alarms[0] in said
    records = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    begins = next(r["step"] for r in records if r.get("information", 1) < 0.02)
    assert shown.index(True) + 1 <= begins + 200
    assert result.alarms[0].replace("'", "&#x27;") in (tmp_path / "run/report.html").read_text()
    assert "Collapse" in (tmp_path / "run/bundle/README.md").read_text()


def test_a_healthy_run_rings_no_alarm(coloured, tmp_path, monkeypatch):
    healthy = replace(COLLAPSING, centre_momentum=0.9, teacher_temperature=(0.04, 0.04), momentum=0.95)
    result, said, shown = watch(monkeypatch, coloured, tmp_path / "run", healthy)
    assert result.alarms == ()
    assert not any(shown)
    assert not any("Collapse" in text for text in said)


MISTAKES = {
    "--method 'best': choose one of mae, dino, dinov2 or supervised": {"method": "best"},
    "--budget and --epochs": {"budget": "1m"},
    "--image-size 0: give the side": {"image_size": 0},
    "--set method.maks: there is no such field; did you mean mask?": {"changes": {"method.maks": "0.5"}},
    "mask=2.0: give the share": {"changes": {"method.mask": "2"}},
    "--set lora: has no part in learning without labels": {"changes": {"lora": "4"}},
    "--set augment.mixup: has no part": {"changes": {"augment.mixup": "0.2"}},
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
    quick(packed, tmp_path / "run", changes={"method.mask": "0.5", "optimizer.rate": "2e-3"})
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert config["method"]["mask"] == 0.5
    assert config["training"]["optimizer"]["rate"] == 2e-3


@pytest.mark.clock
def test_a_budget_becomes_a_number_of_steps(packed, tmp_path):
    result = pretrain(packed, method="dino", budget="6s", out=tmp_path / "run", workers=0)
    assert result.finished
    assert result.steps > 1


def test_reconstructions_show_the_picture_what_was_seen_and_the_rest(packed, flat, tmp_path):
    quick(packed, tmp_path / "mae")
    (tmp_path / "broken.png").write_text("not a picture")
    found = list(reconstruct(tmp_path / "mae", [flat / "0.png", tmp_path / "broken.png", flat / "1.png"]))
    assert isinstance(found[1][1], PictureError)
    panels = found[0][1]
    assert panels.size == (3 * (160 + 6) + 6, 160 + 18 + 2 * 6)
    pixels = np.asarray(panels)[24:184]
    whole, seen, rebuilt = (pixels[:, 6 + i * 166 :][:, :160][10::20, 10::20] for i in range(3))
    assert (whole == np.asarray(Image.open(flat / "0.png"))).all()
    hidden = (seen == 128).all(axis=2)
    assert hidden.mean() == 0.75
    assert (seen[~hidden] == whole[~hidden]).all()
    assert (rebuilt[~hidden] == whole[~hidden]).all()
    again = dict(reconstruct(tmp_path / "mae", [flat / "0.png"]))
    assert (np.asarray(again[flat / "0.png"]) == np.asarray(panels)).all()
    quick(packed, tmp_path / "dino", "dino")
    with pytest.raises(UserError, match="has no decoder"):
        reconstruct(tmp_path / "dino", flat)
