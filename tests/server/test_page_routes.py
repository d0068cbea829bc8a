"""What the page is given: its files, and numbers that are those of `vitreous.explain` but for rounding to a byte."""

import base64
import dataclasses
import io
import re

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from PIL import Image, ImageFile

from support.tiny_networks import LABELS, tiny_bundle
from vitreous import Model
from vitreous.config.server import ServerSettings
from vitreous.data.augment import normalise
from vitreous.data.view import image_and_view
from vitreous.inference.engine import open_in_torch
from vitreous.server.app import make_app
from vitreous.server.page.routes import page_files
from vitreous.server.served_model import ModelToServe

IMAGE = Image.fromarray(np.random.default_rng(3).integers(0, 256, (40, 60, 3), dtype=np.uint8))


@pytest.fixture(scope="module")
def bundles():
    return {
        "vit": tiny_bundle("P/4@16", depth=3),
        "mean": tiny_bundle("P/4@16", seed=1, pool="attention", class_token=False),
        "conv": tiny_bundle("bit-r11x0.5@32"),
    }


@pytest.fixture(scope="module")
def client(bundles):
    models = [ModelToServe(name, open_in_torch(bundle, "cpu"), bundle) for name, bundle in bundles.items()]
    models.append(ModelToServe("graph", open_in_torch(bundles["vit"], "cpu"), None))
    with TestClient(make_app(models, ServerSettings()), base_url="http://127.0.0.1") as client:
        yield client


def png(image):
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def post(client, path, body, **params):
    return client.post(f"/page/{path}", params=params, content=body)


def see(client, model="vit", image=IMAGE):
    """(the reply, the view as a file)."""
    found = post(client, "image", png(image), model=model).json()
    return found, base64.b64decode(found["view"])


