"""Which engine answers: what was asked for, or the fastest that was verified for this model on this machine."""

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from colours import COLOURS, make_bundle, make_pictures
from deploy.models import random_pictures

from vitreous import UserError, bench, export_weights, load, predict, probe
from vitreous.data.source import open_data
from vitreous.deploy.folder import Accuracy, load_engine, read_about
from vitreous.deploy.openvino import measure_accuracy
from vitreous.deploy.runtime import RUNTIMES
from vitreous.jobs.evaluate import evaluate
from vitreous.run import conversion, engines, prepared
from vitreous.run.conversion import convert_model
from vitreous.run.engines import deploy
from vitreous.run.prepared import TORCH, PreparedEngines, Variant
from vitreous.weights.bundle import load_bundle

OPENVINO = Variant("openvino", "fp32")


@pytest.fixture(scope="module")
def colours(tmp_path_factory):
    """Pictures of three colours, 12 each in train and test, and a model that names them all."""
    root = tmp_path_factory.mktemp("colours")
    for split, seed in (("train", 0), ("test", 500)):
        make_pictures(root / "data" / split, 12, seed=seed)
    return load_bundle(make_bundle(root / "bundle")), root / "data"


@pytest.fixture
def kept(monkeypatch, tmp_path):
    """An empty cache."""
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_auto_is_pytorch_until_another_engine_was_measured(colours, kept, caplog):
    caplog.set_level(logging.INFO, "vitreous")
    bundle, _ = colours
    assert deploy(bundle, pictures=100).engine.name == "torch"
    found = PreparedEngines(bundle)
    found.put(convert_model(bundle, "openvino", random_pictures(bundle, 4)))
    assert deploy(bundle, pictures=100).engine.name == "torch", "its speed is not known"
    found.remember({TORCH: 10.0, OPENVINO: 25.0})
    assert deploy(bundle, pictures=100).engine.name == "openvino"
    assert caplog.messages == ["engine: OpenVINO fp32, 2.5 times as fast as PyTorch here."]
    assert deploy(bundle, pictures=20).engine.name == "torch", "it takes longer to open than it saves"
    assert deploy(bundle, engine="torch", pictures=100).engine.name == "torch"
    found.remember({TORCH: 10.0, OPENVINO: 9.9})
    assert deploy(bundle, pictures=100).engine.name == "torch", "it is slower here"


def test_speeds_of_another_machine_do_not_count(colours, kept, monkeypatch):
    bundle, _ = colours
    found = PreparedEngines(bundle)
    found.put(convert_model(bundle, "openvino", random_pictures(bundle, 4)))
    found.remember({TORCH: 1.0, OPENVINO: 2.0})
    assert found.speeds == {TORCH: 1.0, OPENVINO: 2.0}
    with monkeypatch.context() as patch:
        patch.setattr(prepared, "describe_machine", lambda: "another")
        assert found.speeds == {}
        assert deploy(bundle, pictures=100).engine.name == "torch"
        found.remember({TORCH: 3.0})
    assert found.speeds == {TORCH: 1.0, OPENVINO: 2.0}, "both are kept"


def test_what_other_versions_made_does_not_count(colours, kept, monkeypatch):
    bundle, _ = colours
    found = PreparedEngines(bundle)
    found.put(convert_model(bundle, "openvino", random_pictures(bundle, 4)))
    found.remember({TORCH: 1.0, OPENVINO: 2.0})
    monkeypatch.setattr(prepared, "describe_software", lambda: "openvino 1999.1")
    assert found.get(OPENVINO) is None
    assert deploy(bundle, pictures=100).engine.name == "torch"


