"""How a server ends where something goes on: in the time that its settings promise, quietly, and really."""

import signal
import sys
import threading
from contextlib import contextmanager

import httpx
import pytest

from support.colours import make_bundle
from support.live_server import image_bytes, save_tiny_model, serving
from support.serving import GatedEngine, gated, make_image, opened, running, wait_until_refused
from vitreous.config.server import ServerSettings
from vitreous.errors import DamagedModelError
from vitreous.server.running import Server, listen

SOON = {"response_seconds": 5, "grace_seconds": 1}
"""Long enough for a slow machine to begin with a request, and to tell its client that there will be no answer."""


def ask_in_thread(server, path):
    """A thread that asks, and where it will put the answer."""
    answers, address = [], f"{server.address}{path}"
    thread = threading.Thread(target=lambda: answers.append(httpx.post(address, content=make_image(), timeout=60)))
    thread.start()
    return thread, answers


def test_the_time_to_end_follows_from_the_settings():
    settings = ServerSettings(response_seconds=3, grace_seconds=4.5)
    server = Server([gated(GatedEngine())], settings)
    assert server.config.timeout_graceful_shutdown == 8


@pytest.mark.slow  # it waits for the server's limits
def test_a_batch_that_does_not_end_is_not_waited_for(caplog):
    engine = GatedEngine()
    with running(gated(engine), **SOON) as server:
        while engine.entered.acquire(blocking=False):
            pass
        engine.gate.clear()
        asked, answers = ask_in_thread(server, "/predict")
        assert engine.entered.acquire(timeout=60)
        asked.join(60)
        assert answers[0].status_code == 503
    engine.gate.set()  # the server has ended before
    assert not caplog.records


@pytest.mark.slow  # it waits for the server's limits
def test_an_explanation_that_does_not_end_is_told_so_and_not_waited_for(tmp_path, caplog):
    model = opened(make_bundle(tmp_path / "colours"))
    entered, gate, forward = threading.Event(), threading.Event(), model.bundle.model.forward

    def wait(*args, **kwargs):
        entered.set()
        assert gate.wait(300)
        return forward(*args, **kwargs)

    with running(model, **SOON) as server:
        model.bundle.model.forward = wait
        asked, answers = ask_in_thread(server, "/explain")
        assert entered.wait(60)
    gate.set()
    asked.join(60)
    assert answers[0].status_code == 503
    assert list(answers[0].json()) == ["error"]
    assert answers[0].headers["connection"] == "close"
    assert all(record.exc_info is None and "\n" not in record.getMessage() for record in caplog.records)


def test_a_model_that_answers_no_numbers_does_not_start_a_server(tmp_path):
    """Its own error, and not a traceback of uvicorn's."""

    class Damaged(GatedEngine):
        def logits(self, images):
            raise DamagedModelError("damaged: gives logits that are not numbers.")

    settings = ServerSettings(port=0)
    with listen(settings) as bound, pytest.raises(DamagedModelError, match=r"^damaged: "):
        Server([gated(Damaged())], settings).serve_until_signal(bound)


HANGS = """
import functools, sys, time
import vitreous.verbs.serve as verb
from vitreous.cli import main
from vitreous.config.server import ServerSettings
from vitreous.explain.explanation import Explainer
Explainer.explain = lambda *_: (print("busy", file=sys.stderr, flush=True), time.sleep(600))
verb.ServerSettings = functools.partial(ServerSettings, response_seconds={response_seconds}, grace_seconds=0.2)
main()
"""


@contextmanager
def hanging(tmp_path, response_seconds):
    """A server as a process that is busy with an explanation that takes ten minutes."""
    program = (sys.executable, "-c", HANGS.format(response_seconds=response_seconds))
    with serving(save_tiny_model(tmp_path / "tiny"), program=program) as server:

        def ask():
            with pytest.raises(httpx.HTTPError):
                httpx.post(f"{server.url}/explain", content=image_bytes(), timeout=120).raise_for_status()

        asked = threading.Thread(target=ask)
        asked.start()
        assert server.process.stderr.readline() == "busy\n"
        yield server
        asked.join(60)


@pytest.mark.slow
def test_a_second_ctrl_c_ends_it_at_once(tmp_path):
    with hanging(tmp_path, 600) as server:
        server.process.send_signal(signal.SIGINT)
        wait_until_refused(server.url)  # the first was heard: two that come together are one
        server.process.send_signal(signal.SIGINT)  # it waits for the explanation: after one signal alone it ends with 0
        assert server.process.wait(60) == 130
        assert server.process.stderr.read() == ""


@pytest.mark.slow
def test_sigterm_ends_it_in_time_whatever_it_computes(tmp_path):
    with hanging(tmp_path, 5) as server:
        assert server.end() == 0
        assert "Traceback" not in server.process.stderr.read()
