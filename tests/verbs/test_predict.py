"""Prediction: every image gets its answer, in order, and a bad one stops nobody."""

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from support.colours import COLOURS, PREPROCESS, make_bundle, make_images
from vitreous import UserError
from vitreous.callbacks import Callbacks
from vitreous.data.opening import open_data
from vitreous.data.view import Sample
from vitreous.inference.engine import InferenceModel
from vitreous.inference.predict import ImageList
from vitreous.verbs.evaluate import evaluate
from vitreous.verbs.measure import probe
from vitreous.verbs.predict import PredictImages, predict, predict_many
from vitreous.weights.bundle import load_bundle, save_bundle


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return load_bundle(make_bundle(tmp_path_factory.mktemp("bundle") / "b"))


def test_a_folder_in_the_order_of_its_paths(bundle, tmp_path, subtests):
    make_images(tmp_path / "p")
    for batch_size in (1, 5, 64):
        with subtests.test(batch_size=batch_size):
            found = predict(bundle, tmp_path / "p", batch_size=batch_size)
            assert [one.path for one in found] == sorted(str(path) for path in (tmp_path / "p").rglob("*.png"))
            assert [one.label for one in found] == [colour for colour in COLOURS for _ in range(4)]
            for one in found:
                assert len(one.top) == 3, "there are only three labels"
                assert sum(entry.score for entry in one.top) == pytest.approx(1, abs=1e-5)
                assert one.score == one.top[0].score >= one.top[1].score


def test_files_and_folders_in_the_order_given(bundle, tmp_path):
    make_images(tmp_path / "p", count=2)
    red = tmp_path / "p" / "red" / "1.png"
    found = predict(bundle, [red, str(tmp_path / "p" / "green"), red], top_k=1)
    assert [one.label for one in found] == ["red", "green", "green", "red"]
    assert all(len(one.top) == 1 for one in found)


def test_what_cannot_be_read_does_not_stop_the_others(bundle, tmp_path):
    make_images(tmp_path / "p", count=2)
    (tmp_path / "p" / "green" / "text.jpg").write_text("not an image")
    (tmp_path / "p" / "empty.png").touch()
    found = {Path(one.path).name: one for one in predict(bundle, [tmp_path / "p", tmp_path / "none.png"])}
    assert len(found) == 2 + 3  # names repeat between colours
    reasons = {found[name].error for name in ("text.jpg", "empty.png", "none.png")}
    assert None not in reasons
    assert len(reasons) == 3, "each has its own"
    assert found["text.jpg"].label is None
    assert found["text.jpg"].score is None
    assert found["1.png"].error is None


def test_a_whole_batch_that_cannot_be_read(bundle, tmp_path):
    for i in range(3):
        (tmp_path / f"{i}.png").touch()
    assert all(one.error for one in predict(bundle, tmp_path, batch_size=2))


def test_json_of_both_kinds(bundle, tmp_path):
    make_images(tmp_path / "p", count=1, colours=("red",))
    good, bad = predict(bundle, [tmp_path / "p" / "red" / "0.png", tmp_path / "none.png"], top_k=2)
    said = json.loads(json.dumps(good.to_json()))
    assert list(said) == ["path", "prediction", "probability", "top", "error"]
    assert said["prediction"] == "red"
    assert said["top"][0] == {"label": "red", "probability": said["probability"]}
    assert bad.to_json() == {
        "path": bad.path, "prediction": None, "probability": None, "top": None, "error": bad.error
    }  # fmt: skip


def test_files_bytes_images_and_arrays(bundle, tmp_path):
    """All of one list, in order; what has no path is called by its kind and place."""
    make_images(tmp_path / "p", count=1)
    path = tmp_path / "p" / "green" / "0.png"
    with Image.open(path) as opened:  # not loaded yet, and given twice
        given = [path, path.read_bytes(), opened, opened, np.array(Image.open(path)), tmp_path / "p", b"cut short"]
        found = predict(bundle, given, batch_size=3)
        assert [one.path for one in predict(bundle, tuple(given))] == [one.path for one in found]
    all_of_p = [str(tmp_path / "p" / colour / "0.png") for colour in COLOURS]
    assert [one.path for one in found] == [str(path), "bytes#1", "image#2", "image#3", "array#4", *all_of_p, "bytes#6"]
    for one in found[:5]:  # the same image, in other batches
        assert one.score == pytest.approx(found[6].score, abs=1e-5)
        assert one.label == "green"
    assert found[-1].error
    for one in given[1:5]:
        (alone,) = predict(bundle, one)
        assert alone.score == pytest.approx(found[0].score, abs=1e-5)
        assert alone.path.endswith("#0")


