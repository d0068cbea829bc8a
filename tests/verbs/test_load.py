"""The notebook's side: load a run and ask it."""

import re

import numpy as np
import pytest
import torch
from PIL import Image

import vitreous
from support.colours import COLOURS, make_bundle, make_images, pixels
from support.greys import draw_images


def test_fit_load_predict_evaluate(tmp_path):
    data = draw_images(tmp_path / "data")
    run = vitreous.fit(data, epochs=1, out=tmp_path / "run", workers=0)
    model = vitreous.load(run.run)
    assert model.labels == ("dark", "light")
    found = model.predict(data / "light" / "0.png")
    assert found.label in model.labels
    assert found.score == max(one.score for one in found.top)
    assert abs(sum(one.score for one in found.top) - 1) < 1e-5
    measured = model.evaluate(data)
    assert measured.to_json()["n"] == 24
    assert re.fullmatch(r"FitResult\(.*/run; .*validation .*%.*; \d+ steps?, \d+ s\)", repr(run))
    assert isinstance(model.vit, vitreous.ViT)


def test_a_prediction_shows_itself_in_a_notebook(tmp_path):
    found = vitreous.load(make_bundle(tmp_path / "b")).predict(make_images(tmp_path / "<p>", count=1) / "red" / "0.png")
    shown = found._repr_html_()
    assert all(f"<td>{one.label}</td><td>{one.score:.1%}</td>" in shown for one in found.top)
    assert "&lt;p&gt;/red/0.png" in shown
    assert "<p>" not in shown
    (tmp_path / "x.png").write_text("text")
    broken = vitreous.load(tmp_path / "b").predict(tmp_path / "x.png")
    assert broken.error.partition(" ")[0] in broken._repr_html_()


def test_one_image_has_one_prediction_and_a_list_has_a_list(tmp_path):
    model = vitreous.load(make_bundle(tmp_path / "b"))
    root = make_images(tmp_path / "p", count=1)
    path = root / "red" / "0.png"
    for one in (path, str(path), path.read_bytes(), Image.open(path), np.array(Image.open(path))):
        found = model.predict(one, top_k=2)
        assert found.label == "red"
        assert len(found.top) == 2
        assert [again.top for again in model.predict([one], top_k=2)] == [found.top]
    assert [one.label for one in model.predict([root, path])] == [*COLOURS, "red"]
    assert model.predict((path,))[0].label == "red"
    assert model.predict(root / "none.png").error
    with pytest.raises(vitreous.UserError, match=str(root)):
        model.predict(root)


def test_an_image_is_prepared_as_predict_prepares_it(tmp_path):
    model = vitreous.load(make_bundle(tmp_path / "b"))
    path, seen = tmp_path / "red.png", pixels("red", 7, (16, 16))  # of the model's own size, so nothing is resized
    Image.fromarray(seen).save(path)
    images = model.prepare(path)
    assert images.shape == (1, 3, 16, 16)
    assert images.dtype == torch.float32
    np.testing.assert_allclose(images[0].permute(1, 2, 0), (seen / 255 - 0.5) / 0.5, atol=1e-6)
    probabilities = model.network(images).softmax(dim=1)[0]
    assert model.labels[int(probabilities.argmax())] == "red"
    assert probabilities.max().item() == pytest.approx(model.predict(path).score, abs=1e-6)


def test_a_trace_of_an_image_is_that_of_the_network(tmp_path):
    model = vitreous.load(make_bundle(tmp_path / "b"))
    path = make_images(tmp_path / "p", count=1) / "red" / "0.png"
    expected = vitreous.Trace(layers=[-1])
    with torch.no_grad():
        model.network(model.prepare(path), trace=expected)
    found = model.trace(path, layers=[-1])
    last = model.vit.config.depth - 1
    assert list(found.attention) == [last]
    torch.testing.assert_close(found.attention[last], expected.attention[last])
    assert len(model.trace(path).attention) == model.vit.config.depth
    with pytest.raises(vitreous.UserError):
        model.trace(path, layers=[last + 1])
    with pytest.raises(vitreous.UserError):
        model.trace(tmp_path / "none.png")


def test_reprs_are_short_and_without_tensors(tmp_path, subtests):
    model = vitreous.load(make_bundle(tmp_path / "b"))
    data = make_images(tmp_path / "p", count=2)
    path = data / "red" / "0.png"
    shown = {
        "model": (model, "3 classes"),
        "bundle": (model.bundle, "3 classes"),
        "trace": (model.trace(path), "of layer 0"),
        "empty trace": (vitreous.Trace([-1]), "[-1]"),
        "config": (vitreous.preset("Ti/16", merge=8), "merge=8"),
        "prediction": (model.predict(path), "red"),
        "evaluation": (model.evaluate(data), "6 images"),
    }
    for name, (value, part) in shown.items():
        with subtests.test(name=name):
            assert part in repr(value)
            assert "tensor" not in repr(value)
            assert len(repr(value)) < 300
