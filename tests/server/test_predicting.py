"""`POST /predict`, beside what the model says by itself."""

import base64
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import pytest
import torch

from support.colours import COLOURS, make_bundle, pixels
from support.serving import make_image, opened, running
from vitreous.data.view import make_view
from vitreous.verbs.predict import predict


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return make_bundle(tmp_path_factory.mktemp("models") / "colours")


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    return make_bundle(tmp_path_factory.mktemp("models") / "other", labels=("azure", "lime", "ruby"))


@pytest.fixture(scope="module")
def server(bundle, other):
    with running(opened(bundle), opened(other, "other")) as server:
        yield server


def test_the_likeliest_class_comes_first(server, subtests):
    for kind, colour in product(("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM"), COLOURS):
        with subtests.test(kind=kind, colour=colour):
            answer = server.client.post("/predict", content=make_image(colour, kind=kind))
            assert answer.status_code == 200
            assert answer.headers["content-type"] == "application/json"
            found = answer.json()
            assert found[0]["label"] == colour
            assert [one["score"] for one in found] == sorted((one["score"] for one in found), reverse=True)
            assert sum(one["score"] for one in found) == pytest.approx(1, abs=1e-6)


def test_bytes_are_an_image_whatever_they_are_called(server):
    """curl calls them a form by default."""
    for kind in ("application/x-www-form-urlencoded", "image/png", "application/octet-stream", None):
        headers = {} if kind is None else {"Content-Type": kind}
        assert (
            server.client.post("/predict", content=make_image("green"), headers=headers).json()[0]["label"] == "green"
        )


def test_a_form_with_a_file(server):
    """As `curl -F image=@cat.jpg` and HTML forms send it; other fields are parameters."""
    for name in ("image", "file", "whatever"):
        files = {name: ("a cat.png", make_image("green"), "image/png")}
        found = server.client.post("/predict", files=files, data={"top_k": "2"})
        assert found.status_code == 200, found.text
        assert found.json()[0]["label"] == "green"
        assert len(found.json()) == 2
    assert server.client.post("/embed", files={"image": make_image()}).status_code == 200
    image = ("image", ("a.png", make_image(), "image/png"))
    broken = {"Content-Type": "multipart/form-data; boundary=x"}
    for refused in (
        server.client.post("/predict", files=[image, image]),
        server.client.post("/predict", files=[image], data={"top_k": "many"}),
        server.client.post("/predict", files=[image], data={"topk": "2"}),
        server.client.post("/predict", files={"text": (None, "no file")}),
        server.client.post("/predict", content=b"--x\r\n\r\n", headers=broken),
        server.client.post("/predict", content=b"--x\r\n" * 100_000, headers=broken),
        server.client.post("/predict", content=b"", headers={"Content-Type": "multipart/form-data"}),
    ):
        assert refused.status_code == 400, refused.text
        assert list(refused.json()) == ["error"]


def test_curl_d_is_told_what_to_write_instead(server):
    """It takes line breaks out of files."""
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    for kind in ("PNG", "JPEG", "BMP"):
        content = make_image(kind=kind, size=(200, 240)).replace(b"\r", b"").replace(b"\n", b"")
        for sent in (content, b"image=cat.jpg", b"cat.jpg"):
            refused = server.client.post("/predict", content=sent, headers=form)
            assert refused.status_code == 400
            assert "--data-binary" in refused.json()["error"]


def test_answers_of_a_batch_equal_single_ones(server, bundle):
    """Thirty requests at once, each beside the command's own answer for that image alone."""
    images = [make_image(colour, seed) for seed in range(10) for colour in COLOURS]
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda content: server.client.post("/predict", content=content).json(), images))
    batches = server.client.get("/metrics").text
    assert 'vitreous_batch_images_bucket{le="1.0",model="colours"}' in batches
    for content, answer in zip(images, answers, strict=True):
        alone = predict(bundle, content, top_k=3)[0]
        assert [one["label"] for one in answer] == [one.label for one in alone.top]
        assert [one["score"] for one in answer] == pytest.approx([one.score for one in alone.top], abs=1e-5)


def test_base64_in_json_with_parameters(server):
    content = {"inputs": base64.b64encode(make_image("blue")).decode(), "parameters": {"top_k": 2}}
    found = server.client.post("/predict", json=content).json()
    assert len(found) == 2
    assert found[0]["label"] == "blue"
    content["inputs"] = f"data:image/png;base64,{content['inputs']}"
    assert server.client.post("/predict", json=content).json() == found


def test_the_function_that_makes_scores(server, bundle):
    model = opened(bundle)
    scores = model.inference_model.engine.logits(make_view(pixels("red", 3), model.bundle.preprocess)[None])[0]
    content = base64.b64encode(make_image("red", 3)).decode()
    for function, expected in (("none", scores), ("sigmoid", torch.sigmoid(scores)), ("softmax", scores.softmax(0))):
        request = {"inputs": content, "parameters": {"function_to_apply": function}}
        found = {one["label"]: one["score"] for one in server.client.post("/predict", json=request).json()}
        assert [found[label] for label in COLOURS] == pytest.approx(expected.tolist(), abs=1e-5)


def test_several_models(server):
    ask = {"content": make_image("red")}
    assert server.client.post("/predict", **ask).json()[0]["label"] == "red"
    assert server.client.post("/predict?model=other", **ask).json()[0]["label"] == "ruby"
    assert server.client.post("/?model=other", **ask).json()[0]["label"] == "ruby"
    refused = server.client.post("/predict?model=nothing", **ask)
    assert refused.status_code == 404
    assert list(refused.json()) == ["error"]
    assert all(name in refused.json()["error"] for name in ("'nothing'", "colours", "other"))


NONSENSE = (
    (b"{", 400, "JSON"),
    (b"[]", 400, ""),
    (b"{}", 400, "inputs"),
    (b'{"inputs": 1}', 400, "inputs"),
    (b'{"inputs": "%%%"}', 400, "inputs"),
    (b'{"inputs": "http://127.0.0.1/cat.jpg"}', 400, "inputs"),  # addresses are not fetched
    (b'{"inputs": "file:///etc/passwd"}', 400, "inputs"),
    (b'{"inputs": "", "parameters": {"top_k": 0}}', 400, "top_k"),
    (b'{"inputs": "", "parameters": {"top_k": "many"}}', 400, "top_k"),
    (b'{"inputs": "", "parameters": {"topk": 3}}', 400, "'parameters.topk'"),
    (b'{"inputs": "", "top_k": 3}', 400, "'top_k'"),
    (b'{"inputs": "", "' + b"x" * 9000 + b'": 3}', 400, "xxx"),
    (b'{"inputs": ""}', 422, ""),
    (b"[" * 900, 400, ""),
    (b"[" * 1100, 413, "1,000"),
    (b"\xff\xfe", 400, "JSON"),
)


def test_json_that_makes_no_sense(server, subtests):
    for content, status, named in NONSENSE:
        with subtests.test(content[:60]):
            refused = server.client.post("/predict", content=content, headers={"Content-Type": "application/json"})
            assert refused.status_code == status, refused.text
            assert named in refused.json()["error"]
            assert refused.json()["error"].endswith(".")
            assert len(refused.content) < 500


def test_compressed_bodies_are_not_read(server):
    assert server.client.post("/predict", content=b"x", headers={"Content-Encoding": "gzip"}).status_code == 415
