"""Many images, in parts: every image has its row once, whoever did it, and what is done is not done again."""

import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as parquet
import pytest
import torch
from PIL import Image

from support.colours import COLOURS, PREPROCESS, make_bundle, make_images, pixels
from support.engines import converted_to_int8
from vitreous import UserError, export_weights
from vitreous.callbacks import Callbacks
from vitreous.cli import main
from vitreous.inference import part_plan
from vitreous.inference.part_plan import ModelRequest
from vitreous.inference.parts import PartWorker
from vitreous.inference.ray_cluster import Cluster, _check_reachable, min_processors_per_gpu, open_cluster
from vitreous.verbs.data import pack_data
from vitreous.verbs.predict import predict_many, show_files
from vitreous.weights.bundle import load_bundle, save_bundle

EACH = 60
"""Images of each colour: 180 are two parts of 64 and one of 52."""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return make_bundle(tmp_path_factory.mktemp("bundle") / "b")


@pytest.fixture(scope="module")
def all_images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("data") / "p", count=EACH)


@pytest.fixture(scope="module")
def whole(bundle, all_images, tmp_path_factory):
    """The predictions of one command that nobody disturbed."""
    out = tmp_path_factory.mktemp("whole") / "predictions"
    predict_many(bundle, all_images, out, engine="torch", embed=True)
    return out


def parts(out):
    return {path.name: path.read_bytes() for path in sorted(out.glob("part-*"))}


def rows(out):
    return [row for path in sorted(out.glob("*.parquet")) for row in parquet.read_table(path).to_pylist()]


def moments(out):
    """When each part was written, and as which file."""
    return {path.name: (path.stat().st_mtime_ns, path.stat().st_ino) for path in out.glob("part-*")}


def test_a_row_for_each_image_in_the_order_of_their_paths(whole, all_images):
    found = rows(whole)
    assert [row["path"] for row in found] == sorted(str(path) for path in all_images.rglob("*.png"))
    assert [row["prediction"] for row in found] == [colour for colour in COLOURS for _ in range(EACH)]
    assert len(parts(whole)) == 3
    for row in found:
        assert row["error"] is None
        assert row["top"][0] == {"label": row["prediction"], "probability": row["probability"]}
        assert sum(best["probability"] for best in row["top"]) == pytest.approx(1, abs=1e-5)


def test_embeddings_are_what_the_network_says(bundle, tmp_path):
    """Of images that already have the size which the network looks at, so that the pixels are known."""
    for name in ("red", "blue"):
        Image.fromarray(pixels(name, 3, (16, 16))).save(tmp_path / f"{name}.png")
    predict_many(bundle, [tmp_path / "red.png", tmp_path / "blue.png"], tmp_path / "o", engine="torch", embed=True)
    seen = torch.from_numpy(np.stack([pixels("red", 3, (16, 16)), pixels("blue", 3, (16, 16))]))
    with torch.no_grad():
        expected = load_bundle(bundle).model.eval().representation(seen.permute(0, 3, 1, 2) / 127.5 - 1)
    np.testing.assert_allclose([row["embedding"] for row in rows(tmp_path / "o")], expected.numpy(), atol=1e-5)


def test_shares_that_are_done_apart_are_the_whole(whole, bundle, all_images, tmp_path):
    out, done = tmp_path / "o", []
    for number in (3, 1, 2):
        done.append(predict_many(bundle, all_images, out, engine="torch", embed=True, part=f"{number}/3"))
    assert [one.parts for one in done] == [1, 1, 1]
    assert sum(one.images for one in done) == 3 * EACH
    assert parts(out) == parts(whole)
    again = predict_many(bundle, all_images, out, embed=True)
    assert (again.parts, again.reused) == (3, 3)


def test_more_shares_than_parts(bundle, all_images, tmp_path):
    done = predict_many(bundle, all_images, tmp_path / "o", part="7/8")
    assert (done.parts, done.images) == (0, 0)


def test_a_worker_asks_for_no_more_processors_than_the_smallest_machine_has():
    def node(alive=True, **resources):
        return {"Alive": alive, "Resources": {"memory": 1e9, **resources}}

    nodes = [node(CPU=64.0), node(CPU=16.0, GPU=2.0), node(CPU=128.0, GPU=8.0), node(alive=False, CPU=1.0, GPU=1.0)]
    assert min_processors_per_gpu(nodes) == 8
    assert min_processors_per_gpu([node(CPU=2.0, GPU=4.0)]) == 1
    assert min_processors_per_gpu([node(CPU=2.0)]) == 1


