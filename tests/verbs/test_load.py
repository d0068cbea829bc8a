"""The notebook's side: load a run and ask it."""

import numpy as np
import pytest
from PIL import Image

import vitreous
from support.colours import COLOURS, make_bundle, make_images
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
        found = model.predict(one, top=2)
        assert found.label == "red"
        assert len(found.top) == 2
        assert [again.top for again in model.predict([one], top=2)] == [found.top]
    assert [one.label for one in model.predict([root, path])] == [*COLOURS, "red"]
    assert model.predict((path,))[0].label == "red"
    assert model.predict(root / "none.png").error
    with pytest.raises(vitreous.UserError, match=str(root)):
        model.predict(root)
