"""`POST /explain` and `/embed`, beside the same questions in Python."""

import base64
import io
import threading

import numpy as np
import pytest
import torch
from PIL import Image

from support.colours import make_bundle
from support.serving import GatedEngine, gated, make_image, opened, running
from vitreous import load
from vitreous.data.view import make_view
from vitreous.server import routes

CONTENT = make_image("red", 5)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return make_bundle(tmp_path_factory.mktemp("models") / "colours")


@pytest.fixture(scope="module")
def server(bundle):
    with running(opened(bundle), gated(GatedEngine())) as server:
        yield server


EXPLAINED = (
    ({}, {}),
    ({"method": "attention", "layer": "0", "head": "1"}, {"method": "attention", "layer": 0, "head": 1}),
    ({"method": "attention", "head": "all"}, {"method": "attention", "head": "all"}),
    ({"method": "gradcam", "class": "blue"}, {"method": "gradcam", "target": "blue"}),
    ({"method": "occlusion"}, {"method": "occlusion"}),
    ({"method": "rollout", "x": "3", "y": "4"}, {"method": "rollout", "query": (3, 4)}),
)


def test_the_numbers_of_an_explanation(server, bundle, subtests):
    for asked, meant in EXPLAINED:
        with subtests.test(**asked):
            answer = server.client.post("/explain", params={**asked, "format": "json"}, content=CONTENT)
            assert answer.status_code == 200, answer.text
            found, expected = answer.json(), load(bundle).explain(CONTENT, **meant)
            assert (found["method"], found["label"]) == (expected.method, expected.label)
            assert found["score"] == pytest.approx(expected.score, abs=1e-5)
            assert found["layers"] == list(expected.layers)
            assert found["heads"] == list(expected.heads)
            assert (found["width"], found["height"], found["box"]) == (24, 20, list(expected.geometry.box))
            np.testing.assert_allclose(found["maps"], expected.maps, atol=1e-5)


def test_the_overlay_is_an_image(server, bundle):
    answer = server.client.post("/explain", content=CONTENT)
    assert answer.headers["content-type"] == "image/png"
    drawn = Image.open(io.BytesIO(answer.content))
    np.testing.assert_array_equal(np.asarray(drawn), np.asarray(load(bundle).explain(CONTENT).overlay()))
    # a large image is drawn smaller
    answer = server.client.post("/explain", content=make_image("red", size=(100, 4096), kind="JPEG"))
    assert Image.open(io.BytesIO(answer.content)).size == (2048, 50)


REFUSED = (
    ({"method": "magic"}, "method"),
    ({"layer": "7"}, "layer 7"),
    ({"layer": "x"}, "layer"),
    ({"head": "1"}, "head 1"),
    ({"class": "purple"}, "'purple'"),
    ({"class": "x" * 5000}, "blue, green, red"),
    ({"x": "3"}, "x and y"),
    ({"x": "3", "y": "4", "method": "gradcam"}, "query"),
    ({"x": "300", "y": "4", "method": "attention"}, "query 300,4"),
    ({"x": "nan", "y": "nan"}, ""),
    ({"format": "gif"}, "format"),
    ({"model": "gated"}, "gated"),  # an exported model cannot be explained
)


def test_questions_that_make_no_sense(server, subtests):
    for asked, named in REFUSED:
        with subtests.test(**asked):
            refused = server.client.post("/explain", params=asked, content=CONTENT)
            assert refused.status_code == 400, refused.text
            assert named in refused.json()["error"]
            assert len(refused.content) < 500


def test_what_suits_a_model_is_found_where_it_holds_up_nobody(server, monkeypatch):
    """It may take a pass through the network, and names that are alike a search."""
    threads, make = [], routes.Explainer

    def note(*given, **asked):
        threads.append(threading.current_thread().name)
        return make(*given, **asked)

    monkeypatch.setattr(routes, "Explainer", note)
    assert server.client.post("/explain", content=CONTENT).status_code == 200
    assert server.client.post("/explain?class=purple", content=CONTENT).status_code == 400
    assert [name.partition("_")[0] for name in threads] == ["explain", "explain"]


def test_parameters_in_json_that_it_has_not_are_refused(server):
    """They belong in the address: nobody should think that the server used them."""
    content = {"inputs": base64.b64encode(CONTENT).decode()}
    for path in ("/explain", "/embed"):
        refused = server.client.post(path, json={**content, "parameters": {"method": "gradcam"}})
        assert refused.status_code == 400
        assert "'parameters.method'" in refused.json()["error"]
        assert server.client.post(path, json=content).status_code == 200


def test_parameters_in_the_address_that_it_has_not_are_refused(server):
    """Else a class that is misspelt would be another one's explanation."""
    for path in ("/explain?clas=red", "/embed?method=gradcam", "/predict?topk=1", "/?topk=1"):
        refused = server.client.post(path, content=CONTENT)
        assert refused.status_code == 400
        assert repr(path.partition("?")[2].partition("=")[0]) in refused.json()["error"]


def test_the_embedding_is_the_representation(server, bundle):
    model = opened(bundle).bundle
    with torch.no_grad():
        expected = model.model.representation(make_view(CONTENT, model.preprocess)[None] / 127.5 - 1)[0]
    found = server.client.post("/embed", content=CONTENT).json()
    assert found["model"] == "colours"
    np.testing.assert_allclose(found["embedding"], expected.numpy(), atol=1e-4)
