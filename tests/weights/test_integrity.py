"""A folder with our manifest is whole or refused: bundles and exports, damaged, tampered with, or added to."""

import itertools
import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from support.commands import MB, check_ended_well, check_refused, run_command
from support.greys import draw_images, make_weights
from vitreous import UserError
from vitreous.storage.manifest import write_manifest
from vitreous.verbs.weights import export_weights
from vitreous.weights.bundle import load_bundle

KINDS = ("bundle", "timm", "huggingface")


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """One model as a bundle and as both exports, and an image to ask it about."""
    root = tmp_path_factory.mktemp("original")
    draw_images(root / "images", count=1)
    make_weights(root / "bundle")
    for kind in KINDS[1:]:
        export_weights(root / "bundle", root / kind, to=kind)
    return root


@pytest.fixture
def copy(original, tmp_path):
    """Copies of a folder, one after the other."""
    numbers = itertools.count()
    return lambda kind: Path(shutil.copytree(original / kind, tmp_path / str(next(numbers)) / kind))


@pytest.fixture
def predict(original):
    return lambda model: run_command("predict", model, original / "images/dark/0.png")


def check_answered(outcome, *names):
    check_ended_well(outcome, seconds=2, memory=200 * MB)
    assert outcome.status == 0, outcome.stderr
    for name in names:
        assert name in outcome.stderr


def edit(path, change):
    fields = json.loads(path.read_text())
    change(fields)
    path.write_text(json.dumps(fields, indent=2) + "\n")


def test_a_flipped_bit_in_the_word_that_makes_it_ours(subtests, predict, copy):
    folder = copy("bundle")
    original = (folder / "config.json").read_bytes()
    start = original.index(b'"vitreous"')
    for at in range(start, start + len(b'"vitreous"')):
        for bit in range(8):
            with subtests.test(f"bit {bit} of byte {at}"):
                content = bytearray(original)
                content[at] ^= 1 << bit
                (folder / "config.json").write_bytes(content)
                check_refused(predict(folder), "config.json")


@pytest.mark.exhaustive
def test_a_flipped_bit_anywhere_is_noticed(copy):
    """Every bit of every file of a bundle; in the weights, one bit of every byte."""
    folder = copy("bundle")
    for file in folder.iterdir():
        content = bytearray(file.read_bytes())
        bits = range(8) if len(content) < 10_000 else (3,)
        for at, bit in itertools.product(range(len(content)), bits):
            content[at] ^= 1 << bit
            file.write_bytes(content)
            with pytest.raises(UserError):
                load_bundle(folder)
            content[at] ^= 1 << bit
        file.write_bytes(content)
    load_bundle(folder)


LOST = {
    "no section": lambda config: config.pop("vitreous"),
    "another name": lambda config: config.update(vitreouS=config.pop("vitreous")),
    "nothing": lambda config: config.clear(),
}


@pytest.mark.parametrize("sealed", [False, True], ids=["manifest as it was", "manifest made to agree"])
def test_a_bundle_that_lost_its_section(subtests, predict, copy, sealed):
    for name, change in LOST.items():
        folder = copy("bundle")
        edit(folder / "config.json", change)
        if sealed:
            write_manifest(folder)
        for model in (folder, folder / "model.safetensors"):
            with subtests.test(f"{name}, {model.name}"):
                check_refused(predict(model), "config.json")


