"""A web server on loopback that serves bytes, and misbehaves as it is told to."""

import re
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Web:
    """What is served, by path, and how."""

    files: dict = field(default_factory=dict)
    ranges: bool = True
    break_after: list = field(default_factory=list)
    """Bytes after which a connection is closed, one for each request to come."""
    tags: bool | str | None = True
    """Whether files have an ETag, or "weak"."""
    if_range: bool = True
    """Whether If-Range is heeded."""
    lengths: bool = True
    status: dict = field(default_factory=dict)
    """Answers to give instead, one for each request to come, by path."""
    trickle: float = 0.0
    """Seconds between single bytes."""
    more: int = 0
    """Bytes sent beyond what was announced."""
    asked: list = field(default_factory=list)
    """(path, Range) of each request."""
    url: str = ""


@contextmanager
def serve():
    web = Web()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args):
            pass

        def do_GET(self):
            name = self.path.lstrip("/").partition("?")[0]
            asked = self.headers.get("Range")
            web.asked.append((name, asked))
            if web.status.get(name):
                self.send_error(web.status[name].pop(0))
                return
            if name not in web.files:
                self.send_error(404)
                return
            content = web.files[name]
            tag = f'"{hash(content)}"'
            start = 0
            found = re.fullmatch(r"bytes=(\d+)-", asked or "")
            if found and web.ranges and (not web.if_range or self.headers.get("If-Range", tag) == tag):
                start = int(found[1])
                if start >= len(content):
                    self.send_error(416)
                    return
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            else:
                self.send_response(200)
            body = content[start:]
            if web.lengths:
                self.send_header("Content-Length", str(len(body)))
            if web.tags:
                self.send_header("ETag", f"W/{tag}" if web.tags == "weak" else tag)
            self.end_headers()
            self._send(body + bytes(web.more))

        def _send(self, body):
            if web.break_after:
                body = body[: web.break_after.pop(0)]
            try:
                if web.trickle:
                    for byte in body:
                        self.wfile.write(bytes([byte]))
                        self.wfile.flush()
                        time.sleep(web.trickle)
                self.wfile.write(body)
            except OSError:  # whoever asked has gone
                pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    web.url = f"http://127.0.0.1:{server.server_port}/"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield web
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
