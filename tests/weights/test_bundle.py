"""What a bundle promises: the same model again, or a clear refusal; never a lost or a half-written one."""

import json
import shutil

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from support.tiny_models import LABELS, VARIANTS, preprocess_for, random_images, random_model
from vitreous import UserError
from vitreous.storage.manifest import check_manifest, write_manifest
from vitreous.weights.bundle import load_bundle, save_bundle

FILES = ("README.md", "config.json", "manifest.json", "model.safetensors")


def save(path, model=None, labels=None, **more):
    model = model or random_model()
    labels = LABELS[: model.config.classes] if labels is None else labels
    return save_bundle(path, model, preprocess_for(model), labels, **more)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def seal(folder):
    """Make the manifest agree with files that a test has changed."""
    write_manifest(folder)


def test_a_model_comes_back_bit_for_bit(subtests, tmp_path):
    for name, changes in VARIANTS.items():
        with subtests.test(name):
            model = random_model(**changes)
            save(tmp_path / name, model, info={"epochs": 3, "history": [0.5, 0.25]})
            found = load_bundle(tmp_path / name)
            assert found.model.config == model.config
            assert found.preprocess == preprocess_for(model)
            assert found.labels == LABELS[: model.config.classes]
            assert found.info == {"epochs": 3, "history": [0.5, 0.25]}
            assert found.path == tmp_path / name
            state = found.model.state_dict()
            assert state.keys() == model.state_dict().keys()
            assert all(torch.equal(state[key], tensor) for key, tensor in model.state_dict().items())
            images = random_images(model)
            with torch.inference_mode():
                assert torch.equal(found.model(images), model(images))
            assert not found.model.training


def test_the_folder_holds_what_it_should(tmp_path):
    save(tmp_path / "b", card="# Mine\n")
    assert names(tmp_path) == ["b"]
    assert names(tmp_path / "b") == sorted(FILES)
    assert (tmp_path / "b" / "README.md").read_text() == "# Mine\n"
    with safe_open(tmp_path / "b" / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
    modes = {(tmp_path / "b" / name).stat().st_mode for name in FILES}
    assert len(modes) == 1, "all files can be read by the same people"


def test_without_a_card_there_is_a_plain_one(tmp_path):
    save(tmp_path / "b")
    assert "`ape`, `bee`, `cat`" in (tmp_path / "b" / "README.md").read_text(encoding="utf-8")


def test_a_loaded_model_can_be_trained(tmp_path):
    """That changes its memory, never the file it came from; and the memory is aligned, as products round by that."""
    save(tmp_path / "b")
    found = load_bundle(tmp_path / "b").model
    assert all(parameter.requires_grad for parameter in found.parameters())
    assert all(parameter.data_ptr() % 64 == 0 for parameter in found.parameters())
    with torch.no_grad():
        for parameter in found.parameters():
            parameter.add_(1.0)
    check_manifest(tmp_path / "b")


def test_half_precision_is_computed_in_float32(tmp_path):
    model = random_model().half()
    save(tmp_path / "b", model)
    found = load_bundle(tmp_path / "b").model
    assert {parameter.dtype for parameter in found.parameters()} == {torch.float32}
    assert torch.equal(found.head.weight, model.head.weight.float())


def test_a_run_folder_stands_for_its_bundle(tmp_path):
    save(tmp_path / "run" / "bundle")
    (tmp_path / "run" / "config.json").write_text("{}")
    assert load_bundle(tmp_path / "run").path == tmp_path / "run" / "bundle"


@pytest.mark.parametrize("name", FILES)
def test_damage_to_any_file_is_refused_by_name(tmp_path, name):
    file = save(tmp_path / "b") / name
    original = file.read_bytes()
    for where in (0.0, 0.3, 0.7, 1.0):
        content = bytearray(original)
        content[round(where * (len(content) - 1))] ^= 1
        file.write_bytes(content)
        said = "b/" if name == "manifest.json" else name  # a changed digest accuses the file it belongs to
        with pytest.raises(UserError, match=said):
            load_bundle(tmp_path / "b")
    file.write_bytes(original[:-1])
    with pytest.raises(UserError, match=name):
        load_bundle(tmp_path / "b")
    file.unlink()
    with pytest.raises(UserError, match=name):
        load_bundle(tmp_path / "b")


def test_what_is_not_a_bundle_is_refused(tmp_path):
    with pytest.raises(UserError, match="none: "):
        load_bundle(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty: "):
        load_bundle(tmp_path / "empty")
    (tmp_path / "file.txt").write_text("x")
    with pytest.raises(UserError, match=r"file\.txt: "):
        load_bundle(tmp_path / "file.txt")
    with pytest.raises(UserError, match=r"file\.txt"):
        load_bundle(tmp_path)


def test_labels_that_disagree_with_the_classifier_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"4 .* 5 "):
        save(tmp_path / "b", labels=LABELS[:4])
    assert not (tmp_path / "b").exists()
    edit(save(tmp_path / "b"), lambda section: section["labels"].pop())
    with pytest.raises(UserError, match=r"config.json: .*4 .* 5"):
        load_bundle(tmp_path / "b")


def edit(folder, change):
    """Change our section of config.json and the manifest with it."""
    config = json.loads((folder / "config.json").read_text())
    change(config["vitreous"])
    (folder / "config.json").write_text(json.dumps(config))
    seal(folder)


# What the sentence names, and the change that it refuses.
EDITS = {
    r"config\.json: .* 2, .* 1\b": lambda section: section.update(format=2),
    "'colour'": lambda section: section["model"].update(colour=1),
    "'preprocess'": lambda section: section.pop("preprocess"),
    "heads=3: .*width=16": lambda section: section["model"].update(heads=3),
    "'width'": lambda section: section["model"].pop("width"),
    "'vitreous'": lambda section: section.clear(),
    r"blocks.2.attn.proj.bias, .* 6 ": lambda section: section["model"].update(depth=3),
    r"blocks.1.attn.proj.bias, .* 6 ": lambda section: section["model"].update(depth=1),
    r"mlp.fc1.weight .*\(24, 16\).*\(32, 16\)": lambda section: section["model"].update(mlp_width=32),
    " 1 .* 3": lambda section: section["preprocess"].update(mean=[0.5], std=[0.5]),
}


def test_a_description_that_does_not_fit_is_refused(subtests, tmp_path):
    for number, (names, change) in enumerate(EDITS.items()):
        with subtests.test(names):
            folder = save(tmp_path / str(number))
            edit(folder, change)
            with pytest.raises(UserError, match=names):
                load_bundle(folder)


def test_weights_that_are_not_safetensors_are_refused(tmp_path):
    folder = save(tmp_path / "b")
    (folder / "model.safetensors").write_bytes(b"PK\x03\x04 a pickle, perhaps")
    seal(folder)
    with pytest.raises(UserError, match=r"model.safetensors: "):
        load_bundle(folder)


def test_the_safetensors_file_alone_is_what_torch_users_expect(tmp_path):
    model = random_model()
    folder = save(tmp_path / "b", model)
    assert load_file(folder / "model.safetensors").keys() == model.state_dict().keys()
    shutil.copy(folder / "model.safetensors", tmp_path / "copy.safetensors")
    save_file(load_file(tmp_path / "copy.safetensors"), tmp_path / "again.safetensors")
