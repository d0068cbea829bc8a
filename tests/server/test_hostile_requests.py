"""Images and command lines that no server should trust."""

import struct
import zlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.colours import make_bundle
from support.commands import check_refused, run_command
from support.hostile_data import IMAGE_FILES
from support.serving import make_image, opened, running


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return make_bundle(tmp_path_factory.mktemp("models") / "colours")


@pytest.fixture(scope="module")
def server(bundle):
    with running(opened(bundle)) as server:
        yield server


def test_a_bad_image_gets_a_sentence(server, subtests):
    for case, content in IMAGE_FILES.items():
        with subtests.test(case):
            for path in ("/predict", "/embed", "/explain"):
                refused = server.client.post(path, content=content)
                assert refused.status_code == 422, refused.text
                assert refused.json()["error"].endswith(".")


def test_bad_images_do_not_fail_the_good_ones_beside_them(server):
    contents = [
        content
        for pair in zip(IMAGE_FILES.values(), map(make_image, ["red"] * len(IMAGE_FILES)), strict=True)
        for content in pair
    ]
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda content: server.client.post("/predict", content=content).status_code, contents))
    assert found == [422, 200] * len(IMAGE_FILES)


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height, rows):
    """A grey PNG that announces a size and has only so many rows."""
    pixels = zlib.compress((b"\0" + bytes(width)) * rows)
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def test_pngs_that_announce_more_than_they_have_are_refused_while_others_are_served(server):
    """Eight clients send them: 67 bytes that claim 33 million pixels, and a picture with half of its rows."""
    tiny, half = png(1, 33_000_000, 1), png(300, 300, 150)
    assert len(tiny) < 80
    sent = [tiny, half] * 24
    with ThreadPoolExecutor(8) as hostile, ThreadPoolExecutor(2) as others:
        ask = lambda content: server.client.post("/predict", content=content).status_code  # noqa: E731
        refused, served = hostile.map(ask, sent), others.map(ask, [make_image()] * 12)
        assert set(refused) == {422}
        assert set(served) == {200}
    assert server.client.post("/predict", content=png(300, 300, 300)).status_code == 200


def test_command_lines_that_make_no_sense(bundle, subtests, monkeypatch):
    monkeypatch.delenv("VITREOUS_TOKEN", raising=False)
    for words, *names in (
        ((), "models"),
        (("nowhere",), "nowhere"),
        ((bundle, "--port", "70000"), "--port"),
        ((bundle, "--port", "-1"), "--port"),
        ((bundle, "--host", "0.0.0.0"), "host='0.0.0.0'", "VITREOUS_TOKEN"),
        ((bundle, "--host", "::"), "host='::'", "VITREOUS_TOKEN"),
        ((bundle, "--host", "no such host"), "host='no such host'", "VITREOUS_TOKEN"),
        ((bundle, "--token", "short"), "token"),
        ((bundle, "--allow-origin", "*"), "allow_origin='*'", "VITREOUS_TOKEN"),
        ((bundle, "--allow-origin", "https://a.example,b.example"), "b.example"),
        ((bundle, "--allow-origin", "https://a.example/"), "https://a.example/"),
        ((bundle, "--token", "ééééééééééééééééééé"), "token"),
        ((bundle, "--host", "127.0.0.1", "--port", "1", "--engine", "magic"), "--engine"),
    ):
        with subtests.test(words=words[1:] or words):
            check_refused(run_command("serve", *words), *names)
