"""Evaluation of a model on data: the right part, the right classes, and figures that agree with prediction."""

import json
from dataclasses import replace

import pytest
import torch

from support.colours import COLOURS, make_bundle, make_images
from vitreous import UserError, export_weights, write_report
from vitreous.callbacks import Callbacks
from vitreous.cli import main
from vitreous.data.opening import open_dataset
from vitreous.inference import speed
from vitreous.verbs.evaluate import evaluate
from vitreous.verbs.predict import predict
from vitreous.weights.bundle import load_bundle, save_bundle
from vitreous.weights.seen_images import find_seen_images


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return load_bundle(make_bundle(tmp_path_factory.mktemp("bundle") / "b"))


def test_a_good_model_and_one_that_mixes_up_its_labels(bundle, tmp_path):
    data = make_images(tmp_path / "p")
    good = evaluate(bundle, data)
    assert (good.split, good.result.n, good.result.top1) == ("all", 12, 1.0)
    mixed = evaluate(replace(bundle, labels=("green", "blue", "red")), data).result
    assert mixed.top1 == pytest.approx(1 / 3)
    assert [pair[:3] for pair in mixed.most_confused()] == [("blue", "green", 4), ("green", "blue", 4)]
    assert mixed.per_class["red"] == {"n": 4, "accuracy": 1.0}


def test_it_agrees_with_prediction(bundle, tmp_path):
    data = make_images(tmp_path / "p", count=5, seed=7)
    said = predict(bundle, data)
    result = evaluate(bundle, data, batch_size=4).result
    right = [one.label == one.path.split("/")[-2] for one in said]
    assert result.top1 == pytest.approx(sum(right) / len(right))


def test_which_part_is_taken(bundle, tmp_path):
    for count, split in enumerate(("train", "val", "test"), start=2):
        make_images(tmp_path / "p" / split, count=count, seed=count)
    assert (evaluate(bundle, tmp_path / "p").split, evaluate(bundle, tmp_path / "p").result.n) == ("test", 12)
    assert evaluate(bundle, tmp_path / "p", split="val").result.n == 9
    assert evaluate(bundle, tmp_path / "p", split="train").result.n == 6
    (tmp_path / "p" / "test").rename(tmp_path / "elsewhere")
    assert evaluate(bundle, tmp_path / "p").split == "val"
    with pytest.raises(UserError, match=r"split='test': .*train, val"):
        evaluate(bundle, tmp_path / "p", split="test")


def test_classes_are_matched_by_name(bundle, tmp_path):
    """Data may have fewer classes than the model, in another order, but none that it does not know."""
    make_images(tmp_path / "p", colours=("red", "blue"))
    result = evaluate(bundle, tmp_path / "p").result
    assert (result.n, result.top1) == (8, 1.0)
    assert result.per_class["green"] == {"n": 0, "accuracy": None}
    (tmp_path / "p" / "red").rename(tmp_path / "p" / "rouge")
    with pytest.raises(UserError, match="'rouge'"):
        evaluate(bundle, tmp_path / "p")


def test_unreadable_images_are_named_and_too_many_refused(bundle, tmp_path):
    make_images(tmp_path / "p", count=40)
    (tmp_path / "p" / "red" / "0.png").write_bytes(b"")
    found = evaluate(bundle, tmp_path / "p")
    assert found.result.n == 119
    assert list(found.unreadable) == [str(tmp_path / "p" / "red" / "0.png")]
    for i in range(1, 5):
        (tmp_path / "p" / "red" / f"{i}.png").write_bytes(b"")
    with pytest.raises(UserError, match=r"\b5\b.*\b120\b"):
        evaluate(bundle, tmp_path / "p")


def test_worker_processes_change_nothing(bundle, tmp_path):
    data = make_images(tmp_path / "p", seed=3)
    alone, helped = (evaluate(bundle, data, batch_size=5, workers=workers).result for workers in (0, 1))
    assert helped == alone


def test_damaged_weights_are_named(bundle, tmp_path):
    damaged = replace(load_bundle(bundle.path), path=tmp_path / "damaged")
    with torch.no_grad():
        damaged.model.head.weight[0, 0] = float("nan")
    with pytest.raises(UserError, match="damaged: "):
        evaluate(damaged, make_images(tmp_path / "p"))


