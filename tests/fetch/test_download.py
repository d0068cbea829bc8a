"""Downloads against a server on loopback that breaks off, changes its mind, and lies."""

import errno
import json
import socket
import ssl
from http.client import HTTPResponse
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest

from vitreous.errors import UserError
from vitreous.fetch.download import download, origin_of, part_of
from vitreous.storage.http import RetryPolicy

CONTENT = np.random.default_rng(0).bytes(300_000)
QUICK = RetryPolicy(seconds=60, pause=0.0, tries=3)


@pytest.fixture
def place(tmp_path, web):
    web.files["x.bin"] = CONTENT
    return tmp_path / "x.bin"


def test_a_whole_file(web, place):
    seen = []
    url = download([web.url + "x.bin"], place, size=len(CONTENT), progress=lambda *two: seen.append(two), retry=QUICK)
    assert url == web.url + "x.bin"
    assert place.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert not part_of(place).exists()
    assert web.asked == [("x.bin", None)]


def test_what_breaks_off_goes_on_where_it_was(web, place):
    web.break_after = [100_000, 50_000]
    download([web.url + "x.bin"], place, retry=QUICK)
    assert place.read_bytes() == CONTENT
    assert web.asked == [("x.bin", None), ("x.bin", "bytes=100000-"), ("x.bin", "bytes=150000-")]


@pytest.mark.parametrize(
    "error",
    [OSError(errno.EHOSTUNREACH, "No route to host"), ssl.SSLError(1, "bad record mac"), TimeoutError("timed out")],
    ids=["no route", "encryption", "silence"],
)
def test_a_network_that_fails_is_not_taken_for_the_disk(web, place, monkeypatch, error):
    errors, read = [None, error], HTTPResponse.read1

    def read_or_fail(self, *size):
        if errors and (one := errors.pop(0)) is not None:
            raise one
        return read(self, *size)

    monkeypatch.setattr(HTTPResponse, "read1", read_or_fail)
    download([web.url + "x.bin"], place, retry=QUICK)
    assert place.read_bytes() == CONTENT
    assert [asked is None for _, asked in web.asked] == [True, False], "it went on where it was"


def test_the_next_command_goes_on_where_the_last_was(web, place):
    web.break_after = [1000, 0, 0, 0]
    with pytest.raises(UserError, match=r"x\.bin: .* 1\.0 "):
        download([web.url + "x.bin"], place, retry=QUICK)
    assert not place.exists()
    assert part_of(place).read_bytes() == CONTENT[:1000]
    download([web.url + "x.bin"], place, retry=QUICK)
    assert place.read_bytes() == CONTENT
    assert web.asked[-1] == ("x.bin", "bytes=1000-")


def test_a_server_without_ranges_starts_again(web, place):
    web.ranges = False
    web.break_after = [100_000]
    download([web.url + "x.bin"], place, retry=QUICK)
    assert place.read_bytes() == CONTENT


def test_two_versions_are_never_put_together(web, place):
    web.break_after = [1000, 0, 0, 0]
    with pytest.raises(UserError):
        download([web.url + "x.bin"], place, retry=QUICK)
    web.files["x.bin"] = other = CONTENT[::-1]
    download([web.url + "x.bin"], place, retry=QUICK)
    assert place.read_bytes() == other


def test_a_file_that_became_shorter_starts_again(web, place):
    web.break_after = [2000, 0, 0, 0]
    web.tags = False
    with pytest.raises(UserError):
        download([web.url + "x.bin"], place, retry=QUICK)
    web.files["x.bin"] = b"short"
    download([web.url + "x.bin"], place, retry=QUICK)
    assert place.read_bytes() == b"short"


@pytest.mark.parametrize("tag", [None, "weak"])
def test_a_changed_file_on_a_server_without_a_tag_is_not_put_together(web, place, tag):
    web.tags = tag
    web.break_after = [1000, 0, 0, 0]
    with pytest.raises(UserError):
        download([web.url + "x.bin"], place, retry=QUICK)
    web.files["x.bin"] = other = CONTENT[::-1]
    download([web.url + "x.bin"], place, retry=QUICK)
    assert place.read_bytes() == other
    assert {asked for _, asked in web.asked} == {None}


@pytest.mark.parametrize("tags", [True, None])
def test_a_server_that_continues_another_version_is_not_believed(web, place, tags):
    web.break_after = [1000, 0, 0, 0]
    with pytest.raises(UserError):
        download([web.url + "x.bin"], place, retry=QUICK)
    web.files["x.bin"] = other = CONTENT[::-1] + b"more"
    web.if_range, web.tags = False, tags
    download([web.url + "x.bin"], place, retry=QUICK)
    assert place.read_bytes() == other
    assert web.asked[-2:] == [("x.bin", "bytes=1000-"), ("x.bin", None)]


