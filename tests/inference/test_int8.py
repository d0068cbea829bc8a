"""int8: calibrated and measured with other images, refused where it loses too much, and not searched for in vain."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from support.tiny_networks import random_images
from vitreous import UserError, bench, export_weights, probe, write_report
from vitreous.callbacks import Callbacks
from vitreous.cli import main
from vitreous.data.opening import open_data
from vitreous.data.source import Data
from vitreous.inference import bench as timing
from vitreous.inference import conversion, opening
from vitreous.inference.bench import EngineCandidate, gather_engines
from vitreous.inference.conversion import held_out_views, sample_views, split_images
from vitreous.inference.engine_cache import EngineCache
from vitreous.inference.engine_folder import Int8Accuracy, load_engine, read_metadata
from vitreous.inference.engines import ENGINES, TORCH, Variant
from vitreous.inference.opening import is_trusted, open_engine
from vitreous.inference.openvino import SEARCH_SECONDS, OpenVinoEngine, measure_accuracy, plan_search, quantize
from vitreous.verbs.evaluate import evaluate
from vitreous.weights.bundle import load_bundle
from vitreous.weights.seen_images import find_seen_images

INT8 = Variant("openvino", "int8")


def in_int8(converted, accuracy):
    return replace(converted, conversion=replace(converted.metadata, precision="int8", accuracy=accuracy))


def test_auto_takes_int8_only_if_the_paired_interval_allows_it(colours, in_openvino, kept):
    """Half a point may be lost, and by the end of the 95 % interval one point; whoever asks for int8 gets it."""
    bundle, _ = colours
    cache = EngineCache(bundle)
    for accuracy, expected in (
        (Int8Accuracy(1000, 900, 6, 0), "torch"),  # 0.6 points
        (Int8Accuracy(1000, 900, 4, 0), "openvino"),  # 0.4, with certainty
        (Int8Accuracy(1000, 900, 22, 18), "torch"),  # 0.4 as well, but 40 images changed
        (Int8Accuracy(4000, 3600, 22, 18), "openvino"),
        (Int8Accuracy(100, 100, 0, 0), "torch"),  # too few to know
        (Int8Accuracy(200, 200, 0, 0), "openvino"),
        (None, "torch"),
    ):
        cache.put(in_int8(in_openvino, accuracy))
        cache.remember({TORCH: 1.0, INT8: 2.0})
        assert open_engine(bundle, images=1000).engine.name == expected, accuracy
        assert open_engine(bundle, images=1000, precision="int8").engine.precision == "int8"


def test_a_loss_of_two_points_is_hardly_ever_trusted(in_openvino):
    """Of 200 images the estimate alone, which decided once, let it pass 19 times of 100."""
    rng = np.random.default_rng(0)
    lost, gained = rng.multinomial(200, (0.025, 0.005, 0.97), size=5000)[:, :2].T
    drops = (lost - gained) / 2
    trusted = [
        is_trusted(in_int8(in_openvino, Int8Accuracy(200, 180, int(a), int(b))).metadata)
        for a, b in zip(lost, gained, strict=True)
    ]
    assert np.mean(drops <= 0.5) > 0.1
    assert np.mean(trusted) < 0.02


def test_int8_that_is_asked_for_need_not_have_a_known_speed(colours, in_openvino, kept):
    """Whoever was interrupted before it was measured, or measured without it, has it all the same."""
    bundle, _ = colours
    cache = EngineCache(bundle)
    cache.put(in_int8(in_openvino, Int8Accuracy(1000, 1000, 0, 0)))
    for speeds in ({}, {TORCH: 1.0}):
        cache.remember(speeds)
        assert open_engine(bundle, precision="int8").engine.precision == "int8"


def test_the_number_of_threads_is_no_property_of_int8(colours, in_openvino, kept):
    """A worker of a cluster has one, and what `bench` made here with all of them is as good there."""
    bundle, _ = colours
    EngineCache(bundle).put(in_int8(in_openvino, Int8Accuracy(1000, 1000, 0, 0)))
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        assert open_engine(load_bundle(bundle.path), precision="int8").engine.precision == "int8"
    finally:
        torch.set_num_threads(threads)


def test_nncf_is_told_the_accuracy_of_the_images_it_asks_about():
    """Any of them, in any order, not the first so many."""
    logits = {0: [0.0, 1.0], 1: [1.0, 0.0], 2: [1.0, 0.0]}

    class Compiled:
        def output(self, name):
            return name

        def __call__(self, image):
            return {"logits": np.array(logits[image])}

    items = [(0, 1), (1, 0), (2, 1)]
    assert measure_accuracy(Compiled(), items) == pytest.approx(2 / 3)
    assert measure_accuracy(Compiled(), items[1:2]) == 1
    assert measure_accuracy(Compiled(), items[2:]) == 0


@pytest.mark.slow
def test_int8_is_judged_and_its_accuracy_written_down(colours, kept, tmp_path, capsys):
    bundle, data = colours
    out = export_weights(bundle, tmp_path / "int8", to="openvino", int8=True, calibrate=data)
    metadata = read_metadata(out)
    assert metadata.precision == "int8"
    assert metadata.accuracy is not None
    assert (metadata.accuracy.images, metadata.accuracy.fp32) == (24, 1.0)
    assert metadata.accuracy.int8 >= 0.995
    assert "in int8" in (out / "README.md").read_text()
    assert capsys.readouterr().out == "", "NNCF says nothing of its own"
    kinds = {op.get_type_name() for op in load_engine(out).engine.graph.get_ops()}
    assert "FakeQuantize" in kinds
    assert evaluate(out, data).result.top1 == metadata.accuracy.int8
    found = open_engine(bundle, engine="openvino", precision="int8")
    assert found.engine.precision == "int8", "it is kept for the model too"


@pytest.mark.slow
def test_int8_needs_no_labels_of_the_models_classes(colours, kept, tmp_path, subtests, capsys):
    """An ImageNet model and photographs in folders such as Abyssinian: its agreement with float32 is measured."""
    bundle, data = colours
    folders = {"other classes": tmp_path / "breeds", "no classes": tmp_path / "flat"}
    for number, path in enumerate(sorted(data.glob("*/*/*.png"))):
        for name in (f"breeds/Breed-{path.parent.name}", "flat"):
            (tmp_path / name).mkdir(parents=True, exist_ok=True)
            (tmp_path / name / f"{number}.png").write_bytes(path.read_bytes())
    for title, folder in folders.items():
        with subtests.test(title):
            images = split_images(bundle, folder, None)
            assert not images.labelled
            for views, labels, *_ in (images.control, images.held_out):
                with torch.no_grad():
                    logits = bundle.model(views / 127.5 - 1)
                assert labels.tolist() == logits.numpy().argmax(axis=1).tolist()
            out = tmp_path / f"int8 of {title}"
            main(["export", str(bundle.path), str(out), "--to", "openvino", "--int8", "--calibrate", str(folder)])
            accuracy, views = read_metadata(out).accuracy, images.held_out.views
            in_int8 = load_engine(out).engine.logits(views).numpy().argmax(axis=1)
            agreement = np.mean(in_int8 == images.held_out.labels.numpy())
            assert (accuracy.labelled, accuracy.images, accuracy.fp32) == (False, len(views), 1.0)
            assert accuracy.int8 == pytest.approx(agreement)
            assert f"{agreement:.2%}" in capsys.readouterr().out
            found = bench(bundle, data=folder, batch_sizes=[1])
            assert {row.correct for row in found.rows} == {None}


@pytest.mark.slow
def test_int8_that_loses_too_much_is_refused(colours, in_openvino, useless, kept, monkeypatch, tmp_path):
    """Quantization gives a model here that always predicts the same class."""
    bundle, data = colours
    tried = []

    def quantize(model, images, **more):
        tried.append(sorted(more))
        return useless

    changed = replace(ENGINES["openvino"], quantize=quantize, quantize_with_accuracy_control=quantize)
    monkeypatch.setitem(ENGINES, "openvino", changed)
    monkeypatch.setattr(opening, "convert_model", lambda *given: in_openvino)
    with pytest.raises(UserError, match=r"int8 .*75\.00 .*100\.00%.* 12 "):
        export_weights(bundle, tmp_path / "out", to="openvino", int8=True, calibrate=data)
    assert len(tried) == 2, "plain, then with the costliest operations kept"
    assert tried[1] == ["control", "labels", "max_drop", "progress", "transformer"]
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_accuracy_aware_quantization_keeps_its_promise(colours, in_openvino):
    """NNCF's own search, on a model whose accuracy no plain quantization would lose: it ends, and within the drop."""
    bundle, data = colours
    source = open_data(data)
    learned = sample_views(source.splits["train"], bundle.preprocess, 20)
    judged = sample_views(source.splits["test"], bundle.preprocess, 36, bundle.labels)
    model = ENGINES["openvino"].quantize_with_accuracy_control(
        in_openvino.engine.graph,
        learned.views,
        transformer=True,
        control=judged.views,
        labels=judged.labels,
        max_drop=0.5,
    )
    right = conversion.correct_predictions(ENGINES["openvino"].engine(model, bundle.preprocess, "int8"), judged)
    assert right.sum() == 36


