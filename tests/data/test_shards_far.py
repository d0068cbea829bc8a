"""Shards over a network: a web server on loopback that misbehaves as it is told to, and fsspec's own memory."""

import dataclasses
import os
import re
import socket
import ssl
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from itertools import count, pairwise
from types import SimpleNamespace
from unittest.mock import Mock

import fsspec
import numpy as np
import pytest
import torch

from support.images import make_tree
from support.tars import make_tar, samples
from support.web import serve
from vitreous import UserError, pack_data
from vitreous.config.data import Augment, Preprocess
from vitreous.data.loader import Loader
from vitreous.data.opening import open_data
from vitreous.data.shards import prefetch, reading
from vitreous.storage import http
from vitreous.training.folder import run_name
from vitreous.training.request import normalised_path

SIZE = Preprocess(size=(16, 16))


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    root = tmp_path_factory.mktemp("far")
    make_tree(root / "folder", {"a": 12, "b": 12}, ".jpg")
    return pack_data(root / "folder", root / "pets", shard_size="10kB").folder


@pytest.fixture
def web(packed, monkeypatch):
    monkeypatch.setattr(reading, "retry", http.RetryPolicy(seconds=60.0, least=1000, tries=3, pause=0.01))
    reading._versions.clear()
    with serve() as found:
        found.keep = True
        found.files = {f"pets/{path.name}": path.read_bytes() for path in packed.iterdir()}
        yield found
        http._local.open = None
        prefetch._fetcher(os.getpid()).close()
        prefetch._fetcher.cache_clear()


def contents(source):
    return {source.key(i): (source.content(i), int(source.labels[i])) for i in range(len(source))}


def test_an_index_on_the_web(web, packed, subtests):
    for place in ("pets/shards.json", "pets/", "pets"):
        with subtests.test(place=place):
            far, near = open_data(web.url + place), open_data(packed)
            assert far.classes == near.classes
            assert contents(far.train) == contents(near.train)
            assert far.train.name(0).startswith(f"{web.url}pets/train-0")
            assert all(asked is not None for _, asked in web.asked), "nothing is asked for as a whole"
            assert web.connections <= 2, "connections stay open"


def test_an_index_that_was_damaged_in_the_cache_is_fetched_again(web, packed, tmp_path, monkeypatch):
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path))
    open_data(f"{web.url}pets/")
    (kept,) = (tmp_path / "computed/shards").glob("*.safetensors")
    whole = kept.read_bytes()
    kept.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert contents(open_data(f"{web.url}pets/").train) == contents(open_data(packed).train)
    assert kept.read_bytes() == whole


def test_a_cache_that_cannot_be_written_is_named(web, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"file: .*VITREOUS_CACHE"):
        open_data(f"{web.url}pets/")


def test_a_pattern_on_the_web(web, packed):
    count = len(list(packed.glob("*.tar")))
    far = open_data(f"{web.url}pets/train-{{000000..{count - 1:06d}}}.tar")
    assert sorted(pair[0] for pair in contents(far.train).values()) == sorted(
        pair[0] for pair in contents(open_data(packed).train).values()
    )
    web.asked.clear()
    open_data(f"{web.url}pets/train-{{000000..{count - 1:06d}}}.tar")
    assert len(web.asked) == count, "the headers are read once; then each shard's tag is asked for"


def test_training_from_the_web_sees_what_training_from_the_disk_does(web, packed):
    batches = {}
    for place in (f"{web.url}pets/", packed):
        for workers in (0, 2):
            loader = Loader(open_data(place).train, SIZE, Augment(), batch_size=6, seed=2, workers=workers)
            batches[place, workers] = torch.cat([batch.images for batch in loader.batches(1)])
            loader.close()
    assert all(torch.equal(one, other) for one, other in pairwise(batches.values()))


