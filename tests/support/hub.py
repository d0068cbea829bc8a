"""A hub on loopback that serves folders as the Hugging Face hub does: `LocalHub({"acme/vit": folder})`."""

import hashlib
import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class LocalHub(ThreadingHTTPServer):
    """`served` lists what was asked for, as (path, Range header). What the fields say goes wrong."""

    daemon_threads = True

    def __init__(self, repositories):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories = {name: Path(folder) for name, folder in repositories.items()}
        self.served = []
        self.altered = False  # one byte of the weights is another
        self.break_after = None  # bytes of the weights, once
        self.gated = set()  # repositories whose owner asks for consent

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *words):
        pass

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, body):
        hub = self.server
        name = next((name for name in hub.repositories if f"/{name}/" in f"{self.path}/"), None)
        if name is None:
            return self.send(200 if self.path == "/" else 404, b"", body, {"X-Error-Code": "RepoNotFound"})
        if name in hub.gated:
            return self.send(401, b"", body, {"X-Error-Code": "GatedRepo"})
        folder = hub.repositories[name]
        if self.path.startswith("/api/"):
            files = sorted(folder.iterdir())
            if "/tree/" in self.path:
                tree = [{"type": "file", "path": f.name, "size": f.stat().st_size, "oid": "a" * 40} for f in files]
                return self.send(200, json.dumps(tree).encode(), body)
            info = {"id": name, "sha": COMMIT, "siblings": [{"rfilename": f.name} for f in files]}
            return self.send(200, json.dumps(info).encode(), body)
        path = folder / self.path.rsplit("/", 1)[1]
        if not path.exists():
            return self.send(404, b"", body, {"X-Error-Code": "EntryNotFound"})
        return self.send_file(path, body)

    def send_file(self, path, body):
        """As the hub: the SHA-256 of large files in X-Linked-ETag, parts by Range."""
        hub, content = self.server, path.read_bytes()
        large = path.suffix == ".safetensors"
        digest = hashlib.sha256(content).hexdigest() if large else hashlib.sha1(content).hexdigest()
        headers = {"ETag": f'"{digest}"', "Accept-Ranges": "bytes"}
        if large:
            headers |= {"X-Linked-ETag": f'"{digest}"', "X-Linked-Size": str(len(content))}
        asked = self.headers.get("Range")
        if body:
            hub.served.append((path.name, asked))
        if large and hub.altered:
            content = content[:-1] + bytes([content[-1] ^ 1])
        start = int(re.fullmatch(r"bytes=(\d+)-(\d*)", asked)[1]) if asked else 0
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        cut = hub.break_after if large and body and not start else None
        if cut is not None:
            hub.break_after = None
        return self.send(206 if start else 200, content[start:], body, headers, cut)

    def send(self, status, content, body, headers=None, cut=None):
        self.send_response(status)
        for name, value in {"X-Repo-Commit": COMMIT, "Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(content[:cut])
        if cut is not None:
            self.close_connection = True


@contextmanager
def local_hub(repositories):
    hub = LocalHub(repositories)
    thread = threading.Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()
