"""What a person names is opened: models, also those that are open already, and pictures with labels and without."""

import pytest
from PIL import Image

from support.colours import make_bundle, make_pictures
from vitreous import UserError
from vitreous.config.data import Preprocess
from vitreous.jobs.evaluate import evaluate
from vitreous.jobs.explain import explain, explain_each
from vitreous.jobs.plot_weights import plot_weights
from vitreous.jobs.predict import predict
from vitreous.jobs.probe import probe
from vitreous.jobs.report import write_report
from vitreous.jobs.walkthrough import write_walkthrough
from vitreous.run.opening import open_classifier, open_model, open_pictures
from vitreous.weights.bundle import load_bundle

JOBS = {
    "predict": lambda bundle, data, picture, **more: predict(bundle, picture, **more),
    "evaluate": lambda bundle, data, picture, **more: evaluate(bundle, data, **more),
    "explain": lambda bundle, data, picture, **more: explain(bundle, picture, **more),
    "explain_each": lambda bundle, data, picture, **more: list(explain_each(bundle, picture, **more)),
    "plot_weights": lambda bundle, data, picture, **more: plot_weights(bundle, **more),
    "probe": lambda bundle, data, picture, **more: probe(bundle, data, **more),
    "write_report": lambda bundle, data, picture, **more: write_report(bundle, **more),
    "write_walkthrough": lambda bundle, data, picture, **more: write_walkthrough(bundle, picture, **more),
}


def test_an_open_model_takes_another_preprocessing(tmp_path):
    bundle = load_bundle(make_bundle(tmp_path / "b"))
    assert open_model(bundle) is bundle
    for opened in (open_model(bundle, "crop=0.5"), open_classifier(bundle, "crop=0.5")):
        assert (opened.preprocess.crop, opened.preprocess.mean) == (0.5, bundle.preprocess.mean)
        assert opened.model is bundle.model
    whole = Preprocess(size=bundle.preprocess.size, crop=0.7)
    assert open_model(bundle, whole).preprocess == whole
    with pytest.raises(UserError, match="takes pictures of 3 channels"):
        open_model(bundle, Preprocess(size=bundle.preprocess.size, mean=(0.5,), std=(0.5,)))


@pytest.mark.parametrize("name", JOBS)
def test_no_job_overhears_what_was_said_of_an_open_model(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    bundle, data = load_bundle(make_bundle(tmp_path / "b")), make_pictures(tmp_path / "pictures")
    with pytest.raises(UserError, match="'colour' is not one of mean"):
        JOBS[name](bundle, data, next(data.rglob("*.png")), preprocess="colour=1")


def make_flat(root, count):
    root.mkdir(parents=True)
    for number in range(count):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(root / f"{number}.png")


WITHOUT_LABELS = {
    "flat": ({"": 3}, {"train": 3}, "no labels (there are pictures but no class folders): 3 train pictures."),
    "one class": ({"cat": 2}, {"train": 2}, "no labels (there is only one class, 'cat'): 2 train pictures."),
    "flat splits": ({"train": 2, "test": 3}, {"train": 2, "test": 3}, "no class folders): 2 train, 3 test pictures."),
    "one class in splits": (
        {"train/cat": 2, "val/cat": 1, "test/cat": 3},
        {"train": 2, "val": 1, "test": 3},
        "(there is only one class, 'cat'): 2 train, 1 val, 3 test pictures.",
    ),
}


@pytest.mark.parametrize(("folders", "splits", "note"), WITHOUT_LABELS.values(), ids=WITHOUT_LABELS)
def test_pictures_without_classes_are_taken_as_such_and_test_stays_apart(tmp_path, folders, splits, note):
    for name, count in folders.items():
        make_flat(tmp_path / "data" / name, count)
    data = open_pictures(tmp_path / "data")
    assert {split: len(source) for split, source in data.splits.items()} == splits
    assert data.classes == ()
    assert data.notes[0].startswith(f"{tmp_path / 'data'}")
    assert data.notes[0].endswith(note)


def test_pictures_with_classes_keep_them_and_other_mistakes_stay_mistakes(tmp_path):
    for name in ("train/cat", "train/dog", "test/cat"):
        make_flat(tmp_path / "data" / name, 2)
    assert open_pictures(tmp_path / "data").classes == ("cat", "dog")
    make_flat(tmp_path / "data" / "test" / "cow", 2)
    with pytest.raises(UserError, match="the test split has class 'cow' and the train split does not"):
        open_pictures(tmp_path / "data")
    with pytest.raises(UserError, match="nothing of this name"):
        open_pictures(tmp_path / "nothing")
