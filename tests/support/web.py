"""A web server on loopback that serves bytes, and misbehaves as it is told to."""

import re
import threading
import time
from contextlib import contextmanager, suppress
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
    more: int = 0
    """Bytes sent beyond what was announced."""
    asked: list = field(default_factory=list)
    """(path, Range) of each request."""
    keep: bool = False
    """Whether connections stay open for more than one request."""
    moved: dict = field(default_factory=dict)
    """Paths that lead to another."""
    moved_body: bytes = b""
    """What is sent with such an answer."""
    seconds: float = 0.0
    """That each answer takes."""
    at_once: int = 0
    most_at_once: int = 0
    connections: int = 0
    url: str = ""


@contextmanager
def serve():
    web, lock = Web(), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        disable_nagle_algorithm = True

        @property
        def protocol_version(self):
            return "HTTP/1.1" if web.keep else "HTTP/1.0"

        def log_message(self, *args):
            pass

        def setup(self):
            super().setup()
            web.connections += 1

        def do_GET(self):
            with lock:
                web.at_once += 1
                web.most_at_once = max(web.most_at_once, web.at_once)
            time.sleep(web.seconds)
            try:
                self._answer()
            finally:
                with lock:
                    web.at_once -= 1

        def _answer(self):
            name = self.path.lstrip("/").partition("?")[0]
            asked = self.headers.get("Range")
            web.asked.append((name, asked))
            if name in web.moved:
                self.send_response(302)
                self.send_header("Location", web.moved[name])
                self.send_header("Content-Length", str(len(web.moved_body)))
                self.end_headers()
                self.wfile.write(web.moved_body)
                return
            if web.status.get(name):
                self.send_error(web.status[name].pop(0))
                return
            if name not in web.files:
                self.send_error(404)
                return
            content = web.files[name]
            tag = f'"{hash(content)}"'
            start = 0
            stop = len(content)
            found = re.fullmatch(r"bytes=(\d+)-(\d*)", asked or "")
            if found and web.ranges and (not web.if_range or self.headers.get("If-Range", tag) == tag):
                start = int(found[1])
                if start >= len(content):
                    self.send_error(416)
                    return
                stop = min(stop, int(found[2]) + 1) if found[2] else stop
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(content)}")
            else:
                self.send_response(200)
            body = content[start:stop]
            if web.lengths:
                self.send_header("Content-Length", str(len(body)))
            if web.tags:
                self.send_header("ETag", f"W/{tag}" if web.tags == "weak" else tag)
            self.end_headers()
            self._send(body + bytes(web.more))

        def _send(self, body):
            if web.break_after:
                body = body[: web.break_after.pop(0)]
                self.close_connection = True
            with suppress(OSError):  # the client has gone
                self.wfile.write(body)

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
