"""`POST /explain` and `/embed`, beside the same questions in Python."""

import base64
import io
import threading

import numpy as np
import pytest
import torch
from PIL import Image

from support.colours import make_bundle
from support.serving import GatedEngine, gated, opened, picture, running
from vitreous.data.view import make_view
from vitreous.deploy.server import explaining
from vitreous.jobs.explain import explain

CONTENT = picture("red", 5)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return make_bundle(tmp_path_factory.mktemp("models") / "colours")


@pytest.fixture(scope="module")
def server(bundle):
    with running(opened(bundle), gated(GatedEngine())) as server:
        yield server


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ({}, {}),
        ({"method": "attention", "layer": "0", "head": "1"}, {"method": "attention", "layer": 0, "head": 1}),
        ({"method": "attention", "head": "all"}, {"method": "attention", "head": "all"}),
        ({"method": "gradcam", "class": "blue"}, {"method": "gradcam", "target": "blue"}),
        ({"method": "occlusion"}, {"method": "occlusion"}),
        ({"method": "rollout", "x": "3", "y": "4"}, {"method": "rollout", "query": (3, 4)}),
    ],
)
def test_the_numbers_of_an_explanation(server, bundle, asked, meant):
    answer = server.client.post("/explain", params={**asked, "format": "json"}, content=CONTENT)
    assert answer.status_code == 200, answer.text
    found, expected = answer.json(), explain(bundle, CONTENT, **meant)
    assert (found["method"], found["label"]) == (expected.method, expected.label)
    assert found["score"] == pytest.approx(expected.score, abs=1e-5)
    assert found["layers"] == list(expected.layers)
    assert found["heads"] == list(expected.heads)
    assert (found["width"], found["height"], found["box"]) == (24, 20, list(expected.place.box))
    np.testing.assert_allclose(found["maps"], expected.maps, atol=1e-5)


def test_the_overlay_is_a_picture(server, bundle):
    answer = server.client.post("/explain", content=CONTENT)
    assert answer.headers["content-type"] == "image/png"
    drawn = Image.open(io.BytesIO(answer.content))
    np.testing.assert_array_equal(np.asarray(drawn), np.asarray(explain(bundle, CONTENT).overlay()))


def test_a_large_picture_is_drawn_smaller(server):
    answer = server.client.post("/explain", content=picture("red", size=(100, 4096), kind="JPEG"))
    assert Image.open(io.BytesIO(answer.content)).size == (2048, 50)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"method": "magic"}, "method"),
        ({"layer": "7"}, "7"),
        ({"layer": "x"}, "layer"),
        ({"head": "1"}, "head 1"),
        ({"class": "purple"}, "purple"),
        ({"x": "3"}, "give both"),
        ({"x": "3", "y": "4", "method": "gradcam"}, "query"),
        ({"x": "300", "y": "4", "method": "attention"}, "query 300,4"),
        ({"x": "nan", "y": "nan"}, ""),
        ({"format": "gif"}, "format"),
    ],
)
def test_questions_that_make_no_sense(server, asked, said):
    refused = server.client.post("/explain", params=asked, content=CONTENT)
    assert refused.status_code == 400, refused.text
    assert said in refused.json()["error"]


def test_what_suits_a_model_is_found_where_it_holds_up_nobody(server, monkeypatch):
    """It may take a pass through the network, and names that are alike a search."""
    threads, make = [], explaining.Question

    def note(*given, **asked):
        threads.append(threading.current_thread().name)
        return make(*given, **asked)

    monkeypatch.setattr(explaining, "Question", note)
    assert server.client.post("/explain", content=CONTENT).status_code == 200
    assert server.client.post("/explain?class=purple", content=CONTENT).status_code == 400
    assert [name.partition("_")[0] for name in threads] == ["look", "look"]


def test_what_is_no_picture(server):
    assert server.client.post("/explain", content=b"no picture").status_code == 422
    assert server.client.post("/embed", content=b"no picture").status_code == 422


@pytest.mark.parametrize("path", ["/explain", "/embed"])
def test_parameters_in_json_that_it_has_not_are_refused(server, path):
    """They belong into the address: nobody should take them for heeded."""
    content = {"inputs": base64.b64encode(CONTENT).decode(), "parameters": {"method": "gradcam"}}
    refused = server.client.post(path, json=content)
    assert refused.status_code == 400
    assert refused.json()["error"].startswith("'parameters.method': there is no parameter of this name here")
    del content["parameters"]
    assert server.client.post(path, json=content).status_code == 200


@pytest.mark.parametrize("path", ["/explain?clas=red", "/embed?method=gradcam", "/predict?topk=1", "/?topk=1"])
def test_parameters_in_the_address_that_it_has_not_are_refused(server, path):
    """Else a class that is misspelt would be another one's explanation."""
    refused = server.client.post(path, content=CONTENT)
    assert refused.status_code == 400
    name = path.partition("?")[2].partition("=")[0]
    assert refused.json()["error"].startswith(f"'{name}': there is no parameter of this name here")


def test_a_class_that_is_none_is_repeated_in_short(server):
    refused = server.client.post("/explain", params={"class": "x" * 5000}, content=CONTENT)
    assert refused.status_code == 400
    assert "such as blue, green, red" in refused.json()["error"]
    assert len(refused.content) < 500


def test_an_exported_model_cannot_be_looked_into(server):
    refused = server.client.post("/explain?model=gated", content=CONTENT)
    assert refused.status_code == 400
    assert "exported" in refused.json()["error"]


def test_the_embedding_is_the_representation(server, bundle):
    model = opened(bundle).bundle
    with torch.no_grad():
        expected = model.model.representation(make_view(CONTENT, model.preprocess)[None] / 127.5 - 1)[0]
    found = server.client.post("/embed", content=CONTENT).json()
    assert found["model"] == "colours"
    np.testing.assert_allclose(found["embedding"], expected.numpy(), atol=1e-4)