def test_a_model_that_cannot_be_converted_is_answered_for_by_pytorch(colours, kept, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "vitreous")
    bundle, _ = colours
    runtime = RUNTIMES["openvino"]

    def fail(*given):
        raise RuntimeError("no such operation")

    monkeypatch.setitem(RUNTIMES, "openvino", type(runtime)(**{**runtime.__dict__, "convert": fail}))
    monkeypatch.setattr(engines, "WORTH_SECONDS", 0.0)
    assert deploy(bundle, pictures=100_000).engine.name == "torch"
    assert any("OpenVINO cannot take this network (no such operation)" in message for message in caplog.messages)
    with pytest.raises(UserError, match="cannot take this network"):
        deploy(bundle, engine="openvino")


def test_an_engine_that_is_asked_for_is_taken_beside_an_accelerator_too(colours, kept, monkeypatch):
    monkeypatch.setattr(engines, "find_device", lambda device: torch.device("meta"))
    assert deploy(colours[0], engine="onnx").engine.name == "onnx"


def test_two_threads_get_their_own_answers(colours, kept):
    bundle, _ = colours
    engine = deploy(bundle, engine="openvino").engine
    pictures = random_pictures(bundle, 23)
    expected = [engine.scores(pictures[i:]) for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda i: engine.scores(pictures[i:]), [*range(8)] * 5))
    for i, scores in enumerate(found):
        torch.testing.assert_close(scores, expected[i % 8], atol=1e-6, rtol=0)


def test_another_model_does_not_take_this_ones_engine(colours, kept):
    bundle, _ = colours
    found = PreparedEngines(bundle)
    found.put(convert_model(bundle, "openvino", random_pictures(bundle, 4)))
    found.remember({TORCH: 1.0, OPENVINO: 2.0})
    with torch.no_grad():
        bundle.model.head.bias[0] += 1
    try:
        assert deploy(bundle, pictures=100).engine.name == "torch"
    finally:
        with torch.no_grad():
            bundle.model.head.bias[0] -= 1


def test_many_pictures_are_worth_a_conversion(colours, kept, monkeypatch):
    bundle, _ = colours
    monkeypatch.setattr(engines, "WORTH_SECONDS", 0.0)
    monkeypatch.setattr(prepared, "measure_speeds", lambda found: dict.fromkeys(found, 1.0) | {OPENVINO: 2.0})
    assert deploy(bundle, pictures=100_000).engine.name == "openvino"
    assert PreparedEngines(bundle).get(OPENVINO) is not None


def test_int8_that_loses_more_than_usual_is_taken_only_if_asked_for(colours, kept):
    bundle, _ = colours
    found, int8 = PreparedEngines(bundle), Variant("openvino", "int8")
    converted = convert_model(bundle, "openvino", random_pictures(bundle, 4))
    for lost, expected in ((0.6, "torch"), (0.4, "openvino")):
        about = replace(converted.about, precision="int8", accuracy=Accuracy(1000, 0.9, 0.9 - lost / 100))
        found.put(replace(converted, about=about))
        found.remember({TORCH: 1.0, int8: 2.0})
        assert deploy(bundle, pictures=1000).engine.name == expected
        assert deploy(bundle, pictures=1000, precision="int8").engine.name == "openvino"


def test_nncf_is_told_the_accuracy_of_the_pictures_it_asks_about():
    """Any of them, in any order, not the first so many."""
    scores = {0: [0.0, 1.0], 1: [1.0, 0.0], 2: [1.0, 0.0]}

    class Compiled:
        def output(self, name):
            return name

        def __call__(self, picture):
            return {"scores": np.array(scores[picture])}

    items = [(0, 1), (1, 0), (2, 1)]
    assert measure_accuracy(Compiled(), items) == pytest.approx(2 / 3)
    assert measure_accuracy(Compiled(), items[1:2]) == 1
    assert measure_accuracy(Compiled(), items[2:]) == 0


def test_what_is_kept_and_damaged_is_made_again(colours, kept):
    bundle, _ = colours
    first = deploy(bundle, engine="openvino")
    place = PreparedEngines(bundle).folder / "openvino-fp32" / "model.bin"
    content = bytearray(place.read_bytes())
    content[100] ^= 1
    place.write_bytes(content)
    with pytest.raises(UserError, match="damaged"):
        load_engine(place.parent)
    pictures = random_pictures(bundle, 4)
    again = deploy(bundle, engine="openvino")
    assert torch.equal(first.engine.scores(pictures), again.engine.scores(pictures))