def test_images_of_a_dataset(bundle, tmp_path):
    source = open_data(make_images(tmp_path / "p", count=2)).train
    found = predict(bundle, [Sample(source, 5), Sample(source, 0)])
    assert [(one.path, one.label) for one in found] == [(source.name(5), "red"), (source.name(0), "blue")]


def test_what_is_no_image_is_told_before_any_is_read(tmp_path):
    """Not even the model is opened."""
    with pytest.raises(UserError, match="float32"):
        predict(tmp_path / "no-model", [tmp_path / "none.png", np.zeros((5, 5), np.float32)])
    with pytest.raises(UserError, match="images=5"):
        predict(tmp_path / "no-model", 5)
    with pytest.raises(UserError, match=r"images\[1\]=None"):
        predict(tmp_path / "no-model", ["x.png", None])
    with pytest.raises(UserError, match=r"\(2, 5, 5, 3\)"):
        predict(tmp_path / "no-model", np.zeros((2, 5, 5, 3), np.uint8))


def test_only_the_engine_is_asked(bundle, tmp_path, monkeypatch):
    """Whatever answers for a model answers for prediction: here by the colour that is brightest."""

    asked = []

    class Brightest:
        preprocess, batch_size, max_concurrency = PREPROCESS, 2, 1

        def logits(self, images):
            asked.append(len(images))
            return images.float().mean(dim=(2, 3)).flip(1)  # the labels are blue, green, red

    config = bundle.model.config
    model = InferenceModel(Brightest(), config, COLOURS, None, "it")
    monkeypatch.setattr("vitreous.inference.opening.open_engine", lambda *given, **more: model)
    found = predict(bundle, make_images(tmp_path / "p", count=1))
    assert [one.label for one in found] == list(COLOURS)
    assert asked == [2, 1], "at its best batch"


def test_predictions_come_as_they_are_made(bundle, tmp_path):
    """At most two batches are decoded ahead, so memory is bounded and the first answer does not wait for the last."""
    make_images(tmp_path / "p", count=4)
    done = []
    told = Callbacks(progress=lambda what, *counts: done.append(counts))
    options = PredictImages(bundle, tmp_path / "p", batch_size=2, callbacks=told)
    each = options.predict_each(options.images)
    next(each)
    assert done == []
    last = tmp_path / "p" / "red" / "3.png"
    last.unlink()
    *_, end = each
    assert end.error
    assert done == [(n, 12) for n in range(2, 13, 2)]


def test_mistakes(bundle, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty: "):
        predict(bundle, tmp_path / "empty")
    with pytest.raises(UserError):
        predict(bundle, [])
    with pytest.raises(UserError, match="top_k=0"):
        predict(bundle, "x.png", top_k=0)
    headless = type(bundle.model)(
        type(bundle.model.config)(width=32, depth=1, heads=2, mlp_width=64, patch=8, image_size=(16, 16), classes=0)
    )
    save_bundle(tmp_path / "features", headless, PREPROCESS, ())
    with pytest.raises(UserError, match="features: "):
        predict(tmp_path / "features", "x.png")


def test_a_path_takes_little_more_than_its_letters(tmp_path):
    """So memory hardly grows with a folder; lists of paths took 495 bytes for each."""
    (tmp_path / "a").mkdir()
    for number in range(2000):
        (tmp_path / "a" / f"{number:04d}.png").touch()
    list(ImageList(tmp_path))  # whatever is made once
    tracemalloc.start()
    images = ImageList(tmp_path)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert (len(images), sum(1 for _ in images)) == (2000, 2000)
    assert held < 60 * 2000


def test_the_device_is_the_one_that_was_named(bundle, tmp_path, subtests, monkeypatch):
    """By whoever asks an engine; what no device is, and one that the engine does not use, are refused."""
    data = make_images(tmp_path / "p", count=2)
    asked = {
        "predict": lambda **more: predict(bundle, data, **more),
        "predict_many": lambda **more: predict_many(bundle.path, data, tmp_path / "o", **more),
        "evaluate": lambda **more: evaluate(bundle, data, **more),
        "probe": lambda **more: probe(bundle, data, **more),
    }
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    for name, ask in asked.items():
        with subtests.test(name):
            with pytest.raises(UserError, match="device 'tpx'"):
                ask(device="tpx")
            with pytest.raises(UserError, match=r"device 'cuda': .*openvino"):
                ask(device="cuda", engine="openvino")
            assert ask(device="cpu")