@pytest.fixture
def slow(monkeypatch):
    """A fetcher with room for 30 bytes, and what it has fetched: single bytes that wait for a permit each."""
    begun, permits = [], threading.Semaphore(0)

    def read(place, start, length, size):
        begun.append(start)
        assert permits.acquire(timeout=300)
        return bytes([start]) * length

    monkeypatch.setattr(prefetch, "read_range", read)
    monkeypatch.setattr(prefetch, "MAX_BYTES", 30)
    prefetch._fetcher.cache_clear()
    yield begun, permits
    permits.release(100)
    prefetch._fetcher(os.getpid()).close()
    prefetch._fetcher.cache_clear()


def pieces(*starts):
    return [prefetch.Piece("http://x/y.tar", start, 10, 1000) for start in starts]


def test_what_is_fetched_ahead_moves_on_with_what_is_read(slow):
    begun, permits = slow
    permits.release(100)
    prefetch.fetch_ahead(pieces(*range(8)))
    for start in range(8):
        assert prefetch.read_piece(*pieces(start)) == bytes([start]) * 10
        assert prefetch._fetcher(os.getpid())._held <= 30
        assert len(prefetch._fetcher(os.getpid())._begun) == 3, "as many as there is room for"
    assert sorted(begun) == list(range(8)), "each once"


def test_two_sources_of_one_part_are_both_fetched(slow):
    begun, permits = slow
    prefetch.fetch_ahead(pieces(0, 1))
    prefetch.fetch_ahead(pieces(2, 3), keep_pending=True)
    permits.release(100)
    assert [prefetch.read_piece(piece)[0] for piece in pieces(0, 1, 2, 3)] == [0, 1, 2, 3]
    assert sorted(begun) == [0, 1, 2, 3]
    prefetch.fetch_ahead(pieces(4))
    assert set(prefetch._fetcher(os.getpid())._begun) == set(pieces(4)), "what was expected before is forgotten"


def test_what_one_thread_waits_for_and_another_forgets_is_read_all_the_same(slow, monkeypatch):
    _, permits = slow
    monkeypatch.setattr(prefetch, "CONNECTIONS", 1)
    monkeypatch.setattr(prefetch, "SIGNAL_CHECK_SECONDS", 0.01)
    prefetch.fetch_ahead(pieces(0, 1))  # the second waits for the only connection
    waits, wait_for = threading.Event(), prefetch._wait_for
    monkeypatch.setattr(prefetch, "_wait_for", lambda future: waits.set() or wait_for(future))
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(prefetch.read_piece, *pieces(1))
        assert waits.wait(60)
        prefetch.fetch_ahead([])
        permits.release(100)
        assert found.result(60) == bytes([1]) * 10


def test_a_thread_that_waits_for_a_image_ends_with_the_command(slow, monkeypatch):
    monkeypatch.setattr(prefetch, "SIGNAL_CHECK_SECONDS", 0.01)
    monkeypatch.setattr(prefetch, "received_signal", lambda: 2)
    prefetch.fetch_ahead(pieces(0))
    ended = []

    def wait():
        with pytest.raises(KeyboardInterrupt):
            prefetch.read_piece(*pieces(0))
        ended.append(True)

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join(60)
    assert ended


