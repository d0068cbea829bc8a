"""Shards through the verbs: the same answers as from the folder, and a training that is killed goes on exactly."""

import json
import os
import re
import signal
import tarfile
from contextlib import contextmanager

import pytest
from PIL import Image

import vitreous
from support.colours import make_bundle, make_images, pixels
from support.commands import check_refused, run_command
from support.killing import check_killed_and_resumed
from vitreous import UserError
from vitreous.callbacks import Callbacks
from vitreous.cli import main
from vitreous.data.shards import packing
from vitreous.storage import lock


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A model of three colours, images of them in `folder`, and the same in `shards`."""
    root = tmp_path_factory.mktemp("shards")
    make_bundle(root / "bundle")
    make_images(root / "folder/train", count=8)
    make_images(root / "folder/test", count=3, seed=50)
    vitreous.pack_data(root / "folder", root / "shards", shard_size="10kB")
    return root


def test_answers_are_those_of_the_folder(place):
    model = vitreous.load(place / "bundle")
    folder, shards = model.evaluate(place / "folder"), model.evaluate(place / "shards")
    found = [one.result.to_json() for one in (folder, shards)]
    for name in ("n", "top1", "ece", "per_class", "confusion"):
        assert found[0][name] == found[1][name]
    pattern = str(place / "shards/test-{000000..000001}.tar")
    by_name = {one.path.rpartition("#")[2]: one.top for one in model.predict([pattern])}
    files = {one.path.rpartition("folder/test/")[2]: one.top for one in model.predict([place / "folder/test"])}
    assert len(by_name) >= 4
    assert by_name == {name: files[name] for name in by_name}
    assert len(model.predict([place / "shards"])) == 33
    with pytest.raises(UserError, match="shards/test-"):
        model.predict(pattern)


def test_features_are_those_of_the_folder(place):
    found = [vitreous.probe(place / "bundle", place / name, workers=0) for name in ("folder", "shards")]
    assert found[0].scores == found[1].scores


def test_inspect_checks_the_shards_too(place, tmp_path):
    out = vitreous.pack_data(place / "folder", tmp_path / "out").folder
    whole = vitreous.inspect(out)
    assert whole.unreadable == {}
    assert whole.splits == vitreous.inspect(place / "folder").splits
    shard = out / "train-000000.tar"
    content = bytearray(shard.read_bytes())
    content[-700] ^= 4  # behind the last image
    shard.write_bytes(content)
    found = vitreous.inspect(out)
    assert list(found.unreadable) == [str(shard)]
    assert found.unreadable[str(shard)]


def test_a_damaged_image_is_left_out_and_named(place, tmp_path, capsys):
    out = vitreous.pack_data(place / "folder", tmp_path / "out").folder
    shard = out / "test-000000.tar"
    content = bytearray(shard.read_bytes())
    content[600] ^= 4
    shard.write_bytes(content)
    main(["evaluate", str(place / "bundle"), str(out), "--json", "--workers", "0"])
    told = json.loads(capsys.readouterr().out)
    assert told["n"] == 8
    [(name, reason)] = told["unreadable"].items()
    assert name.startswith(f"{shard}#")
    assert " 512 " in reason


def test_images_without_labels_are_learned_from(place, tmp_path, monkeypatch):
    monkeypatch.setattr("vitreous.training.train.write_run_page", lambda *_: None)
    vitreous.pack_data(place / "folder/train/red", tmp_path / "red")
    with pytest.raises(UserError, match=f"{tmp_path / 'red'}: "):
        vitreous.fit(tmp_path / "red", epochs=1, out=tmp_path / "run", workers=0)
    assert len(vitreous.predict(place / "bundle", tmp_path / "red")) == 8


def test_verbs_that_write_a_file_per_image_want_files(place, tmp_path):
    check_refused(run_command("explain", place / "bundle", place / "shards", "--out", tmp_path / "out"), "shards")


def test_the_command(place, tmp_path):
    out = tmp_path / "out"
    done = run_command("data", "pack", place / "folder", out, "--shard-size", "1MB")
    assert done.status == 0
    assert done.stdout.startswith(f"{out}: 24 train ")
    assert re.findall(r"\d+", done.stdout.removeprefix(f"{out}")) == ["24", "9", "2", "103"]
    check_refused(run_command("data", "pack", place / "folder", out), str(out))


def test_a_killed_packing_leaves_nothing_or_all(processes, place, tmp_path):
    code = f"""