@pytest.mark.slow
def test_the_accuracy_of_int8_is_not_told_as_the_models(colours, useless, in_openvino, kept, tmp_path, capsys):
    """An int8 that `auto` trusts and that is wrong for most images: the page is about the model, and evaluate says
    what computed."""
    bundle, data = colours
    cache = EngineCache(bundle)
    cache.put(
        in_int8(
            replace(in_openvino, engine=OpenVinoEngine(useless, bundle.preprocess, "fp32")),
            Int8Accuracy(1000, 1000, 0, 0),
        )
    )
    cache.remember({TORCH: 1.0, INT8: 1e6})
    found = evaluate(bundle, data)
    assert (found.engine, found.result.top1) == ("openvino-int8", pytest.approx(1 / 3))
    main(["evaluate", str(bundle.path), str(data)])
    assert "openvino-int8" in capsys.readouterr().out
    page = write_report(bundle, data=data, out=tmp_path / "page.html").read_text(encoding="utf-8")
    assert 'id="accuracy-test">100.0' in page


def test_bench_names_the_images_of_an_accuracy(colours, kept, monkeypatch, capsys):
    """102 images of val, which selected the weights, are not the test images that `evaluate` measures."""
    bundle, data = colours
    source = open_data(data)
    train, test = source.splits["train"], source.splits["test"]
    divided = replace(source, splits={"train": train, "val": test.subset(range(9)), "test": test.subset(range(9, 36))})
    monkeypatch.setattr(timing, "converted_variants", list)
    monkeypatch.setattr(timing, "measure_memory", lambda engine: None)
    (row,) = bench(bundle, data=divided, batch_sizes=[1]).rows
    assert (row.split, row.evaluated, row.seen) == ("val", 6, False)
    assert row.to_json()["interval"] is not None
    seen = replace(bundle, seen_images=find_seen_images(divided))
    found = bench(seen, data=divided, batch_sizes=[1])
    assert found.rows[0].seen
    assert found.rows[0].to_json()["interval"] is None
    assert found.remarks[-1] == seen.seen_images.overlap(divided.splits["val"].subset(range(6))).sentence