@pytest.mark.parametrize("engine", ["openvino", "onnx"])
def test_every_verb_that_asks_gets_the_same_answer(colours, kept, engine):
    bundle, data = colours
    assert evaluate(bundle, data, engine=engine).result.top1 == evaluate(bundle, data, engine="torch").result.top1 == 1
    assert evaluate(bundle, data, engine=engine).engine == f"{engine}-fp32"
    assert probe(bundle, data, engine=engine).scores == probe(bundle, data, engine="torch").scores
    files = sorted(data.glob("test/*/*.png"))
    assert [one.label for one in predict(bundle, files, engine=engine)] == [file.parent.name for file in files]


def test_int8_is_judged_and_its_accuracy_written_down(colours, kept, tmp_path, capsys):
    bundle, data = colours
    out = export_weights(bundle, tmp_path / "int8", "openvino", int8=True, calibrate=data)
    about = read_about(out)
    assert about.precision == "int8"
    assert about.accuracy is not None
    assert (about.accuracy.pictures, about.accuracy.fp32) == (36, 1.0)
    assert about.accuracy.int8 >= 0.995
    assert "in int8" in (out / "README.md").read_text()
    assert capsys.readouterr().out == "", "NNCF says nothing of its own"
    kinds = {op.get_type_name() for op in load_engine(out)[0].engine.model.get_ops()}
    assert "FakeQuantize" in kinds
    assert evaluate(out, data).result.top1 == about.accuracy.int8
    found = deploy(bundle, engine="openvino", precision="int8")
    assert found.engine.precision == "int8", "it is kept for the model too"


def test_int8_that_loses_too_much_is_refused(colours, kept, monkeypatch, tmp_path):
    """Whatever quantisation gives here is a model that always says the same; accuracy falls to a third."""
    bundle, data = colours
    constant = load_bundle(make_bundle(tmp_path / "constant"))
    with torch.no_grad():
        constant.model.head.weight.zero_()
    views = random_pictures(bundle, 4)
    useless = convert_model(constant, "openvino", views).model
    runtime = RUNTIMES["openvino"]
    tried = []

    def quantise(model, pictures, **more):
        tried.append(sorted(more))
        return useless

    changed = type(runtime)(**{**runtime.__dict__, "quantise": quantise, "quantise_within": quantise})
    monkeypatch.setitem(RUNTIMES, "openvino", changed)
    with pytest.raises(UserError, match=r"int8 loses 66\.67 points of accuracy on 36 pictures \(100\.00% before"):
        export_weights(bundle, tmp_path / "out", "openvino", int8=True, calibrate=data)
    assert len(tried) == 2, "plain, then with the costliest operations kept"
    assert tried[1] == ["judged", "labels", "max_drop", "transformer"]
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_accuracy_aware_quantisation_keeps_its_promise(colours, kept):
    """NNCF's own search, on a model whose accuracy no plain quantisation would lose: it ends, and within the drop."""
    bundle, data = colours
    source = open_data(data)
    learned = conversion.sample_views(source.splits["train"], bundle.preprocess, 20)
    judged = conversion.sample_views(source.splits["test"], bundle.preprocess, 36, bundle.labels)
    converted = convert_model(bundle, "openvino", learned.views)
    model = RUNTIMES["openvino"].quantise_within(
        converted.model, learned.views, transformer=True, judged=judged.views, labels=judged.labels, max_drop=0.5
    )
    right = conversion.count_right(RUNTIMES["openvino"].engine(model, bundle.preprocess, "int8"), judged)
    assert right == 36


