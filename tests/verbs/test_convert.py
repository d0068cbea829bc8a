"""Import and export as a person does them, and the real ViT-Ti/16 on real images."""

import json
import re

import numpy as np
import pytest
import torch

from support.colours import make_bundle, make_images
from support.published import google, numbers, random_images, timm_like
from vitreous import UserError, export_weights, fit, import_weights, load, predict, preset
from vitreous.cli import main
from vitreous.weights.bundle import load_bundle
from vitreous.weights.labels import read_labels
from vitreous.weights.source import open_weights


def run(capsys, *args):
    try:
        main([str(arg) for arg in args])
        status = 0
    except SystemExit as end:
        status = end.code or 0
    return status, *capsys.readouterr()


@pytest.fixture
def deit(tmp_path):
    torch.save({"model": timm_like(), "epoch": 3}, tmp_path / "deit.pth")
    return tmp_path / "deit.pth"


def test_import_says_what_it_found_and_what_it_took_for_granted(capsys, tmp_path, deit):
    (tmp_path / "names.txt").write_text("ant\nbee\ncat\ndog\nemu\n")
    status, out, err = run(capsys, "import", deit, tmp_path / "b", "--labels", tmp_path / "names.txt")
    assert status == 0
    recognised, ignored, assumed = err.splitlines()
    assert recognised.startswith(f"vitreous: {deit}: ")
    assert re.search(r"DeiT.*\b128\b.*\b2\b.*/8, 32, 5\b.*\b2 heads\b", recognised)
    assert "'model'" in ignored
    assert "epoch" in ignored
    assert "mean=0.485,0.456,0.406,std=0.229,0.224,0.225,crop=0.875" in assumed
    assert "ant, bee, cat, dog, emu" in out
    bundle = load_bundle(tmp_path / "b")
    assert bundle.labels == ("ant", "bee", "cat", "dog", "emu")
    assert bundle.info["family"] == "DeiT"
    card = (tmp_path / "b" / "README.md").read_text()
    assert "epoch" in card
    assert "`deit.pth`" in card
    images = torch.from_numpy(random_images())
    with torch.inference_mode():
        torch.testing.assert_close(bundle.model(images), open_weights(deit).model(images), atol=1e-6, rtol=1e-5)


def test_import_as_json_with_everything_changed(capsys, tmp_path, deit):
    args = ("--image-size", 64, "--patch", 16, "--channels", 1, "--classes", 3, "--preprocess", "crop=1", "--json")
    status, out, _ = run(capsys, "import", deit, tmp_path / "b", *args)
    assert status == 0
    said = json.loads(out)
    assert said["description"] == "ViT(128 wide, 2 deep)/16, 64, 1 channel, 3 classes"
    bundle = load_bundle(tmp_path / "b")
    assert (bundle.model.config.grid, bundle.model.config.channels, bundle.labels) == ((4, 4), 1, ("0", "1", "2"))
    assert said["parameters"] == sum(parameter.numel() for parameter in bundle.model.parameters())
    assert (bundle.preprocess.size, bundle.preprocess.crop, bundle.preprocess.channels) == ((64, 64), 1.0, 1)


def test_import_without_the_classifier(tmp_path, deit):
    made = import_weights(deit, tmp_path / "b", classes=0)
    assert made.labels == ()
    assert load_bundle(tmp_path / "b").model(torch.zeros(1, 3, 32, 32)).shape == (1, 128)
    with pytest.raises(UserError, match="b: "):
        load(tmp_path / "b").evaluate(make_images(tmp_path / "images"))


MISTAKES = {
    "labels of another number": (("--labels", "{names}"), r"names.txt: .*\b2\b.*\b5\b"),
    "a size that the patch does not divide": (("--image-size", "33"), r"\b33\b.*\b8\b"),
    "no size": (("--image-size", "0"), r"--image-size 0: .*\b1\b"),
    "no channels": (("--channels", "0"), r"--channels 0: .*\b1\b"),
    "preprocessing that is none": (("--preprocess", "colour=1"), "'colour' .*mean"),
}


