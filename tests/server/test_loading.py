"""What a server says while its models are loaded, and how it ends if they cannot be."""

import os
import re
import signal
import subprocess
import sys

import httpx
import pytest

from support.live_server import MAIN, SOURCE, image_bytes, save_tiny_model
from support.serving import GatedEngine, gated, loading, make_image, wait_for
from vitreous.config.server import ServerSettings
from vitreous.errors import UserError
from vitreous.server.running import Server, listen

WAITS = ("/health", "/v2/health/ready", "/models", "/v2/models", "/v2/models/gated", "/page/start")
IMAGES = ("/", "/predict", "/embed", "/explain", "/page/image", "/v2/models/gated/infer")
ANSWERS = ("/", "/page/static/main.js", "/v2/health/live", "/docs", "/openapi.json", "/metrics", "/v2")


def test_it_answers_from_the_first_moment(subtests):
    """The page and the documentation are there; whatever needs a model is told to come back."""
    with loading() as (address, gate), httpx.Client(base_url=address, timeout=60) as client:
        for path in ANSWERS:
            with subtests.test(path):
                assert client.get(path).status_code == 200
        asked = [("GET", path) for path in WAITS] + [("POST", path) for path in IMAGES]
        for method, path in asked:
            with subtests.test(path, method=method):
                refused = client.request(method, path, content=make_image() if method == "POST" else None)
                assert refused.status_code == 503
                assert int(refused.headers["Retry-After"]) >= 1
                assert list(refused.json()) == ["error"]
        gate.set()
        wait_for(lambda: client.get("/health").status_code == 200)
        assert client.post("/predict", content=make_image()).status_code == 200


def test_a_model_that_cannot_be_opened_ends_it():
    def models():
        yield gated(GatedEngine())
        raise UserError("the second: it is broken.")

    settings = ServerSettings(port=0)
    with listen(settings) as bound, pytest.raises(UserError, match="the second"):
        Server(models(), settings).serve_until_signal(bound)


LOADS_LONG = f"""
import time
import vitreous.inference.opening as opening
opening.{{slow}} = lambda *given, **more: time.sleep(600)
{MAIN}
"""


@pytest.mark.slow
@pytest.mark.parametrize("slow", ["open_model", "open_engine"])  # to download and read weights; to convert them
def test_sigterm_ends_it_while_it_loads(tmp_path, slow):
    program = LOADS_LONG.format(slow=slow)
    process = subprocess.Popen(
        [sys.executable, "-c", program, "serve", save_tiny_model(tmp_path / "tiny"), "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    try:
        address = next(found[0] for line in process.stderr if (found := re.search(r"http://\S+:\d+", line)))
        wait_for(lambda: httpx.post(f"{address}/predict", content=image_bytes()).status_code == 503)
        assert int(httpx.get(f"{address}/health").headers["Retry-After"]) >= 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
