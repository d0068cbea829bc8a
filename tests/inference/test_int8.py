"""int8: calibrated and judged with other images, refused where it loses too much, and not searched for in vain."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from support.tiny_networks import random_images
from vitreous import UserError, bench, export_weights, probe
from vitreous.data.source import open_data
from vitreous.inference import bench as timing
from vitreous.inference import conversion
from vitreous.inference import export as exporting
from vitreous.inference.bench import Way, gather_engines
from vitreous.inference.choice import deploy
from vitreous.inference.export import split_images
from vitreous.inference.folder import Accuracy, load_engine, read_about
from vitreous.inference.int8 import SEARCH_SECONDS, measure_accuracy, plan_search, quantise
from vitreous.inference.prepared import TORCH, PreparedEngines, Variant
from vitreous.inference.runtime import RUNTIMES
from vitreous.jobs.evaluate import evaluate


def test_int8_that_loses_more_than_usual_is_taken_only_if_asked_for(colours, in_openvino, kept):
    bundle, _ = colours
    found, int8 = PreparedEngines(bundle), Variant("openvino", "int8")
    for lost, expected in ((0.6, "torch"), (0.4, "openvino")):
        about = replace(in_openvino.about, precision="int8", accuracy=Accuracy(1000, 0.9, 0.9 - lost / 100))
        found.put(replace(in_openvino, about=about))
        found.remember({TORCH: 1.0, int8: 2.0})
        assert deploy(bundle, images=1000).engine.name == expected
        assert deploy(bundle, images=1000, precision="int8").engine.name == "openvino"


def test_int8_that_few_images_judged_is_taken_only_if_asked_for(colours, in_openvino, kept):
    bundle, _ = colours
    found, int8 = PreparedEngines(bundle), Variant("openvino", "int8")
    for images, expected in ((2, "torch"), (199, "torch"), (200, "openvino")):
        about = replace(in_openvino.about, precision="int8", accuracy=Accuracy(images, 1.0, 1.0))
        found.put(replace(in_openvino, about=about))
        found.remember({TORCH: 1.0, int8: 2.0})
        assert deploy(bundle, images=1000).engine.name == expected
        assert deploy(bundle, images=1000, precision="int8").engine.precision == "int8"


def test_int8_that_is_asked_for_need_not_have_a_known_speed(colours, in_openvino, kept):
    """Whoever was interrupted before it was measured, or measured without it, has it all the same."""
    bundle, _ = colours
    found = PreparedEngines(bundle)
    about = replace(in_openvino.about, precision="int8", accuracy=Accuracy(1000, 1.0, 1.0))
    found.put(replace(in_openvino, about=about))
    for speeds in ({}, {TORCH: 1.0}):
        found.remember(speeds)
        assert deploy(bundle, precision="int8").engine.precision == "int8"


def test_nncf_is_told_the_accuracy_of_the_images_it_asks_about():
    """Any of them, in any order, not the first so many."""
    scores = {0: [0.0, 1.0], 1: [1.0, 0.0], 2: [1.0, 0.0]}

    class Compiled:
        def output(self, name):
            return name

        def __call__(self, image):
            return {"scores": np.array(scores[image])}

    items = [(0, 1), (1, 0), (2, 1)]
    assert measure_accuracy(Compiled(), items) == pytest.approx(2 / 3)
    assert measure_accuracy(Compiled(), items[1:2]) == 1
    assert measure_accuracy(Compiled(), items[2:]) == 0


@pytest.mark.slow
def test_int8_is_judged_and_its_accuracy_written_down(colours, kept, tmp_path, capsys):
    bundle, data = colours
    out = export_weights(bundle, tmp_path / "int8", to="openvino", int8=True, calibrate=data)
    about = read_about(out)
    assert about.precision == "int8"
    assert about.accuracy is not None
    assert (about.accuracy.images, about.accuracy.fp32) == (36, 1.0)
    assert about.accuracy.int8 >= 0.995
    assert "in int8" in (out / "README.md").read_text()
    assert capsys.readouterr().out == "", "NNCF says nothing of its own"
    kinds = {op.get_type_name() for op in load_engine(out)[0].engine.model.get_ops()}
    assert "FakeQuantize" in kinds
    assert evaluate(out, data).result.top1 == about.accuracy.int8
    found = deploy(bundle, engine="openvino", precision="int8")
    assert found.engine.precision == "int8", "it is kept for the model too"


@pytest.mark.slow
def test_int8_that_loses_too_much_is_refused(colours, in_openvino, useless, kept, monkeypatch, tmp_path):
    """Whatever quantisation gives here is a model that always says the same; accuracy falls to a third."""
    bundle, data = colours
    tried = []

    def quantise(model, images, **more):
        tried.append(sorted(more))
        return useless

    changed = replace(RUNTIMES["openvino"], quantise=quantise, quantise_within=quantise)
    monkeypatch.setitem(RUNTIMES, "openvino", changed)
    monkeypatch.setattr(exporting, "convert_model", lambda *given: in_openvino)
    with pytest.raises(UserError, match=r"int8 .*66\.67 .*36 .*100\.00%"):
        export_weights(bundle, tmp_path / "out", to="openvino", int8=True, calibrate=data)
    assert len(tried) == 2, "plain, then with the costliest operations kept"
    assert tried[1] == ["judged", "labels", "max_drop", "transformer"]
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_accuracy_aware_quantisation_keeps_its_promise(colours, in_openvino):
    """NNCF's own search, on a model whose accuracy no plain quantisation would lose: it ends, and within the drop."""
    bundle, data = colours
    source = open_data(data)
    learned = conversion.sample_views(source.splits["train"], bundle.preprocess, 20)
    judged = conversion.sample_views(source.splits["test"], bundle.preprocess, 36, bundle.labels)
    model = RUNTIMES["openvino"].quantise_within(
        in_openvino.model, learned.views, transformer=True, judged=judged.views, labels=judged.labels, max_drop=0.5
    )
    right = conversion.count_right(RUNTIMES["openvino"].engine(model, bundle.preprocess, "int8"), judged)
    assert right == 36


