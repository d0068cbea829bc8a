"""Which engine answers: what was asked for, or the fastest that was verified for this model on this machine."""

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch

from support.colours import COLOURS
from support.tiny_networks import random_images
from vitreous import UserError, bench, export_weights, load, predict, probe
from vitreous.inference import bench as memory
from vitreous.inference import conversion, engine_cache
from vitreous.inference import opening as engines
from vitreous.inference.engine import TorchEngine
from vitreous.inference.engine_cache import EngineCache
from vitreous.inference.engine_folder import load_engine
from vitreous.inference.engines import ENGINES, OPENVINO, TORCH
from vitreous.inference.opening import open_engine
from vitreous.inference.openvino import OpenVinoEngine
from vitreous.memory import peak_bytes
from vitreous.verbs.evaluate import evaluate
from vitreous.weights.bundle import load_bundle


def test_auto_is_pytorch_until_another_engine_was_measured(colours, in_openvino, kept, caplog):
    caplog.set_level(logging.INFO, "vitreous")
    bundle, _ = colours
    assert open_engine(bundle, images=100).engine.name == "torch"
    found = EngineCache(bundle)
    found.put(in_openvino)
    assert open_engine(bundle, images=100).engine.name == "torch", "its speed is not known"
    assert caplog.messages == [], "of a hundred images nobody asks"
    caplog.clear()
    found.remember({TORCH: 10.0, OPENVINO: 25.0})
    assert open_engine(bundle, images=100).engine.name == "openvino"
    assert open_engine(bundle, engine="torch", images=100).engine.name == "torch"
    found.remember({TORCH: 10.0, OPENVINO: 9.9})
    assert open_engine(bundle, images=100).engine.name == "torch", "it is slower here"
    openvino, torch_ = caplog.messages
    assert all(word in openvino for word in ("OpenVINO", "fp32", "2.5"))
    assert all(word in torch_ for word in ("PyTorch", "100"))
    caplog.clear()
    assert open_engine(bundle, images=15).engine.name == "torch"
    assert caplog.messages == [], "of a few images nobody asks"


def test_an_engine_is_opened_once_for_a_network_and_then_costs_nothing(colours, in_openvino, kept):
    bundle, _ = colours
    found = EngineCache(bundle)
    found.put(in_openvino)
    found.remember({TORCH: 10.0, OPENVINO: 25.0})
    again = load_bundle(bundle.path)
    assert open_engine(again, images=16).engine.name == "torch", "it takes longer to open than it saves"
    first = open_engine(again, images=100).engine
    assert open_engine(again, images=16).engine is first, "by then it is open"
    assert EngineCache(again).put(in_openvino).engine is not first
    assert open_engine(load_bundle(bundle.path), images=100).engine is not first


def test_what_a_converted_form_answers_is_said_of_the_persons_model(colours, in_openvino, kept, tmp_path):
    bundle, data = colours
    EngineCache(bundle).put(in_openvino)
    assert open_engine(bundle, engine="openvino").path == bundle.path
    given = {"kinds": ["contrast"], "severities": [1], "count": 2, "workers": 0, "out": tmp_path / "out"}
    evaluate(bundle, data, corruptions=True, engine="openvino", **given)
    assert f"<h1>{bundle.path.parent.name}</h1>" in (tmp_path / "out" / "corruptions.html").read_text()


def test_speeds_of_another_machine_do_not_count(colours, in_openvino, kept, monkeypatch):
    bundle, _ = colours
    found = EngineCache(bundle)
    found.put(in_openvino)
    found.remember({TORCH: 1.0, OPENVINO: 2.0})
    assert found.speeds == {TORCH: 1.0, OPENVINO: 2.0}
    with monkeypatch.context() as patch:
        patch.setattr(engine_cache, "describe_machine", lambda: "another")
        assert found.speeds == {}
        assert open_engine(bundle, images=100).engine.name == "torch"
        found.remember({TORCH: 3.0})
    assert found.speeds == {TORCH: 1.0, OPENVINO: 2.0}, "both are kept"


def test_what_other_versions_made_does_not_count(colours, in_openvino, kept, monkeypatch):
    bundle, _ = colours
    found = EngineCache(bundle)
    found.put(in_openvino)
    found.remember({TORCH: 1.0, OPENVINO: 2.0})
    monkeypatch.setattr(engine_cache, "describe_software", lambda: "openvino 1999.1")
    assert found.get(OPENVINO) is None
    assert open_engine(bundle, images=100).engine.name == "torch"