def bits(cells, count=16):
    """Which cells are covered, as the page says it."""
    row = "".join("1" if cell in cells else "0" for cell in range(count)).ljust(-(-count // 4) * 4, "0")
    return "".join(f"{int(row[start : start + 4], 2):x}" for start in range(0, len(row), 4))


def floats(text):
    return np.frombuffer(base64.b64decode(text), "<f4")


def unpack(packed):
    """(maps, the most that rounding may change, one for each map)."""
    levels = np.frombuffer(base64.b64decode(packed["levels"]), np.uint8).reshape(packed["shape"])
    low, high = floats(packed["ranges"]).reshape(-1, 2).T.reshape(2, *packed["shape"][:-2], 1, 1)
    return low + levels / 255.0 * (high - low), (high - low) / 255 * 0.51 + 1e-7


def assert_maps(packed, expected):
    found, allowed = unpack(packed)
    assert found.shape == expected.shape
    assert (np.abs(found - expected) <= allowed).all()
    assert found.std() > 0


def test_files_have_their_kinds_and_are_not_sent_twice(client):
    kinds = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
    paths = {"/": "html"} | {f"/page/static/{name}": name.rpartition(".")[2] for name in page_files()}
    total = 0
    for path, ending in paths.items():
        found = client.get(path)
        assert found.headers["content-type"] == f"{kinds[ending]}; charset=utf-8"
        again = client.get(path, headers={"If-None-Match": found.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert client.get(path, headers={"If-None-Match": '"other"'}).status_code == 200
        total += len(found.content)
    assert total < 100_000  # with index.html twice
    assert client.get("/page/static/../routes.py").status_code == 404
    assert client.get("/page/static/none.js").status_code == 404


def test_nothing_in_the_files_needs_an_exception_from_the_policy():
    for name, (content, _, _) in page_files().items():
        text = content.decode()
        assert not re.search(r"(?<!xmlns=\")https?:", text), name
        if name.endswith(".html"):
            assert not re.search(r"\sstyle=|\son\w+=|<style|javascript:", text)
            assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", text))
        else:
            assert not re.search(r"\beval\(|new Function|setAttribute\(\"style\"", text), name


def test_the_start_says_what_each_model_can(client):
    found = client.get("/page/start").json()
    vit, mean, conv, graph = found["models"]
    assert (vit["labels"], vit["grid"], vit["layers"], vit["heads"]) == (list(LABELS), [4, 4], 3, 2)
    assert vit["methods"] == ["attention", "rollout", "relevance", "gradcam", "occlusion"]
    assert (vit["method"], vit["covering"], vit["merges"], vit["missing"]) == ("relevance", "left out", True, None)
    assert vit["cell"] == [0.25, 0.25]
    assert (mean["layers"], mean["pooling"], vit["pooling"]) == (2, True, False)
    assert (conv["layers"], conv["covering"], conv["merges"]) == (0, "painted", False)
    assert "occlusion" in conv["methods"]
    assert "attention" not in conv["methods"]
    assert "attention" in conv["missing"]
    assert (graph["methods"], graph["method"], graph["covering"]) == ([], None, "painted")
    assert graph["missing"]
    assert len(base64.b64decode(found["colours"])) == 768
    assert len(found["samples"]) >= 10
    for number in range(len(found["samples"])):
        Image.open(io.BytesIO(client.get(f"/page/samples/{number}").content)).verify()


def test_the_start_is_made_once(bundles, monkeypatch):
    """To know whether Grad-CAM suits a network takes passes through it, which nobody should have repeated."""
    conv, passes = bundles["conv"], []
    feature_map = type(conv.model).feature_map
    monkeypatch.setattr(type(conv.model), "feature_map", lambda *given: passes.append(given) or feature_map(*given))
    models = [ModelToServe("conv", open_in_torch(conv, "cpu"), conv)]
    with TestClient(make_app(models, ServerSettings()), base_url="http://127.0.0.1") as client:
        first = client.get("/page/start").json()
        made = len(passes)
        assert made
        assert client.get("/page/start").json() == first
        assert len(passes) == made


def test_a_damaged_model_is_no_fault_of_whoever_asks(bundles, tmp_path, caplog):
    bundle = dataclasses.replace(tiny_bundle("P/4@16"), path=tmp_path)
    view = png(IMAGE.resize((16, 16)))
    with TestClient(
        make_app([ModelToServe("m", open_in_torch(bundles["vit"], "cpu"), bundle)], ServerSettings()),
        base_url="http://127.0.0.1",
    ) as client:
        torch.nn.init.constant_(bundle.model.head.weight, float("nan"))
        for path, params in (
            ("/page/inside", {}),
            ("/page/maps", {"method": "gradcam", "target": 0}),
            ("/page/cover", {"cells": "0001"}),
            ("/explain", {}),
        ):
            failed = client.post(path, params=params, content=view)
            assert failed.status_code == 500, path
            assert str(tmp_path) not in failed.text
            assert str(tmp_path) in caplog.records[-1].getMessage()


def test_a_image_is_seen_and_answered_as_by_predict(client, bundles):
    found, view = see(client)
    expected = image_and_view(png(IMAGE), bundles["vit"].preprocess)
    assert (found["width"], found["height"], found["box"]) == (60, 40, list(expected.box))
    pixels = np.asarray(Image.open(io.BytesIO(view))).transpose(2, 0, 1)
    assert (pixels == expected.view.numpy()).all()
    said = client.post("/predict", params={"model": "vit", "top_k": 4}, content=png(IMAGE)).json()
    chances = floats(found["probabilities"])
    assert {one["label"]: pytest.approx(one["score"], abs=1e-6) for one in said} == dict(
        zip(LABELS, chances.tolist(), strict=True)
    )


def test_inside_has_the_maps_of_explain_in_every_layer(client, bundles):
    view = see(client)[1]
    found = post(client, "inside", view).json()
    assert_maps(
        found["attention"], Model(bundles["vit"]).explain(IMAGE, method="attention", layer="all", head="all").maps
    )
    assert_maps(found["rollout"], Model(bundles["vit"]).explain(IMAGE, method="rollout", layer="all").maps[:, 0])
    assert found["groups"] is None
    assert len(base64.b64decode(found["colours"])) == 3 * 16 * 3


def test_with_attention_pooling_its_own_map_follows_the_layers(client, bundles):
    view = see(client, "mean")[1]
    found = post(client, "inside", view, model="mean").json()
    bundle = bundles["mean"]
    layers = Model(bundle).explain(IMAGE, method="attention", layer="all", head="all").maps
    own = Model(bundle).explain(IMAGE, method="attention", head="all").maps
    assert_maps(found["attention"], np.concatenate([layers, own]))
    assert_maps(found["rollout"], Model(bundle).explain(IMAGE, method="rollout", layer="all").maps[:, 0])


def test_maps_of_a_class(client, bundles, subtests):
    for model, method in (("vit", "relevance"), ("vit", "gradcam"), ("vit", "occlusion"), ("conv", "occlusion")):
        view = see(client, model)[1]
        layer = "all" if model == "vit" and method != "occlusion" else None
        for target in (0, 3):
            with subtests.test(model=model, method=method, target=target):
                found = post(client, "maps", view, model=model, method=method, target=target)
                label = LABELS[target]
                expected = Model(bundles[model]).explain(IMAGE, method=method, layer=layer, target=label).maps[:, 0]
                if expected.any():
                    assert_maps(found.json(), expected)


def test_attention_of_each_patch(client, bundles):
    view = see(client)[1]
    found = post(client, "attention", view, layer=1).json()
    assert found["shape"] == [2, 16, 4, 4]
    maps, allowed = unpack(found)
    left, top, right, bottom = image_and_view(IMAGE, bundles["vit"].preprocess).box
    for cell in (0, 6, 15):
        x = left + (cell % 4 + 0.5) / 4 * (right - left)
        y = top + (cell // 4 + 0.5) / 4 * (bottom - top)
        expected = Model(bundles["vit"]).explain(IMAGE, method="attention", layer=1, head="all", query=(x, y)).maps[0]
        assert (np.abs(maps[:, cell] - expected) <= allowed[:, cell]).all()


def test_merged_patches_are_one_token(client):
    view = see(client)[1]
    found = post(client, "inside", view, merge=4).json()
    groups = np.frombuffer(base64.b64decode(found["groups"]), "<u2").reshape(3, 16)
    # the first merges twice four, and the last block computes what is read alone
    assert [len(set(layer)) for layer in groups.tolist()] == [8, 8, 8]
    colours = np.frombuffer(base64.b64decode(found["colours"]), np.uint8).reshape(3, 16, 3)
    for layer, tokens in zip(groups, colours, strict=True):
        assert (tokens == tokens[layer]).all()  # a patch and the first of its group have one token


def test_a_vit_does_not_see_what_is_covered(client, bundles):
    _, view = see(client)
    bundle, covered = bundles["vit"], [0, 1, 5, 10]
    kept = torch.tensor([[cell for cell in range(16) if cell not in covered]])
    image = normalise(image_and_view(IMAGE, bundle.preprocess).view[None], bundle.preprocess)
    with torch.inference_mode():
        expected = bundle.model(image, keep_ids=kept)[0].softmax(0)
    found = post(client, "cover", view, cells=bits(covered)).json()
    np.testing.assert_allclose(floats(found["probabilities"]), expected.numpy(), atol=1e-6)
    np.testing.assert_allclose(
        floats(post(client, "cover", view, cells=bits([])).json()["probabilities"]),
        floats(see(client)[0]["probabilities"]),
        atol=1e-5,
    )


@pytest.mark.parametrize("model", ["conv", "graph"])
def test_for_others_the_cells_are_painted(client, bundles, model):
    bundle = bundles["vit" if model == "graph" else model]
    _, view = see(client, model)
    pixels = np.asarray(Image.open(io.BytesIO(view))).copy()
    side = pixels.shape[0]
    rows = 14 if side == 16 or model == "conv" else 4
    edges = [int(np.ceil(i * side / rows)) for i in range(rows + 1)]  # of the pixels whose cell this is
    pixels[edges[0] : edges[1], edges[1] : edges[2]] = np.rint(255 * np.array(bundle.preprocess.mean))
    image = normalise(torch.from_numpy(pixels.transpose(2, 0, 1).copy())[None], bundle.preprocess)
    with torch.inference_mode():
        expected = bundle.model(image)[0].softmax(0)
    found = floats(post(client, "cover", view, model=model, cells=bits([1], rows * rows)).json()["probabilities"])
    np.testing.assert_allclose(found, expected.numpy(), atol=2e-3 if model == "conv" else 1e-6)  # the mean, unrounded
    assert np.abs(found - floats(see(client, model)[0]["probabilities"])).max() > 1e-4


def test_questions_that_make_no_sense_are_refused_in_a_sentence(client, subtests):
    view = see(client)[1]
    everything = bits(range(16))
    for status, path, body, params in (
        (404, "inside", view, {"model": "none"}),
        (422, "inside", png(IMAGE), {}),
        (422, "inside", b"no image", {}),
        (422, "image", b"", {}),
        (422, "inside", view, {"model": "conv"}),
        (400, "inside", view, {"merge": -1}),
        (422, "maps", view, {"method": "relevance", "target": 4}),
        (422, "maps", view, {"method": "attention", "target": 1}),
        (400, "maps", view, {"method": "magic", "target": 1}),
        (422, "attention", view, {"layer": 3}),
        (422, "cover", view, {"cells": ""}),
        (422, "cover", view, {"cells": "000"}),
        (422, "cover", view, {"cells": "00000"}),
        (422, "cover", view, {"cells": "-001"}),
        (422, "cover", view, {"cells": "00 1"}),
        (422, "cover", view, {"cells": "00\u0661\u0661"}),
        (422, "cover", view, {"cells": "000G"}),
        (422, "cover", view, {"cells": "0,1,2"}),
        (422, "cover", view, {"cells": "1" * 4000}),
        (400, "cover", view, {"cells": "9" * 5000}),
        (422, "cover", view, {"cells": everything}),
        (409, "inside", view, {"model": "graph"}),
    ):
        with subtests.test(path, **params):
            found = post(client, path, body, **params)
            assert found.status_code == status, found.text
            assert found.json()["error"].endswith(".")
    assert client.get("/page/samples/99").status_code == 404


def test_a_view_of_another_size_or_kind_is_refused_by_its_header(client, monkeypatch):
    """Decoding is what a stranger could make expensive: here it would fail."""
    view = Image.open(io.BytesIO(see(client)[1]))
    other = io.BytesIO()
    view.save(other, "BMP")
    monkeypatch.setattr("vitreous.server.page.routes.open_image", None)
    for body in (png(IMAGE), other.getvalue()):
        for path, params in (
            ("inside", {}),
            ("maps", {"method": "gradcam", "target": 0}),
            ("attention", {"layer": 0}),
            ("cover", {"cells": "0001"}),
        ):
            found = post(client, path, body, **params)
            assert found.status_code == 422
            assert "16 x 16" in found.json()["error"]


def test_a_large_jpeg_is_told_in_full_and_read_at_a_smaller_scale(client, bundles, monkeypatch):
    large, file = IMAGE.resize((1501, 1003)), io.BytesIO()
    large.save(file, "JPEG")
    sizes, load = [], ImageFile.ImageFile.load

    def note(image):
        found = load(image)
        sizes.append(image.size)
        return found

    monkeypatch.setattr(ImageFile.ImageFile, "load", note)
    found = post(client, "image", file.getvalue()).json()
    assert (found["width"], found["height"]) == (1501, 1003)
    assert max(max(size) for size in sizes) < 1501 / 4
    monkeypatch.undo()
    expected = image_and_view(file.getvalue(), bundles["vit"].preprocess)
    assert found["box"] == list(expected.box)
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(found["view"])))).transpose(2, 0, 1)
    assert (pixels == expected.view.numpy()).all()


def test_behind_a_token_the_page_is_open_and_all_else_closed(bundles):
    models = [ModelToServe("vit", open_in_torch(bundles["vit"], "cpu"), bundles["vit"])]
    with TestClient(make_app(models, ServerSettings(token="secret")), base_url="http://127.0.0.1") as client:
        for path in ("/", "/page/static/main.js", "/page/static/page.css"):
            assert client.get(path).status_code == 200
        for path in ("/page/start", "/page/samples/0"):
            assert client.get(path).status_code == 401
            assert client.get(path, headers={"Authorization": "Bearer secret"}).status_code == 200
        assert client.post("/page/image", content=png(IMAGE)).status_code == 401