def test_calibration_never_judges(colours):
    """Of data with one split only, the images are divided."""
    bundle, data = colours
    calibration, judged = split_images(bundle, data / "test", None)
    assert len(calibration) == 18
    assert len(judged.views) == 18
    seen = {view.numpy().tobytes() for view in calibration}
    assert not seen & {view.numpy().tobytes() for view in judged.views}


def test_features_are_in_int8_only_if_asked_for(colours, in_openvino, kept):
    """What a classifier loses says nothing of them."""
    bundle, data = colours
    found, int8 = PreparedEngines(bundle), Variant("openvino", "int8")
    about = replace(in_openvino.about, precision="int8", accuracy=Accuracy(1000, 1.0, 1.0))
    found.put(replace(in_openvino, about=about))
    found.remember({TORCH: 1.0, int8: 1000.0})
    assert deploy(bundle, images=1000).engine.precision == "int8"
    plain = probe(bundle, data)
    assert (plain.engine, plain.to_json()["engine"]) == ("torch-fp32", "torch-fp32")
    assert probe(bundle, data, precision="int8").engine == "openvino-int8"
    assert probe(found.folder / str(int8), data).engine == "openvino-int8", "an exported model is what it is"


def test_the_test_split_judges_only_where_there_is_no_other(colours):
    bundle, data = colours
    source = open_data(data)
    train, test = source.splits["train"], source.splits["test"]
    divided = replace(source, splits={"train": train, "val": test.subset(range(5)), "test": test.subset(range(5, 36))})
    assert len(split_images(bundle, divided, None)[1].views) == 5
    assert len(split_images(bundle, divided, divided)[1].views) == 31, "somebody said so"
    assert len(split_images(bundle, source, None)[1].views) == 36