def test_only_what_is_missing_or_damaged_is_done_again(whole, bundle, all_images, tmp_path):
    out = shutil.copytree(whole, tmp_path / "o")
    before = moments(out)
    (out / "part-000000.parquet").unlink()
    damaged = bytearray((out / "part-000001.parquet").read_bytes())
    damaged[100] ^= 1
    (out / "part-000001.parquet").write_bytes(damaged)
    done = predict_many(bundle, all_images, out, engine="torch", embed=True)
    assert done.reused == 1
    assert parts(out) == parts(whole)
    after = moments(out)
    assert after["part-000002.parquet"] == before["part-000002.parquet"]
    assert after["part-000001.parquet"] != before["part-000001.parquet"]


def test_a_plan_that_is_just_being_written_is_waited_for(whole, tmp_path, monkeypatch):
    """Where there are no hard links, it is there and empty for a moment."""
    out = shutil.copytree(whole, tmp_path / "o")
    path = out / "_vitreous" / "plan.json"
    text = path.read_text()
    path.write_text("")
    monkeypatch.setattr(part_plan.time, "sleep", lambda seconds: path.write_text(text))
    assert part_plan.read_plan(out) == part_plan.read_plan(whole)


def test_what_a_killed_process_left_is_no_part(whole, bundle, all_images, tmp_path):
    """Its file is there, and the record that it is done is not."""
    out = shutil.copytree(whole, tmp_path / "o")
    (out / "_vitreous" / "part-000002.json").unlink()
    (out / "part-000002.parquet").write_bytes(b"cut sho")
    assert predict_many(bundle, all_images, out, engine="torch", embed=True).reused == 2
    assert parts(out) == parts(whole)


def test_a_image_that_changed_has_its_part_done_again(bundle, tmp_path):
    data = make_images(tmp_path / "p", count=EACH)
    predict_many(bundle, data, tmp_path / "o")
    before = moments(tmp_path / "o")
    Image.fromarray(pixels("red", 5, (40, 44))).save(data / "blue" / "0.png")
    assert predict_many(bundle, data, tmp_path / "o").reused == 2
    assert rows(tmp_path / "o")[0]["prediction"] == "red"
    after = moments(tmp_path / "o")
    assert [name for name in before if before[name] != after[name]] == ["part-000000.parquet"]


def test_other_data_models_and_settings_are_refused(whole, bundle, all_images, tmp_path, subtests):
    settings = {"engine": "torch", "embed": True}
    data = shutil.copytree(all_images, tmp_path / "p")
    other = load_bundle(bundle)
    with torch.no_grad():
        other.model.head.bias += 1
    save_bundle(tmp_path / "other", other.model, PREPROCESS, COLOURS)
    for says, change in (
        (r"top_k=5.*\b2\b", {"top_k": 2}),
        ("embed=True", {"embed": False}),
        ("", {"preprocess": "crop=0.5"}),
        ("", {"model": tmp_path / "other"}),
        ("", {"images": data}),
        (r"\b180\b.*\b60\b", {"images": all_images / "red"}),
    ):
        asked = {"model": bundle, "images": all_images, "out": whole, **settings, **change}
        with subtests.test(**change), pytest.raises(UserError, match=f"{whole}: .*{says}"):
            predict_many(**asked)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match=r"mine: .*thesis\.txt"):
        predict_many(bundle, all_images, tmp_path / "mine")


@pytest.fixture(scope="module")
def exported(bundle, tmp_path_factory):
    return export_weights(bundle, tmp_path_factory.mktemp("exported") / "onnx", to="onnx")


@pytest.mark.slow
def test_answers_of_another_engine_are_refused_where_nobody_named_one(whole, bundle, exported, all_images):
    """With a sentence about the folder: to leave out an engine that was left out helps nobody."""
    with pytest.raises(UserError, match=f"{whole}: .*torch.*onnx"):
        predict_many(exported, all_images, whole, embed=True)
    with pytest.raises(UserError, match="int8"):
        predict_many(bundle, all_images, whole, embed=True, precision="int8")


