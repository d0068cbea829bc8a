"""What a client may send, how slowly, and how much: beyond that it is cut off, and holds up nobody."""

import io
import json
import re
import socket
import threading
from contextlib import ExitStack, suppress

import httpx
import pytest
from PIL import Image

from support.colours import make_bundle
from support.serving import GatedEngine, gated, make_image, opened, read_answer, running, wait_for
from vitreous.server.bodies import BodyMeter

MOST = 100_000
POST = b"POST /predict HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(scope="module")
def server():
    """A server that waits for slow clients, and for slow machines."""
    limits = {"max_body_bytes": MOST, "header_seconds": 60.0, "pause_seconds": 60.0, "max_connections": 8}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vitreous.server.connection.DRAIN_SECONDS", 60.0)
        with running(gated(GatedEngine()), **limits) as server:
            yield server


def sentence(answer):
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]


def test_too_large_a_body_is_refused_before_it_is_read(server):
    with server.connect() as connection:
        connection.sendall(POST + b"Content-Length: 100001\r\nConnection: close\r\n\r\n")  # and nothing more
        status, said = sentence(read_answer(connection))
    assert status == 413
    assert "100 kB" in said


def test_too_large_a_chunk_is_refused_before_it_comes(server):
    with server.connect() as connection:
        connection.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n7fffffff\r\n")  # and nothing more
        assert sentence(read_answer(connection))[0] == 413


def test_too_large_a_body_that_is_sent_is_answered(server):
    """httpx reads no answer before it has sent everything."""
    for content in (bytes(20 * MOST), (bytes(10_000) for _ in range(20))):  # of known and of unknown length
        assert server.client.post("/predict", content=content).status_code == 413
        assert server.client.get("/v2/health/live").status_code == 200


def test_a_body_of_unknown_length(server):
    content = make_image()
    parts = (content[start : start + 100] for start in range(0, len(content), 100))
    assert server.client.post("/predict", content=parts).status_code == 200


def test_headers_that_do_not_end():
    """`test_connection` has those that trickle."""
    with running(gated(GatedEngine()), header_seconds=1.0, pause_seconds=60.0) as server, ExitStack() as held:
        connections = [held.enter_context(server.connect()) for _ in range(4)]
        starts = (b"", b"POST", POST, b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\nX-A: b\r\n")
        for connection, start in zip(connections, starts, strict=True):
            with suppress(ConnectionError):  # a slow machine may send it too late
                connection.sendall(start)
        for connection in connections:
            with suppress(ConnectionResetError):
                assert read_answer(connection) == b""


def test_a_body_that_does_not_come_or_trickles():
    with running(gated(GatedEngine()), header_seconds=60.0, pause_seconds=1.0) as server, ExitStack() as held:
        connections = [held.enter_context(server.connect()) for _ in range(3)]
        silent, chunked, trickling = connections
        silent.sendall(POST + b"Content-Length: 1000\r\n\r\n")
        chunked.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n")
        trickling.sendall(POST + b"Content-Length: 100000\r\n\r\n")
        assert trickle(trickling).startswith(b"HTTP/1.1 408")
        for connection in (silent, chunked):
            assert sentence(read_answer(connection))[0] == 408


def trickle(connection):
    """What the server says to somebody who sends a letter now and then."""
    connection.settimeout(0.05)
    for _ in range(1200):
        connection.sendall(b"x")
        with suppress(TimeoutError):
            return connection.recv(65536)
    raise AssertionError("the server took a minute of it")


def test_those_who_only_hold_connections_hold_up_nobody(server):
    """More of them than the server has connections for; half in their headers, half in their bodies.

    Whoever asks comes anew: one that was idle may be closed for the others just when it is used again.
    """
    held = []
    for number in range(24):
        connection = server.connect()
        connection.sendall(POST if number % 2 else POST + b"Content-Length: 1000\r\n\r\n")
        held.append(connection)
    with httpx.Client(base_url=server.client.base_url, timeout=60) as anew:
        assert anew.post("/predict", content=make_image()).status_code == 200
    for connection in held:
        connection.close()


def test_all_bodies_together_are_bounded(monkeypatch):
    was_read, usual = threading.Event(), BodyMeter.add

    def add(meter, count):
        usual(meter, count)
        if meter._held == 139_000:
            was_read.set()

    monkeypatch.setattr(BodyMeter, "add", add)
    with running(gated(GatedEngine()), max_total_body_bytes=150_000, pause_seconds=60.0) as server:
        held = server.connect()
        held.sendall(POST + b"Content-Length: 140000\r\n\r\n" + bytes(139_000))
        assert was_read.wait(60)  # else the server may read another body first, and refuse this one
        refused = server.client.post("/predict", content=bytes(20_000))
        assert refused.status_code == 503
        assert refused.headers["Retry-After"]
        held.close()
        wait_for(lambda: server.client.post("/predict", content=bytes(20_000)).status_code == 422)


def test_what_is_not_http(server, subtests):
    for nonsense in (b"\x16\x03\x01\x02\x00", b"GET\r\n\r\n", b"A" * 100_000, b"GET / HTTP/9\r\n\r\n"):
        with subtests.test(nonsense[:20]), server.connect() as connection:
            with suppress(ConnectionError):
                connection.sendall(nonsense)
                answer = read_answer(connection)
                assert not answer or sentence(answer)[0] == 400
            assert server.client.get("/v2/health/live").status_code == 200


def test_a_body_in_crumbs(server):
    """Each costs the server as much as a large part: megabytes of them would keep it busy for a minute."""
    with server.connect() as connection, suppress(ConnectionError):
        connection.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 2000)
        assert sentence(read_answer(connection))[0] == 400
    sent = 0
    with server.connect() as connection:
        connection.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n")
        with suppress(ConnectionError, TimeoutError):
            while sent < 2 * 2**20:
                connection.sendall(b"1\r\nx\r\n" * 1000)
                sent += 1000
    assert sent < 2**20
    assert server.client.get("/v2/health/live").status_code == 200


