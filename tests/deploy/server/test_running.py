"""`vitreous serve` as a process: how it begins, and how a signal ends it."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager

import httpx
import pytest

from support.colours import make_bundle
from support.serving import opened, picture, wait_until_refused
from vitreous.config.server import ServerSettings
from vitreous.deploy.server.running import listen, run_server
from vitreous.errors import UserError
from vitreous.jobs.serve import name_model, serve

MAIN = "import sys; from vitreous.cli import main; main(sys.argv[1:])"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return make_bundle(tmp_path_factory.mktemp("runs") / "colours" / "bundle")


@contextmanager
def process(*words):
    """The command, once it answers, and its address."""
    started = subprocess.Popen(
        [sys.executable, "-c", MAIN, *map(str, words)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    try:
        line = ""
        while not (found := re.search(r"at (http://\S+) \(Ctrl-C ends it\)$", line)):
            line = started.stderr.readline()
            assert line, "it ended before it answered"
        yield started, found[1], line
    finally:
        started.kill()
        started.wait()
        started.stderr.close()


@pytest.mark.slow
def test_a_signal_under_load_loses_nothing_that_was_accepted(bundle):
    """Every request that was sent is answered, or its connection was never taken."""
    with process("serve", bundle, "--port", 0, "--engine", "torch") as (started, address, line):
        assert line.startswith("vitreous: colours at ")
        outcomes, sent = [], threading.Semaphore(0)

        def ask(seed):
            with httpx.Client(base_url=address, timeout=120) as client:
                while True:
                    try:
                        outcomes.append(client.post("/predict", content=picture("green", seed)).status_code)
                    except httpx.ConnectError:
                        return  # nobody listens any more
                    except httpx.HTTPError as error:
                        outcomes.append(error)
                        return
                    sent.release()

        threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for _ in range(40):
            assert sent.acquire(timeout=120)
        os.kill(started.pid, signal.SIGTERM)
        for thread in threads:
            thread.join(120)
        assert started.wait(120) == 0
        lost = [one for one in outcomes if one != 200]
        # A request may cross the end of an idle connection: it was never read, and HTTP lets a client send it again.
        assert all(isinstance(one, httpx.RemoteProtocolError | httpx.ReadError | httpx.WriteError) for one in lost)
        assert len(lost) <= len(threads)


@pytest.mark.slow
def test_a_request_that_is_being_computed_is_answered_after_the_signal(bundle):
    """The body comes in two parts, and the signal between them."""
    with process("serve", bundle, "--port", 0, "--engine", "torch") as (started, address, _):
        host, port = address.removeprefix("http://").split(":")
        content = picture("blue")
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            head = f"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n"
            connection.sendall(f"{head}Expect: 100-continue\r\n\r\n".encode())
            interim = b""
            while not interim.endswith(b"\r\n\r\n"):  # the server has read the head, and waits for the body
                part = connection.recv(1)
                assert part, interim
                interim += part
            assert interim.startswith(b"HTTP/1.1 100")
            connection.sendall(content[:50])
            os.kill(started.pid, signal.SIGINT)
            wait_until_refused(address)
            connection.sendall(content[50:])
            answer = b""
            while part := connection.recv(65536):
                answer += part
        assert answer.startswith(b"HTTP/1.1 200")
        assert b'"label":"blue"' in answer
        assert b"connection: close" in answer  # so that a pool of connections sends nothing more here
        assert started.wait(120) == 0
        assert started.stderr.read() == ""


def test_a_port_that_is_taken(bundle):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"^port={port}: .*in use.*choose another"):
            serve(bundle, port=port)


def test_a_port_that_is_taken_while_the_models_are_opened(bundle):
    """Two servers that start at once both have the address, until the first of them listens."""
    with listen(ServerSettings(port=0)) as first:
        port = first.getsockname()[1]
        settings = ServerSettings(port=port)
        with listen(settings) as second:
            first.listen()
            with pytest.raises(UserError, match=rf"^port={port}: .*in use.*choose another"):
                run_server([opened(bundle)], settings, second, lambda: None)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.invalid"])
def test_other_machines_need_a_token(bundle, host, monkeypatch):
    monkeypatch.delenv("VITREOUS_TOKEN", raising=False)
    with pytest.raises(UserError, match="needs a token"):
        serve(bundle, host=host, port=0)


def test_a_token_must_be_hard_to_guess(bundle, monkeypatch):
    with pytest.raises(UserError, match=r"^token: 6 letters; give at least 16"):
        serve(bundle, port=0, token="secret")
    monkeypatch.setenv("VITREOUS_TOKEN", "x" * 16)
    # an empty token is said on purpose, and so no leave to take the variable
    for nothing in ("", "   ", " " * 20):
        with pytest.raises(UserError, match=rf"^token='{nothing}': empty; give"):
            serve(bundle, port=0, token=nothing)
    with pytest.raises(UserError, match=r"^token: 16 letters.*plain ASCII"):
        serve(bundle, port=0, token="ü" * 16)
    monkeypatch.setenv("VITREOUS_TOKEN", "short\n")
    with pytest.raises(UserError, match=r"^token: 5 letters"):
        serve(bundle, host="0.0.0.0", port=0)


def test_an_address_that_does_not_exist(bundle):
    with pytest.raises(UserError, match=r"^host='example\.invalid': there is no such address"):
        serve(bundle, host="example.invalid", port=0, token="x" * 16)


def test_a_notebook_is_told_what_to_do(bundle):
    async def cell():
        serve(bundle, port=0)

    with pytest.raises(UserError, match="as in a notebook; run `vitreous serve`"):
        asyncio.run(cell())


def test_no_models():
    with pytest.raises(UserError, match=r"^no models: give at least one"):
        serve([])


def test_the_extra_is_named_where_it_is_missing(bundle, monkeypatch):
    monkeypatch.setattr("vitreous.jobs.serve.find_spec", lambda name: None if name == "fastapi" else object())
    with pytest.raises(UserError, match=r"fastapi is not installed; pip install 'vitreous\[serve\]'"):
        serve(bundle)


@pytest.mark.slow
def test_without_the_extra_all_else_works():
    """Nothing but `serve` imports FastAPI, uvicorn or Prometheus' client."""
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['fastapi', 'starlette', 'uvicorn', 'prometheus_client']));"
        "import vitreous; vitreous.predict, vitreous.load;"
        "vitreous.serve; import vitreous.cli.serve, vitreous.jobs.load"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("runs/pets", "pets"),
        ("runs/pets/bundle", "pets"),
        ("runs/pets/bundle/model.safetensors", "pets"),
        ("weights/vit_ti16.safetensors", "vit_ti16"),
        ("exported v1.2/", "exported-v1.2"),
        ("hf:google/vit-base-patch16-224", "vit-base-patch16-224"),
        ("…", "model"),
    ],
)
def test_names_of_models(given, name):
    assert name_model(given) == name
    assert name_model(given, [name]) == f"{name}-2"
    assert name_model(given, [name, f"{name}-2"]) == f"{name}-3"
