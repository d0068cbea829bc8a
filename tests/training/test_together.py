"""Two processes train as one would: the same losses, whatever is learned, and in whichever way it goes on."""

import os
import shutil

import pytest
import torch

from support.together import KINDS, STEPS, STOP, draw_images, records, train, two_processes
from vitreous import load
from vitreous.errors import UserError
from vitreous.training.checkpoint import load_newest

pytestmark = pytest.mark.slow


def train_together(place):
    """In each of two processes."""
    said = []
    for kind in KINDS:
        train(kind, place, place / "two" / kind)
    train("supervised", place, place / "two" / "sharded", fsdp=True)
    train("dinov2", place, place / "two" / "sharded-dinov2", fsdp=True)
    for name, shard in (("2-to-1", False), ("shards-to-1", True)):
        train("supervised", place, place / name, stop=STOP, fsdp=shard)
    for name, shard in (("1-to-2", False), ("1-to-shards", True)):
        said.append(train("supervised", place, place / name, fsdp=shard).finished)
    (place / f"finished-{os.environ['RANK']}").write_text(str(said))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("together")
    draw_images(place / "images.npz")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vitreous.training.train.write_run_page", lambda *_: None)
        patch.setattr(torch.cpu, "get_capabilities", dict)
        for kind in KINDS:
            train(kind, place, place / "one" / kind)
        for name in ("1-to-2", "1-to-shards"):
            train("supervised", place, place / name, stop=STOP)
        assert two_processes(train_together, place) == [0, 0]
        for name in ("2-to-1", "shards-to-1"):
            assert not (place / name / "result.json").exists()
            assert train("supervised", place, place / name).finished
    return place


def assert_same_course(one, two, tolerance=1e-5):
    """The same records, step by step; numbers agree to rounding."""
    assert len(one) == len(two)
    assert sum("loss" in record for record in one) == STEPS
    for mine, yours in zip(one, two, strict=True):
        assert mine.keys() == yours.keys()
        for name in ("loss", "val_loss", "accuracy", "val_accuracy", "val_knn", "information", "val_information"):
            if name in mine:
                assert yours[name] == pytest.approx(mine[name], rel=tolerance, abs=1e-7), (mine["step"], name)


def test_two_processes_have_the_losses_of_one(subtests, place):
    for kind in KINDS:
        with subtests.test(kind=kind):
            assert_same_course(records(place / "one" / kind), records(place / "two" / kind))


def test_sharded_weights_have_the_losses_of_copies(subtests, place):
    for sharded, kind in (("sharded", "supervised"), ("sharded-dinov2", "dinov2")):
        with subtests.test(sharded=sharded, kind=kind):
            assert_same_course(records(place / "two" / kind), records(place / "two" / sharded))


def test_a_training_goes_on_with_another_number_of_processes(subtests, place):
    for name in ("2-to-1", "1-to-2", "shards-to-1", "1-to-shards"):
        with subtests.test(name=name):
            assert_same_course(records(place / "one/supervised"), records(place / name))


def test_both_processes_come_to_the_end(place):
    assert [(place / f"finished-{rank}").read_text() for rank in (0, 1)] == ["[True, True]"] * 2


def test_a_sharded_training_leaves_an_ordinary_bundle_and_checkpoints_with_a_manifest(place):
    run = place / "two/sharded"
    assert load(run).network.config.width == 16
    last = max(run.glob("checkpoints/step-*"))
    listed = (last / "manifest.json").read_text()
    assert all(f"shards/{name}" in listed for name in (".metadata", "__0_0.distcp", "__1_0.distcp"))


def test_a_checkpoint_of_shards_is_no_model(place):
    """Its list of contents is a pickle: it is never opened as anybody's weights."""
    last = max((place / "two/sharded/checkpoints").glob("step-*"))
    for folder in (last, last / "shards"):
        with pytest.raises(UserError):
            load(folder)


def test_a_damaged_shard_is_refused_before_any_pickle_is_read(place, tmp_path):
    folder = tmp_path / "checkpoints"
    shutil.copytree(place / "two/sharded/checkpoints", folder)
    last = max(folder.glob("step-*"))
    for file in (*(last / "shards").iterdir(), last / "state.json", last / "best.safetensors"):
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
        point, remarks = load_newest(folder, lambda path: pytest.fail("it was read"))
        assert point is None
        assert file.name in remarks[-1]
        content[len(content) // 2] ^= 1
        file.write_bytes(content)


def test_shard_without_other_processes_is_refused(tmp_path):
    draw_images(tmp_path / "images.npz")
    with pytest.raises(UserError, match="fsdp"):
        train("supervised", tmp_path, tmp_path / "out", fsdp=True)
    assert not (tmp_path / "out").exists()


def refuse_others(place):
    """In each of two processes: what is not made for several."""
    from vitreous import compare, self_train

    images = place / "images.npz"
    for work in (
        lambda: compare(images, models=["Ti/4@16"], budget="1m", out=place / "c"),
        lambda: self_train(images, images, out=place / "s"),
    ):
        with pytest.raises(UserError, match=r"\b2\b"):
            work()


def test_other_trainings_refuse_to_be_one_of_several(tmp_path, monkeypatch):
    draw_images(tmp_path / "images.npz")
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    refuse_others(tmp_path)