BROKEN = {
    "/v2": b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n",
    "other": b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\n",
    "/predict": b"POST /predict HTTP/1.1\r\nHost: elsewhere.invalid\r\n",
}


def test_a_body_that_breaks_off_is_told_so_once_and_nothing_to_report(server, caplog, subtests):
    """By what its first lines say the request has an answer already, or a refusal, when its body turns out broken."""
    for route, start in BROKEN.items():
        with subtests.test(route):
            before = requests(server, route)
            with server.connect() as connection:
                connection.sendall(start + b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n")
                answer = read_answer(connection)
            assert answer.count(b"HTTP/1.1 ") == 1
            assert sentence(answer)[0] == 400
            wait_for(lambda: requests(server, route) > before, "the request has ended, too")  # noqa: B023
            assert not caplog.records


def requests(server, route):
    """How many requests of a route the server has counted."""
    found = re.findall(rf'vitreous_requests_total{{route="{route}",.*}} (\S+)', server.client.get("/metrics").text)
    return sum(map(float, found))


def test_a_request_before_the_last_is_answered(server):
    """The first is answered, and told that it is the last: the other may be sent again."""
    with server.connect() as connection:
        connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)
        received = b""
        with suppress(ConnectionError):
            while part := connection.recv(65536):
                received += part
    assert received.count(b"HTTP/1.1 200") == 1
    assert b"connection: close" in received


def test_a_image_that_is_small_as_a_file_alone(server):
    """36 million pixels in a few kilobytes: decoded, they would keep a core busy."""
    file = io.BytesIO()
    Image.new("1", (6000, 6000)).save(file, "PNG")
    refused = server.client.post("/predict", content=file.getvalue())
    assert refused.status_code == 422
    assert "34 million" in refused.json()["error"]


def test_an_answer_that_is_taken_in_small_parts_is_complete(tmp_path):
    """`test_connection` says how slowly."""
    model = opened(make_bundle(tmp_path / "colours"))
    with running(model, pause_seconds=60.0) as server, server.connect() as connection:
        content = make_image(size=(600, 600))
        head = f"POST /explain HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n".encode()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32768)  # else the system takes it all at once
        connection.sendall(head + content)
        received = connection.recv(4096)
        wanted = int(re.search(rb"content-length: (\d+)", received)[1]) + received.index(b"\r\n\r\n") + 4
        while len(received) < wanted:
            part = connection.recv(4096)
            assert part, f"{len(received)} of {wanted} bytes"
            received += part
        Image.open(io.BytesIO(received[received.index(b"\r\n\r\n") + 4 :])).load()


def test_too_many_who_look_inside(tmp_path):
    model = opened(make_bundle(tmp_path / "colours"))
    entered, gate, forward = threading.Event(), threading.Event(), model.bundle.model.forward

    def wait(*args, **kwargs):
        entered.set()
        assert gate.wait(120)
        return forward(*args, **kwargs)

    with running(model, max_explanations=1) as server:
        model.bundle.model.forward = wait
        first = threading.Thread(target=server.client.post, args=("/explain",), kwargs={"content": make_image()})
        first.start()
        assert entered.wait(60)
        refused = server.client.post("/explain", content=make_image())
        with server.connect() as connection:  # one who has not sent the image yet is told so, too
            connection.sendall(b"POST /explain HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n")
            assert connection.recv(12) == b"HTTP/1.1 503"
        gate.set()
        first.join()
        assert refused.status_code == 503
        assert server.client.post("/explain", content=make_image()).status_code == 200