def flip_bit(file, content):
    content[len(content) // 2] ^= 4
    file.write_bytes(content)


def link(file, content):
    elsewhere = file.parents[1] / "elsewhere"
    elsewhere.write_bytes(content)
    file.symlink_to(elsewhere)


DAMAGES = {
    "a bit": flip_bit,
    "cut short": lambda file, content: file.write_bytes(content[: len(content) // 2]),
    "empty": lambda file, content: file.touch(),
    "a pipe": lambda file, content: os.mkfifo(file),
    "a link": link,
    "a folder": lambda file, content: file.mkdir(),
    "nested": lambda file, content: file.write_text("[" * 100_000),
}


@pytest.mark.parametrize("kind", KINDS)
def test_damage_to_any_file_of_any_folder(subtests, predict, copy, kind):
    check_answered(predict(copy(kind)))
    for damage, change in DAMAGES.items():
        for name in ("config.json", "model.safetensors", "manifest.json"):
            with subtests.test(f"{name}: {damage}"):
                folder = copy(kind)
                content = bytearray((folder / name).read_bytes())
                (folder / name).unlink()
                change(folder / name, content)
                if (damage, name) == ("a link", "manifest.json"):  # it is read as it is: its digests are what counts
                    check_answered(predict(folder))
                else:
                    check_refused(predict(folder), name)


def entry(name):
    return {name: {"bytes": 1, "sha256": "0" * 64}}


MANIFESTS = {
    "a way up": lambda files: files.update(entry("../x")),
    "absolute": lambda files: files.update(entry("/etc/passwd")),
    "a way up within": lambda files: files.update(entry("a/../../x")),
    "another spelling": lambda files: files.update(entry("./README.md")),
    "a backslash": lambda files: files.update(entry("..\\x")),
    "itself": lambda files: files.update(entry("manifest.json")),
    "no name": lambda files: files.update(entry("")),
    "a null": lambda files: files.update(entry("a\0b")),
    "a long name": lambda files: files.update(entry("x" * 5000)),
    "a device": lambda files: files.update(entry("/dev/zero")),
    "weights left out": lambda files: files.pop("model.safetensors"),
    "configuration left out": lambda files: files.pop("config.json"),
    "nothing": lambda files: files.clear(),
    "size as text": lambda files: files["config.json"].update(bytes="1"),
    "size true": lambda files: files["config.json"].update(bytes=True),
    "size beyond all": lambda files: files["config.json"].update(bytes=10**30),
    "digest short": lambda files: files["config.json"].update(sha256="0"),
    "digest a number": lambda files: files["config.json"].update(sha256=0),
    "digest a list": lambda files: files["config.json"].update(sha256=["0"] * 64),
    "entry a list": lambda files: files.update({"config.json": []}),
    "entry null": lambda files: files.update({"config.json": None}),
}


@pytest.mark.parametrize("kind", ["bundle", "timm"])
def test_a_manifest_that_cannot_be(subtests, predict, copy, kind):
    folder = copy(kind)
    original = (folder / "manifest.json").read_text()
    for name, change in MANIFESTS.items():
        with subtests.test(name):
            (folder / "manifest.json").write_text(original)
            edit(folder / "manifest.json", lambda manifest, change=change: change(manifest["files"]))
            check_refused(predict(folder), "manifest.json" if name != "a long name" else "xxx")


EXTRA = ("pytorch_model.bin", "model.safetensors.index.json", "notes.txt", "other.safetensors", "flax.npz")


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_more_is_named_and_never_read(subtests, original, predict, copy, kind):
    """The answer is the same, to the last letter; what the file holds would run code or be other weights."""
    expected = predict(original / kind).stdout
    for name in EXTRA:
        with subtests.test(name):
            folder = copy(kind)
            if name == "pytorch_model.bin":
                torch.save({"head.weight": torch.zeros(5, 32)}, folder / name)
            else:
                (folder / name).write_text('{"weight_map": {"a": "../../x"}}')
            outcome = predict(folder)
            check_answered(outcome, f"{folder}: ", name)
            assert outcome.stdout == expected


def test_a_description_more_would_be_read_so_it_is_refused(original, predict, copy):
    folder = copy("timm")
    shutil.copy(original / "huggingface/preprocessor_config.json", folder)
    check_refused(predict(folder), "preprocessor_config.json")
    (folder / "preprocessor_config.json").unlink()
    (folder / ".DS_Store").touch()
    outcome = predict(folder)
    check_answered(outcome)
    assert ".DS_Store" not in outcome.stderr


def test_the_hubs_cache_keeps_files_as_links(original, predict, tmp_path):
    home = tmp_path / "models--x--y"
    snapshot = home / "snapshots" / "0123"
    shutil.copytree(original / "bundle", home / "blobs")
    snapshot.mkdir(parents=True)
    for file in (home / "blobs").iterdir():
        (snapshot / file.name).symlink_to(Path("../../blobs") / file.name)
    check_answered(predict(snapshot))


def test_a_manifest_of_another_program_is_not_ours(predict, copy):
    folder = copy("timm")
    for text in ('{"name": "app"}', "[]", '{"files": ["a", "b"], "other": {}}', '{"format": "tfjs", "weights": {}}'):
        (folder / "manifest.json").write_text(text)
        check_answered(predict(folder))