def test_a_model_that_cannot_be_converted_is_answered_for_by_pytorch(colours, kept, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "vitreous")
    bundle, _ = colours
    kind = ENGINES["openvino"]

    def fail(*given):
        raise RuntimeError("operation 4711")

    monkeypatch.setitem(ENGINES, "openvino", replace(kind, convert=fail))
    monkeypatch.setattr(conversion, "trace_graph", lambda *given: None)
    monkeypatch.setattr(engines, "measure_speeds", lambda found, **_: dict.fromkeys(found, 1.0))
    assert open_engine(bundle, images=100_000).engine.name == "torch"
    assert any("4711" in message for message in caplog.messages)
    with pytest.raises(UserError, match=r"\b4711\b"):
        open_engine(bundle, engine="openvino")


def test_an_engine_that_is_asked_for_is_taken_beside_an_accelerator_too(colours, in_openvino, kept, monkeypatch):
    EngineCache(colours[0]).put(in_openvino)
    monkeypatch.setattr(engines, "find_device", lambda device: torch.device("meta"))
    assert open_engine(colours[0], engine="openvino").engine.name == "openvino"


def test_two_threads_get_their_own_answers(colours, in_openvino, kept):
    bundle, _ = colours
    EngineCache(bundle).put(in_openvino)
    engine = open_engine(bundle, engine="openvino").engine
    images = random_images(bundle, 23)
    expected = [engine.logits(images[i:]) for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda i: engine.logits(images[i:]), [*range(8)] * 5))
    for i, scores in enumerate(found):
        torch.testing.assert_close(scores, expected[i % 8], atol=1e-6, rtol=0)


def test_another_model_does_not_take_this_ones_engine(colours, in_openvino, kept):
    bundle, _ = colours
    found = EngineCache(bundle)
    found.put(in_openvino)
    found.remember({TORCH: 1.0, OPENVINO: 2.0})
    with torch.no_grad():
        bundle.model.head.bias[0] += 1
    try:
        assert open_engine(bundle, images=100).engine.name == "torch"
    finally:
        with torch.no_grad():
            bundle.model.head.bias[0] -= 1


def test_many_images_are_worth_a_conversion(colours, in_openvino, kept, monkeypatch):
    bundle, _ = colours
    monkeypatch.setattr(engines, "convert_model", lambda bundle, to, views: {"openvino": in_openvino}[to])
    monkeypatch.setattr(engines, "measure_speeds", lambda found, **_: dict.fromkeys(found, 1.0))
    monkeypatch.setattr(engine_cache, "measure_speeds", lambda found, **_: dict.fromkeys(found, 1.0) | {OPENVINO: 2.0})
    assert open_engine(bundle, images=100_000).engine.name == "openvino"
    assert EngineCache(bundle).get(OPENVINO) is not None


def test_a_conversion_must_save_more_than_it_takes(colours, in_openvino, kept, monkeypatch):
    """As many images took 66 s in PyTorch on shared cores, and 124 with the conversion."""
    bundle, converted = colours[0], []
    monkeypatch.setattr(engines, "convert_model", lambda *given: converted.append(given) or in_openvino)
    monkeypatch.setattr(conversion, "SECONDS_PER_MODULE", 15 / sum(1 for _ in bundle.model.modules()))
    monkeypatch.setattr(engines, "measure_speeds", lambda found, **_: dict.fromkeys(found, 600.0))
    monkeypatch.setattr(
        engine_cache, "measure_speeds", lambda found, **_: dict.fromkeys(found, 600.0) | {OPENVINO: 1800.0}
    )
    monkeypatch.setattr(conversion, "core_wait", lambda: 3.0)
    assert open_engine(bundle, images=39_800).engine.name == "torch"
    assert not converted
    monkeypatch.setattr(conversion, "core_wait", lambda: 1.0)
    assert open_engine(bundle, images=39_800).engine.name == "openvino"
    assert len(converted) == 1
    (EngineCache(bundle).folder / "speeds.json").unlink()  # it is converted, and was never measured on this machine
    monkeypatch.setattr(conversion, "core_wait", lambda: 3.0)
    assert open_engine(bundle, images=39_800).engine.name == "openvino"
    assert len(converted) == 1


