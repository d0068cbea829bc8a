"""Tar files that no reader should trust: each is refused in one sentence that names the shard and what is wrong."""

import gzip
import io
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.tars import jpeg, make_tar, samples, special
from vitreous import UserError, pack_data
from vitreous.data.opening import open_data
from vitreous.data.shards import scan

ELSEWHERE = ("../a.jpg", "a/../../b.jpg", "/etc/a.jpg", "a/..", "C:\\a.jpg", "..\\a.jpg")
PICKLES = ("0.pyd", "0.pickle", "0.PKL", "0.pt", "0.mask.pth")
SKIPPED = {
    "symbolic link": tarfile.SYMTYPE,
    "hard link": tarfile.LNKTYPE,
    "device": tarfile.CHRTYPE,
    "pipe": tarfile.FIFOTYPE,
}
KINDS = {"sparse file": tarfile.GNUTYPE_SPARSE, "an unknown kind": b"Z"}


def attempt(call):
    """What a call gives, or the sentence that it ends with."""
    try:
        return call()
    except UserError as error:
        return error


def refused(path, *named):
    """One sentence, the same for the same kind of damage; it names the shard, and members or bytes of it."""
    with pytest.raises(UserError) as told:
        open_data(path)
    sentence = str(told.value)
    assert "\n" not in sentence
    for part in (path.name, *named):
        assert part in sentence, sentence
    return sentence


def test_a_name_that_leads_elsewhere(tmp_path, subtests):
    said = set()
    for name in ELSEWHERE:
        with subtests.test(name):
            sentence = refused(make_tar(tmp_path / "x.tar", [*samples(3), (name, jpeg())]), repr(name))
            said.add(sentence.replace(repr(name), "NAME"))
    assert len(said) == 1


def test_pickles_are_skipped_and_never_read(tmp_path):
    """Tensors beside the images, as their owners made the shards, do not keep anybody from the images."""
    pickles = [(name, pickle.dumps(Path)) for name in PICKLES]
    make_tar(tmp_path / "x.tar", [*samples(3), *pickles, *samples(2, first=3)])
    opened, again = open_data(tmp_path), open_data(tmp_path)  # the second time from the cached index
    assert [opened.train.key(i) for i in range(5)] == [f"{i:05d}.jpg" for i in range(5)]
    (said,) = opened.notes
    assert "skipped" in said
    assert f"{len(PICKLES)} of the kind pickle" in said
    assert again.notes == opened.notes


def test_what_has_no_content_is_skipped_and_said(tmp_path, subtests):
    """A hard link's header may say the size of the file that it leads to, and has no bytes of its own all the same."""
    for kind, code in SKIPPED.items():
        for size in (0, 700):
            with subtests.test(kind, size=size):
                path = make_tar(tmp_path / "x.tar", [*samples(3), (special("3.jpg", code), b""), *samples(2, first=4)])
                content = bytearray(path.read_bytes())
                start = content.index(b"3.jpg\0")
                info = special("3.jpg", code)
                info.size = size
                content[start : start + 512] = info.tobuf(tarfile.PAX_FORMAT)
                path.write_bytes(content)
                opened = open_data(tmp_path)
                source = opened.train
                assert [source.key(i) for i in range(5)] == [f"{i:05d}.jpg" for i in (0, 1, 2, 4, 5)]
                assert source.content(4) == jpeg(5)
                assert any(f"1 of the kind {kind}" in note for note in opened.notes)


def test_what_is_no_file(tmp_path, subtests):
    for kind, code in KINDS.items():
        with subtests.test(kind):
            path = make_tar(tmp_path / "x.tar", [*samples(3), (special("0.jpg", code), b"")])
            refused(path, "'0.jpg'", repr(code.decode()))


def test_a_name_is_checked_where_it_is_long_too(tmp_path):
    name = "x/" * 80 + "../" * 90 + "a.jpg"
    for format in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        refused(make_tar(tmp_path / "x.tar", [*samples(3), (name, jpeg())], format), "/../")


def test_an_extended_header_whose_records_have_no_length(tmp_path, subtests):
    for length in (b"", b"0", b"x", b"9" * 5000):
        with subtests.test(length):
            info = tarfile.TarInfo("pax")
            info.type = tarfile.XHDTYPE
            refused(make_tar(tmp_path / "x.tar", [(info, length + b" path=a.jpg\n"), *samples(3)]), " 0,")


def test_folders_are_passed_over(tmp_path):
    make_tar(tmp_path / "x.tar", [(special("d", tarfile.DIRTYPE), b""), *samples(4), ("__meta__/x.jpg", b"x")])
    assert len(open_data(tmp_path).train) == 4


