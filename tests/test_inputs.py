"""Files that a person names."""

import os

import pytest

from vitreous.errors import UserError
from vitreous.inputs import MOST_TEXT, open_input, parse_json, read_bytes, read_json, read_text, size_text
from vitreous.memory import check_memory


def test_an_ordinary_file_is_read(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"name": "Käfer"}', encoding="utf-8")
    assert read_json(path) == {"name": "Käfer"}
    with open_input(path) as file:
        assert file.read(2) == b'{"'


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="pipe: this is a pipe, not a file"):
        read_bytes(tmp_path / "pipe")


@pytest.mark.parametrize("name", ["/dev/zero", "/dev/null"])
def test_a_device_is_refused(name):
    with pytest.raises(UserError, match=f"{name}: this is a device"):
        read_bytes(name)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [("nothing", "No such file"), (".", "this is a folder"), ("a\0b", "null"), (5000 * "a", "name too long")],
)
def test_what_cannot_be_opened_is_one_sentence(tmp_path, name, complaint):
    with pytest.raises(UserError, match=f"(?i){complaint}"):
        read_bytes(tmp_path / name)


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


def test_a_loop_of_links_is_one_sentence(tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(UserError, match="symbolic links"):
        read_bytes(tmp_path / "a")


def test_a_file_with_a_hole_of_a_terabyte_is_refused_by_its_size(tmp_path):
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(10**12)
    with pytest.raises(UserError, match="more than 67 MB"):
        read_text(tmp_path / "huge")
    assert MOST_TEXT == 2**26


def test_bytes_that_are_no_text_are_located(tmp_path):
    (tmp_path / "latin.txt").write_bytes("Käfer".encode("latin-1"))
    with pytest.raises(UserError, match=r"UTF-8 .byte 1"):
        read_text(tmp_path / "latin.txt")


@pytest.mark.parametrize("text", [100_000 * "[", 100_000 * '{"a":', '{"a": NaN}', "[-Infinity]", "{", "", "9" * 5000])
def test_text_that_is_no_json_is_one_sentence(text):
    with pytest.raises(UserError, match=r"^here: ") as caught:
        parse_json(text, "here")
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 bytes"), (999, "999 bytes"), (1500, "1.5 kB"), (2**30, "1.1 GB"), (5 * 10**16, "50 PB")]
)
def test_sizes_in_words(count, text):
    assert size_text(count) == text


def test_what_does_not_fit_is_refused_with_both_numbers(monkeypatch):
    monkeypatch.setattr("vitreous.memory.available_memory", lambda: 2 * 10**9)
    check_memory(1.9e9, "image size 224", "choose a smaller one")
    with pytest.raises(
        UserError, match=r"^image size 9000: needs about 2.1 GB of memory, and there are 2.0 GB; choose"
    ):
        check_memory(2.1e9, "image size 9000", "choose a smaller one")


def test_any_name_becomes_text_that_a_file_can_hold():
    from vitreous.inputs import as_text

    for raw in (b"cat", "naïve".encode(), b"caf\xe9", b"\xff\xc3\xa9"):
        escaped = raw.decode("utf-8", "backslashreplace")
        assert as_text(raw.decode("utf-8", "surrogateescape")) == escaped
        assert as_text(raw.decode("ascii", "surrogateescape")) == escaped, "in a C locale too"
    assert as_text("\ud800") == r"\ud800"