@pytest.fixture
def prepared(colours, in_openvino, in_onnx, kept, monkeypatch):
    """Both engines in fp32; if the model has to be converted again, that takes no time."""
    made = {"openvino": in_openvino, "onnx": in_onnx}
    monkeypatch.setattr(timing, "convert_model", lambda bundle, to, views: made[to])
    monkeypatch.setattr(timing, "measure_memory", lambda engine: None)
    found = PreparedEngines(colours[0])
    for converted in made.values():
        found.put(converted)
    return found


@pytest.mark.slow
def test_bench_looks_for_better_int8_only_where_it_is_faster(colours, useless, prepared, monkeypatch):
    bundle, data = colours
    searched = []
    changed = replace(
        RUNTIMES["openvino"],
        quantise=lambda model, views, **more: useless,
        quantise_within=lambda model, views, **more: searched.append(1) or useless,
    )
    monkeypatch.setitem(RUNTIMES, "openvino", changed)
    for speed, searches in ((20.0, 1), (9.0, 0)):
        searched.clear()
        monkeypatch.setattr(conversion, "measure_speeds", lambda engines, speed=speed: {"fp32": 10.0, "int8": speed})
        found = bench(bundle, data=data, batch_sizes=[1])
        assert len(searched) == searches
        assert "int8" not in {row.precision for row in found.rows}
        (remark,) = (one for one in found.remarks if "openvino-int8" in one)
        assert ("9.0" in remark and "10.0" in remark) == (speed == 9.0)


@pytest.mark.slow
def test_int8_that_fewer_images_judged_is_made_again(colours, in_openvino, prepared, monkeypatch):
    """Bench says that more are wanted, so whoever then gives more is judged by them."""
    bundle, data = colours
    int8, quantised = Variant("openvino", "int8"), []
    changed = replace(RUNTIMES["openvino"], quantise=lambda *given, **more: quantised.append(1) or in_openvino.model)
    monkeypatch.setitem(RUNTIMES, "openvino", changed)
    for judged_before, made in ((2, True), (36, False), (1000, False)):
        quantised.clear()
        about = replace(in_openvino.about, precision="int8", accuracy=Accuracy(judged_before, 1.0, 1.0))
        prepared.put(replace(in_openvino, about=about))
        gathered = gather_engines(bundle, [0], data, None, lambda text: None)
        assert Way(int8, 0) in gathered.engines
        assert len(quantised) == made
        assert prepared.get(int8)[1].accuracy.images == (36 if made else judged_before)


@pytest.mark.slow
@pytest.mark.parametrize("vnni", [True, False])
def test_without_vnni_weights_leave_room_for_sums_of_16_bits(colours, in_openvino, monkeypatch, vnni):
    """There two products of bytes are added up in 16 signed bits: 2 x 255 x 64 fits, 2 x 255 x 127 does not."""
    bundle, _ = colours
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True, "avx512_vnni": vnni})
    views = random_images(bundle, 4)
    quantised = quantise(in_openvino.model, views, transformer=True)
    constants = [op for op in quantised.get_ops() if op.get_type_name() == "Constant"]
    bytes_ = [op.data for op in constants if op.get_element_type().get_type_name() == "i8" and op.data.ndim == 2]
    assert len(bytes_) >= 4, "the products of attention and MLP"
    assert (max(np.abs(one.astype(int)).max() for one in bytes_) <= 64) != vnni


def test_the_search_for_the_costliest_operations_ends():
    """Within its time, as far as that is possible: one image for each operation, and one step, it always takes."""
    for seconds in (0.001, 0.03, 0.2, 5.0):
        found = plan_search(operations=75, judged=1000, seconds=seconds)
        least = (75 + 5 * 1000) * seconds
        assert least <= found.seconds <= max(least, SEARCH_SECONDS + 4 * 1000 * seconds)
        assert 1 <= found.ranked <= 100
        assert 1 <= found.returned <= 75
        assert found.seconds == pytest.approx((75 * found.ranked + (found.returned + 4) * 1000) * seconds)
