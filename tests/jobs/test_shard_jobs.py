"""Shards through the verbs: the same answers as from the folder, and a training that is killed goes on exactly."""

import json
import subprocess
import sys
import tarfile
from contextlib import contextmanager

import pytest
from PIL import Image

import vitreous
from support.colours import make_bundle, make_pictures, pixels
from support.killing import check_killed_and_resumed
from vitreous import UserError
from vitreous.cli import main
from vitreous.run import lock, packing


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A model of three colours, pictures of them in `folder`, and the same in `shards`."""
    root = tmp_path_factory.mktemp("shards")
    make_bundle(root / "bundle")
    make_pictures(root / "folder/train", count=8)
    make_pictures(root / "folder/test", count=3, seed=50)
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
    with pytest.raises(UserError, match="these are shards, not a picture; give them in a list"):
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
    content[-700] ^= 4  # behind the last picture
    shard.write_bytes(content)
    found = vitreous.inspect(out)
    assert list(found.unreadable) == [str(shard)]
    assert "SHA-256" in found.unreadable[str(shard)]


def test_a_damaged_picture_is_left_out_and_named(place, tmp_path, capsys):
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
    assert "from byte 512 of the shard on are not those that were packed" in reason


def test_pictures_without_labels_are_learned_from(place, tmp_path, monkeypatch):
    monkeypatch.setattr("vitreous.jobs.pretrain.write_report", lambda run, **more: None, raising=False)
    vitreous.pack_data(place / "folder/train/red", tmp_path / "red")
    with pytest.raises(UserError, match=r"red: .*no labels"):
        vitreous.fit(tmp_path / "red", epochs=1, out=tmp_path / "run", workers=0)
    assert len(vitreous.predict(place / "bundle", tmp_path / "red")) == 8


def test_verbs_that_write_a_file_per_picture_want_files(place, tmp_path):
    with pytest.raises(SystemExit) as end:
        main(["explain", str(place / "bundle"), str(place / "shards"), "--out", str(tmp_path / "out")])
    assert end.value.code == 2


def test_the_command(place, tmp_path, capsys):
    main(["data", "pack", str(place / "folder"), str(tmp_path / "out"), "--shard-size", "1MB"])
    told = capsys.readouterr()
    assert told.out == f"{tmp_path / 'out'}: 24 train and 9 test pictures in 2 shards, 103 kB\n"
    with pytest.raises(SystemExit):
        main(["data", "pack", str(place / "folder"), str(tmp_path / "out")])
    assert capsys.readouterr().err == (
        f"vitreous: {tmp_path / 'out'}: holds shards already; remove them to pack anew, or choose a folder that is new "
        "or empty.\n"
    )


def test_a_killed_packing_leaves_nothing_or_all(place, tmp_path):
    code = "import sys, vitreous, time; vitreous.pack_data(sys.argv[1], sys.argv[2], shard_size='10kB', progress=P)"
    slow = "P = lambda done, total: (print(done, flush=True), time.sleep(600 * (done >= 12)))\n"
    process = subprocess.Popen(
        [sys.executable, "-c", f"import time\n{slow}{code}", place / "folder", tmp_path / "out"], stdout=subprocess.PIPE
    )
    for line in process.stdout:
        if int(line) >= 12:
            break
    process.kill()
    process.wait()
    process.stdout.close()
    assert not (tmp_path / "out").exists()
    assert vitreous.pack_data(place / "folder", tmp_path / "out", shard_size="10kB").shards
    for name in ("shards.json", "shards.safetensors"):
        assert (tmp_path / "out" / name).read_bytes() == (place / "shards" / name).read_bytes()


def test_a_packing_that_goes_on_notices_a_picture_that_was_changed_meanwhile(tmp_path):
    folder, out = make_pictures(tmp_path / "folder", count=14), tmp_path / "out"

    def stop(done, total):
        if done == total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        vitreous.pack_data(folder, out, shard_size="10kB", progress=stop)
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


@pytest.mark.parametrize("there", [False, True], ids=["new", "empty"])
def test_nobody_else_packs_until_the_folder_is_in_its_place(place, tmp_path, monkeypatch, there):
    monkeypatch.setattr(lock, "MOMENT", 0.0)
    replace_folder = packing.replace_folder

    def replace(temporary, final):
        with pytest.raises(UserError, match="is packing"), lock.hold_folder(temporary, print, "packing"):
            pass
        replace_folder(temporary, final)

    monkeypatch.setattr(packing, "replace_folder", replace)
    if there:
        (tmp_path / "out").mkdir()
    vitreous.pack_data(place / "folder", tmp_path / "out", shard_size="10kB")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(
        path.name for path in (place / "shards").iterdir()
    )


def test_shards_that_came_while_it_waited_for_its_turn_are_not_replaced(place, tmp_path, monkeypatch):
    @contextmanager
    def wait_for_another(*args):
        (tmp_path / "out").mkdir()
        (tmp_path / "out/shards.json").write_text("another's")
        with lock.hold_folder(*args):
            yield

    monkeypatch.setattr(packing, "hold_folder", wait_for_another)
    with pytest.raises(UserError, match="out: holds shards already"):
        vitreous.pack_data(place / "folder", tmp_path / "out", shard_size="10kB")
    assert (tmp_path / "out/shards.json").read_text() == "another's"


RUN = """
import sys
import torch, vitreous
from vitreous.data.shards import source
torch.set_num_threads(1)
source.BUFFER = 6
data, out = sys.argv[1:]
changes = {"batch_size": "4", "save_seconds": "0"}
vitreous.fit(data, model="N/4@16", epochs=2, out=out, workers=2, changes=changes)
"""


@pytest.mark.slow
def test_a_training_on_shards_that_is_killed_ends_with_the_same_bits(place, tmp_path):
    check_killed_and_resumed(RUN, tmp_path, place / "shards")
