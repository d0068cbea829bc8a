"""A folder with our manifest is whole or refused: bundles and exports, damaged, tampered with, or added to."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from support.commands import check_ended_well, check_refused
from support.greys import draw_pictures, make_weights
from vitreous.jobs.export import export_weights
from vitreous.weights.manifest import write_manifest

KINDS = ("bundle", "timm", "huggingface")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """One model as a bundle and as both exports, and a picture to ask it about."""
    root = tmp_path_factory.mktemp("place")
    draw_pictures(root / "pictures", count=1)
    make_weights(root / "bundle")
    for kind in KINDS[1:]:
        export_weights(root / "bundle", root / kind, kind)
    return root


@pytest.fixture
def copy(place, tmp_path):
    return lambda kind: shutil.copytree(place / kind, tmp_path / kind)


def ask(processes, place, model):
    return processes("predict", model, place / "pictures/dark/0.png")


def check_answered(outcome, *says):
    check_ended_well(outcome, seconds=2, memory=200 * 2**20)
    assert outcome.status == 0, outcome.stderr
    for words in says:
        assert words in outcome.stderr


def edit(path, change):
    fields = json.loads(path.read_text())
    change(fields)
    path.write_text(json.dumps(fields, indent=2) + "\n")


@pytest.mark.parametrize("kind", KINDS)
def test_whole_it_answers(processes, place, copy, kind):
    check_answered(ask(processes, place, copy(kind)))


@pytest.mark.parametrize("bit", range(8))
@pytest.mark.parametrize("letter", range(len('"vitreous"')))
def test_a_flipped_bit_in_the_word_that_makes_it_ours(processes, place, copy, letter, bit):
    folder = copy("bundle")
    content = bytearray((folder / "config.json").read_bytes())
    content[content.index(b'"vitreous"') + letter] ^= 1 << bit
    (folder / "config.json").write_bytes(content)
    check_refused(ask(processes, place, folder), "config.json")


LOST = {
    "no section": lambda config: config.pop("vitreous"),
    "another name": lambda config: config.update(vitreouS=config.pop("vitreous")),
    "nothing": lambda config: config.clear(),
    "heads": lambda config: config.update(num_features=1),
}


@pytest.mark.parametrize("sealed", [False, True], ids=["manifest as it was", "manifest made to agree"])
@pytest.mark.parametrize("given", ["folder", "file"])
@pytest.mark.parametrize("change", list(LOST)[:3])
def test_a_bundle_that_lost_its_section(processes, place, copy, change, given, sealed):
    folder = copy("bundle")
    edit(folder / "config.json", LOST[change])
    if sealed:
        write_manifest(folder)
    model = folder if given == "folder" else folder / "model.safetensors"
    check_refused(ask(processes, place, model), "config.json")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "manifest.json"])
@pytest.mark.parametrize("damage", ["a bit", "cut short", "empty", "a pipe", "a link", "a folder", "nested"])
def test_damage_to_any_file_of_any_folder(processes, place, copy, kind, name, damage):
    import os

    folder = copy(kind)
    file = folder / name
    content = bytearray(file.read_bytes())
    file.unlink()
    if damage == "a bit":
        content[len(content) // 2] ^= 4
        file.write_bytes(content)
    elif damage == "cut short":
        file.write_bytes(content[: len(content) // 2])
    elif damage == "empty":
        file.touch()
    elif damage == "a pipe":
        os.mkfifo(file)
    elif damage == "a link":
        (folder.parent / "elsewhere").write_bytes(content)
        file.symlink_to(folder.parent / "elsewhere")
        if name == "manifest.json":  # it is read as it is: its digests are what counts
            return check_answered(ask(processes, place, folder))
    elif damage == "a folder":
        file.mkdir()
    else:
        file.write_text("[" * 100_000)
    return check_refused(ask(processes, place, folder), name)


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
@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_that_cannot_be(processes, place, copy, kind, name):
    folder = copy(kind)
    edit(folder / "manifest.json", lambda manifest: MANIFESTS[name](manifest["files"]))
    check_refused(ask(processes, place, folder), "manifest.json" if name != "a long name" else "xxx")


SECTIONS = {
    "labels as text": lambda section: section.update(labels="abcde"),
    "labels as numbers": lambda section: section.update(labels=[1, 2, 3, 4, 5]),
    "labels as an object": lambda section: section.update(labels={"a": 1}),
    "training as a list": lambda section: section.update(training=[1]),
    "model as a list": lambda section: section.update(model=[]),
    "model null": lambda section: section.update(model=None),
    "preprocess as text": lambda section: section.update(preprocess="mean=0.5"),
    "format as text": lambda section: section.update(format="1"),
    "format true": lambda section: section.update(format=True),
    "format beyond": lambda section: section.update(format=10**20),
    "section a list": lambda section: section.clear(),
}


@pytest.mark.parametrize("name", SECTIONS)
def test_a_signed_section_of_wrong_types(processes, place, copy, name):
    folder = copy("bundle")
    edit(folder / "config.json", lambda config: SECTIONS[name](config["vitreous"]))
    write_manifest(folder)
    check_refused(ask(processes, place, folder), "config.json")


EXTRA = ("pytorch_model.bin", "model.safetensors.index.json", "notes.txt", "other.safetensors", "flax.npz")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", EXTRA)
def test_a_file_more_is_named_and_never_read(processes, place, copy, kind, name):
    """The answer is the same, to the last letter; what the file holds would run code or be other weights."""
    expected = ask(processes, place, place / kind).stdout
    folder = copy(kind)
    if name == "pytorch_model.bin":
        torch.save({"head.weight": torch.zeros(5, 32)}, folder / name)
    else:
        (folder / name).write_text('{"weight_map": {"a": "../../x"}}')
    outcome = ask(processes, place, folder)
    check_answered(outcome, f"{folder}: not part of the model, and not read: {name}")
    assert outcome.stdout == expected


def test_a_description_more_would_be_read_so_it_is_refused(processes, place, copy):
    folder = copy("timm")
    shutil.copy(place / "huggingface/preprocessor_config.json", folder)
    check_refused(ask(processes, place, folder), "preprocessor_config.json")
    (folder / "preprocessor_config.json").unlink()
    (folder / ".DS_Store").touch()
    outcome = ask(processes, place, folder)
    check_answered(outcome)
    assert "not part of" not in outcome.stderr


def test_the_hubs_cache_keeps_files_as_links(processes, place, tmp_path):
    home = tmp_path / "models--x--y"
    snapshot = home / "snapshots" / "0123"
    shutil.copytree(place / "bundle", home / "blobs")
    snapshot.mkdir(parents=True)
    for file in (home / "blobs").iterdir():
        (snapshot / file.name).symlink_to(Path("../../blobs") / file.name)
    check_answered(ask(processes, place, snapshot))


@pytest.mark.parametrize(
    "text", ['{"name": "app"}', "[]", '{"files": ["a", "b"], "other": {}}', '{"format": "tfjs", "weights": {}}']
)
def test_a_manifest_of_another_program_is_not_ours(processes, place, copy, text):
    folder = copy("timm")
    (folder / "manifest.json").write_text(text)
    check_answered(ask(processes, place, folder))
