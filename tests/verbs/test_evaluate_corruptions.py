"""Evaluation under corruptions: figures by hand, the same for any number of processes, and the page."""

import json
import re
from dataclasses import replace
from importlib.metadata import version

import numpy as np
import pytest
import torch

from support.colours import make_bundle, make_images
from vitreous import UserError
from vitreous.callbacks import Callbacks
from vitreous.data.corrupt import CORRUPTIONS, CorruptionMaker
from vitreous.evaluation.classify import MetricInputs
from vitreous.evaluation.corruptions import score_corruptions
from vitreous.inference import corruptions
from vitreous.inference.opening import open_engine
from vitreous.verbs.evaluate import evaluate
from vitreous.verbs.predict import predict
from vitreous.weights.bundle import load_bundle

FEW = {"corruptions": True, "kinds": ["gaussian noise", "contrast"], "severities": [1, 5]}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return load_bundle(make_bundle(tmp_path_factory.mktemp("bundle") / "b"))


def inputs(right, confidence):
    """Of two classes, class 0 being the true one, predictions that are so often right and so confident."""
    right = torch.from_numpy(right)
    confidence = torch.full(right.shape, confidence, dtype=torch.float64)
    likelihood = torch.where(right, confidence, 1 - confidence).log()
    return MetricInputs(
        torch.zeros(right.shape, dtype=torch.long), (~right).long(), confidence, (~right).long(), likelihood
    )


def test_means_by_hand():
    """Three images, one kind at two strengths: 3, 2 and 1 of them are right; the images fail in 0, 1/2 and 1."""
    right = np.array([[1, 1, 1], [1, 1, 0], [1, 0, 0]], dtype=bool)
    found = score_corruptions(["snow"], [2, 4], inputs(right, 0.9))
    assert [score.metrics["top1"] for score in (found.clean, *found.scores)] == pytest.approx([1, 2 / 3, 1 / 3])
    assert [(score.kind, score.strength) for score in found.scores] == [("snow", 2), ("snow", 4)]
    assert found.clean.metrics["ece"] == pytest.approx(0.1)
    assert found.scores[1].metrics["ece"] == pytest.approx(0.9 - 1 / 3)
    assert found.error.value == found.relative_error.value == pytest.approx(0.5)
    half = 1.959964 * 0.5 / np.sqrt(3)  # the deviation of 0, 1/2 and 1 is 1/2
    assert found.error.interval == pytest.approx((max(0, 0.5 - half), min(1, 0.5 + half)), abs=1e-5)
    assert found.relative_error.interval == pytest.approx((0.5 - half, min(1, 0.5 + half)), abs=1e-5)
    assert (found.mean("top1", "snow"), found.mean("ece", "snow")) == pytest.approx((0.5, 0.4))


def test_errors_as_they_are_are_taken_off():
    right = np.array([[0, 0], [1, 0], [1, 1], [0, 1]], dtype=bool)
    found = score_corruptions(["fog"], [1], inputs(right, 0.5))
    assert (found.error.value, found.relative_error.value) == (0.5, 0.0)


def test_it_agrees_with_evaluation_and_prediction(bundle, tmp_path):
    data = make_images(tmp_path / "p", count=5)
    mixed = replace(bundle, labels=("green", "blue", "red"))
    found = evaluate(mixed, data, **FEW, workers=0)
    plain = evaluate(mixed, data).result
    assert (found.result.clean.metrics["top1"], found.result.n, found.of) == (plain.top1, plain.n, 15)
    assert found.result.clean.metrics["ece"] == pytest.approx(plain.ece)
    from vitreous.data.folder import open_folder

    source = open_folder(data).train
    making = CorruptionMaker(source, bundle.preprocess, ("contrast",), (5,), 0)
    views = [making.make(index).views[1].transpose(1, 2, 0) for index in range(15)]
    names = [source.classes[label] for label in source.labels]
    said = predict(mixed, views)
    right = [one.label == name for one, name in zip(said, names, strict=True)]
    assert found.result.of("contrast")[1].metrics["top1"] == pytest.approx(np.mean(right))