def test_a_folder_with_a_long_name_keeps_it_to_itself(tmp_path, subtests):
    """Else the next file would be called so, and its label beside it would be lost."""
    for format in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        with subtests.test(format=format):
            folder = special("d" * 120, tarfile.DIRTYPE)
            make_tar(tmp_path / "x.tar", [*samples(2), (folder, b""), *samples(2, first=2)], format)
            source = open_data(tmp_path).train
            assert [source.key(i) for i in range(4)] == [f"{i:05d}.jpg" for i in range(4)]
            assert source.labels.tolist() == [0, 1, 0, 1]


def test_a_member_that_is_larger_than_any_image(tmp_path):
    info = tarfile.TarInfo("0.jpg")
    info.size = 3 * 2**30
    path = make_tar(tmp_path / "x.tar", samples(3))
    whole = path.read_bytes()[:-10240]
    with path.open("wb") as file:
        file.write(whole.rstrip(b"\0") + bytes(-len(whole.rstrip(b"\0")) % 512) + info.tobuf())
        file.truncate(file.tell() + info.size + 1024)  # sparse: it takes no room
    refused(path, "'0.jpg'", " 3.2 ", " 537 ")


def test_a_member_that_claims_more_than_there_is(tmp_path):
    for size, named in ((10**6, (" 2,560,", "'0.cls'")), (2**80, (" 0,",))):
        info = tarfile.TarInfo("0.cls")
        info.size = size
        (tmp_path / "x.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + bytes(2048))
        refused(tmp_path / "x.tar", *named)


def test_labels_and_descriptions_that_are_too_long(tmp_path):
    refused(make_tar(tmp_path / "x.tar", [*samples(3), ("9.jpg", jpeg()), ("9.cls", b"1" * 2000)]), "'9.cls'", " 2.0 ")
    refused(make_tar(tmp_path / "y.tar", [("9.jpg", jpeg()), ("9.json", b"[" * 2**21)]), "'9.json'", " 2.1 ")
    refused(make_tar(tmp_path / "z.tar", [("9.jpg", jpeg()), ("9.json", b"[" * 90_000)]), "z.tar, 9.json: ")
    refused(make_tar(tmp_path / "w.tar", [("9.jpg", jpeg()), ("9.json", b"{")]), "w.tar, 9.json: ")


def test_gzip_is_told_apart(tmp_path):
    path = make_tar(tmp_path / "x.tar", samples(3))
    path.write_bytes(gzip.compress(path.read_bytes()))
    refused(path, "gunzip")
    path.write_bytes(b"neither a tar nor packed")
    assert "gunzip" not in refused(path)


def test_what_is_no_tar_at_all(tmp_path):
    rng = np.random.default_rng(0)
    for content in (b"", b"x", rng.bytes(5000), jpeg(), b"\0" * 511):
        (tmp_path / "x.tar").write_bytes(content)
        refused(tmp_path / "x.tar")
    (tmp_path / "x.tar").write_bytes(bytes(10240))
    refused(tmp_path / "x.tar")


def test_commands_are_never_run(tmp_path):
    for address in (f"pipe:touch {tmp_path}/ran", "pipe:cat x.tar"):
        with pytest.raises(UserError, match=address.split()[0]):  # a long address is shown in part
            open_data(address)
    for scheme in ("ssh", "file", "local", "github", "simplecache::s3", "x"):
        with pytest.raises(UserError, match=f"{scheme}://"):
            open_data(f"{scheme}://host/x.tar")
    assert not list(tmp_path.iterdir())


def test_an_index_cannot_lead_elsewhere(tmp_path):
    make_tar(tmp_path / "secret.tar", samples(4))
    out = pack_data(tmp_path / "secret.tar", tmp_path / "out").folder
    page = (out / "shards.json").read_text()
    for name in ("../secret.tar", str(tmp_path / "secret.tar"), "pipe:ls", "a/b.tar", "..\\\\x.tar"):
        (out / "shards.json").write_text(page.replace("train-000000.tar", name))
        with pytest.raises(UserError, match=r"shards\.json"):
            open_data(out)


@pytest.fixture(scope="module")
def whole():
    """A shard as bytes, and how many images it has."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, content in samples(5):
            info = tarfile.TarInfo(name if not name.startswith("00003") else "d" * 200 + name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


@settings(max_examples=60)
@given(data=st.data())
def test_any_damage_is_a_sentence_or_harmless(whole, tmp_path_factory, data):
    content = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(whole) - 10240))
        piece = data.draw(st.binary(min_size=1, max_size=16))
        content[at : at + len(piece)] = piece
    path = tmp_path_factory.mktemp("x") / "x.tar"
    path.write_bytes(content)
    found = attempt(lambda: scan.scan_shards([str(path)]))
    if isinstance(found, UserError):
        assert "x.tar" in str(found)
        assert "\n" not in str(found)
    else:
        assert 0 < len(found.rows.names) <= 5
        assert (found.rows.offset + found.rows.length <= len(content)).all()
