"""Clients that others wrote, unchanged: NVIDIA's for Triton, and Hugging Face's."""

import numpy as np
import pytest
import torch
import tritonclient.http as triton
from huggingface_hub import InferenceClient
from tritonclient.utils import InferenceServerException

from support.live_server import LABELS, image_bytes, save_tiny_model
from support.serving import opened, running
from vitreous.data.view import make_view
from vitreous.weights.bundle import load_bundle


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def server(model):
    with running(opened(model, "tiny")) as server:
        yield server


@pytest.fixture
def client(server):
    with triton.InferenceServerClient(server.address.removeprefix("http://")) as made:
        yield made


@pytest.fixture(scope="module")
def expected(model):
    """From n files to (n, 4) probabilities by the network itself in PyTorch."""
    bundle = load_bundle(model)

    def answer(files):
        views = np.stack([make_view(file, bundle.preprocess).numpy() for file in files]).astype(np.float32)
        mean, std = (
            np.array(value, np.float32)[:, None, None] for value in (bundle.preprocess.mean, bundle.preprocess.std)
        )
        with torch.no_grad():
            scores = bundle.model(torch.from_numpy((views / 255 - mean) / std)).numpy()
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)

    return answer


def files_input(files, *, binary):
    tensor = triton.InferInput("images", [len(files)], "BYTES")
    tensor.set_data_from_numpy(np.array(files, dtype=object), binary_data=binary)
    return tensor


def test_triton_health_and_metadata(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("tiny")
    assert not client.is_model_ready("another")
    assert client.get_server_metadata()["name"] == "vitreous"
    about = client.get_model_metadata("tiny")
    assert {one["name"]: one["datatype"] for one in about["inputs"]} == {"images": "BYTES", "pixels": "UINT8"}
    assert {one["name"]: one["datatype"] for one in about["outputs"]}["probabilities"] == "FP32"
    assert [one["name"] for one in client.get_model_repository_index()] == ["tiny"]


def test_triton_is_told_of_the_model_and_of_what_it_computed(client, expected):
    config = client.get_model_config("tiny")
    assert config["max_batch_size"] >= 1
    types = {one["name"]: one["data_type"] for one in config["input"]}
    assert types == {"images": "TYPE_STRING", "pixels": "TYPE_UINT8"}
    assert {one["name"]: one["dims"] for one in config["output"]}["probabilities"] == [4]
    client.infer("tiny", [files_input([image_bytes(seed) for seed in range(3)], binary=True)])
    [before] = client.get_inference_statistics("tiny")["model_stats"]
    client.infer("tiny", [files_input([image_bytes(seed) for seed in range(3)], binary=True)])
    [after] = client.get_inference_statistics()["model_stats"]
    assert (after["name"], after["inference_count"] - before["inference_count"]) == ("tiny", 3)
    assert after["execution_count"] - before["execution_count"] == 1
    for part in ("compute_input", "queue", "compute_infer", "success"):
        assert after["inference_stats"][part]["count"] > before["inference_stats"][part]["count"]
        assert after["inference_stats"][part]["ns"] > before["inference_stats"][part]["ns"]


def test_triton_asks_about_files(client, expected):
    files = [image_bytes(seed) for seed in range(3)]
    for binary in (True, False):
        outputs = [triton.InferRequestedOutput(name, binary_data=binary) for name in ("probabilities", "labels")]
        answer = client.infer("tiny", [files_input(files, binary=True)], outputs=outputs, request_id="seven")
        found = answer.as_numpy("probabilities")
        assert answer.get_response()["id"] == "seven"
        assert found.shape == (3, 4)
        assert np.abs(found - expected(files)).max() < 1e-5
        labels = [one.decode() if isinstance(one, bytes) else one for one in answer.as_numpy("labels")]
        assert labels == [LABELS[k] for k in expected(files).argmax(axis=1)]


def test_triton_asks_about_pixels(client, expected):
    pixels = np.random.default_rng(0).integers(0, 256, (2, 3, 16, 16), dtype=np.uint8)
    for binary in (True, False):
        tensor = triton.InferInput("pixels", list(pixels.shape), "UINT8")
        tensor.set_data_from_numpy(pixels, binary_data=binary)
        found = client.infer("tiny", [tensor]).as_numpy("probabilities")
        assert np.abs(found - expected([one.transpose(1, 2, 0) for one in pixels])).max() < 1e-5


def test_triton_asks_for_classes(client, expected):
    """Triton's classification extension: "value:index:label"."""
    output = triton.InferRequestedOutput("probabilities", class_count=2)
    rows = client.infer("tiny", [files_input([image_bytes()], binary=True)], outputs=[output]).as_numpy("probabilities")
    chances = expected([image_bytes()])[0]
    for text, k in zip(rows[0], np.argsort(-chances)[:2], strict=True):
        value, number, label = text.decode().split(":")
        assert (int(number), label) == (k, LABELS[k])
        assert float(value) == pytest.approx(chances[k], abs=1e-5)


def test_triton_is_told_what_was_wrong(client):
    for name, datatype, value in (
        ("pixels", "FP32", np.zeros((1, 3, 16, 16), np.float32)),
        ("pixels", "UINT8", np.zeros((3, 16, 16), np.uint8)),
        ("pixels", "UINT8", np.zeros((1, 5, 16, 16), np.uint8)),
        ("photos", "UINT8", np.zeros((1, 3, 16, 16), np.uint8)),
        ("images", "BYTES", np.array([b"no image"], dtype=object)),
    ):
        tensor = triton.InferInput(name, list(value.shape), datatype)
        tensor.set_data_from_numpy(value)
        with pytest.raises(InferenceServerException) as refused:
            client.infer("tiny", [tensor])
        assert refused.value.status() in ("400", "422")
        assert refused.value.message().endswith(".")


def test_hugging_face_asks_about_an_image(server, expected, tmp_path):
    file = tmp_path / "noise.png"
    file.write_bytes(image_bytes())
    chances = expected([image_bytes()])[0]
    client = InferenceClient(model=f"{server.address}/predict")
    for given in (file, str(file), file.read_bytes()):
        found = client.image_classification(given, top_k=3)
        assert [one.label for one in found] == [LABELS[k] for k in np.argsort(-chances)[:3]]
        assert [one.score for one in found] == pytest.approx(sorted(chances, reverse=True)[:3], abs=1e-5)
    assert len(InferenceClient(model=server.address).image_classification(image_bytes())) == 4