def test_a_part_of_somewhere_else_is_not_continued(web, place):
    part_of(place).write_bytes(b"wrong")
    origin_of(place).write_text(json.dumps({"url": "http://elsewhere/", "tag": None, "size": 9}))
    download([web.url + "x.bin"], place, retry=QUICK)
    assert place.read_bytes() == CONTENT


def test_a_damaged_note_starts_again(web, place, subtests):
    for nonsense in ("", "[]", "{", '{"url": 3}', '{"url": "URL", "tag": [1]}', "\0"):
        with subtests.test(nonsense=nonsense):
            place.unlink(missing_ok=True)
            part_of(place).write_bytes(b"wrong")
            origin_of(place).write_text(nonsense.replace("URL", web.url + "x.bin"))
            download([web.url + "x.bin"], place, retry=QUICK)
            assert place.read_bytes() == CONTENT


def test_a_mirror_is_asked_when_the_first_has_nothing(web, place):
    download([web.url + "none.bin", web.url + "x.bin"], place, retry=QUICK)
    assert place.read_bytes() == CONTENT


@pytest.fixture
def dead():
    """An address at which nobody listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}/x.bin"


def test_a_mirror_is_asked_when_nobody_listens_at_the_first(web, place, dead):
    assert download([dead, web.url + "x.bin"], place, retry=QUICK) == web.url + "x.bin"
    assert place.read_bytes() == CONTENT


def test_when_all_fail_each_address_is_named_and_what_came_is_kept(web, place, dead):
    web.break_after = [1000, 0, 0, 0]
    with pytest.raises(UserError, match=rf"{dead}: .*{web.url[7:]}x\.bin: .* 1\.0 "):
        download([dead, web.url + "x.bin"], place, retry=QUICK)
    download([web.url + "other.bin", dead, web.url + "x.bin"], place, retry=QUICK)
    assert place.read_bytes() == CONTENT
    assert web.asked[-1] == ("x.bin", "bytes=1000-")  # the one that can be continued is asked first
    assert ("other.bin", None) not in web.asked


def test_nothing_there(web, place):
    with pytest.raises(UserError, match=rf"none\.bin: .* 404 .*{place}"):
        download([web.url + "none.bin"], place, retry=QUICK)
    assert not place.exists()
    assert not part_of(place).exists()


def test_a_server_that_is_busy_is_asked_again(web, place):
    web.status["x.bin"] = [503, 429]
    download([web.url + "x.bin"], place, retry=QUICK)
    assert place.read_bytes() == CONTENT


def test_another_size_than_published(web, place):
    with pytest.raises(UserError, match=r"x\.bin: .*300,000 .*300,001"):
        download([web.url + "x.bin"], place, size=300_001, retry=QUICK)
    assert not place.exists()


def test_more_than_was_published_without_a_length(web, place):
    web.lengths = False
    with pytest.raises(UserError, match=r"x\.bin: .* 1,000 "):
        download([web.url + "x.bin"], place, size=1000, retry=QUICK)
    assert not place.exists()


def test_a_server_that_trickles_is_given_up(web, place, monkeypatch):
    """A clock on which every piece takes longer than a million bytes may."""
    seconds, pauses = count(step=61), []
    clock = SimpleNamespace(monotonic=lambda: next(seconds), sleep=pauses.append)
    monkeypatch.setattr("vitreous.fetch.download.time", clock)
    monkeypatch.setattr("vitreous.storage.http.time", clock)
    with pytest.raises(UserError, match=r"x\.bin: .*\(\d[\d,]* .* 60 "):
        download([web.url + "x.bin"], place, size=300_000, retry=RetryPolicy(seconds=60, least=10**6, tries=2, pause=3))
    assert not place.exists()
    assert len(web.asked) == 2
    assert pauses == [6]


def test_nobody_listens(place, dead):
    with pytest.raises(UserError, match=f"{dead}: "):
        download([dead], place, retry=RetryPolicy(tries=1, pause=0.0))


def test_what_is_no_address_on_the_web(place, subtests):
    for url in ("file:///etc/passwd", "ftp://x/y", "nonsense", "http://[", ""):
        with subtests.test(url=url):
            with pytest.raises(UserError):
                download([url], place, retry=QUICK)
            assert not place.exists()
