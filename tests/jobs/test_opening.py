"""A model that is open already is opened as one at a path: with the preprocessing that was asked for."""

import pytest
from colours import make_bundle, make_pictures

from vitreous import UserError
from vitreous.config.data import Preprocess
from vitreous.jobs.evaluate import evaluate
from vitreous.jobs.explain import explain, explain_each
from vitreous.jobs.explain_weights import explain_weights
from vitreous.jobs.opening import open_classifier, open_model
from vitreous.jobs.predict import predict
from vitreous.jobs.probe import probe
from vitreous.jobs.report import write_report
from vitreous.jobs.steps import write_steps
from vitreous.weights.bundle import load_bundle

JOBS = {
    "predict": lambda bundle, data, picture, **more: predict(bundle, picture, **more),
    "evaluate": lambda bundle, data, picture, **more: evaluate(bundle, data, **more),
    "explain": lambda bundle, data, picture, **more: explain(bundle, picture, **more),
    "explain_each": lambda bundle, data, picture, **more: list(explain_each(bundle, picture, **more)),
    "explain_weights": lambda bundle, data, picture, **more: explain_weights(bundle, **more),
    "probe": lambda bundle, data, picture, **more: probe(bundle, data, **more),
    "write_report": lambda bundle, data, picture, **more: write_report(bundle, **more),
    "write_steps": lambda bundle, data, picture, **more: write_steps(bundle, picture, **more),
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