import os, signal, vitreous
from vitreous.callbacks import Callbacks
kill = lambda what, done, total: done >= 12 and os.kill(os.getpid(), signal.SIGKILL)
callbacks = Callbacks(progress=kill)
vitreous.pack_data({str(place / "folder")!r}, {str(tmp_path / "out")!r}, shard_size="10kB", callbacks=callbacks)
"""
    assert processes(code=code).status == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    assert vitreous.pack_data(place / "folder", tmp_path / "out", shard_size="10kB").shards
    for name in ("shards.json", "shards.safetensors"):
        assert (tmp_path / "out" / name).read_bytes() == (place / "shards" / name).read_bytes()


def test_a_packing_that_goes_on_notices_a_image_that_was_changed_meanwhile(tmp_path):
    folder, out = make_images(tmp_path / "folder", count=14), tmp_path / "out"

    def stop(what, done, total):
        if done == total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        vitreous.pack_data(folder, out, shard_size="10kB", callbacks=Callbacks(progress=stop))
    written = sorted((tmp_path / ".out.new").glob("*.tar"))
    kept = {path.name: path.stat().st_mtime_ns for path in written[:-1]}  # the last may not be whole
    assert len(kept) >= 3
    with tarfile.open(written[1]) as tar:
        changed = next(name for name in tar.getnames() if name.endswith(".png"))
    Image.fromarray(pixels("red", 99, size=(9, 9))).save(folder / changed)
    vitreous.pack_data(folder, out, shard_size="10kB")
    contents = {}
    for path in sorted(out.glob("*.tar")):
        with tarfile.open(path) as tar:
            contents |= {name: tar.extractfile(name).read() for name in tar.getnames() if name.endswith(".png")}
    assert contents == {str(path.relative_to(folder)): path.read_bytes() for path in folder.glob("*/*.png")}
    assert (out / written[0].name).stat().st_mtime_ns == kept[written[0].name]  # what had not changed was kept


def test_nobody_else_packs_until_the_folder_is_in_its_place(place, tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "RELEASE_SECONDS", 0.0)
    replace_folder, refused = packing.replace_folder, []

    def replace(temporary, final):
        with (
            pytest.raises(UserError, match=rf"\b{os.getpid()}\b") as error,
            lock.hold_folder(temporary, print, "packing"),
        ):
            pass
        refused.append(str(error.value))
        replace_folder(temporary, final)

    monkeypatch.setattr(packing, "replace_folder", replace)
    (tmp_path / "empty").mkdir()
    for name in ("new", "empty"):
        vitreous.pack_data(place / "folder", tmp_path / name, shard_size="10kB")
        assert sorted(path.name for path in (tmp_path / name).iterdir()) == sorted(
            path.name for path in (place / "shards").iterdir()
        )
    assert len(refused) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "new"]


def test_shards_that_came_while_it_waited_for_its_turn_are_not_replaced(place, tmp_path, monkeypatch):
    @contextmanager
    def wait_for_another(*args):
        (tmp_path / "out").mkdir()
        (tmp_path / "out/shards.json").write_text("another's")
        with lock.hold_folder(*args):
            yield

    monkeypatch.setattr(packing, "hold_folder", wait_for_another)
    with pytest.raises(UserError, match=f"{tmp_path / 'out'}: "):
        vitreous.pack_data(place / "folder", tmp_path / "out", shard_size="10kB")
    assert (tmp_path / "out/shards.json").read_text() == "another's"


PROGRAM = """
import vitreous
from vitreous.data.shards import source
source.SHUFFLE_BUFFER = 6
changes = {{"batch_size": "4", "save_seconds": "0", "model.width": 16, "model.heads": 2}}
vitreous.fit({data!r}, model="N/4@16", epochs=1, out=out, workers=2, overrides=changes)
"""


@pytest.mark.slow
def test_a_training_on_shards_that_is_killed_ends_with_the_same_bits(processes, place, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "vitreous.data.shards.source.SHUFFLE_BUFFER", 6
    )  # the program sets it, too: it is set back here
    check_killed_and_resumed(processes, PROGRAM.format(data=str(place / "shards")), tmp_path)