def test_of_seen_images_those_count_that_measure_the_accuracy(colours, monkeypatch):
    """Four of 36 images: the others may have been trained on."""
    bundle, data = colours
    test = open_data(data).splits["test"]
    monkeypatch.setattr(conversion, "HELD_OUT_IMAGES", 4)
    measured = {view.numpy().tobytes() for view in held_out_views(bundle, test, bundle.labels, "test").views}
    views = [sample_views(test.subset([i]), bundle.preprocess, 1).views.numpy().tobytes() for i in range(36)]
    inside, outside = ([i for i in range(36) if (views[i] in measured) == wanted] for wanted in (True, False))
    assert (len(inside), len(outside)) == (4, 32)
    for trained_on in (outside, inside[:3] + outside):
        seen = find_seen_images(Data({"train": test.subset(trained_on)}, test.classes))
        found = held_out_views(replace(bundle, seen_images=seen), test, bundle.labels, "test")
        assert found.note == seen.overlap(test.subset(inside)).sentence
        assert (found.note is None) == (trained_on == outside)


def test_export_tells_how_far_it_is(colours, kept, tmp_path):
    bundle, data = colours
    told = {}
    progress = Callbacks(progress=lambda what, done, total: told.setdefault(what, []).append((done, total)))
    export_weights(bundle, tmp_path / "onnx", to="onnx", verify=data, callbacks=progress)
    assert len(told) >= 6
    for what, steps in told.items():
        done, totals = zip(*steps, strict=True)
        assert sorted(done) == list(done), what
        assert done[-1] == totals[-1], what


