"""What an attacker sends: every answer calls it the client's fault (4xx) and costs little, and others are served."""

import json
import re
from contextlib import suppress
from pathlib import Path

import pytest

from support.live_server import save_tiny_model
from support.serving import opened, running
from vitreous.memory import trim_memory

INFER = "/v2/models/tiny/infer"
MB = 2**20


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running(opened(save_tiny_model(tmp_path_factory.mktemp("models") / "tiny"), "tiny")) as server:
        yield server


def peak():
    """Bytes: the most memory that this process, where client and server run, has held so far."""
    return 1024 * int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])


def exchange(server, request):
    """All that a server answers to these bytes until it closes the connection, or falls silent after an answer."""
    received = b""
    with server.connect() as connection, suppress(TimeoutError):
        connection.sendall(request)
        while part := connection.recv(65536):
            received += part
            connection.settimeout(0.5)
    return received


def head(method, path, *lines):
    return "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""]).encode("latin-1")


def tensor(**changes):
    return {"name": "pixels", "datatype": "UINT8", "shape": [1, 3, 1, 1], "data": [1, 2, 3], **changes}


AMBIGUOUS = (
    ("Content-Length: 4", "Transfer-Encoding: chunked"),
    ("Content-Length: 4", "Content-Length: 5"),
    ("Content-Length: +4",),
    ("Content-Length : 4",),
    ("Transfer-Encoding: xchunked",),
    ("Transfer-Encoding: gzip, chunked",),
    ("Host: elsewhere.example",),
)


def test_a_second_request_is_not_smuggled_in(server, subtests):
    """Where proxies could disagree on where a request ends, there is one answer, and the connection is closed."""
    hidden = b"0\r\n\r\n" + head("GET", "/v2/health/live", "Host: localhost")
    for lines in AMBIGUOUS:
        with subtests.test(lines=lines):
            answer = exchange(server, head("POST", "/predict", "Host: localhost", *lines) + hidden)
            assert answer.count(b"HTTP/1.1 ") == 1
            assert re.match(rb"HTTP/1.1 (400|501) ", answer)
            assert b"live" not in answer


DEEP = "[" * 100_000 + "]" * 100_000
NONSENSE = {
    "depth": f'{{"inputs": {DEEP}}}',
    "depth of data": json.dumps({"inputs": [tensor(data="DEEP")]}).replace('"DEEP"', DEEP),
    "depth of parameters": f'{{"inputs": [], "parameters": {{"a": {DEEP}}}}}',
    "not numbers": json.dumps({"inputs": [tensor(data=[float("nan"), float("inf"), 1])]}),
    "no shape": json.dumps({"inputs": [tensor(name="images", datatype="BYTES", shape=[], data=["AA=="])]}),
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


def test_nonsense_in_json(server, subtests):
    for case, body in NONSENSE.items():
        with subtests.test(case):
            answer = server.client.post(INFER, content=body, headers={"Content-Type": "application/json"})
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


def test_little_is_not_made_much(server, subtests):
    """A body of some megabytes costs no hundreds of them."""
    for case, body in LITTLE.items():
        with subtests.test(case):
            trim_memory()  # else what was freed before hides the peak
            with suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")  # the peak is counted anew
            before = peak()
            answer = server.client.post(INFER, content=body, headers={"Content-Type": "application/json"})
            assert answer.status_code in (400, 413)
            assert peak() - before < 250 * MB