@pytest.mark.slow
def test_a_cluster_with_gpus_takes_an_exported_model_as_it_is(bundle, exported, all_images, tmp_path, monkeypatch):
    @dataclass(frozen=True)
    class Here(Cluster):
        def do(self, folder, request, sources, missing, batch_size):
            worker = PartWorker(folder, request.open()[0], batch_size)
            return [worker.do(part, folder.plan.images_of(part, sources)) for part in missing]

    monkeypatch.setattr("vitreous.inference.ray_cluster.open_cluster", lambda address: nullcontext(Here(2, 1)))
    monkeypatch.setattr("vitreous.inference.ray_cluster.require_ray", lambda: None)
    for model, engine in ((exported, "onnx"), (bundle, "torch")):
        predict_many(model, all_images / "red", tmp_path / engine, ray="auto")
        assert part_plan.read_plan(tmp_path / engine).engine == engine
        assert [row["prediction"] for row in rows(tmp_path / engine)] == ["red"] * EACH


def test_auto_is_no_address(bundle, all_images, tmp_path, monkeypatch):
    """It is whichever cluster Ray finds, or this machine."""
    addresses = []
    monkeypatch.setattr("vitreous.inference.ray_cluster.require_ray", lambda: None)
    monkeypatch.setattr(
        "vitreous.inference.ray_cluster.open_cluster", lambda one: addresses.append(one) or nullcontext()
    )
    for given in ("auto", "10.0.0.5:6379"):
        predict_many(bundle, all_images / "red", tmp_path / "o", ray=given)
    assert addresses == [None, "10.0.0.5:6379"]


