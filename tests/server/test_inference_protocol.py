"""The Open Inference Protocol, spoken by hand: JSON and bytes as its text says, beside what the network says."""

import base64
import json
import struct
import threading
import tracemalloc

import numpy as np
import pytest
import torch

from support.colours import COLOURS, make_bundle, pixels
from support.serving import make_image, opened, running
from vitreous.data.view import make_view
from vitreous.server import inference_protocol, served_model

INFER = "/v2/models/colours/infer"
FILES = [make_image(colour, seed) for seed, colour in enumerate(COLOURS)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return opened(make_bundle(tmp_path_factory.mktemp("models") / "colours"))


@pytest.fixture(scope="module")
def server(model):
    with running(model) as server:
        yield server


@pytest.fixture(scope="module")
def expected(model):
    """(3, 3) probabilities, by the network itself."""
    views = torch.stack([make_view(content, model.bundle.preprocess) for content in FILES])
    with torch.no_grad():
        return model.bundle.model(views / 127.5 - 1).softmax(dim=1).numpy()


def in_json(**more):
    texts = [base64.b64encode(content).decode() for content in FILES]
    return {"inputs": [{"name": "images", "datatype": "BYTES", "shape": [3], "data": texts}], **more}


def in_bytes(content, **tensor):
    """A request whose tensor follows its JSON."""
    about = {"inputs": [{**tensor, "parameters": {"binary_data_size": len(content)}}]}
    text = json.dumps(about).encode()
    return {"content": text + content, "headers": {"Inference-Header-Content-Length": str(len(text))}}


def outputs(answer):
    assert answer.status_code == 200, answer.text
    return {output["name"]: output for output in answer.json()["outputs"]}


def test_what_is_asked_that_is_not_known_is_refused(server):
    for path in ("/v2", "/v2/health/live", "/v2/models", "/v2/models/colours", "/health", "/models"):
        assert server.client.get(path).status_code == 200, path
    assert server.client.get("/v2?x=1").status_code == 400
    assert server.client.get("/v2/models").json() == server.client.get("/models").json() == {"models": ["colours"]}


def test_several_outputs_are_computed_in_one_pass(server, model, monkeypatch):
    passes = []
    forward = model.bundle.model.encode
    monkeypatch.setattr(model.bundle.model, "encode", lambda *args: passes.append(1) or forward(*args))
    wanted = [{"name": name} for name in ("probabilities", "labels", "representation")]
    found = outputs(server.client.post(INFER, json=in_json(outputs=wanted)))
    assert passes == [1]
    for name in ("probabilities", "representation"):
        alone = outputs(server.client.post(INFER, json=in_json(outputs=[{"name": name}])))[name]
        assert found[name]["data"] == pytest.approx(alone["data"], abs=1e-6)


def test_what_the_server_and_the_model_are(server):
    assert server.client.get("/v2/health/live").status_code == 200
    assert server.client.get("/v2/health/ready").status_code == 200
    assert server.client.get("/v2/models/colours/ready").status_code == 200
    assert server.client.get("/v2").json()["extensions"] == ["binary_tensor_data", "classification"]
    about = server.client.get("/v2/models/colours").json()
    assert about == server.client.get("/v2/models/colours/versions/1").json()
    assert about["inputs"] == [
        {"name": "images", "datatype": "BYTES", "shape": [-1]},
        {"name": "pixels", "datatype": "UINT8", "shape": [-1, 3, -1, -1]},
    ]
    assert about["outputs"][0] == {"name": "probabilities", "datatype": "FP32", "shape": [-1, 3]}
    assert server.client.post("/v2/repository/index").json() == [{"name": "colours", "version": "1", "state": "READY"}]
    for path in ("/v2/models/nothing", "/v2/models/nothing/ready", "/v2/models/colours/versions/2"):
        assert server.client.get(path).status_code == 404
        assert list(server.client.get(path).json()) == ["error"]


def test_images_in_json(server, expected):
    answer = server.client.post(INFER, json=in_json(id="a7"))
    assert {name: answer.json()[name] for name in ("model_name", "model_version", "id")} == {
        "model_name": "colours",
        "model_version": "1",
        "id": "a7",
    }
    found = outputs(answer)
    assert found["probabilities"]["shape"] == [3, 3]
    np.testing.assert_allclose(np.reshape(found["probabilities"]["data"], (3, 3)), expected, atol=1e-5)
    assert found["labels"] == {"name": "labels", "datatype": "BYTES", "shape": [3], "data": list(COLOURS)}


def test_images_as_bytes(server, expected):
    content = b"".join(struct.pack("<I", len(one)) + one for one in FILES)
    request = in_bytes(content, name="images", datatype="BYTES", shape=[3, 1])
    np.testing.assert_allclose(
        np.reshape(outputs(server.client.post(INFER, **request))["probabilities"]["data"], (3, 3)), expected, atol=1e-5
    )


def test_pixels_in_json(server, expected):
    values = np.stack([pixels(colour, seed) for seed, colour in enumerate(COLOURS)]).transpose(0, 3, 1, 2)
    for data in (values.tolist(), values.reshape(-1).tolist()):  # nested, and in one row
        tensor = {"name": "pixels", "datatype": "UINT8", "shape": list(values.shape), "data": data}
        found = outputs(server.client.post(INFER, json={"inputs": [tensor]}))
        np.testing.assert_allclose(np.reshape(found["probabilities"]["data"], (3, 3)), expected, atol=1e-5)


def test_pixels_as_bytes_and_an_answer_as_bytes(server, expected):
    values = np.stack([pixels(colour, seed) for seed, colour in enumerate(COLOURS)]).transpose(0, 3, 1, 2)
    about = {
        "inputs": [
            {
                "name": "pixels",
                "datatype": "UINT8",
                "shape": list(values.shape),
                "parameters": {"binary_data_size": values.size},
            }
        ],
        "parameters": {"binary_data_output": True},
    }
    text = json.dumps(about).encode()
    headers = {"Inference-Header-Content-Length": str(len(text))}
    answer = server.client.post(INFER, content=text + np.ascontiguousarray(values).tobytes(), headers=headers)
    length = int(answer.headers["Inference-Header-Content-Length"])
    chances, labels = json.loads(answer.content[:length])["outputs"]
    rest = answer.content[length:]
    assert chances["parameters"] == {"binary_data_size": 36}
    np.testing.assert_allclose(np.frombuffer(rest[:36], "<f4").reshape(3, 3), expected, atol=1e-5)
    assert rest[36:] == b"".join(struct.pack("<I", len(one)) + one.encode() for one in COLOURS)
    assert labels["parameters"] == {"binary_data_size": len(rest) - 36}


def test_the_outputs_that_are_wanted(server, model, expected):
    wanted = [{"name": "representation"}, {"name": "probabilities", "parameters": {"classification": 2}}]
    found = outputs(server.client.post(INFER, json=in_json(outputs=wanted)))
    assert list(found) == ["representation", "probabilities"]
    views = torch.stack([make_view(content, model.bundle.preprocess) for content in FILES])
    with torch.no_grad():
        features = model.bundle.model.representation(views / 127.5 - 1)
    np.testing.assert_allclose(np.reshape(found["representation"]["data"], features.shape), features.numpy(), atol=1e-4)
    chance, number, label = found["probabilities"]["data"][0].split(":")
    assert (number, label) == ("0", "blue")
    assert float(chance) == pytest.approx(expected[0, 0], abs=1e-5)
    assert found["probabilities"]["shape"] == [3, 2]


def test_a_large_answer_is_written_elsewhere_and_says_the_same(server, monkeypatch):
    wanted = [{"name": "probabilities"}, {"name": "labels"}, {"name": "representation"}]
    threads, write = [], inference_protocol.write_tensor

    def note(*given, **how):
        threads.append(threading.current_thread().name)
        return write(*given, **how)

    monkeypatch.setattr(inference_protocol, "write_tensor", note)
    small = outputs(server.client.post(INFER, json=in_json(outputs=wanted)))
    monkeypatch.setattr(inference_protocol, "MIN_THREAD_NUMBERS", 1)
    large = outputs(server.client.post(INFER, json=in_json(outputs=wanted)))
    assert len(threads) == 6
    assert threads[0] not in threads[3:]
    assert list(large) == [one["name"] for one in wanted]
    assert {name: one["shape"] for name, one in large.items()} == {name: one["shape"] for name, one in small.items()}
    np.testing.assert_allclose(large["representation"]["data"], small["representation"]["data"], atol=1e-6)


def tensor(**changes):
    about = {"name": "images", "datatype": "BYTES", "shape": [1], "data": [base64.b64encode(FILES[0]).decode()]}
    return {"inputs": [{**about, **changes}]}


PIXELS = {"name": "pixels", "datatype": "UINT8"}


NONSENSE = (
    ({}, "inputs"),
    ({"inputs": []}, "0"),
    (tensor(name="input"), "'input'"),
    (tensor(datatype="FP32"), "'images' 'FP32'"),
    (tensor(data=None), "'images'"),
    (tensor(data=[3]), "images"),
    (tensor(shape=[2]), "[2]"),
    (tensor(shape=[]), ""),
    (tensor(shape=[0], data=[]), "[0]"),
    (tensor(shape=[-1]), "[-1]"),
    (tensor(shape=[10**30]), ""),
    (tensor(parameters={"binary_data_size": 5}), "binary_data_size"),
    (tensor(**PIXELS, shape=[3], data=[1, 2, 3]), "[3]"),
    (tensor(**PIXELS, shape=[1, 3, 1, 1], data=[1, 2]), "2"),
    (tensor(**PIXELS, shape=[1, 3, 1, 1], data=[1, 2, 300]), "255"),
    (tensor(**PIXELS, shape=[1, 3, 1, 1], data=[1, 2, 0.5]), "255"),
    (tensor(**PIXELS, shape=[1, 3, 1, 1], data=[[1, 2], 3]), "255"),
    (tensor(**PIXELS, shape=[1, 5, 1, 1], data=[1] * 5), "[1, 5, 1, 1]"),
    ({**tensor(), "outputs": [{"name": "labels"}] * 2}, "outputs"),
    ({**tensor(), "outputs": [{"name": "mask"}]}, "labels, probabilities, representation"),
    ({**tensor(), "outputs": [{"name": "probabilities", "parameters": {"classification": 0}}]}, "classification"),
)


def test_requests_that_make_no_sense(server, subtests):
    for content, named in NONSENSE:
        with subtests.test(str(content)[-80:]):
            refused = server.client.post(INFER, json=content)
            assert refused.status_code == 400, refused.text
            assert named in refused.json()["error"]


def test_lengths_that_do_not_fit(server):
    for length in ("9999", "-1", "x", "²", "9" * 5000, "1e3", "", "0x2", "99999999999999999999"):
        headers = {"Inference-Header-Content-Length": length.encode("latin-1")}
        assert server.client.post(INFER, content=b"{}", headers=headers).status_code == 400
    for content in (b"\x01", struct.pack("<I", 2**32 - 1), struct.pack("<I", 5) + b"1234"):
        request = in_bytes(content, name="images", datatype="BYTES", shape=[1])
        refused = server.client.post(INFER, **request)
        assert refused.status_code == 400
        assert "images" in refused.json()["error"]


def test_a_bad_image_of_several_is_named(server):
    content = tensor(shape=[2], data=[base64.b64encode(one).decode() for one in (FILES[0], b"no image")])
    refused = server.client.post(INFER, json=content)
    assert refused.status_code == 422
    assert refused.json()["error"].startswith("image 1: ")


def test_more_images_than_may_wait(server):
    content = tensor(shape=[129], data=[base64.b64encode(FILES[0]).decode()] * 129)
    refused = server.client.post(INFER, json=content)
    assert refused.status_code == 413
    assert "128" in refused.json()["error"]


def test_millions_of_empty_images_are_refused_before_they_are_parsed(server, monkeypatch):
    made, read = [], inference_protocol.read_images

    def note(*given):
        tracemalloc.start()
        try:
            return read(*given)
        finally:
            made.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()

    monkeypatch.setattr(inference_protocol, "read_images", note)
    for request in (
        in_bytes(bytes(4_000_000), name="images", datatype="BYTES", shape=[1_000_000]),
        in_bytes(bytes(3_000_000), name="pixels", datatype="UINT8", shape=[3_000_000, 1, 1, 1]),
    ):
        refused = server.client.post(INFER, **request)
        assert refused.status_code == 413
        assert "128" in refused.json()["error"]
    assert len(made) == 2
    assert max(made) < 100_000  # bytes


def test_json_that_would_take_much_more_room_than_its_text(server):
    many = {
        "lists": b'{"inputs": [' + b"[]," * 300_000 + b"[]]}",
        "parameters": b'{"inputs": [], "parameters": {"a": [' + b"0," * 300_000 + b"0]}}",
    }
    for case, content in many.items():
        refused = server.client.post(INFER, content=content)
        assert refused.status_code == 413, case
        assert "262,144" in refused.json()["error"]
    refused = server.client.post(INFER, content=b'{"inputs": [' + b"0," * 200_000 + b"0]}")
    assert refused.status_code == 400
    refused = server.client.post(INFER, json=tensor(**PIXELS, shape=[1, 3, 1, 1], data=["a" * 100_000, *[""] * 2000]))
    assert refused.status_code == 400


def test_what_is_repeated_in_a_sentence_is_short(server):
    for change in ({"name": "x" * 100_000}, {"datatype": "x" * 100_000}, {"shape": [10**200] * 8}):
        assert len(server.client.post(INFER, json=tensor(**change)).content) < 500


def test_images_of_which_two_outputs_are_asked_are_decoded_once(server, monkeypatch):
    decoded, decode = [], served_model.make_view
    monkeypatch.setattr(served_model, "make_view", lambda *given: decoded.append(1) or decode(*given))
    for names in (["probabilities"], ["probabilities", "labels", "representation"]):
        decoded.clear()
        found = server.client.post(INFER, json=in_json(outputs=[{"name": name} for name in names]))
        assert list(outputs(found)) == names
        assert len(decoded) == 3
