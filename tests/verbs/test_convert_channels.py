"""Models of images with other than 1 or 3 channels, as satellites take them: import, export, and refused files."""

import re

import numpy as np
import pytest
import torch
import transformers as hf
from safetensors.torch import save_file

from support.colours import make_images
from support.commands import run_command
from support.numpy_vit import NumpyViT
from support.tiny_models import random_images, random_model
from vitreous import export_weights, import_weights, load
from vitreous.cli import main
from vitreous.weights.source import open_weights

HEADS = {"width": 128, "heads": 2, "image_size": (16, 16)}


def write(path, count, **changes):
    """A file with timm's names of a model with `count` channels, and the model."""
    model = random_model(**HEADS, channels=count, **changes)
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, path)
    return model


@pytest.mark.parametrize("to", ["huggingface", "timm", "google"])
def test_in_and_out_without_loss(tmp_path, to, subtests):
    for count in (4, 12):
        with subtests.test(channels=count):
            place = tmp_path / str(count)
            place.mkdir()
            model = write(place / "w.safetensors", count)
            made = import_weights(place / "w.safetensors", place / "b", preprocess="mean=0.2,std=0.1")
            assert re.search(rf"/4, 16, {count}\b.*\b5\b", made.description)
            out = export_weights(place / "b", place / ("m.npz" if to == "google" else "out"), to=to)
            images = random_images(model)
            expected = NumpyViT(model.config, model.state_dict())(images.numpy())
            for path in (place / "b", out):
                found = load(path).vit
                assert all(torch.equal(found.state_dict()[name], tensor) for name, tensor in model.state_dict().items())
                with torch.inference_mode():
                    np.testing.assert_allclose(found(images).numpy(), expected, atol=1e-4)
            if to == "google":
                with np.load(out) as arrays:
                    assert arrays["embedding/kernel"].shape == (4, 4, count, 128)
            else:
                preprocess = open_weights(out).preprocess
                assert (preprocess.mean, preprocess.std) == ((0.2,) * count, (0.1,) * count)
            if to == "huggingface":
                peer = hf.AutoModelForImageClassification.from_pretrained(out).eval()
                with torch.inference_mode():
                    np.testing.assert_allclose(peer(images).logits.numpy(), expected, atol=1e-4)


def test_a_colour_model_for_four_channels(capsys, tmp_path):
    model = write(tmp_path / "w.safetensors", 3)
    main(["import", str(tmp_path / "w.safetensors"), str(tmp_path / "b"), "--channels", "4"])
    out = capsys.readouterr().out
    assert re.search(r"/4, 16, 4\b.*\b5\b", out)
    for said in (out, (tmp_path / "b" / "README.md").read_text()):
        assert ").network(images)" in said
        assert "vitreous predict" not in said, "which would refuse it"
    changed = load(tmp_path / "b").vit
    kernels = model.patch_embed.proj.weight.detach().numpy()
    expected = np.stack([kernels[:, c] * 0.75 for c in (0, 1, 2, 0)], axis=1)
    np.testing.assert_allclose(changed.patch_embed.proj.weight.detach().numpy(), expected, rtol=1e-6)
    assert changed(torch.zeros(1, 4, 16, 16)).shape == (1, 5)


REFUSED = [
    "predict {model} {image}",
    "evaluate {model} {data}",
    "explain {model} {image} --out {out}",
    "walkthrough {model} {image} --out {out}",
    "plot-weights {model} --data {data} --out {out}",
    "probe {model} {data}",
    "analyze {model} --data {data} --out {out}",
    "fit {data} --weights {model} --epochs 1 --workers 2 --out {out}",
]


@pytest.fixture
def places(tmp_path, monkeypatch):
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    data = make_images(tmp_path / "images", count=8)
    write(tmp_path / "w.safetensors", 4, classes=3)
    names = tuple(sorted(path.name for path in data.iterdir()))
    import_weights(tmp_path / "w.safetensors", tmp_path / "b", labels=names)
    return {"model": tmp_path / "b", "data": data, "image": next(data.rglob("*.png")), "out": tmp_path / "out"}


def test_image_files_are_refused_in_a_sentence(places, subtests):
    for words in REFUSED:
        with subtests.test(words):
            outcome = run_command(*(word.format(**places) for word in words.split()))
            assert outcome.status == 2
            assert re.search(r"\b4\b.*\b1\b.*\b3\b", outcome.stderr.splitlines()[-1])
            assert "Traceback" not in outcome.stderr
            assert not [path for path in places["out"].rglob("*") if path.is_file()], "nothing is begun"


def test_what_needs_no_images_works(places):
    main(["plot-weights", str(places["model"]), "--out", str(places["out"])])
    main(["report", str(places["model"]), "--out", str(places["out"] / "page.html")])
    assert {"filters.svg", "page.html"} <= {path.name for path in places["out"].iterdir()}
