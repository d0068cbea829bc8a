"""What an attacker sends: every answer calls it the client's fault (4xx) and costs little, and others are served."""

import json
import re
import socket
from pathlib import Path

import httpx
import pytest

from support.live_server import save_tiny_model, serving

INFER = "/v2/models/tiny/infer"
MB = 2**20


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(save_tiny_model(tmp_path_factory.mktemp("models") / "tiny")) as running:
        yield running


def peak(server):
    """Bytes: the most memory that the server has held so far."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return 1024 * int(re.search(r"VmHWM:\s+(\d+)", status)[1])


def exchange(server, request, timeout=30.0):
    """All that a server answers to these bytes until it closes the connection, or falls silent after an answer."""
    received = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=timeout) as connection:
        connection.sendall(request)
        try:
            while part := connection.recv(65536):
                received += part
                connection.settimeout(0.5)
        except TimeoutError:
            pass
    return received


def head(method, path, *lines):
    return "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""]).encode("latin-1")


def tensor(**changes):
    return {"name": "pixels", "datatype": "UINT8", "shape": [1, 3, 1, 1], "data": [1, 2, 3], **changes}


@pytest.mark.parametrize("name", ["][", "a[b]", "[abc]", "[::1", "[", "\xb2", "a" * 1000, "localhost@evil.example"])
def test_names_that_are_none(server, name):
    assert exchange(server, head("GET", "/v2/health/live", f"Host: {name}", "Connection: close")).startswith(
        b"HTTP/1.1 4"
    )


@pytest.mark.parametrize("origin", ["http://[", "http://a[b]:80", "null", "http://\xe9", "//", "http://localhost:x"])
def test_origins_that_are_none(server, origin):
    answer = exchange(server, head("GET", "/", "Host: localhost", f"Origin: {origin}", "Connection: close"))
    assert answer.startswith(b"HTTP/1.1 403")


@pytest.mark.parametrize(
    "lines",
    [
        ("Content-Length: 4", "Transfer-Encoding: chunked"),
        ("Content-Length: 4", "Content-Length: 5"),
        ("Content-Length: +4",),
        ("Content-Length : 4",),
        ("Transfer-Encoding: xchunked",),
        ("Transfer-Encoding: gzip, chunked",),
        ("Host: elsewhere.example",),
    ],
)
def test_a_second_request_is_not_smuggled_in(server, lines):
    """Where proxies could disagree on where a request ends, there is one answer, and the connection is closed."""
    hidden = b"0\r\n\r\n" + head("GET", "/v2/health/live", "Host: localhost")
    answer = exchange(server, head("POST", "/predict", "Host: localhost", *lines) + hidden)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert re.match(rb"HTTP/1.1 [45]", answer)
    assert b"live" not in answer


@pytest.mark.parametrize("length", ["9" * 5000, "-1", "1e3", "", "0x2", "\xb2", "99999999999999999999"])
def test_lengths_of_json_that_are_none(server, length):
    request = head("POST", INFER, "Host: localhost", f"Inference-Header-Content-Length: {length}", "Content-Length: 2")
    assert exchange(server, request + b"{}").startswith(b"HTTP/1.1 400")


DEEP = "[" * 100_000 + "]" * 100_000
NONSENSE = {
    "depth": f'{{"inputs": {DEEP}}}',
    "depth of data": json.dumps({"inputs": [tensor(data="DEEP")]}).replace('"DEEP"', DEEP),
    "depth of parameters": f'{{"inputs": [], "parameters": {{"a": {DEEP}}}}}',
    "not numbers": json.dumps({"inputs": [tensor(data=[float("nan"), float("inf"), 1])]}),
    "no shape": json.dumps({"inputs": [tensor(name="pictures", datatype="BYTES", shape=[], data=["AA=="])]}),
    "shape without end": json.dumps({"inputs": [tensor(shape=[10**400] * 4)]}),
    "negative shape": json.dumps({"inputs": [tensor(shape=[-1, -3, 1, 1])]}),
    "many dimensions": json.dumps({"inputs": [tensor(shape=[1] * 100_000)]}),
    "half a letter": '{"id": "\\ud800", "inputs": []}',
    "other encoding": '{"inputs": []}'.encode("utf-16"),
    "truth": json.dumps({"inputs": [tensor(data=[True, False, True])]}),
    "large numbers": json.dumps({"inputs": [tensor(data=[10**30, 1, 2])]}),
    "wrong type": json.dumps({"inputs": [tensor(datatype="FP32")]}),
    "a long name": json.dumps({"inputs": [tensor(name="x" * MB)]}),
    "a long type": json.dumps({"inputs": [tensor(datatype="x" * MB)]}),
    "a long size": json.dumps({"inputs": [tensor(parameters={"binary_data_size": "x" * MB})]}),
}


@pytest.mark.parametrize("body", NONSENSE.values(), ids=NONSENSE)
def test_nonsense_in_json(server, body):
    answer = httpx.post(f"{server.url}{INFER}", content=body, headers={"Content-Type": "application/json"}, timeout=60)
    assert answer.status_code == 400
    assert len(answer.json()["error"]) < 1000  # what was sent is not sent back


LITTLE = {
    "one long text among short ones": json.dumps({"inputs": [tensor(data=["a" * 200_000, *[""] * 2000])]}),
    "many inputs": json.dumps({"inputs": [0] * 500_000}),
    "many outputs": json.dumps({"inputs": [tensor()], "outputs": [0] * 500_000}),
    "a text among lists": json.dumps({"inputs": [tensor(data=["a" * 20_000_000, [1]])]}),
    "many lists": json.dumps({"inputs": [tensor(data=[[]] * 1_500_000)]}),
    "many lists as a parameter": json.dumps({"inputs": [tensor()], "parameters": {"a": [[]] * 1_500_000}}),
}


@pytest.mark.parametrize("body", LITTLE.values(), ids=LITTLE)
def test_little_is_not_made_much(server, body):
    """A body of some megabytes costs no hundreds of them."""
    before = peak(server)
    answer = httpx.post(f"{server.url}{INFER}", content=body, headers={"Content-Type": "application/json"}, timeout=60)
    assert answer.status_code in (400, 413)
    assert peak(server) - before < 250 * MB


def test_chunks_of_one_byte_are_cut_off(server):
    """Each costs as much as a large one: two megabytes of them would keep the server busy for a minute."""
    sent = 0
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(head("POST", "/predict", "Host: localhost", "Transfer-Encoding: chunked"))
        try:
            while sent < 2 * MB:
                connection.sendall(b"1\r\nx\r\n" * 1000)
                sent += 1000
        except (ConnectionError, TimeoutError):
            pass
    assert sent < MB
    assert httpx.get(f"{server.url}/v2/health/live", timeout=60).status_code == 200


def test_head_is_answered_where_get_is(server):
    for path in ("/", "/v2/health/live", "/v2/health/ready", "/metrics", "/docs"):
        answer = httpx.head(f"{server.url}{path}", timeout=60)
        assert (answer.status_code, answer.content) == (200, b""), path
