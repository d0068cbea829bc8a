"""`vitreous serve` as a process: how it begins, and how a signal ends it."""

import asyncio
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from types import SimpleNamespace

import httpx
import pytest
import torch

from support.colours import make_bundle
from support.live_server import serving
from support.serving import GatedEngine, gated, make_image, read_answer, running, wait_until_refused
from vitreous.config.server import ServerSettings
from vitreous.errors import UserError
from vitreous.server.running import listen
from vitreous.verbs.serve import name_model, read_samples, serve


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return make_bundle(tmp_path_factory.mktemp("runs") / "colours" / "bundle")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.exhaustive)])
def test_a_signal_under_load_loses_nothing_that_was_accepted(bundle, number):
    """Every request that was sent is answered, or its connection was never taken; also one that is still being sent."""
    content = make_image("blue")
    with serving(bundle) as server:
        assert f"vitreous: colours at {server.url} " in server.said
        outcomes, sent = [], threading.Semaphore(0)

        def ask(seed):
            with httpx.Client(base_url=server.url, timeout=120) as client:
                while True:
                    try:
                        outcomes.append(client.post("/predict", content=make_image("green", seed)).status_code)
                    except httpx.ConnectError:
                        return  # nobody listens any more
                    except httpx.HTTPError as error:
                        outcomes.append(error)
                        return
                    sent.release()

        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
            head = f"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n"
            connection.sendall(f"{head}Expect: 100-continue\r\n\r\n".encode())
            interim = b""
            while not interim.endswith(b"\r\n\r\n"):  # the server has read the head, and waits for the body
                part = connection.recv(1)
                assert part, interim
                interim += part
            assert interim.startswith(b"HTTP/1.1 100")
            connection.sendall(content[:50])
            threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(8)]
            for thread in threads:
                thread.start()
            for _ in range(24):
                assert sent.acquire(timeout=120)
            server.process.send_signal(number)
            wait_until_refused(server.url)
            connection.sendall(content[50:])
            answer = read_answer(connection)
        assert answer.startswith(b"HTTP/1.1 200")
        assert b'"label":"blue"' in answer
        assert b"connection: close" in answer  # so that a pool of connections sends nothing more here
        for thread in threads:
            thread.join(120)
        assert server.process.wait(120) == 0
        assert server.process.stderr.read() == ""
        lost = [one for one in outcomes if one != 200]
        # A request may cross the end of an idle connection: it was never read, and HTTP lets a client send it again.
        assert all(isinstance(one, httpx.RemoteProtocolError | httpx.ReadError | httpx.WriteError) for one in lost)
        assert len(lost) <= len(threads)


def test_a_port_that_is_taken(bundle):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"^port={port}: "):
            serve(bundle, port=port)


def test_a_port_that_is_taken_while_the_models_are_opened():
    """Two servers that start at once."""
    with listen(ServerSettings(port=0)) as first:
        port = first.getsockname()[1]
        with pytest.raises(UserError, match=rf"^port={port}: "):
            listen(ServerSettings(port=port))


def test_other_machines_need_a_token(bundle, monkeypatch):
    monkeypatch.delenv("VITREOUS_TOKEN", raising=False)
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.invalid"):
        with pytest.raises(UserError, match=rf"^host='{re.escape(host)}': .*VITREOUS_TOKEN"):
            serve(bundle, host=host, port=0)


def test_a_token_must_be_hard_to_guess(bundle, monkeypatch):
    with pytest.raises(UserError, match=r"^token: 6 .*16"):
        serve(bundle, port=0, token="secret")
    monkeypatch.setenv("VITREOUS_TOKEN", "x" * 16)
    # an empty token was given on purpose: the variable does not replace it
    for nothing in ("", "   ", " " * 20):
        with pytest.raises(UserError, match=rf"^token='{nothing}': "):
            serve(bundle, port=0, token=nothing)
    with pytest.raises(UserError, match=r"^token: 16 "):
        serve(bundle, port=0, token="ü" * 16)
    monkeypatch.setenv("VITREOUS_TOKEN", "short\n")
    with pytest.raises(UserError, match=r"^token: 5 "):
        serve(bundle, host="0.0.0.0", port=0)