def test_calibration_never_judges(colours):
    """Of data with one split only, the pictures are divided."""
    from vitreous.run.exporting import split_pictures

    bundle, data = colours
    calibration, judged = split_pictures(bundle, data / "test", None)
    assert len(calibration) == 18
    assert len(judged.views) == 18
    seen = {view.numpy().tobytes() for view in calibration}
    assert not seen & {view.numpy().tobytes() for view in judged.views}


REFUSED = {
    "int8 in PyTorch": ({"engine": "torch", "precision": "int8"}, "choose the engine openvino"),
    "int8 that was never made": ({"engine": "openvino", "precision": "int8"}, "has not been quantised here"),
    "int8 by auto": ({"precision": "int8"}, "has not been quantised here"),
    "int8 in ONNX": ({"engine": "onnx", "precision": "int8"}, "there is none for ONNX"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_had_is_said(colours, kept, case):
    options, sentence = REFUSED[case]
    with pytest.raises(UserError, match=sentence):
        deploy(colours[0], **options)


def test_an_exported_model_is_what_it_is(colours, kept, tmp_path):
    bundle, data = colours
    out = export_weights(bundle, tmp_path / "out", "onnx")
    with pytest.raises(UserError, match="was exported for onnx"):
        predict(out, random_pictures(bundle, 1)[0], engine="openvino")
    with pytest.raises(UserError, match="was exported in fp32"):
        evaluate(out, data, precision="int8")
    with pytest.raises(UserError, match="part of its graph"):
        predict(out, random_pictures(bundle, 1)[0], preprocess="crop=0.5")
    with pytest.raises(UserError, match="exported model"):
        load(out)


OPTIONS = {
    "int8 for timm": ({"to": "timm", "int8": True}, "there is none for timm"),
    "merging for timm": ({"to": "timm", "merge": 2}, "merge: only for an export"),
    "pictures for google": ({"to": "google", "verify": "x"}, "verify: only for an export"),
    "int8 in ONNX": ({"to": "onnx", "int8": True, "calibrate": "x"}, "there is none for onnx"),
    "int8 without pictures": ({"to": "openvino", "int8": True}, "give calibrate"),
    "calibrating fp32": ({"to": "openvino", "calibrate": "x"}, "only int8 needs it"),
    "a drop in fp32": ({"to": "openvino", "max_drop": 1.0}, "only int8 needs it"),
    "a negative drop": ({"to": "openvino", "int8": True, "calibrate": "x", "max_drop": -1.0}, "max_drop"),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_options_without_effect_are_refused(colours, tmp_path, case):
    options, sentence = OPTIONS[case]
    with pytest.raises(UserError, match=sentence):
        export_weights(colours[0], tmp_path / "out", **options)


def test_a_runtime_that_is_not_installed_is_named(colours, kept, monkeypatch):
    monkeypatch.setattr("vitreous.deploy.runtime.find_spec", lambda name: None if name == "nncf" else name)
    with pytest.raises(UserError, match=r"nncf is not installed; pip install 'vitreous\[openvino\]'"):
        deploy(colours[0], engine="openvino")


def test_bench_measures_all_engines_and_auto_takes_the_fastest(colours, kept, tmp_path):
    bundle, data = colours
    found = bench(bundle, data=data, out=tmp_path / "out", batch_sizes=[1])
    names = {(row.engine, row.precision) for row in found.rows}
    assert names == {("torch", "fp32"), ("openvino", "fp32"), ("openvino", "int8"), ("onnx", "fp32")}
    speeds = [row.pictures_per_second for row in found.rows]
    assert speeds == sorted(speeds, reverse=True)
    assert min(speeds) > 0
    for row in found.rows:
        assert (row.right, row.judged) == (36, 36)
        assert row.latencies[0].median <= row.latencies[0].p99
    written = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert [row["engine"] for row in written["rows"]] == [row.engine for row in found.rows]
    assert (tmp_path / "out" / "bench.svg").read_text().startswith("<?xml")
    assert deploy(bundle, pictures=10**9).engine.name == found.rows[0].engine
    assert bundle.labels == COLOURS