def test_a_batch_that_does_not_fit_into_the_memory_is_not_tried(colours, kept, monkeypatch):
    """Whoever asks about fewer at once gets answers, and whoever does not, a sentence."""
    bundle, _ = colours
    monkeypatch.setattr("vitreous.memory.available_memory", lambda: 1000)
    monkeypatch.setattr(TorchEngine, "logits", lambda self, images: pytest.fail("a batch was computed"))
    assert open_engine(bundle, images=100_000).engine.name == "torch"


def test_what_is_kept_and_damaged_is_made_again(colours, in_openvino, kept, monkeypatch):
    bundle, _ = colours
    made = []
    monkeypatch.setattr(engines, "convert_model", lambda *given: made.append(given) or in_openvino)
    EngineCache(bundle).put(in_openvino)
    first = open_engine(bundle, engine="openvino")
    place = EngineCache(bundle).folder / "openvino-fp32" / "model.bin"
    content = bytearray(place.read_bytes())
    content[100] ^= 1
    place.write_bytes(content)
    with pytest.raises(UserError, match=r"model\.bin"):
        load_engine(place.parent)
    images = random_images(bundle, 4)
    again = open_engine(load_bundle(bundle.path), engine="openvino")
    assert len(made) == 1
    assert torch.equal(first.engine.logits(images), again.engine.logits(images))
    load_engine(place.parent)


@pytest.mark.slow
def test_every_verb_that_asks_gets_the_same_answer(colours, in_openvino, in_onnx, kept, subtests):
    bundle, data = colours
    files = sorted(data.glob("test/*/*.png"))
    scores = probe(bundle, data, engine="torch").scores
    assert evaluate(bundle, data, engine="torch").result.top1 == 1
    for converted in (in_openvino, in_onnx):
        EngineCache(bundle).put(converted)
        engine = converted.metadata.runtime
        with subtests.test(engine):
            found = evaluate(bundle, data, engine=engine)
            assert (found.result.top1, found.engine) == (1, f"{engine}-fp32")
            assert probe(bundle, data, engine=engine).scores == scores
            assert [one.label for one in predict(bundle, files, engine=engine)] == [file.parent.name for file in files]


REFUSED = {
    "int8 in PyTorch": ({"engine": "torch", "precision": "int8"}, "openvino"),
    "int8 that was never made": ({"engine": "openvino", "precision": "int8"}, "--calibrate"),
    "int8 by auto": ({"precision": "int8"}, "--calibrate"),
    "int8 in ONNX": ({"engine": "onnx", "precision": "int8"}, "ONNX .*openvino"),
}


def test_what_cannot_be_had_is_said(colours, kept, subtests):
    for case, (options, named) in REFUSED.items():
        with subtests.test(case), pytest.raises(UserError, match=f"precision='int8': .*{named}"):
            open_engine(colours[0], **options)


def test_an_exported_model_is_what_it_is(colours, in_openvino, kept):
    bundle, data = colours
    EngineCache(bundle).put(in_openvino)
    out, image = EngineCache(bundle).folder / "openvino-fp32", random_images(bundle, 1)[0]
    with pytest.raises(UserError, match=f"engine='onnx': {out}"):
        predict(out, image, engine="onnx")
    with pytest.raises(UserError, match=f"precision='int8': {out}"):
        evaluate(out, data, precision="int8")
    with pytest.raises(UserError, match=f"preprocess: {out}"):
        predict(out, image, preprocess="crop=0.5")
    with pytest.raises(UserError, match=str(out)):
        load(out)


OPTIONS = {
    "int8 for timm": ({"to": "timm", "int8": True}, "int8"),
    "merging for timm": ({"to": "timm", "merge": 2}, "merge"),
    "images for google": ({"to": "google", "verify": "x"}, "verify"),
    "int8 in ONNX": ({"to": "onnx", "int8": True, "calibrate": "x"}, "int8"),
    "int8 without images": ({"to": "openvino", "int8": True}, "int8"),
    "calibrating fp32": ({"to": "openvino", "calibrate": "x"}, "calibrate"),
    "a drop in fp32": ({"to": "openvino", "max_drop": 1.0}, "max_drop"),
    "a negative drop": ({"to": "openvino", "int8": True, "calibrate": "x", "max_drop": -1.0}, "max_drop"),
}


