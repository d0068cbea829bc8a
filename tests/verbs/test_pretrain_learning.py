"""What `pretrain` learns and keeps: a whitened start, averages, and alarms."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from support.greys import stop_after
from support.tiny_pretraining import DINO, TINY, TRAINING, draw, last_checkpoint
from support.tiny_pretraining import quick_pretrain as quick
from vitreous.callbacks import Callbacks
from vitreous.config.data import Augment
from vitreous.config.train import Optimizer
from vitreous.training.recipes.pretrain import PRETRAINING
from vitreous.verbs.fit import pretrain

pytestmark = pytest.mark.usefixtures("tiny")


NOTHING = Optimizer(learning_rate=1e-12, muon_learning_rate=1e-12)
STILL = {"optimizer.learning_rate": "1e-12", "optimizer.muon_learning_rate": "1e-12", "whiten": "true"}
"""Whitened, and then hardly trained."""


@pytest.mark.parametrize(("method", "networks"), [("mae", ["model."]), ("dino", ["model.", "student."])])
def test_a_whitened_start_reaches_student_and_teacher(packed, tmp_path, no_page, method, networks):
    """Patches of the training images become uncorrelated and equally strong."""
    quick(packed, tmp_path, method, overrides=STILL)
    pixels = (torch.from_numpy(draw()[0]).permute(0, 3, 1, 2) / 255 - 0.5) / 0.5
    state = load_file(last_checkpoint(tmp_path) / "module.safetensors")
    for network in networks:
        weight, bias = (state[f"{network}patch_embed.proj.{name}"] for name in ("weight", "bias"))
        found = torch.nn.functional.conv2d(pixels, weight, bias, stride=2).transpose(0, 1).flatten(1)  # (16, n)
        assert found.mean(1).abs().max() < 1e-3
        strengths = torch.linalg.eigvalsh(torch.cov(found))[-12:]  # a patch has 12 numbers, the model 16
        assert strengths.min() > 0.9 * 16 / 12
        assert strengths.max() < 1.01 * 16 / 12


def test_what_goes_on_is_not_whitened_again(packed, tmp_path, monkeypatch, no_page):
    started = []
    monkeypatch.setattr("vitreous.training.unlabelled.whiten", lambda *args: started.append(args))
    for steps in (2, 9):
        quick(packed, tmp_path, overrides={"whiten": "true"}, callbacks=Callbacks(should_stop=stop_after(steps)))
        assert len(started) == 1


def test_an_average_of_encoder_and_decoder_is_kept_together(packed, tmp_path, monkeypatch, no_page):
    """Against the average of every step's weights, taken by hand from the checkpoints."""
    steps = []

    def look(event):
        if event.step > 1:  # the checkpoint of the step before
            steps.append(load_file(last_checkpoint(tmp_path) / "module.safetensors"))

    quick(packed, tmp_path, overrides={"ema": "0.8", "save_seconds": "0"}, callbacks=Callbacks(step=look))
    steps.append(load_file(last_checkpoint(tmp_path) / "module.safetensors"))
    assert len(steps) == 6
    kept = {f"model.{name}": t for name, t in load_file(tmp_path / "bundle/model.safetensors").items()}
    kept |= {f"decoder.{name}": t for name, t in load_file(tmp_path / "decoder/decoder.safetensors").items()}
    assert {name for name in kept if name.startswith("decoder.")}
    # Training began with weights that no checkpoint holds: they follow from the seed, as at a learning rate of nothing.
    monkeypatch.setitem(PRETRAINING, "mae", lambda s: replace(TINY["mae"], optimizer=NOTHING))
    quick(packed, tmp_path / "start")
    average = load_file(last_checkpoint(tmp_path / "start") / "module.safetensors")
    for number, state in enumerate(steps, start=1):
        rate = max(1 - 0.8, 9 / (10 + number))
        average = {name: average[name] + rate * (state[name].float() - average[name]) for name in kept}
    for name, tensor in kept.items():
        torch.testing.assert_close(tensor, average[name], rtol=0, atol=1e-5, msg=name)
    raw = steps[-1]
    assert all((kept[name] - raw[name]).abs().max() > 1e-4 for name in kept if name.endswith("mlp.fc1.weight"))


COLLAPSING = replace(DINO, centre_momentum=1.0, teacher_temperature=(0.002, 0.002), momentum=0.5, freeze_last_layer=0.0)


@pytest.fixture(scope="module")
def coloured(tmp_path_factory):
    """Images that any crop tells apart: each has a colour of its own."""
    chance = np.random.default_rng(0)
    images = chance.integers(0, 200, (60, 1, 1, 3)) + chance.integers(0, 50, (60, 8, 8, 3))
    path = tmp_path_factory.mktemp("coloured") / "images.npz"
    np.savez(path, images=images.astype(np.uint8), labels=(images.mean((1, 2)).argmax(1) == 0).astype(int))
    return path


def watch(monkeypatch, packed, run, objective, steps=140):
    optimizer = Optimizer(learning_rate=2e-3, warmup=0.05)
    training = replace(TRAINING, objective=objective, augment=Augment(), optimizer=optimizer, evaluations=1)
    monkeypatch.setitem(PRETRAINING, "dino", lambda s: training)
    said, shown = [], []
    callbacks = Callbacks(message=said.append, step=lambda event: shown.append("collapsed" in event.record))
    result = pretrain(packed, method="dino", epochs=steps / 4, out=run, workers=0, callbacks=callbacks)
    return result, said, shown


@pytest.mark.slow
def test_a_collapse_is_said_within_two_hundred_steps(packed, tmp_path, monkeypatch):
    result, said, shown = watch(monkeypatch, packed, tmp_path / "run", COLLAPSING, steps=200)
    assert result.alarms
    assert "objective.centre_momentum" in result.alarms[0]
    assert result.alarms[0] in said
    records = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    begins = next(r["step"] for r in records if r.get("information", 1) < 0.02)
    assert shown.index(True) + 1 <= begins + 200
    assert result.alarms[0].replace("'", "&#39;") in (tmp_path / "run/report.html").read_text()
    assert result.alarms[0] in (tmp_path / "run/bundle/README.md").read_text()


@pytest.mark.slow
def test_a_healthy_run_rings_no_alarm(coloured, tmp_path, monkeypatch, no_page):
    healthy = replace(COLLAPSING, centre_momentum=0.9, teacher_temperature=(0.04, 0.04), momentum=0.95)
    result, said, shown = watch(monkeypatch, coloured, tmp_path / "run", healthy)
    assert result.alarms == ()
    assert not any(shown)
    assert not any("objective.centre_momentum" in text for text in said)