def test_a_mistake_leaves_no_bundle(capsys, tmp_path, deit, subtests):
    (tmp_path / "names.txt").write_text("ant\nbee\n")
    for name, (args, says) in MISTAKES.items():
        with subtests.test(name):
            args = [arg.format(names=tmp_path / "names.txt") for arg in args]
            status, out, err = run(capsys, "import", deit, tmp_path / "b", *args)
            assert (status, out) == (2, "")
            assert re.search(says, err.splitlines()[-1])
            assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("to", ["huggingface", "timm", "google"])
def test_export_and_open_again(capsys, tmp_path, to):
    bundle = make_bundle(tmp_path / "b")
    out = tmp_path / ("out.npz" if to == "google" else "out")
    status, printed, err = run(capsys, "export", bundle, out, "--to", to)
    if status:
        pytest.fail(err)
    assert str(out) in printed
    before, after = load_bundle(bundle), open_weights(out, "mean=0.5,std=0.5")
    assert after.model.config.classes == before.model.config.classes
    state = after.model.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in before.model.state_dict().items())
    if to != "google":  # an .npz has no place for them
        assert after.labels == before.labels


def test_timms_folder_says_all_that_a_bundle_says(tmp_path):
    bundle = load_bundle(make_bundle(tmp_path / "b"))
    export_weights(bundle, tmp_path / "out", to="timm")
    found = open_weights(tmp_path / "out")
    assert (found.preprocess, found.labels, found.model.config) == (
        bundle.preprocess,
        bundle.labels,
        bundle.model.config,
    )
    assert len(found.notes) == 1, "nothing had to be assumed"
    assert "vitreous" not in json.loads((tmp_path / "out" / "config.json").read_text())


def test_an_unknown_format(tmp_path):
    with pytest.raises(UserError, match=r"to='tflite': .*google, huggingface, timm, openvino"):
        export_weights(make_bundle(tmp_path / "b"), tmp_path / "out", to="tflite")


VERBS = {
    "predict": "predict {model} {image}",
    "evaluate": "evaluate {model} {data}",
    "explain": "explain {model} {image} --out {out}",
    "walkthrough": "walkthrough {model} {image} --out {out}",
    "plot-weights": "plot-weights {model} --out {out}",
    "report": "report {model} --out {out}/page.html",
    "probe": "probe {model} {data}",
    "analyze": "analyze {model} --data {data} --out {out}",
    "import": "import {model} {out}",
    "export": "export {model} {out} --to huggingface",
}


@pytest.mark.slow
def test_every_verb_takes_a_source(capsys, tmp_path, monkeypatch, subtests):
    """A file of another project, of whose kind one is told on stderr."""
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    np.savez(tmp_path / "ViT.npz", **google(classes=3))
    data = make_images(tmp_path / "images", count=8)
    (tmp_path / "names.txt").write_text("\n".join(sorted(path.name for path in data.iterdir())))
    import_weights("ViT.npz", tmp_path / "named", labels=tmp_path / "names.txt")
    export_weights(tmp_path / "named", tmp_path / "theirs", to="timm")
    for name, words in VERBS.items():
        with subtests.test(name):
            model = "theirs" if name == "evaluate" else "ViT.npz"  # evaluate matches names, which an .npz does not have
            places = {"model": model, "data": data, "image": next(data.rglob("*.png")), "out": tmp_path / name}
            status, _, err = run(capsys, *(word.format(**places) for word in words.split()))
            assert status == 0, err
            assert re.search(r"ViT.*\b128\b.*\b2\b.*/8, 32, 3\b", err)


SOURCES = {
    "distilled": {"cls_positions": 2},
    "mean with its own norm": {},
    "backbone": {"classes": 0},
}