def test_the_program_does_not_wait_for_a_server_that_is_silent():
    program = (
        "import time; from vitreous.data.shards import prefetch; prefetch.read_range = lambda *asked: time.sleep(600); "
        "prefetch.fetch_ahead([prefetch.Piece('http://x/y.tar', i, 1, 9) for i in range(20)])"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_what_breaks_off_is_asked_for_again(web, packed):
    far = open_data(f"{web.url}pets/").train
    web.break_after = [100, 0]
    assert far.content(3) == open_data(packed).train.content(3)
    web.status["pets/train-000000.tar"] = [503, 429]
    assert far.content(0) == open_data(packed).train.content(0)


def test_a_server_that_is_given_up_names_the_place(web):
    far = open_data(f"{web.url}pets/").train
    web.break_after = [10] * 3
    start = far.index.rows.offset[1] - 512
    with pytest.raises(UserError, match=rf"train-000000\.tar: .* {start:,}, 3 "):
        far.content(1)
    web.status["pets/train-000000.tar"] = [500] * 3
    with pytest.raises(UserError, match=r"train-000000\.tar: .* 3 .*500"):
        far.content(1)
    web.status["pets/train-000000.tar"] = [403, 403]
    with pytest.raises(UserError, match=r"train-000000\.tar: .*403"):
        far.content(1)
    assert len(web.status["pets/train-000000.tar"]) == 1, "what is refused is not asked for again"


def test_what_failed_is_asked_for_anew(web, packed):
    far, near = open_data(f"{web.url}pets/").train, open_data(packed).train
    every = np.arange(len(far))
    for shard in packed.glob("*.tar"):
        web.status[f"pets/{shard.name}"] = [503] * 1000
    far.expect(every)
    for index in every:  # so that none is under way any more
        with pytest.raises(UserError, match="503"):
            far.content(index)
    web.status.clear()
    far.expect(every)
    assert contents(far) == contents(near), "the next pass over the same images, in the same process"


def test_only_what_may_pass_is_tried_again(web, monkeypatch, subtests):
    for error, tries in (
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), 1),
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure"), 3),
        (ssl.SSLCertVerificationError(1, "certificate verify failed"), 1),
        (ConnectionRefusedError(111, "Connection refused"), 3),
    ):
        with subtests.test(error=error):
            connect = Mock(side_effect=error)
            monkeypatch.setattr(socket, "create_connection", connect)
            with pytest.raises(UserError, match=r"http://nobody\.invalid/pets/x\.tar: "):
                open_data("http://nobody.invalid/pets/x.tar")
            assert connect.call_count == tries


def test_a_server_that_trickles_is_given_up(web, monkeypatch):
    """A clock on which every piece takes longer than a thousand bytes may."""
    far, asked = open_data(f"{web.url}pets/").train, len(web.asked)
    seconds, length = count(step=2 * reading.retry.seconds), int(far.index.rows.length[1]) + 512
    monkeypatch.setattr(reading, "retry", dataclasses.replace(reading.retry, least=10**6, tries=2))
    clock = SimpleNamespace(monotonic=lambda: next(seconds), sleep=lambda pause: None)
    monkeypatch.setattr(reading, "time", clock)
    monkeypatch.setattr(http, "time", clock)
    with pytest.raises(UserError, match=r"train-000000\.tar: .* 2 .*\(\d[\d,]* .* 60 "):
        far.content(1)
    assert len(web.asked) == asked + 2
    assert length < 10**6


def test_a_server_without_ranges_is_refused(web):
    web.ranges = False
    with pytest.raises(UserError, match=r"pets/shards\.json: "):
        open_data(f"{web.url}pets/")


def test_a_shard_that_changes_on_the_server_is_noticed(web):
    far = open_data(f"{web.url}pets/").train
    whole = web.files["pets/train-000000.tar"]
    web.files["pets/train-000000.tar"] = whole + bytes(512)
    with pytest.raises(UserError, match=rf"train-000000\.tar: .*{len(whole) + 512:,} .*{len(whole):,} "):
        far.content(0)
    reading._versions.clear()
    web.files["pets/train-000000.tar"] = whole
    far.content(0)
    web.files["pets/train-000000.tar"] = bytes(len(whole))
    with pytest.raises(UserError, match=r"train-000000\.tar: "):
        far.content(0)


@pytest.mark.parametrize("ask", [lambda url: reading.read_range(url, 0, 1, 10), reading.stat_file])
def test_a_file_that_is_asked_about_anew_while_it_is_read(web, monkeypatch, ask):
    """Another thread forgets what the server said of it."""
    web.files["x.tar"] = bytes(10)
    with_retries = reading._with_retries

    def meanwhile(url, *asked):
        found = with_retries(url, *asked)
        reading._versions.pop(url)
        return found

    monkeypatch.setattr(reading, "_with_retries", meanwhile)
    assert ask(f"{web.url}x.tar")


