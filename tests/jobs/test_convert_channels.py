"""Models of pictures that are neither grey nor colour, as satellites take them: in, out, and what files cannot give."""

import numpy as np
import pytest
import torch
import transformers as hf
from safetensors.torch import save_file

from support.colours import make_pictures
from support.numpy_vit import NumpyViT
from support.tiny_models import random_images, random_model
from vitreous import export_weights, import_weights, load
from vitreous.cli import main
from vitreous.weights.source import open_weights

HEADS = {"width": 128, "heads": 2, "image_size": (16, 16)}


def write(path, count, **changes):
    """A file in timm's names of a model with so many channels, and the model."""
    model = random_model(**HEADS, channels=count, **changes)
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, path)
    return model


@pytest.mark.parametrize("count", [4, 12])
@pytest.mark.parametrize("to", ["huggingface", "timm", "google"])
def test_in_and_out_without_loss(tmp_path, count, to):
    model = write(tmp_path / "w.safetensors", count)
    made = import_weights(tmp_path / "w.safetensors", tmp_path / "b", preprocess="mean=0.2,std=0.1")
    assert made.description == f"ViT(128 wide, 2 deep)/4, 16, {count} channels, 5 classes"
    out = export_weights(tmp_path / "b", tmp_path / ("m.npz" if to == "google" else "out"), to)
    images = random_images(model)
    expected = NumpyViT(model.config, model.state_dict())(images.numpy())
    for place in (tmp_path / "b", out):
        found = load(place).vit
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
    assert "ViT(128 wide, 2 deep)/4, 16, 4 channels, 5 classes" in out
    for said in (out, (tmp_path / "b" / "README.md").read_text()):
        assert ").network(images)" in said
        assert "vitreous predict" not in said, "which would refuse it"
    changed = load(tmp_path / "b").vit
    kernels = model.patch_embed.proj.weight.detach().numpy()
    expected = np.stack([kernels[:, c] * 0.75 for c in (0, 1, 2, 0)], axis=1)
    np.testing.assert_allclose(changed.patch_embed.proj.weight.detach().numpy(), expected, rtol=1e-6)
    assert changed(torch.zeros(1, 4, 16, 16)).shape == (1, 5)


REFUSED = {
    "predict": "predict {model} {picture}",
    "evaluate": "evaluate {model} {data}",
    "explain": "explain {model} {picture} --out {out}",
    "walkthrough": "walkthrough {model} {picture} --out {out}",
    "plot-weights": "plot-weights {model} --data {data} --out {out}",
    "probe": "probe {model} {data}",
    "analyze": "analyze {model} --data {data} --out {out}",
    "fit": "fit {data} --weights {model} --epochs 1 --workers 2 --out {out}",
}


@pytest.fixture
def places(tmp_path, monkeypatch):
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    data = make_pictures(tmp_path / "pictures", count=8)
    write(tmp_path / "w.safetensors", 4, classes=3)
    names = tuple(sorted(path.name for path in data.iterdir()))
    import_weights(tmp_path / "w.safetensors", tmp_path / "b", labels=names)
    return {"model": tmp_path / "b", "data": data, "picture": next(data.rglob("*.png")), "out": tmp_path / "out"}


@pytest.mark.parametrize("name", REFUSED)
def test_picture_files_are_refused_in_a_sentence(capsys, places, name):
    with pytest.raises(SystemExit) as end:
        main(REFUSED[name].format(**places).split())
    assert end.value.code == 2
    err = capsys.readouterr().err
    assert "the model takes pictures of 4 channels, and picture files are read as grey (1) or colour (3); give" in err
    assert "Traceback" not in err
    assert not [path for path in places["out"].rglob("*") if path.is_file()], "nothing is begun"


@pytest.mark.parametrize("verb", ["plot-weights {model} --out {out}", "report {model} --out {out}/page.html"])
def test_what_needs_no_pictures_works(places, verb):
    places["out"].mkdir()
    main(verb.format(**places).split())
    assert list(places["out"].iterdir())