def test_an_address_that_does_not_exist(bundle):
    with pytest.raises(UserError, match=r"^host='example\.invalid': "):
        serve(bundle, host="example.invalid", port=0, token="x" * 16)


def test_a_notebook_is_told_what_to_do(bundle):
    async def cell():
        serve(bundle, port=0)

    with pytest.raises(UserError, match="`vitreous serve`"):
        asyncio.run(cell())


def test_the_device_that_was_named_computes_predictions_and_explanations(bundle, monkeypatch):
    """The device "meta" stands for an accelerator, which this machine need not have."""
    named, served = [], []

    def find(name):
        named.append(name)
        return torch.device("meta")

    for room in ("distributed.world", "inference.opening", "inference.engine"):
        monkeypatch.setattr(f"vitreous.{room}.find_device", find)
    monkeypatch.setattr(
        "vitreous.server.running.Server",
        lambda models, *_: SimpleNamespace(serve_until_signal=lambda _: served.extend(models) or True),
    )
    assert serve(bundle, port=0, device="cuda")
    assert set(named) == {"cuda"}
    assert served[0].bundle.model.device.type == served[0].inference_model.engine.network.device.type == "meta"


def test_no_models():
    with pytest.raises(UserError, match="models"):
        serve([])


def test_the_extra_is_named_where_it_is_missing(bundle, monkeypatch):
    monkeypatch.setattr("vitreous.verbs.serve.find_spec", lambda name: None if name == "fastapi" else object())
    with pytest.raises(UserError, match=r"fastapi.*'vitreous\[serve\]'"):
        serve(bundle)


@pytest.mark.slow
def test_without_the_extra_all_else_works():
    """Nothing but `serve` imports FastAPI, uvicorn or Prometheus' client."""
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['fastapi', 'starlette', 'uvicorn', 'prometheus_client']));"
        "import vitreous; vitreous.predict, vitreous.load;"
        "vitreous.serve; import vitreous.verbs.load"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_names_of_models():
    for given, name in {
        "runs/pets": "pets",
        "runs/pets/bundle": "pets",
        "runs/pets/bundle/model.safetensors": "pets",
        "weights/vit_ti16.safetensors": "vit_ti16",
        "exported v1.2/": "exported-v1.2",
        "hf:google/vit-base-patch16-224": "vit-base-patch16-224",
        "…": "model",
    }.items():
        assert name_model(given) == name
        assert name_model(given, [name]) == f"{name}-2"
        assert name_model(given, [name, f"{name}-2"]) == f"{name}-3"


def test_samples_of_equal_folder_and_file_names(tmp_path):
    contents = {f"{split}/cat/0.png": make_image(seed=seed) for seed, split in enumerate(("train", "val"))}
    for name, content in contents.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(content)
    samples = read_samples(tmp_path, pytest.fail)
    shutil.rmtree(tmp_path)  # before the first visit
    with running(gated(GatedEngine()), samples=samples) as server:
        assert server.client.get("/page/start").json()["samples"] == list(contents)
        assert [server.client.get(f"/page/samples/{number}").content for number in (0, 1)] == list(contents.values())


def test_samples_that_cannot_be_read_are_left_out(tmp_path):
    """They take none of the 12 places."""
    good, said = make_image(), list[str]()
    for number in range(20):
        (tmp_path / f"{number:02}.png").write_bytes((b"no image", good[: len(good) // 2], good)[min(number, 2)])
    samples = read_samples(tmp_path, said.append)
    assert samples == tuple((f"{number:02}.png", good) for number in range(2, 14))
    assert len(said) == 1
    assert str(tmp_path / "00.png") in said[0]
    for path in tmp_path.iterdir():
        path.write_bytes(b"")
    with pytest.raises(UserError, match="samples"):
        read_samples(tmp_path, pytest.fail)