def test_a_cluster_can_be_opened_in_any_thread(monkeypatch):
    """Signals belong to the main one."""
    ray = SimpleNamespace(
        is_initialized=lambda: True, cluster_resources=lambda: {"CPU": 3.0}, nodes=list, data=SimpleNamespace()
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.data", ray.data)

    def processors():
        with open_cluster(None) as opened:
            return opened.processors

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(processors).result() == processors() == 3


def test_an_address_that_no_machine_has():
    for address in ("a..b:6379", f"{'a' * 64}:6379"):
        with pytest.raises(UserError, match="6379"):
            _check_reachable(address)


def test_slices_that_are_none(bundle, all_images, tmp_path, subtests):
    for share in ("0/3", "4/3", "1", "1/", "/2", "-1/2", "a/b", "1/2/3", "1.0/2", "²/3"):
        with subtests.test(share), pytest.raises(UserError, match=f"part='{share}'"):
            predict_many(bundle, all_images, tmp_path / "o", part=share)


def test_json_lines_where_pyarrow_is_missing(whole, bundle, all_images, tmp_path, monkeypatch):
    monkeypatch.setattr(part_plan, "find_spec", lambda name: None)
    done = predict_many(bundle, all_images, tmp_path / "o", engine="torch", embed=True)
    assert done.format == "jsonl"
    lines = [
        json.loads(line) for path in sorted((tmp_path / "o").glob("*.jsonl")) for line in path.read_text().splitlines()
    ]
    assert lines == rows(whole)


def test_unreadable_images_get_a_row_each(bundle, tmp_path):
    data = make_images(tmp_path / "p", count=EACH)
    (data / "green" / "3.png").write_text("not an image")
    done = predict_many(bundle, data, tmp_path / "o", embed=True)
    assert list(done.unreadable) == [str(data / "green" / "3.png")]
    bad = [row for row in rows(tmp_path / "o") if row["error"] is not None]
    assert [row["path"] for row in bad] == list(done.unreadable)
    assert (bad[0]["prediction"], bad[0]["top"], bad[0]["embedding"]) == (None, None, None)


def test_too_many_unreadable_images_are_refused_and_good_ones_mended_go_on(bundle, tmp_path):
    data = make_images(tmp_path / "p", count=EACH)
    for i in (1, 2):
        (data / "blue" / f"{i}.png").write_text("not an image")
    with pytest.raises(UserError, match=r"\b2\b.*\b180\b.*\b1%"):
        predict_many(bundle, data, tmp_path / "o")
    Image.fromarray(pixels("blue", 1)).save(data / "blue" / "1.png")
    done = predict_many(bundle, data, tmp_path / "o")
    assert len(done.unreadable) == 1
    assert len(rows(tmp_path / "o")) == 3 * EACH


def test_a_model_without_a_classifier_has_embeddings(bundle, all_images, tmp_path):
    network = type(load_bundle(bundle).model)(
        type(load_bundle(bundle).model.config)(
            width=32, depth=1, heads=2, mlp_width=64, patch=8, image_size=(16, 16), classes=0
        )
    )
    save_bundle(tmp_path / "features", network, PREPROCESS, ())
    predict_many(tmp_path / "features", all_images / "red", tmp_path / "o", embed=True)
    assert all(row["prediction"] is None and len(row["embedding"]) == 32 for row in rows(tmp_path / "o"))
    with pytest.raises(UserError, match="features: "):
        predict_many(tmp_path / "features", all_images / "red", tmp_path / "o2")


def test_lists_arrays_and_several_places(bundle, all_images, tmp_path):
    """Whatever opens as data, in the order given; parts go across the borders."""
    listed = tmp_path / "list.csv"
    listed.write_text(f"path,label\n{all_images}/red/0.png,a\n{all_images}/green/0.png,b\n")
    np.savez(tmp_path / "x.npz", images=np.stack([pixels("blue", i) for i in range(70)]), labels=np.arange(70) % 2)
    one = all_images / "red" / "7.png"
    done = predict_many(bundle, [listed, tmp_path / "x.npz", one], tmp_path / "o")
    assert (done.images, done.parts) == (73, 2)
    found = rows(tmp_path / "o")
    assert [row["prediction"] for row in found] == ["red", "green", *["blue"] * 70, "red"]
    assert found[-1]["path"] == str(one)


def test_an_array_with_other_pixels_is_done_again(bundle, tmp_path):
    """Its images are called the same, and are all of one size."""
    for colour, kept in (("blue", 0), ("red", 0), ("red", 1)):
        images = np.stack([pixels(colour, number) for number in range(5)])
        np.savez(tmp_path / "x.npz", images=images, labels=np.arange(5) % 2)
        assert predict_many(bundle, tmp_path / "x.npz", tmp_path / "o").reused == kept
        assert [row["prediction"] for row in rows(tmp_path / "o")] == [colour] * 5


def test_shards(whole, bundle, all_images, tmp_path):
    """The same answers as from the files that were packed."""
    pack_data(all_images, tmp_path / "shards", shard_size="100kB")
    assert len(list((tmp_path / "shards").rglob("*.tar"))) > 1
    done = predict_many(bundle, tmp_path / "shards", tmp_path / "o", engine="torch", embed=True)
    assert (done.images, done.parts) == (3 * EACH, 3)
    expected = {tuple(row["path"].split("/")[-2:]): row["embedding"] for row in rows(whole)}
    for row in rows(tmp_path / "o"):
        name = tuple(row["path"].partition("#")[2].split("/")[-2:])
        np.testing.assert_allclose(row["embedding"], expected.pop(name), atol=1e-5)
    assert not expected


@pytest.mark.slow
def test_two_processes_at_once_agree(whole, bundle, all_images, tmp_path):
    """Both begin with an empty folder and with all of the work."""
    line = [sys.executable, "-c", "from vitreous.cli import main; main()", "predict", str(bundle), str(all_images)]
    line += ["--out", str(tmp_path / "o"), "--embed", "--engine", "torch"]
    both = [subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert all(re.search(r"\b180\b.*\b3\b", out) for out, _ in said)
    assert parts(tmp_path / "o") == parts(whole)


def test_progress_counts_all_images_of_the_share(bundle, all_images, tmp_path):
    said = []
    told = Callbacks(progress=lambda what, *counts: said.append(counts))
    predict_many(bundle, all_images, tmp_path / "o", part="1/2", callbacks=told)
    assert said[-1] == (64 + 52, 64 + 52)
    assert said == sorted(said)


def test_without_ray_its_extra_is_named(bundle, all_images, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "ray.data", None)
    with pytest.raises(UserError, match=r"'vitreous\[ray\]'"):
        predict_many(bundle, all_images, tmp_path / "o", ray="auto")


@pytest.mark.slow
def test_a_machine_without_the_verified_int8_computes_its_slice_in_fp32(
    bundle, all_images, tmp_path, monkeypatch, caplog, capsys
):
    """After `bench` chose int8 on one machine, another with the same folder has another processor."""
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    converted_to_int8(load_bundle(bundle))
    first = predict_many(bundle, all_images, tmp_path / "o", part="1/2")
    assert first.engines == {"openvino-int8": 2}
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("VITREOUS_CACHE", str(tmp_path / "other-cache"))
        caplog.set_level("INFO", "vitreous")
        converted_to_int8(load_bundle(bundle), processor="another")
        second = predict_many(bundle, all_images, tmp_path / "o", part="2/2")
        assert second.engines == {"openvino-fp32": 1}
        assert any("int8" in message and "fp32" in message for message in caplog.messages)
        for asked in ({"precision": "int8"}, {"precision": "int8", "engine": "openvino"}):
            with pytest.raises(UserError, match="precision='int8'"):
                predict_many(bundle, all_images, tmp_path / "o", **asked)
    again = predict_many(bundle, all_images, tmp_path / "o")
    assert (again.reused, again.engines) == (3, {"openvino-int8": 2, "openvino-fp32": 1})
    show_files(again)
    assert re.search(r"openvino-int8 \(2 .*openvino-fp32 \(1 ", capsys.readouterr().out)
    assert [row["prediction"] for row in rows(tmp_path / "o")] == [colour for colour in COLOURS for _ in range(EACH)]


@pytest.mark.slow
def test_a_worker_of_a_cluster_takes_the_int8_that_bench_made(bundle, all_images, tmp_path, monkeypatch):
    """It has one thread, and `bench` had all."""
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    converted_to_int8(load_bundle(bundle))
    request = ModelRequest(str(bundle), "auto", None, None, None, "auto", classifier=True)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        opened, _ = request.preferring("openvino", "int8").open()
    finally:
        torch.set_num_threads(threads)
    assert opened.computed_by == "openvino-int8"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_tried_again(bundle, tmp_path):
    data = make_images(tmp_path / "p", count=EACH)
    locked = data / "green" / "3.png"
    locked.chmod(0)
    check_tried_again(bundle, data, tmp_path / "o", locked, lambda: locked.chmod(0o644))


def test_a_file_that_the_system_refused_is_tried_again(bundle, tmp_path, monkeypatch):
    data = make_images(tmp_path / "p", count=EACH)
    locked, read = data / "green" / "3.png", Image.open

    def refuse(file, *given, **more):
        if file == locked:
            raise PermissionError(13, "Permission denied", str(file))
        return read(file, *given, **more)

    monkeypatch.setattr(Image, "open", refuse)
    check_tried_again(bundle, data, tmp_path / "o", locked, monkeypatch.undo)


def check_tried_again(bundle, data, out, locked, unlock):
    """What may pass says nothing of the image: only its part is done again, as often as it takes."""
    assert list(predict_many(bundle, data, out).unreadable) == [str(locked)]
    again = predict_many(bundle, data, out)
    assert (again.reused, list(again.unreadable)) == (2, [str(locked)])
    unlock()
    last = predict_many(bundle, data, out)
    assert (last.reused, last.unreadable) == (2, {})
    assert [row["error"] for row in rows(out)] == [None] * 3 * EACH
    assert predict_many(bundle, data, out).reused == 3


def test_without_memory_nothing_is_recorded_of_an_image(bundle, tmp_path, monkeypatch, capsys):
    """The command ends with status 1, and repeated with memory it does the part."""
    data = make_images(tmp_path / "p", count=2)
    words = ["predict", str(bundle), str(data), "--engine", "torch", "--out", str(tmp_path / "o")]
    with monkeypatch.context() as short:
        short.setattr(Image, "open", lambda *given, **more: (_ for _ in ()).throw(MemoryError()))
        short.setattr("vitreous.data.decode.available_memory", lambda: 10**6)
        for line in (words, words[:-2]):
            with pytest.raises(SystemExit) as ended:
                main(line)
            assert ended.value.code == 1
            assert "memory" in capsys.readouterr().err.splitlines()[-1]
    done = predict_many(bundle, data, tmp_path / "o", engine="torch")
    assert (done.reused, done.unreadable, len(rows(tmp_path / "o"))) == (0, {}, 6)
