"""One client asks all servers: by way of a proxy where there is one, and over connections that are used again."""

import socket
import threading

import pytest

from support.web import serve
from vitreous.storage import http
from vitreous.storage.http import HttpError, RetryPolicy, TemporaryHttpError, get, read_pieces

QUICK = RetryPolicy(seconds=20)


@pytest.fixture
def web():
    with serve() as found:
        found.keep = True
        found.files["x"] = b"content"
        yield found
        http._local.open = None


def content(url):
    with get(url, {}, QUICK) as response:
        return b"".join(read_pieces(response, QUICK))


def test_a_proxy_is_asked_for_the_whole_address(web, monkeypatch):
    monkeypatch.setenv("http_proxy", web.url)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    web.files["http://nobody.invalid/x"] = b"by way of a proxy"
    assert content("http://nobody.invalid/x") == b"by way of a proxy"
    assert content(f"{web.url}x") == b"content", "not asked of itself"


def test_a_proxy_is_asked_for_a_tunnel_and_told_who_asks(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        heard = []

        def answer():
            connection, _ = listening.accept()
            with connection:
                heard.append(connection.recv(4096).decode())
                connection.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        monkeypatch.setenv("https_proxy", f"http://me:pass%20word@127.0.0.1:{listening.getsockname()[1]}")
        with pytest.raises(TemporaryHttpError, match="407"):
            content("https://nobody.invalid/x")
        thread.join()
    assert heard[0].startswith("CONNECT nobody.invalid:443 ")
    assert "Proxy-Authorization: Basic bWU6cGFzcyB3b3Jk\r\n" in heard[0]


def test_connections_stay_open_whatever_another_server_does(web):
    with serve() as other:
        other.keep = True
        other.files["x"] = b"other"
        other.break_after = [1]
        for _ in range(3):
            assert content(f"{web.url}x") == b"content"
            with pytest.raises(HttpError, match="404"):
                content(f"{other.url}nothing")
            content(f"{other.url}x")
    assert web.connections == 1


def test_what_is_read_in_part_is_not_taken_for_the_next_answer(web):
    web.files["long"] = bytes(10**6)
    with get(f"{web.url}long", {}, QUICK) as response:
        assert next(read_pieces(response, QUICK, 10)) == bytes(10)
    assert content(f"{web.url}x") == b"content"
