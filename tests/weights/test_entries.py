"""Training files with several models, in the published layouts: which one is taken, and how to take another."""

import re

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from support.commands import check_refused, run_command
from support.numpy_vit import NumpyViT
from support.published import (
    SHAPE,
    K,
    deit_training,
    dino_training,
    dinov2,
    dinov2_training,
    random_images,
    timm_like,
)
from support.tiny_models import LABELS, preprocess_for, random_model
from vitreous import UserError, ViTConfig, import_weights, load
from vitreous.cli import main
from vitreous.weights.bundle import save_bundle
from vitreous.weights.source import open_weights

BACKBONE = {"teacher": timm_like(classes=0), "student": timm_like(classes=0)}
CLASSIFIER = {"model_ema": timm_like(), "model": timm_like()}
LATER = {"teacher": dinov2(), "student": dinov2()}

# A file's name: (what it holds, its models by entry with the best first, the configuration that they have)
FILES = {
    "dino": (dino_training(**BACKBONE), BACKBONE, ViTConfig(**SHAPE, classes=0)),
    "deit": (
        deit_training(CLASSIFIER["model"], CLASSIFIER["model_ema"]),
        CLASSIFIER,
        ViTConfig(**SHAPE, classes=K),
    ),
    "dinov2": (
        dinov2_training(**LATER),
        LATER,
        ViTConfig(**SHAPE, classes=0, layer_scale=1.0, position_scope="class"),
    ),
}


def saved(folder, name):
    path = folder / f"{name}.pth"
    torch.save(FILES[name][0], path)
    return path


def scores(model):
    with torch.inference_mode():
        return model(torch.from_numpy(random_images())).numpy()


@pytest.mark.parametrize("name", FILES)
def test_each_entry_can_be_taken(tmp_path, name):
    path, (_, models, config) = saved(tmp_path, name), FILES[name]
    best, other = models
    for entry, taken, left in ((None, best, other), (best, best, other), (other, other, best)):
        bundle = open_weights(path, entry=entry)
        expected = NumpyViT(config, models[taken])(random_images())
        np.testing.assert_allclose(scores(bundle.model), expected, atol=1e-5)
        assert re.search(rf"{taken!r} \(vitreous import --entry {left} .*\).* {left} \(", bundle.notes[1])


def test_teacher_and_student_in_a_safetensors_file(tmp_path):
    save_file(FILES["dinov2"][0]["model"], tmp_path / "m.safetensors")
    for entry, taken in ((None, "teacher"), ("student", "student")):
        found = open_weights(tmp_path / "m.safetensors", entry=entry).model
        assert torch.equal(found.norm.weight, LATER[taken]["norm.weight"])


def test_import_takes_an_entry_and_other_verbs_the_best(capsys, tmp_path):
    path = saved(tmp_path, "deit")
    main(["import", str(path), str(tmp_path / "b"), "--entry", "model"])
    printed = capsys.readouterr()
    assert "'model' (vitreous import --entry model_ema " in printed.err
    assert "'model'" in (tmp_path / "b" / "README.md").read_text()
    assert torch.equal(load(tmp_path / "b").vit.head.weight, CLASSIFIER["model"]["head.weight"])
    assert torch.equal(load(path).vit.head.weight, CLASSIFIER["model_ema"]["head.weight"])


MISTAKES = {
    "an entry that is not there": ("dino", "model_ema"),
    "an entry without a model": ("dino", "optimizer"),
    "an entry with tensors, but no model": ("dino", "dino_loss"),
    "an entry that is a number": ("dino", "epoch"),
    "an entry of a pair that is not there": ("dinov2", "model_ema"),
}


def test_an_entry_that_is_no_model(subtests, tmp_path):
    for name, (file, entry) in MISTAKES.items():
        with subtests.test(name):
            outcome = run_command("import", saved(tmp_path, file), tmp_path / "b", "--entry", entry)
            check_refused(outcome, f"{file}.pth: ", repr(entry), "teacher", "student")
            assert not (tmp_path / "b").exists()


def test_one_model_has_no_entries(tmp_path):
    torch.save(timm_like(), tmp_path / "bare.pth")
    save_file(timm_like(), tmp_path / "w.safetensors")
    model = random_model()
    save_bundle(tmp_path / "b", model, preprocess_for(model), LABELS)
    for source in ("bare.pth", "w.safetensors", "b"):
        with pytest.raises(UserError, match=f"{source}: .*entry="):
            import_weights(tmp_path / source, tmp_path / "out", entry="teacher")


def test_a_model_under_a_name_that_nobody_knows(tmp_path):
    states = {"encoder": timm_like(), "momentum": timm_like()}
    torch.save({**states, "epoch": 3}, tmp_path / "w.pth")
    with pytest.raises(UserError, match=r"w\.pth: .*encoder and momentum.*--entry encoder"):
        open_weights(tmp_path / "w.pth")
    found = open_weights(tmp_path / "w.pth", entry="momentum").model
    assert torch.equal(found.head.weight, states["momentum"]["head.weight"])
    torch.save({"encoder": states["encoder"], "epoch": 3}, tmp_path / "one.pth")
    alone = open_weights(tmp_path / "one.pth")
    assert torch.equal(alone.model.head.weight, states["encoder"]["head.weight"])
    assert re.search(r"'encoder'.* epoch", alone.notes[1])


def test_something_called_teacher_inside_a_model_is_not_taken_for_it(tmp_path):
    """Distillation may save its teacher within the model: then nobody knows which is meant."""
    state = timm_like()
    torch.save(state | {f"teacher.{name}": value for name, value in timm_like().items()}, tmp_path / "w.pth")
    with pytest.raises(UserError, match=r"teacher\..* 26 "):
        open_weights(tmp_path / "w.pth")


def test_a_student_without_its_teacher(tmp_path):
    file = dino_training(**BACKBONE)
    del file["teacher"]
    torch.save(file, tmp_path / "w.pth")
    found = open_weights(tmp_path / "w.pth")
    assert torch.equal(found.model.norm.weight, BACKBONE["student"]["norm.weight"])
    assert "'student'" in found.notes[1]