def test_damage_on_the_server_is_noticed(web):
    far = open_data(f"{web.url}pets/").train
    assert far.damage() == {}
    whole = bytearray(web.files["pets/train-000000.tar"])
    whole[int(far.index.rows.offset[0]) + 50] ^= 1
    web.files["pets/train-000000.tar"] = bytes(whole)
    reading._versions.clear()
    with pytest.raises(UserError, match=rf"train-000000\.tar#.* {far.index.rows.offset[0]:,} "):
        far.content(0)
    assert list(far.damage()) == [f"{web.url}pets/train-000000.tar"]


def test_an_address_may_lead_to_another(web, packed):
    web.moved = {f"old/{name.removeprefix('pets/')}": f"/{name}" for name in web.files}
    assert contents(open_data(f"{web.url}old/").train) == contents(open_data(packed).train)
    web.moved = {"old/shards.json": "/old/shards.json"}
    with pytest.raises(UserError, match=r"old/shards\.json"):
        open_data(f"{web.url}old/")
    web.moved = {"old/shards.json": "file:///etc/passwd"}
    with pytest.raises(UserError, match="'file:///etc/passwd'"):
        open_data(f"{web.url}old/")


def test_a_redirect_keeps_the_connections(web):
    """Each image of a moved shard costs two requests, and no connection."""
    web.moved = {f"old/{name.removeprefix('pets/')}": f"/{name}" for name in web.files}
    web.moved_body = b"<a>here</a>"
    source = open_data(f"{web.url}old/").train
    before = web.connections
    for index in range(len(source)):
        reading.read_range(source.index.urls[0], index, 1)
    assert web.connections - before <= 1


def test_many_shards_are_opened_several_at_once(web):
    count = 24
    for number in range(count):
        web.files[f"many/{number:02d}.tar"] = web.files["pets/train-000000.tar"]
    web.seconds = 0.02
    far = open_data(f"{web.url}many/{{00..{count - 1}}}.tar").train
    assert 1 < web.most_at_once <= prefetch.CONNECTIONS
    assert len(far) == count * (len(far) // count)
    assert far.name(0).startswith(f"{web.url}many/00.tar#")
    assert far.index.shards == tuple(sorted(far.index.shards, key=lambda shard: shard.file)), "in their order"


def test_a_connection_that_the_server_closed_meanwhile_is_opened_again_at_once(web, monkeypatch):
    far = open_data(f"{web.url}pets/").train
    far.content(0)
    monkeypatch.setattr(reading, "retry", dataclasses.replace(reading.retry, tries=1))
    for connection in http._local.open.values():
        connection.sock.shutdown(socket.SHUT_RDWR)
    assert reading.read_range(far.index.urls[0], 0, 10)


def test_what_is_not_there(web):
    with pytest.raises(UserError, match=r"nothing/shards\.json: .*404"):
        open_data(f"{web.url}nothing/")
    digest = sha256(web.files["pets/shards.safetensors"]).hexdigest().encode()
    web.files["pets/shards.safetensors"] = bytes(len(web.files["pets/shards.safetensors"]))
    web.files["pets/shards.json"] = web.files["pets/shards.json"].replace(digest, digest[::-1])
    with pytest.raises(UserError, match=r"shards\.safetensors: .*shards\.json"):
        open_data(f"{web.url}pets/")
    for address in ("http://", "http://[::1", "https://127.0.0.1:1/x.tar"):
        with pytest.raises(UserError):
            open_data(address)


def test_an_address_that_is_none_is_not_asked_for_again(web, monkeypatch, subtests):
    connect = Mock(side_effect=ConnectionRefusedError)
    monkeypatch.setattr(socket, "create_connection", connect)
    for address in ("http://127.0.0.1:port/pets/", "http://127.0.0.1:1/my pets/"):
        with subtests.test(address), pytest.raises(UserError, match=re.escape(address)):
            open_data(address)
        assert not connect.called


def test_a_digest_is_no_path(web, tmp_path, monkeypatch, subtests):
    """A file of the cache is called after it: what is no digest would be read, and written, anywhere."""
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "a/cache"))
    rows, page = web.files["pets/shards.safetensors"], web.files["pets/shards.json"]
    (tmp_path / "a/cache/computed/shards").mkdir(parents=True)
    (tmp_path / "a/x.safetensors").write_bytes(rows)
    for name in ("../../../x", "A" * 64, "0" * 63, "0" * 64 + "\\n", "/" + "0" * 63):
        with subtests.test(name):
            reading._versions.clear()
            web.files["pets/shards.json"] = page.replace(sha256(rows).hexdigest().encode(), name.encode())
            with pytest.raises(UserError, match=r"shards\.json: "):
                open_data(f"{web.url}pets/")
            assert not any("safetensors" in path for path, _ in web.asked)