def test_no_image_calibrates_controls_and_measures(colours):
    """Of data with one split only, the images are divided."""
    bundle, data = colours
    found = split_images(bundle, data / "test", None)
    assert [len(views) for views in (found.calibration, found.control.views, found.held_out.views)] == [18, 6, 12]
    seen = [
        view.numpy().tobytes() for views in (found.calibration, found.control[0], found.held_out[0]) for view in views
    ]
    assert len(set(seen)) == 36


def test_features_are_in_int8_only_if_asked_for(colours, in_openvino, kept):
    """What a classifier loses says nothing of them."""
    bundle, data = colours
    found = EngineCache(bundle)
    found.put(in_int8(in_openvino, Int8Accuracy(1000, 1000, 0, 0)))
    found.remember({TORCH: 1.0, INT8: 1000.0})
    assert open_engine(bundle, images=1000).engine.precision == "int8"
    plain = probe(bundle, data)
    assert (plain.engine, plain.to_json()["engine"]) == ("torch-fp32", "torch-fp32")
    assert probe(bundle, data, precision="int8").engine == "openvino-int8"
    assert probe(found.folder / str(INT8), data).engine == "openvino-int8", "an exported model is what it is"


def test_the_test_split_judges_only_where_there_is_no_other(colours):
    bundle, data = colours
    source = open_data(data)
    train, test = source.splits["train"], source.splits["test"]
    divided = replace(source, splits={"train": train, "val": test.subset(range(5)), "test": test.subset(range(5, 36))})
    for images, verify, control, held_out in (
        (divided, None, 2, 3),
        (divided, divided, 11, 20),
        (source, None, 12, 24),
    ):
        found = split_images(bundle, images, verify)
        assert (len(found.control.views), len(found.held_out.views)) == (control, held_out)


@pytest.fixture
def prepared(colours, in_openvino, in_onnx, kept, monkeypatch):
    """Both engines in fp32; if the model has to be converted again, that takes no time."""
    made = {"openvino": in_openvino, "onnx": in_onnx}
    monkeypatch.setattr(timing, "convert_model", lambda bundle, to, views, progress: made[to])
    monkeypatch.setattr(timing, "measure_memory", lambda engine: None)
    found = EngineCache(colours[0])
    for converted in made.values():
        found.put(converted)
    return found


@pytest.mark.slow
def test_bench_looks_for_better_int8_only_where_it_is_faster(colours, useless, prepared, monkeypatch):
    bundle, data = colours
    searched = []
    changed = replace(
        ENGINES["openvino"],
        quantize=lambda model, views, **more: useless,
        quantize_with_accuracy_control=lambda model, views, **more: searched.append(1) or useless,
    )
    monkeypatch.setitem(ENGINES, "openvino", changed)
    for speed, searches in ((20.0, 1), (9.0, 0)):
        searched.clear()
        monkeypatch.setattr(conversion, "measure_speeds", lambda engines, speed=speed: {"fp32": 10.0, "int8": speed})
        found = bench(bundle, data=data, batch_sizes=[1])
        assert len(searched) == searches
        assert "int8" not in {row.precision for row in found.rows}
        (remark,) = (one for one in found.remarks if "openvino-int8" in one)
        assert ("9.0" in remark and "10.0" in remark) == (speed == 9.0)


