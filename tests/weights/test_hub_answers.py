"""A hub that lies, stalls or fails: a server on this machine in its place."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from support.commands import MB, Outcome, check_ended_well

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONFIG = b'{"architecture": "vit_tiny_patch16_224", "num_classes": 5}'
PAGE = b"<!DOCTYPE html><html><title>Log in</title></html>"
FILE = "model.safetensors"

CASES = [
    *("the list is a page", "the list is deep", "the list is no list", "error 500", "error 404", "error 401"),
    *("it hangs up", "a path upwards", "an absolute path", "the configuration is a page", "redirected to a file"),
    *("redirected to itself", "redirected to nowhere", "the weights are missing"),
    "the weights fail",
    *("a page instead of weights", "empty weights", "fewer bytes than promised", "petabytes promised"),
    *("more bytes than promised", "without end", "a trickle", "rubbish"),
]


class Hub(BaseHTTPRequestHandler):
    """Answers as the number of the case in the model's name says: acme/x7 is the eighth."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *words):
        pass

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, body):
        if self.path == "/":
            return self.send(b"", body)
        case = CASES[int(re.search(r"acme/x(\d+)", self.path)[1])]
        if self.path.startswith("/api/"):
            if case == "the list is a page":
                return self.send(PAGE, body)
            if case == "the list is deep":
                return self.send(b"[" * 100_000, body)
            if case == "the list is no list":
                return self.send(b'{"siblings": 3}', body)
            if case == "error 500":
                return self.send(b"oh", body, status=500)
            if case == "error 404":
                return self.send(b"{}", body, status=404)
            if case == "error 401":
                return self.send(b"{}", body, status=401, headers={"X-Error-Code": "GatedRepo"})
            if case == "it hangs up":
                self.close_connection = True
                self.connection.close()
                return None
            upwards = {"a path upwards": "../../../evil.safetensors", "an absolute path": "/tmp/evil.safetensors"}
            names = ["config.json", upwards.get(case, FILE)]
            if "/tree/" in self.path:
                tree = [{"type": "file", "path": name, "size": 1000, "oid": "a" * 40} for name in names]
                return self.send(json.dumps(tree).encode(), body)
            listed = {
                "id": re.search(r"acme/x\d+", self.path)[0],
                "sha": COMMIT,
                "siblings": [{"rfilename": name} for name in names],
            }
            return self.send(json.dumps(listed).encode(), body)
        if self.path.endswith("config.json"):
            return self.send(PAGE if case == "the configuration is a page" else CONFIG, body)
        return self.weights(case, body)

    def weights(self, case, body):
        if case == "redirected to a file":
            return self.send(b"", body, status=302, headers={"Location": "file:///etc/passwd"})
        if case == "redirected to itself":
            return self.send(b"", body, status=302, headers={"Location": self.path})
        if case == "redirected to nowhere":
            return self.send(b"", body, status=302, headers={"Location": "http://127.0.0.1:1/x"})
        if case == "the weights are missing":
            return self.send(b"{}", body, status=404, headers={"X-Error-Code": "EntryNotFound"})
        if case == "the weights fail":
            return self.send(b"", body, status=500)
        if case == "a page instead of weights":
            return self.send(PAGE, body)
        if case == "empty weights":
            return self.send(b"", body)
        if case == "fewer bytes than promised":
            return self.send(bytes(100), body, length=10_000)
        if case == "petabytes promised":
            return self.send(bytes(100), body, length=10**15)
        if case == "more bytes than promised":
            return self.send(bytes(100_000) if body else b"", body, length=None if body else 100)
        if case == "without end":
            return self.endless(body)
        if case == "a trickle":
            return self.endless(body, pause=0.2)
        return self.send(b"\xff" * 1000, body)

    def send(self, content, body, status=200, headers=None, length=...):
        self.send_response(status)
        length = len(content) if length is ... else length
        for name, value in {"X-Repo-Commit": COMMIT, "ETag": f'"{abs(hash(self.path)):x}"', **(headers or {})}.items():
            self.send_header(name, value)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.close_connection = True
        self.end_headers()
        if body:
            self.wfile.write(content)

    def endless(self, body, pause=0.0):
        self.send(b"", body, length=None if body else 1000)
        for _ in range((15 if pause else 300) * body):
            try:
                self.wfile.write(bytes(1 if pause else 10**6))
            except OSError:
                return
            time.sleep(pause)


@pytest.fixture(scope="module")
def server():
    found = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    found.daemon_threads = True
    thread = threading.Thread(target=found.serve_forever, daemon=True)
    thread.start()
    yield found
    found.shutdown()
    found.server_close()


NAMED = {
    "the configuration is a page": FILE,  # which is read first, and is rubbish too
    "a page instead of weights": FILE,
    "empty weights": FILE,
    "rubbish": FILE,
    "without end": f"{1000 + len(CONFIG):,}",  # bytes that were announced
}
"""What the sentence names, if not the name on the hub."""

# The hub's package tries again for up to 20 seconds: as often, but without waiting.
CODE = """
import json, sys, time
from pathlib import Path
time.sleep = lambda seconds: None
sys.path.insert(0, sys.argv[1])
import huggingface_hub.hf_api  # takes a second, and memory, of which no command is guilty
from support.commands import run_command
for number in range(int(sys.argv[2])):
    print(json.dumps(vars(run_command("import", f"hf:acme/x{number}", f"out{number}"))), flush=True)
"""


@pytest.mark.slow
def test_a_hostile_hub(subtests, server, tmp_path):
    """All cases in one process, as huggingface_hub reads the environment when it is imported."""
    environment = {
        **os.environ,
        "VITREOUS_OFFLINE": "0",
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_address[1]}",
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_DOWNLOAD_TIMEOUT": "20",
        "HF_HUB_ETAG_TIMEOUT": "20",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_XET": "1",
        "NO_PROXY": "127.0.0.1",
    }
    argv = [sys.executable, "-c", CODE, str(Path(__file__).parents[1]), str(len(CASES))]
    done = subprocess.run(argv, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    outcomes = [Outcome(**json.loads(line)) for line in done.stdout.splitlines()]
    for number, (case, outcome) in enumerate(zip(CASES, outcomes, strict=True)):
        with subtests.test(case):
            check_ended_well(outcome, seconds=5, memory=200 * MB)
            assert outcome.status == 2, (outcome.stdout, outcome.stderr)
            *_, last = outcome.stderr.strip().splitlines()  # the hub's package may have said that it tries again
            assert last.startswith("vitreous: "), outcome.stderr
            assert NAMED.get(case, f"hf:acme/x{number}") in last
            assert not (tmp_path / f"out{number}").exists()
    assert not Path("/tmp/evil.safetensors").exists()
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 50 * MB