def test_an_engine_is_chosen_for_as_many_images_as_it_is_asked_about(bundle, tmp_path, monkeypatch):
    place = make_images(tmp_path / "data", 4)
    asked = []

    def chosen(model, *, images, **more):
        asked.append(images)
        return open_engine(model, images=images, **more)

    monkeypatch.setattr("vitreous.inference.opening.open_engine", chosen)
    given = {"corruptions": True, "kinds": ["gaussian noise", "fog"], "severities": [1, 3, 5], "workers": 0}
    found = evaluate(bundle, place, **given, count=5)
    evaluate(bundle, place, **given)
    assert asked == [5 * 7, 12 * 7]
    assert (found.engine, found.to_json()["engine"]) == ("torch-fp32", "torch-fp32")


def test_processes_and_batches_change_nothing(bundle, tmp_path):
    data = make_images(tmp_path / "p", count=4)
    ways = [{"workers": 0}, {"workers": 1, "batch_size": 2}]
    alone, helped = (evaluate(bundle, data, **FEW, **way).result for way in ways)
    assert [score.metrics["top1"] for score in alone.scores] == [score.metrics["top1"] for score in helped.scores]
    assert [score.metrics["ece"] for score in alone.scores] == pytest.approx(
        [score.metrics["ece"] for score in helped.scores], abs=1e-6
    )


def test_a_sample_by_seed_page_and_json(bundle, tmp_path):
    data = make_images(tmp_path / "p", count=5)
    done = []
    out = tmp_path / "out"
    told = Callbacks(progress=lambda what, *n: done.append(n))
    given = {"corruptions": True, "count": 6, "seed": 3, "out": out, "workers": 0}
    found = evaluate(bundle, data, **given, severities=[5, 1, 5], callbacks=told)
    assert (found.result.n, found.of, found.result.strengths) == (6, 15, (1, 5))
    assert done == [(k, 6) for k in range(1, 7)]
    assert found.result.kinds == tuple(CORRUPTIONS)
    said = json.loads((out / "corruptions.json").read_text())
    assert {"n", "of", "seed", "clean", "scores", "error", "relative_error", "means", "differences"} <= set(said)
    assert len(said["scores"]) == 30
    assert said["differences"]["synthetic frost"]
    assert said["versions"] == {"numpy": version("numpy"), "pillow": version("pillow")}
    page = (out / "corruptions.html").read_text()
    assert page.count("<img") == 31
    assert 'src="http' not in page
    assert re.search(r"\b6\b.*\b15\b.*\bseed 3\b", page)
    again = evaluate(bundle, data, **given, severities=[1, 5])
    assert again.result == found.result


def test_unreadable_images_are_named_and_too_many_refused(bundle, tmp_path):
    data = make_images(tmp_path / "p")
    (data / "red" / "0.png").write_bytes(b"")
    found = evaluate(bundle, data, **FEW, workers=0)
    assert (found.result.n, list(found.unreadable)) == (11, [str(data / "red" / "0.png")])
    (data / "red" / "1.png").write_bytes(b"")
    with pytest.raises(UserError, match=r"\b2\b.*\b12\b.*\b1%"):
        evaluate(bundle, data, **FEW, workers=0)


def test_what_is_refused(bundle, tmp_path, subtests):
    data = make_images(tmp_path / "p")
    for says, given in {
        "'rain': .*gaussian noise": {"kinds": ["rain"]},
        "kinds": {"kinds": []},
        "severities": {"severities": []},
        r"severities\[0\]=6": {"severities": [6]},
        "count=0": {"count": 0},
    }.items():
        with subtests.test(says), pytest.raises(UserError, match=says):
            evaluate(bundle, data, corruptions=True, **given)


def test_as_many_processes_as_cores_and_at_most_four(monkeypatch):
    for cores, expected in ((1, 1), (3, 3), (64, 4)):
        monkeypatch.setattr("os.cpu_count", lambda cores=cores: cores)
        assert corruptions._workers(None, corruptions.MIN_IMAGES_FOR_WORKERS) == expected
    assert corruptions._workers(None, corruptions.MIN_IMAGES_FOR_WORKERS - 1) == 0
