"""A web page of another site that asks the server, in a real browser, which enforces CORS."""

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from support.chromium import CHROMIUM
from support.serving import GatedEngine, gated, running

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt-get install chromium"),
]
TOKEN = "correct horse battery staple"


class Site(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>elsewhere</title>")

    def log_message(self, *_):
        pass


@contextmanager
def site():
    """The origin of a site with an empty page."""
    with HTTPServer(("127.0.0.1", 0), Site) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


ASK = """
(async () => {{
  const canvas = new OffscreenCanvas(16, 16);
  canvas.getContext("2d").fillRect(0, 0, 16, 16);
  const image = await canvas.convertToBlob();
  const headers = {{ Authorization: "Bearer {token}", "Content-Type": "image/png" }};
  try {{
    const answer = await fetch("{address}/predict", {{ method: "POST", body: image, headers }});
    return answer.status;
  }} catch {{
    return "blocked";
  }}
}})()
"""


def test_only_a_page_that_was_allowed_reads_the_answer(browser):
    with site() as friend, site() as stranger:
        for token in (None, TOKEN):
            with running(gated(GatedEngine()), token=token, allowed_origins=(friend,)) as server:
                ask = ASK.format(address=server.address, token=token)
                for origin, expected in ((friend, 200), (stranger, "blocked")):
                    browser.open(origin)
                    assert browser.run(ask) == expected
