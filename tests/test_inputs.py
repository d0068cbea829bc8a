"""Files that a person names."""

import os
import re

import pytest

from vitreous.errors import UserError
from vitreous.inputs import (
    MAX_TEXT_BYTES,
    format_bytes,
    open_input,
    parse_json,
    read_bytes,
    read_json,
    read_text,
    utf8_text,
)
from vitreous.memory import check_memory


def test_an_ordinary_file_is_read(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"name": "Käfer"}', encoding="utf-8")
    assert read_json(path) == {"name": "Käfer"}
    with open_input(path) as file:
        assert file.read(2) == b'{"'


def test_what_is_no_file_is_refused_by_its_name(subtests, tmp_path):
    os.mkfifo(tmp_path / "pipe")  # which is not waited for
    (tmp_path / "loop").symlink_to(tmp_path / "back")
    (tmp_path / "back").symlink_to(tmp_path / "loop")
    names = ["/dev/zero", "/dev/null", *(str(tmp_path / name) for name in ("pipe", "loop", "nothing", ".", "a\0b"))]
    for name in names:
        with subtests.test(name), pytest.raises(UserError, match=f"^{re.escape(name)}: "):
            read_bytes(name)
    with pytest.raises(UserError, match="aaa"):
        read_bytes(tmp_path / (5000 * "a"))


def test_an_interrupt_while_a_file_is_opened_closes_its_number_once(tmp_path, monkeypatch):
    """A second time it would be an error in the interrupt's place, or close what another thread has just opened."""
    (tmp_path / "a").touch()
    fdopen = os.fdopen

    def interrupted(handle, mode):
        with fdopen(handle, mode):  # closed as the interrupt goes up the stack
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("os.fdopen", interrupted)
        with pytest.raises(KeyboardInterrupt):
            open_input(tmp_path / "a")


def test_a_file_with_a_hole_of_a_terabyte_is_refused_by_its_size(tmp_path):
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(10**12)
    with pytest.raises(UserError, match=r"huge: .*67 "):
        read_text(tmp_path / "huge")
    assert MAX_TEXT_BYTES == 2**26


def test_bytes_that_are_no_text_are_located(tmp_path):
    (tmp_path / "latin.txt").write_bytes("Käfer".encode("latin-1"))
    with pytest.raises(UserError, match=r"latin.txt: .*1\b"):
        read_text(tmp_path / "latin.txt")


def test_text_that_is_no_json_is_one_sentence(subtests):
    for text in (100_000 * "[", 100_000 * '{"a":', '{"a": NaN}', "[-Infinity]", "{", "", "9" * 5000):
        with subtests.test(text[:9]):
            with pytest.raises(UserError, match=r"^here: ") as caught:
                parse_json(text, "here")
            assert len(str(caught.value)) < 400


def test_sizes_in_words():
    sizes = {0: "0 bytes", 999: "999 bytes", 1500: "1.5 kB", 2**30: "1.1 GB", 5 * 10**16: "50 PB"}
    assert {count: format_bytes(count) for count in sizes} == sizes


def test_what_does_not_fit_is_refused_with_both_numbers(monkeypatch):
    monkeypatch.setattr("vitreous.memory.available_memory", lambda: 2 * 10**9)
    check_memory(1.9e9, "image size 224", "choose a smaller one")
    with pytest.raises(UserError, match=r"^image size 9000: .* 2\.1 .* 2\.0 .*"):
        check_memory(2.1e9, "image size 9000", "choose a smaller one")


def test_any_name_becomes_text_that_a_file_can_hold():
    for raw in (b"cat", "naïve".encode(), b"caf\xe9", b"\xff\xc3\xa9"):
        escaped = raw.decode("utf-8", "backslashreplace")
        assert utf8_text(raw.decode("utf-8", "surrogateescape")) == escaped
        assert utf8_text(raw.decode("ascii", "surrogateescape")) == escaped, "in a C locale too"
    assert utf8_text("\ud800") == r"\ud800"