def test_an_index_is_no_larger_than_it_says_and_than_there_is_room_for(memory, tmp_path, monkeypatch):
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path))  # where no other test has kept the rows
    page = memory.cat("/bucket/pets/shards.json")
    size = b'"bytes": %d' % memory.size("/bucket/pets/shards.safetensors")
    memory.pipe("/bucket/pets/shards.json", page.replace(size, b'"bytes": %d' % 2**60))
    with pytest.raises(UserError, match=r"shards\.safetensors: 1,153 "):  # PB
        open_data("memory://bucket/pets")
    memory.pipe("/bucket/pets/shards.json", page.replace(size, size + b"0"))
    with pytest.raises(UserError, match=r"shards\.safetensors: "):
        open_data("memory://bucket/pets")


@pytest.fixture
def memory(packed):
    files = fsspec.filesystem("memory")
    for path in packed.iterdir():
        files.pipe(f"/bucket/pets/{path.name}", path.read_bytes())
    make_dirs = [path.name for path in packed.glob("*.tar")]
    for name in make_dirs:
        files.pipe(f"/bucket/bare/{name}", (packed / name).read_bytes())
    yield files
    files.store.clear()


def test_through_fsspec(memory, packed):
    near = open_data(packed).train
    for place in ("memory://bucket/pets", "memory://bucket/pets/shards.json"):
        assert contents(open_data(place).train) == contents(near)
    bare = open_data("memory://bucket/bare").train
    assert sorted(pair[0] for pair in contents(bare).values()) == sorted(pair[0] for pair in contents(near).values())
    loader = Loader(open_data("memory://bucket/pets").train, SIZE, batch_size=5, workers=2)
    assert np.concatenate([batch.index for batch in loader.batches()]).tolist() == list(range(24))
    loader.close()


def test_what_fsspec_does_not_find(memory, tmp_path):
    with pytest.raises(UserError, match=r"memory://bucket/none: "):
        open_data("memory://bucket/none")
    memory.pipe("/bucket/text/x.txt", b"x")
    with pytest.raises(UserError, match=r"memory://bucket/text: .*shards\.json.*\.tar"):
        open_data("memory://bucket/text")
    memory.pipe("/bucket/cut/x.tar", make_tar(tmp_path / "x.tar", samples(3)).read_bytes()[:1000])
    with pytest.raises(UserError, match=r"memory://bucket/cut/x\.tar: "):
        open_data("memory://bucket/cut")
    with pytest.raises(UserError, match=r"s3://bucket/x: .*(s3fs|fsspec)"):
        open_data("s3://bucket/x")


def test_a_run_is_called_after_the_address():
    assert run_name("https://host/pets/shards.json") == run_name("s3://bucket/pets") == "pets"
    assert run_name("shards/train-{000000..000009}.tar") == "train"
    assert normalised_path("https://host//pets") == "https://host//pets"
