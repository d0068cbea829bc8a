"""What a person names is opened: models, also those that are open already, and images with labels and without."""

import pytest
from PIL import Image

from support.colours import make_bundle, make_images
from vitreous import UserError, plot_weights, write_walkthrough
from vitreous.config.data import Preprocess
from vitreous.data.opening import open_images
from vitreous.inference.opening import open_classifier, open_model
from vitreous.training.page import write_report
from vitreous.verbs.evaluate import evaluate
from vitreous.verbs.explain import explain
from vitreous.verbs.measure import probe
from vitreous.verbs.predict import predict
from vitreous.weights.bundle import load_bundle

JOBS = {
    "predict": lambda bundle, data, image, **more: predict(bundle, image, **more),
    "evaluate": lambda bundle, data, image, **more: evaluate(bundle, data, **more),
    "explain": lambda bundle, data, image, **more: explain(bundle, image, **more),
    "plot_weights": lambda bundle, data, image, **more: plot_weights(bundle, **more),
    "probe": lambda bundle, data, image, **more: probe(bundle, data, **more),
    "write_report": lambda bundle, data, image, **more: write_report(bundle, **more),
    "write_walkthrough": lambda bundle, data, image, **more: write_walkthrough(bundle, image, **more),
}


def test_an_open_model_takes_another_preprocessing(tmp_path):
    bundle = load_bundle(make_bundle(tmp_path / "b"))
    assert open_model(bundle) is bundle
    for opened in (open_model(bundle, "crop=0.5"), open_classifier(bundle, "crop=0.5")):
        assert (opened.preprocess.crop, opened.preprocess.mean) == (0.5, bundle.preprocess.mean)
        assert opened.model is bundle.model
    whole = Preprocess(size=bundle.preprocess.size, crop=0.7)
    assert open_model(bundle, whole).preprocess == whole
    with pytest.raises(UserError, match="3"):
        open_model(bundle, Preprocess(size=bundle.preprocess.size, mean=(0.5,), std=(0.5,)))


def test_no_job_overhears_what_was_said_of_an_open_model(tmp_path, monkeypatch, subtests):
    monkeypatch.chdir(tmp_path)
    bundle, data = load_bundle(make_bundle(tmp_path / "b")), make_images(tmp_path / "images")
    for name, job in JOBS.items():
        with subtests.test(name), pytest.raises(UserError, match="'colour'"):
            job(bundle, data, next(data.rglob("*.png")), preprocess="colour=1")


def make_flat(root, count):
    root.mkdir(parents=True)
    for number in range(count):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(root / f"{number}.png")


WITHOUT_LABELS = {
    "flat": ({"": 3}, {"train": 3}),
    "one class": ({"cat": 2}, {"train": 2}),
    "flat splits": ({"train": 2, "test": 3}, {"train": 2, "test": 3}),
    "one class in splits": ({"train/cat": 2, "val/cat": 1, "test/cat": 3}, {"train": 2, "val": 1, "test": 3}),
}


def test_images_without_classes_are_taken_as_such_and_test_stays_apart(tmp_path, subtests):
    for title, (folders, splits) in WITHOUT_LABELS.items():
        place = tmp_path / title
        for name, count in folders.items():
            make_flat(place / name, count)
        with subtests.test(title):
            data = open_images(place)
            assert {split: len(source) for split, source in data.splits.items()} == splits
            assert data.classes == ()
            note = data.notes[0]
            assert note.startswith(f"{place}")
            assert ("'cat'" in note) == ("class" in title)
            assert all(f"{count} {split}" in note for split, count in splits.items())


def test_images_with_classes_keep_them_and_other_mistakes_stay_mistakes(tmp_path):
    for name in ("train/cat", "train/dog", "test/cat"):
        make_flat(tmp_path / "data" / name, 2)
    assert open_images(tmp_path / "data").classes == ("cat", "dog")
    make_flat(tmp_path / "data" / "test" / "cow", 2)
    with pytest.raises(UserError, match="'cow'"):
        open_images(tmp_path / "data")
    with pytest.raises(UserError, match="nothing"):
        open_images(tmp_path / "nothing")
