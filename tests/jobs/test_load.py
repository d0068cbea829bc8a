"""The notebook's side: load a run and ask it."""

from test_fit import draw_pictures

import vitreous


def test_fit_load_predict_evaluate(tmp_path):
    data = draw_pictures(tmp_path / "data")
    run = vitreous.fit(data, epochs=12, out=tmp_path / "run", workers=0)
    model = vitreous.load(run.run)
    assert model.labels == ("dark", "light")
    found = model.predict(data / "light" / "0.png")
    assert found.label in model.labels
    assert found.score == max(one.score for one in found.top)
    assert abs(sum(one.score for one in found.top) - 1) < 1e-5
    measured = model.evaluate(data)
    assert measured.to_json()["n"] == 24
    assert isinstance(model.vit, vitreous.ViT)