def test_options_without_effect_are_refused(colours, tmp_path, subtests):
    for case, (options, named) in OPTIONS.items():
        with subtests.test(case), pytest.raises(UserError, match=f"^{named}"):
            export_weights(colours[0], tmp_path / "out", **options)


def test_a_runtime_that_is_not_installed_is_named(colours, kept, monkeypatch):
    monkeypatch.setattr("vitreous.inference.engines.find_spec", lambda name: None if name == "nncf" else name)
    with pytest.raises(UserError, match=r"nncf .*'vitreous\[openvino\]'"):
        open_engine(colours[0], engine="openvino")


@pytest.mark.slow
@pytest.mark.skipif(not peak_bytes(), reason="the system does not tell")
def test_memory_is_of_a_process_that_asks_as_many_images_as_the_engine_likes(
    colours, in_openvino, kept, monkeypatch, tmp_path
):
    """So nothing that this process has done counts, and a larger batch takes more."""
    bundle, _ = colours
    (tmp_path / "sitecustomize.py").write_text("print('Good morning')")
    monkeypatch.syspath_prepend(tmp_path)
    EngineCache(bundle).put(in_openvino)
    asked = []
    held = np.ones(400_000_000 // 8)
    engine = open_engine(bundle, engine="openvino").engine
    assert 50 < memory.measure_memory(engine) < 400 + 100, "Python and its libraries, but nothing of ours"
    del held
    monkeypatch.setattr(memory, "_measure_in_process", lambda folder: asked.append(load_bundle(folder)) or 1.0)
    assert memory.measure_memory(open_engine(bundle, engine="torch", merge=2).engine) == 1.0
    assert asked[0].model.config.merge == 2, "the network as it is, not as it was saved"
    assert memory.measure_memory(OpenVinoEngine(in_openvino.engine.graph, bundle.preprocess, "fp32")) is None


def test_without_room_for_a_copy_memory_is_not_known(colours, monkeypatch, tmp_path):
    """All else that was measured is worth more than this one figure."""
    engine = open_engine(colours[0], engine="torch").engine
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    assert memory.measure_memory(engine) is None
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def full(*given):
        raise UserError("the disk is full")

    monkeypatch.setattr(memory, "save_bundle", full)
    assert memory.measure_memory(engine) is None
    assert not list(tmp_path.iterdir())


def test_memory_is_measured_with_a_whole_batch(colours, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(TorchEngine, "logits", lambda self, images: asked.append(len(images)))
    memory.print_peak_memory(colours[0].path)
    assert asked == [open_engine(colours[0], engine="torch").engine.batch_size] * 2
    assert int(capsys.readouterr().out) == pytest.approx(peak_bytes(), rel=0.1)


@pytest.mark.slow
def test_bench_measures_all_engines_and_auto_takes_the_fastest(colours, in_openvino, kept, monkeypatch, tmp_path):
    bundle, data = colours
    EngineCache(bundle).put(in_openvino)
    monkeypatch.setattr("vitreous.inference.bench.measure_memory", lambda engine: engine.batch_size)
    found = bench(bundle, data=data, out=tmp_path / "out", batch_sizes=[1])
    names = {(row.engine, row.precision) for row in found.rows}
    assert names == {("torch", "fp32"), ("openvino", "fp32"), ("openvino", "int8"), ("onnx", "fp32")}
    speeds = [row.images_per_second for row in found.rows]
    assert speeds == sorted(speeds, reverse=True)
    assert min(speeds) > 0
    for row in found.rows:
        assert (row.correct, row.evaluated) == (24, 24), "the others calibrate or control int8"
        assert row.latencies[0].median <= row.latencies[0].p99
        assert row.megabytes == row.best_batch, "of each engine by itself"
    written = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert [row["engine"] for row in written["rows"]] == [row.engine for row in found.rows]
    assert (tmp_path / "out" / "bench.svg").read_text().startswith("<?xml")
    fastest = next(row for row in found.rows if row.precision == "fp32")  # int8 was measured on too few
    assert open_engine(bundle, images=10**9).engine.name == fastest.engine
    assert any("openvino-int8" in remark and "24" in remark for remark in found.remarks)
    assert bundle.labels == COLOURS