def test_json_and_progress(bundle, tmp_path):
    done = []
    found = evaluate(
        bundle, make_images(tmp_path / "p"), batch_size=8, callbacks=Callbacks(progress=lambda what, *n: done.append(n))
    )
    assert done == [(8, 12), (12, 12)]
    said = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert {"split", "n", "top1", "top5", "ece", "per_class", "confusion", "unreadable", "seconds"} <= set(said)
    assert list(said["per_class"]) == list(COLOURS)


def test_the_builtin_data_have_other_classes(bundle):
    with pytest.raises(UserError, match="'Ankle boot'"):
        evaluate(bundle, "builtin")


@pytest.fixture
def trained(bundle, tmp_path):
    """A model that says it was trained on tmp_path/p/train and selected on tmp_path/p/val, which lie beside test."""
    for split, seed in (("train", 0), ("val", 500), ("test", 900)):
        make_images(tmp_path / "p" / split, seed=seed)
    seen = find_seen_images(open_dataset(tmp_path / "p"))
    return replace(bundle, seen_images=seen)


def test_images_of_the_training_have_no_interval(trained, tmp_path, capsys, subtests):
    """An interval for images that the model has seen would claim what it cannot."""
    path = save_bundle(
        tmp_path / "b", trained.model, trained.preprocess, trained.labels, seen_images=trained.seen_images
    )
    for split, numbers in {"train": (12, 0), "val": (0, 12), "test": (0, 0)}.items():
        with subtests.test(split):
            found = evaluate(trained, tmp_path / "p", split=split)
            assert (found.seen.train, found.seen.val) == numbers
            said = found.to_json()
            assert (said["top1_interval"] is None) == (said["ece_interval"] is None) == (split != "test")
            assert said["seen"]["train"] == numbers[0]
            main(["evaluate", str(path), str(tmp_path / "p"), "--split", split])
            shown = capsys.readouterr().out
            assert ("95 % interval" in shown) == (split == "test")
            assert ("12 " in shown.partition("note:")[2]) == (split != "test")
    page = write_report(trained, data=tmp_path / "p", split="train", out=tmp_path / "r.html").read_text()
    assert found.seen.sentence is None
    assert "95 % interval" not in page.partition("Accuracy")[2].partition("</div>\n</div>")[0]
    assert "95 % interval" in write_report(trained, data=tmp_path / "p", out=tmp_path / "r2.html").read_text()
    assert evaluate(replace(trained, seen_images=None), tmp_path / "p", split="train").seen is None


def test_what_an_export_was_trained_on_is_kept(trained, tmp_path, monkeypatch):
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(speed, "_calls_per_second", lambda call, seconds: 1.0)
    out = export_weights(trained, tmp_path / "onnx", to="onnx")
    assert export_weights(trained, out, to="onnx") == out  # its files are ours
    assert evaluate(out, tmp_path / "p", split="train").seen.train == 12


def test_a_random_part_is_measured(bundle, tmp_path, capsys):
    data = make_images(tmp_path / "p", count=10)
    found = evaluate(bundle, data, count=7, out=tmp_path / "a.jsonl")
    assert (found.result.n, found.of) == (7, 30)

    def names(path):
        return {json.loads(line)["path"] for line in path.read_text().splitlines()}

    assert len(names(tmp_path / "a.jsonl")) == 7
    evaluate(bundle, data, count=7, seed=0, out=tmp_path / "b.jsonl")
    evaluate(bundle, data, count=7, seed=1, out=tmp_path / "c.jsonl")
    assert names(tmp_path / "a.jsonl") == names(tmp_path / "b.jsonl") != names(tmp_path / "c.jsonl")
    assert evaluate(bundle, data, count=99).result.n == 30
    main(["evaluate", str(bundle.path), str(data), "--count", "7", "--seed", "3"])
    shown = capsys.readouterr().out.splitlines()[0]
    assert all(number in shown.split() for number in ("7", "30,", "3"))
    with pytest.raises(UserError, match="seed=3"):
        evaluate(bundle, data, seed=3)