@pytest.mark.parametrize("name", SOURCES)
def test_fine_tuning_from_a_file_of_another_project(tmp_path, name):
    """The classifier, both of them where there are two, is replaced, for that is what fine-tuning is."""
    state = timm_like(**SOURCES[name])
    if name == "distilled":
        state |= {"dist_token": numbers(1, 1, 128), "head_dist.weight": numbers(5, 128), "head_dist.bias": numbers(5)}
    elif name == "mean with its own norm":
        state = {f"fc_{key}" if key.startswith("norm.") else key: value for key, value in state.items()}
    torch.save({"model": state}, tmp_path / "w.pth")
    images = make_images(tmp_path / "images")
    result = fit(images, weights=tmp_path / "w.pth", epochs=1, out=tmp_path / "run", workers=0)
    tuned = load_bundle(result.run)
    assert tuned.model.config.classes == len(tuned.labels) == 3
    assert tuned.model.config.distilled == (name == "distilled")
    assert evaluate_on(tuned, images) > 0.9
    for layer in tuned.model.classifiers():
        assert layer.weight.abs().sum() > 0
    assert tuned.preprocess.mean == (0.485, 0.456, 0.406)


def evaluate_on(bundle, images):
    return load(bundle.path).evaluate(images).result.top1


# ---- the real weights ------------------------------------------------------------------------------------------------

# Breeds of Oxford-IIIT Pets that are classes of ImageNet too.
BREEDS = {
    "Egyptian_Mau": "Egyptian_cat",
    "Persian": "Persian_cat",
    "Siamese": "Siamese_cat",
    "american_pit_bull_terrier": "American_Staffordshire_terrier",  # one class of ImageNet has both names
    "basset_hound": "basset",
    "beagle": "beagle",
    "boxer": "boxer",
    "chihuahua": "Chihuahua",
    "english_cocker_spaniel": "cocker_spaniel",
    "english_setter": "English_setter",
    "german_shorthaired": "German_short-haired_pointer",
    "great_pyrenees": "Great_Pyrenees",
    "japanese_chin": "Japanese_spaniel",
    "keeshond": "keeshond",
    "leonberger": "Leonberg",
    "miniature_pinscher": "miniature_pinscher",
    "newfoundland": "Newfoundland",
    "pomeranian": "Pomeranian",
    "pug": "pug",
    "saint_bernard": "Saint_Bernard",
    "samoyed": "Samoyed",
    "scottish_terrier": "Scotch_terrier",
    "staffordshire_bull_terrier": "Staffordshire_bullterrier",
    "wheaten_terrier": "soft-coated_wheaten_terrier",
    "yorkshire_terrier": "Yorkshire_terrier",
}


@pytest.mark.slow
def test_the_real_weights_know_the_pets(shared_data, tmp_path):
    """Imported with no option but the names, it tells breeds that it was trained on: at least 75 %; it is 79."""
    made = import_weights(
        shared_data / "vit_ti16_augreg_in21k_ft_in1k.safetensors",
        tmp_path / "ti16",
        labels=shared_data / "imagenet_classes.json",
    )
    assert re.search(r"timm ViT-Ti/16, 224, 1,000\b", made.notes[0])
    assert load_bundle(tmp_path / "ti16").model.config == preset("Ti/16")
    names = read_labels(shared_data / "imagenet_classes.json")
    folders = {path.name: path for path in (shared_data / "pets" / "test").iterdir()}
    assert set(BREEDS) <= set(folders)
    assert set(BREEDS.values()) <= set(names)
    asked = [(path, name) for breed, name in BREEDS.items() for path in sorted(folders[breed].iterdir())[:10]]
    found = predict(tmp_path / "ti16", [path for path, _ in asked], top_k=1)
    right = [name for one, (_, name) in zip(found, asked, strict=True) if one.label == name]
    assert len(right) / len(asked) >= 0.75, f"{len(right)} of {len(asked)}"
    assert right.count("Persian_cat") > 6


def test_a_bundle_keeps_how_many_tokens_are_merged(tmp_path):
    import_weights(make_bundle(tmp_path / "b"), tmp_path / "merging", merge=1)
    assert load_bundle(tmp_path / "merging").model.config.merge == 1
    with pytest.raises(UserError, match="merge=-1"):
        import_weights(tmp_path / "b", tmp_path / "out", merge=-1)