@pytest.mark.slow
def test_int8_that_fewer_images_measured_is_made_again(colours, in_openvino, prepared, monkeypatch):
    """Bench says that more are wanted, so whoever then gives more has it measured by them."""
    bundle, data = colours
    quantized = []
    changed = replace(
        ENGINES["openvino"], quantize=lambda *given, **more: quantized.append(1) or in_openvino.engine.graph
    )
    monkeypatch.setitem(ENGINES, "openvino", changed)
    for held_out_before, made in ((2, True), (24, False), (1000, False)):
        quantized.clear()
        prepared.put(in_int8(in_openvino, Int8Accuracy(held_out_before, held_out_before, 0, 0)))
        gathered = gather_engines(bundle, [0], data, None, Callbacks())
        assert EngineCandidate(INT8, 0) in gathered.engines
        assert len(quantized) == made
        assert prepared.get(INT8).metadata.accuracy.images == (24 if made else held_out_before)


@pytest.mark.slow
def test_int8_of_images_without_labels_is_kept_as_long_as_it_would_be_made(colours, in_openvino, prepared, monkeypatch):
    """1.5 points of disagreement are allowed, and 1.5 points of accuracy are not."""
    bundle, data = colours
    source = open_data(data)
    strange = ("x", "y", "z")
    splits = {name: split.with_labels(split.labels, strange) for name, split in source.splits.items()}
    unlabelled = replace(source, splits=splits, classes=strange)
    quantized = []
    changed = replace(
        ENGINES["openvino"], quantize=lambda *given, **more: quantized.append(1) or in_openvino.engine.graph
    )
    monkeypatch.setitem(ENGINES, "openvino", changed)
    for images, labelled, lost, made in (
        (unlabelled, False, 15, False),
        (None, False, 15, False),
        (unlabelled, False, 25, True),
        (data, True, 15, True),
    ):
        quantized.clear()
        prepared.put(in_int8(in_openvino, Int8Accuracy(1000, 1000, lost, 0, labelled)))
        gathered = gather_engines(bundle, [0], images, None, Callbacks())
        assert EngineCandidate(INT8, 0) in gathered.engines
        assert len(quantized) == made, (labelled, lost)


@pytest.mark.slow
@pytest.mark.parametrize("vnni", [True, False])
def test_without_vnni_weights_leave_room_for_sums_of_16_bits(colours, in_openvino, monkeypatch, vnni):
    """There two products of bytes are added up in 16 signed bits: 2 x 255 x 64 fits, 2 x 255 x 127 does not."""
    bundle, _ = colours
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True, "avx512_vnni": vnni})
    views = random_images(bundle, 4)
    quantized = quantize(in_openvino.engine.graph, views, transformer=True)
    constants = [op for op in quantized.get_ops() if op.get_type_name() == "Constant"]
    bytes_ = [op.data for op in constants if op.get_element_type().get_type_name() == "i8" and op.data.ndim == 2]
    assert len(bytes_) >= 4, "the products of attention and MLP"
    assert (max(np.abs(one.astype(int)).max() for one in bytes_) <= 64) != vnni


def test_the_search_for_the_costliest_operations_ends():
    """Within its time, as far as that is possible: one image for each operation, and one step, it always takes."""
    for seconds in (0.001, 0.03, 0.2, 5.0):
        found = plan_search(operations=75, control=1000, seconds=seconds)
        least = (75 + 5 * 1000) * seconds
        assert least <= found.seconds <= max(least, SEARCH_SECONDS + 4 * 1000 * seconds)
        assert 1 <= found.ranked <= 100
        assert 1 <= found.returned <= 75
        assert found.seconds == pytest.approx((75 * found.ranked + (found.returned + 4) * 1000) * seconds)
