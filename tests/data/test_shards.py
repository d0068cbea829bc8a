"""Shards written and read back; Python's tarfile and webdataset are the judges, both ways."""

import json
import os
import pickle
import re
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import sha256
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
import torch
import webdataset
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.images import make_tree, smooth
from support.tars import jpeg, make_tar, samples
from vitreous import UserError, pack_data
from vitreous.callbacks import Callbacks
from vitreous.config.data import Augment, Preprocess
from vitreous.data.decode import ImageError
from vitreous.data.folder import Names
from vitreous.data.loader import Loader
from vitreous.data.opening import open_data
from vitreous.data.shards import opening, reading, scan
from vitreous.data.shards import source as shard_source
from vitreous.data.shards.index import Shard, ShardIndex, ShardRows
from vitreous.data.shards.opening import expand_braces, shards_name
from vitreous.data.shards.packing import member_name
from vitreous.data.shards.reading import MAX_OPEN_FILES, read_range
from vitreous.data.shards.scan import split_of
from vitreous.data.shards.source import ShardSource
from vitreous.distributed.world import World

pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # webdataset leaves shards open
SIZE = Preprocess(size=(16, 16))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("folder")
    make_tree(root / "train", {"a": 17, "b": 11, "c": 8}, ".jpg")
    make_tree(root / "test", {"a": 3, "b": 3, "c": 3}, ".png")
    (root / "train/a/000.jpg").rename(root / "train/a/with.dots and ä.jpg")
    return root


@pytest.fixture(scope="module")
def packed(folder, tmp_path_factory):
    return pack_data(folder, tmp_path_factory.mktemp("packed") / "shards", shard_size="10kB")


def attempt(call):
    """What a call gives, or the error that it ends with."""
    try:
        return call()
    except UserError as error:
        return error


def by_key(source):
    """Of each image its content and the name of its class."""
    return {source.key(i): (source.content(i), source.classes[source.labels[i]]) for i in range(len(source))}


def test_shards_are_opened_several_at_once_and_stay_in_order(packed, tmp_path, monkeypatch):
    """On a disk behind a network, ten thousand one after the other would take minutes."""
    for number in range(12):
        make_tar(tmp_path / f"{number:02d}.tar", samples(2, first=2 * number))
    asked, ask = [], threading.Barrier(2, timeout=10)

    def stat_together(url):
        asked.append(url)
        ask.wait()
        return reading.stat_file(url)

    monkeypatch.setattr(scan, "stat_file", stat_together)
    source = open_data(tmp_path).train
    assert [source.key(i) for i in range(24)] == [f"{i:05d}.jpg" for i in range(24)]
    assert len(asked) == 12
    monkeypatch.setattr(opening, "stat_file", stat_together)
    assert len(packed.shards) % 2 == 0
    open_data(packed.folder)


def test_every_image_keeps_its_bytes_its_name_and_its_class(folder, packed):
    files, shards = open_data(folder), open_data(packed.folder)
    assert len(packed.shards) > 3
    assert shards.classes == files.classes
    for split, source in files.splits.items():
        assert by_key(shards.splits[split]) == by_key(source)
    # a key is what validation is drawn by: the same images are set aside
    for split in ("train", "val"):
        assert by_key(shards.with_validation().splits[split]) == by_key(files.with_validation().splits[split])


def test_pixels_are_those_of_the_file(folder, packed):
    files, shards = open_data(folder).splits["test"], open_data(packed.folder).splits["test"]
    for i in range(len(files)):
        assert shards.read(i).tobytes() == files.read(i).tobytes()
        assert shards.header(i) == files.header(i)
        assert shards.size(i) == files.size(i)
    assert shards.name(0) == f"{packed.folder / 'test-000000.tar'}#a/000.png"


def test_tarfile_finds_the_members_where_the_index_says(packed):
    data = open_data(packed.folder)
    for split, source in data.splits.items():
        row = 0
        for shard in (shard for shard in packed.shards if shard.split == split):
            path = packed.folder / shard.file
            assert path.stat().st_size == shard.bytes <= 10_000
            assert sha256(path.read_bytes()).hexdigest() == shard.sha256
            with tarfile.open(path) as tar:
                found = tar.getmembers()
                assert len(found) == 2 * shard.images
                for image, label in zip(found[::2], found[1::2], strict=True):
                    assert image.isfile()
                    assert image.offset_data == source.index.rows.offset[source._rows[row]]
                    assert tar.extractfile(image).read() == source.content(row)
                    assert int(tar.extractfile(label).read()) == source.labels[row]
                    row += 1
        assert row == len(source)


def test_webdataset_reads_ours(packed):
    source = open_data(packed.folder).train
    shards = [str(packed.folder / shard.file) for shard in packed.shards if shard.split == "train"]
    found = webdataset.WebDataset(shards, shardshuffle=False).decode("pil").to_tuple("__key__", "jpg", "cls")
    for row, (key, image, label) in enumerate(found):
        assert key == member_name(source.key(row))
        assert image.tobytes() == source.read(row).tobytes()
        assert label == source.labels[row]
    assert row == len(source) - 1


def test_we_read_what_webdataset_writes(tmp_path, subtests):
    for described in (False, True):
        with subtests.test(described=described):
            folder = Path(mkdtemp(dir=tmp_path))
            content = {f"{'long/' * 30}sample-ü{i}": (jpeg(i), i * 7 % 3) for i in range(20)}
            with webdataset.ShardWriter(str(folder / "x-%03d.tar"), maxcount=6, verbose=0) as writer:
                for key, (image, label) in content.items():
                    kind = {"json": {"label": label, "more": [1]}} if described else {"cls": label}
                    writer.write({"__key__": key, "jpg": image, "txt": "a caption", "seg.png": jpeg(1), **kind})
            data = open_data(folder)
            assert data.classes == ("0", "1", "2")
            found = {data.train.key(i): (data.train.content(i), data.train.labels[i]) for i in range(len(data.train))}
            assert found == {f"{key}.jpg": pair for key, pair in content.items()}
            assert len(open_data(str(folder / "x-{000..002}.tar")).train) == 18
            assert len(open_data(folder / "x-003.tar").train) == 2


def test_every_kind_of_tar(tmp_path, subtests):
    for format in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        with subtests.test(format=format):
            folder = Path(mkdtemp(dir=tmp_path))
            names = ["a.jpg", f"{'d' * 60}/{'e' * 60}.jpg"] + [f"{'n' * 150}.jpg"] * (format != tarfile.USTAR_FORMAT)
            members = [
                pair for i, name in enumerate(names) for pair in ((name, jpeg(i)), (name[:-3] + "cls", b"%d" % i))
            ]
            source = open_data(make_tar(folder / "x.tar", members, format)).train
            assert by_key(source) == {name: (jpeg(i), str(i)) for i, name in enumerate(names)}


def test_the_index_of_foreign_shards_is_kept_until_they_change(tmp_path, monkeypatch):
    make_tar(tmp_path / "train-0.tar", samples(6))
    make_tar(tmp_path / "imagenet1k-validation-00.tar", samples(4, first=6))
    scanned, samples_of = [], scan._samples
    monkeypatch.setattr(scan, "_samples", lambda shard, *more: scanned.append(shard) or samples_of(shard, *more))
    first = open_data(tmp_path)
    assert {split: len(source) for split, source in first.splits.items()} == {"train": 6, "val": 4}
    assert len(scanned) == 2
    assert by_key(open_data(tmp_path).splits["val"]) == by_key(first.splits["val"])
    assert len(scanned) == 2
    make_tar(tmp_path / "train-0.tar", samples(8, first=3))
    assert len(open_data(tmp_path).train) == 8
    assert len(scanned) == 4


def test_the_index_of_one_place_is_not_that_of_another(tmp_path, monkeypatch):
    """Of two shards that are called alike, with as many bytes at the same moment, each has its own labels."""
    for name, classes in (("one", 2), ("two", 3)):
        (tmp_path / name).mkdir()
        os.utime(make_tar(tmp_path / name / "train-0.tar", samples(6, classes=classes)), (1, 1))
    assert len({(tmp_path / name / "train-0.tar").stat().st_size for name in ("one", "two")}) == 1
    assert len(open_data(tmp_path / "one").classes) == 2
    assert len(open_data(tmp_path / "two").classes) == 3
    monkeypatch.chdir(tmp_path / "one")
    assert len(open_data("train-0.tar").classes) == 2
    monkeypatch.chdir(tmp_path / "two")
    assert len(open_data("train-0.tar").classes) == 3


def test_names_of_numbered_classes(tmp_path):
    make_tar(tmp_path / "x.tar", samples(6, classes=3))
    (tmp_path / "classes.txt").write_text("cat\ndog\nhorse\nunseen\n")
    data = open_data(tmp_path)
    assert data.classes == ("cat", "dog", "horse", "unseen")
    assert data.train.labels.tolist() == [0, 1, 2, 0, 1, 2]
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    with pytest.raises(UserError, match=r"classes\.txt: .* 0 .* 2"):
        open_data(tmp_path)


def test_without_labels_they_are_images(tmp_path):
    make_tar(tmp_path / "x.tar", ((f"{i}.jpg", jpeg(i)) for i in range(4)))
    with pytest.raises(UserError, match=r"\.cls"):
        open_data(tmp_path)
    assert open_data(tmp_path, labelled=False).train.labels.tolist() == [-1] * 4
    again = pack_data(tmp_path, tmp_path / "out").folder
    with tarfile.open(again / "train-000000.tar") as tar:
        assert sorted(tar.getnames()) == [f"{i}.jpg" for i in range(4)]
    assert len(open_data(again, labelled=False).train) == 4


def test_a_image_without_a_label_is_no_class(tmp_path, subtests):
    for split in ("train", "val"):
        for label in ([], [("7.cls", b"")]):
            with subtests.test(split=split, label=label):
                folder = Path(mkdtemp(dir=tmp_path))
                make_tar(folder / "train-0.tar", samples(4))
                make_tar(folder / f"{split}-1.tar", [("7.jpg", jpeg(7)), *label])
                with pytest.raises(UserError, match=rf"{split}-1\.tar#7\.jpg"):
                    open_data(folder)
                opened = open_data(folder, labelled=False)
                assert opened.classes == ("0", "1")
                assert opened.splits[split].labels[-1] == -1


def test_what_is_only_called_tar_is_no_shard(tmp_path, subtests):
    for kind in ("a folder", "hidden", "a link that leads nowhere"):
        with subtests.test(kind=kind):
            folder = Path(mkdtemp(dir=tmp_path))
            if kind == "a folder":
                (folder / "x.tar").mkdir()
            elif kind == "hidden":
                make_tar(folder / ".x.tar", samples(4))
            else:
                (folder / "x.tar").symlink_to("nowhere")
            with pytest.raises(UserError, match=f"{folder}: "):
                open_data(folder)


def test_arrays_are_packed_as_png(tmp_path):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (12, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "x.npz", images=images, labels=np.arange(12) % 3)
    source = open_data(pack_data(tmp_path / "x.npz", tmp_path / "out").folder).train
    for i in range(12):
        row = int(source.key(i))
        assert np.array_equal(np.asarray(source.read(i)), images[row])
        assert source.labels[i] == row % 3
    with tarfile.open(tmp_path / "out/train-000000.tar") as tar:
        assert {Path(name).suffix for name in tar.getnames()} == {".png", ".cls"}


def test_the_same_data_give_the_same_bits(folder, packed, tmp_path):
    again = pack_data(folder, tmp_path / "again", shard_size=10_000)
    assert again.shards == packed.shards
    for name in ("shards.json", "shards.safetensors"):
        assert (again.folder / name).read_bytes() == (packed.folder / name).read_bytes()


def test_an_interrupted_packing_is_taken_up(folder, packed, tmp_path):
    done = []

    def stop(what, images, total):
        done.append(images)
        if images == 20 and len(done) < 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack_data(folder, tmp_path / "out", shard_size="10kB", callbacks=Callbacks(progress=stop))
    assert not (tmp_path / "out").exists()
    whole = sorted((tmp_path / ".out.new").glob("*.tar"))
    assert whole
    times = [path.stat().st_mtime_ns for path in whole]
    done.clear()
    callbacks = Callbacks(progress=lambda what, n, total: done.append((n, total)))
    again = pack_data(folder, tmp_path / "out", shard_size="10kB", callbacks=callbacks)
    assert again.shards == packed.shards
    assert [(again.folder / path.name).stat().st_mtime_ns for path in whole] == times, "finished shards are kept"
    assert done[0][0] > 1
    assert done[-1] == (45, 45)
    assert [path.name for path in tmp_path.iterdir()] == ["out"], "nothing is left behind"


def test_other_data_are_not_taken_up(folder, packed, tmp_path):
    other = make_tree(tmp_path / "other", {"a": 20, "d": 20}, ".jpg")
    callbacks = Callbacks(progress=lambda what, n, total: 1 // (25 - n))
    with pytest.raises(ZeroDivisionError):
        pack_data(other, tmp_path / "out", shard_size="10kB", callbacks=callbacks)
    assert pack_data(folder, tmp_path / "out", shard_size="10kB").shards == packed.shards


def test_images_that_were_mended_are_taken_in(tmp_path):
    """One that was unreadable before the interruption is in, as if it had never been."""
    data = make_tree(tmp_path / "data", {"a": 60, "b": 60}, ".jpg")
    expected = pack_data(data, tmp_path / "whole", shard_size="10kB")
    damaged = data / "a/007.jpg"
    content = damaged.read_bytes()
    damaged.write_bytes(b"")
    callbacks = Callbacks(progress=lambda what, n, total: 1 // (total - 1 - n))
    with pytest.raises(ZeroDivisionError):
        pack_data(data, tmp_path / "out", shard_size="10kB", callbacks=callbacks)
    damaged.write_bytes(content)
    found = pack_data(data, tmp_path / "out", shard_size="10kB")
    assert not found.left_out
    assert found.shards == expected.shards


def test_unreadable_files_are_left_out_and_named(tmp_path):
    make_tree(tmp_path / "data", {"a": 60, "b": 60}, ".jpg")
    (tmp_path / "data/a/007.jpg").write_bytes(b"")
    found = pack_data(tmp_path / "data", tmp_path / "out")
    assert list(found.left_out) == [str(tmp_path / "data/a/007.jpg")]
    assert len(open_data(tmp_path / "out").train) == 119
    for i in range(3):
        (tmp_path / f"data/b/00{i}.jpg").write_bytes(b"")
    with pytest.raises(UserError, match=r"4 .* 120 "):
        pack_data(tmp_path / "data", tmp_path / "more")


def test_images_of_one_name_and_names_of_any_kind(tmp_path):
    (tmp_path / "data/a").mkdir(parents=True)
    (tmp_path / "data/__b__").mkdir()
    contents = {}
    for i, name in enumerate(("x.jpg", "x.JPG", "x.png", "x.y.jpg", "100%.jpg", "line\nend.jpg", "__m__.jpg")):
        for folder in ("a", "__b__"):
            smooth(20, 24, seed=i).save(tmp_path / "data" / folder / name)
            contents[f"{folder}/{name}"] = (tmp_path / "data" / folder / name).read_bytes()
    (tmp_path / "list").mkdir()
    lines = [f'{{"path": {json.dumps("../data/" + key)}, "label": "{key[0]}"}}' for key in contents]
    (tmp_path / "list/x.jsonl").write_text("\n".join(lines))
    for data in (tmp_path / "data", tmp_path / "list/x.jsonl"):
        out = pack_data(data, tmp_path / f"out-{data.name}").folder
        source = open_data(out).train
        assert {source.key(i).removeprefix("../data/"): source.content(i) for i in range(len(source))} == contents
        found = list(webdataset.WebDataset(str(out / "train-000000.tar"), shardshuffle=False))
        assert len({sample["__key__"] for sample in found}) == len(found) == len(contents)
        assert sorted(sample.get("jpg", sample.get("png")) for sample in found) == sorted(contents.values())
        assert not any(".." in sample["__key__"].split("/") for sample in found)


def test_long_names_leave_shards_as_small_as_was_asked_for(tmp_path):
    """A name of more than 100 bytes, or beyond ASCII, has a header of its own."""
    for folder in ("a" * 120, "ä"):
        (tmp_path / "data" / folder).mkdir(parents=True)
        for i in range(8):
            (tmp_path / "data" / folder / f"{i}.jpg").write_bytes(jpeg(0))
    found = pack_data(tmp_path / "data", tmp_path / "out", shard_size="10kB")
    assert sum(shard.images for shard in found.shards) == 16
    sizes = [(found.folder / shard.file).stat().st_size for shard in found.shards]
    assert max(sizes) <= 10_000
    one = 2 * 3 * 512 + 512 + 512 * -(-len(jpeg(0)) // 512)  # two members with long headers, a label, an image
    assert min(sizes[:-1]) + one > 10_000, "each is as full as one more image allows"


def test_what_is_there_stays(folder, packed, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine.txt").write_text("x")
    with pytest.raises(UserError, match="out: "):
        pack_data(folder, tmp_path / "out")
    with pytest.raises(UserError, match=str(packed.folder)):
        pack_data(folder, packed.folder)
    with pytest.raises(UserError, match=str(folder)):
        pack_data(folder, folder)
    for size in ("big", "-3", "10", "1EB", "9" * 30):
        with pytest.raises(UserError, match="shard_size="):
            pack_data(folder, tmp_path / "new", shard_size=size)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


# Orders


def synthetic(counts, rows=None):
    """A source of so many images in each shard; none of them exists."""
    total = sum(counts)
    fields = (np.full(total, 512), np.ones(total, np.int32), np.zeros(total, np.int32), Names())
    shards = tuple(Shard(f"{i}.tar", "train", 10**9, count) for i, count in enumerate(counts))
    index = ShardIndex(tuple(shard.file for shard in shards), shards, ("a", "b"), ShardRows(*fields))
    rows = np.arange(total) if rows is None else rows
    return ShardSource(index, rows, np.zeros(len(rows), np.int64), ("a", "b"))


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(sum),
    buffer=st.integers(1, 60),
    together=st.integers(1, 5),
    seed=st.integers(0, 2**31),
    epoch=st.integers(0, 100),
    data=st.data(),
)
def test_an_order_has_every_image_once(monkeypatch, counts, buffer, together, seed, epoch, data):
    monkeypatch.setattr(shard_source, "SHUFFLE_BUFFER", buffer)
    monkeypatch.setattr(shard_source, "INTERLEAVED_SHARDS", together)
    rows = data.draw(st.permutations(range(sum(counts))).map(lambda p: np.array(p[: max(1, len(p) // 2)])))
    for source in (synthetic(counts), synthetic(counts, rows)):
        order = source.order(seed, epoch)
        assert sorted(order.tolist()) == list(range(len(source)))
        assert np.array_equal(order, pickle.loads(pickle.dumps(source)).order(seed, epoch))


def test_an_order_is_nearly_sequential_and_mixes_shards():
    counts = [5000] * 40
    order = synthetic(counts).order(seed=3, epoch=1)
    assert not np.array_equal(order, synthetic(counts).order(seed=3, epoch=2))
    shard, place = np.divmod(order, 5000)
    for start in range(0, len(order), 5000):
        seen = np.unique(shard[start : start + 256])
        assert 8 <= len(seen) <= 24, "a batch has images of many shards, and the epoch of few at a time"
    for number in range(40):
        places = place[shard == number]
        cut = int(np.argmax(np.diff(places) < -2500)) + 1  # where a shard that the epoch's end cuts in two goes on
        wrapped = np.concatenate([places[cut:], places[:cut]]) if (np.diff(places) < -2500).any() else places
        back = np.maximum.accumulate(wrapped) - wrapped
        assert back.max() <= shard_source.SHUFFLE_BUFFER / shard_source.INTERLEAVED_SHARDS + 1, (
            "a shard is read from start to end"
        )
        assert back.max() > 0


def test_few_images_are_shuffled_as_from_a_folder(packed, folder):
    shards, files = open_data(packed.folder).train, open_data(folder).train
    assert np.array_equal(shards.order(5, 2), files.order(5, 2))


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("processes", [1, 2, 3])
@settings(max_examples=4, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(batch_size=st.integers(3, 12), seed=st.integers(0, 2**31), epoch=st.integers(0, 9))
def test_no_image_is_lost_or_doubled_in_an_epoch(packed, monkeypatch, processes, workers, batch_size, seed, epoch):
    """Of what is trained on, only what fills no batch is left out; of what is evaluated, nothing is."""
    monkeypatch.setattr(shard_source, "SHUFFLE_BUFFER", 8)
    source = open_data(packed.folder).train
    for augment, expected in ((Augment(), 36 // batch_size * batch_size), (None, 36)):
        seen = []
        for rank in range(processes):
            options = {"batch_size": batch_size, "seed": seed, "workers": workers, "world": World(rank, processes)}
            loader = Loader(source, SIZE, augment, **options)
            for batch in loader.batches(epoch):
                seen += batch.index.tolist()
                assert torch.equal(batch.targets, torch.from_numpy(source.labels)[batch.index])
            loader.close()
        assert len(seen) == len(set(seen)) == expected


def test_workers_and_processes_see_the_same_images(packed):
    source = open_data(packed.folder).train
    found = []
    for workers in (0, 2):
        loader = Loader(source, SIZE, Augment(), batch_size=9, seed=1, workers=workers)
        found.append([batch.images for batch in loader.batches(1)])
        assert torch.equal(next(loader.batches(1, start=2)).images, found[-1][2]), "and from any step on"
        loader.close()
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


# Damage


def test_a_flipped_byte_is_told_with_its_place(folder, tmp_path):
    out = pack_data(folder, tmp_path / "out").folder
    shard = out / "train-000000.tar"
    source = open_data(out).train
    whole = bytearray(shard.read_bytes())
    rng = np.random.default_rng(0)
    for at in rng.choice(len(whole) - 1024, 60, replace=False).tolist():
        flipped = whole.copy()
        flipped[at] ^= 1 << int(rng.integers(8))
        shard.write_bytes(flipped)
        found = [attempt(lambda i=i: source.content(i)) for i in range(len(source))]
        wrong = [i for i, one in enumerate(found) if isinstance(one, ImageError)]
        assert all("train-000000.tar#" in found[i].name for i in wrong)
        for i in wrong:  # the place of its header, or of its content
            starts = {f"{source.index.rows.offset[i] - before:,}" for before in (0, 512)}
            assert starts & set(re.findall(r"[\d,]*\d", found[i].reason)), found[i]
        offsets, lengths = source.index.rows.offset, source.index.rows.length
        holder = [i for i in range(len(source)) if offsets[i] - 512 <= at < offsets[i] + lengths[i]]
        assert wrong == holder, "an image whose bytes or header changed, and no other"
        assert list(source.damage()) == [str(shard)], "the whole shard's checksum tells the rest"
    shard.write_bytes(whole)
    assert source.damage() == {}


def test_a_file_that_takes_anothers_place_is_read_and_few_stay_open(tmp_path):
    """Files stay open from one image to the next, but no longer than they have that name."""
    place = tmp_path / "0.tar"
    for content in (b"first", b"other"):
        (tmp_path / "new").write_bytes(content)
        (tmp_path / "new").replace(place)
        assert read_range(str(place), 0, 99) == content
    place.unlink()
    with pytest.raises(UserError, match=r"0\.tar: "):
        read_range(str(place), 0, 99)
    handles = Path("/proc/self/fd")
    before = len(list(handles.iterdir())) if handles.exists() else 0
    for number in range(3 * MAX_OPEN_FILES):
        (tmp_path / f"{number}.tar").write_bytes(b"%d" % number)
        assert read_range(str(tmp_path / f"{number}.tar"), 0, 99) == b"%d" % number
    if handles.exists():
        assert len(list(handles.iterdir())) <= before + MAX_OPEN_FILES


def test_threads_that_open_the_same_files_at_once_read_what_is_in_them(tmp_path):
    """More files than stay open, each opened by several threads at once: a file that is dropped is still read."""
    places = [str(tmp_path / f"{number}.tar") for number in range(2 * MAX_OPEN_FILES)]
    for number, place in enumerate(places):
        Path(place).write_bytes(b"%06d" % number)
    threads = 8
    together = threading.Barrier(threads, timeout=120)

    def read_all(_: int) -> list[bytes]:
        found = []
        for place in places:
            together.wait()
            found.append(read_range(place, 0, 6))
        return found

    with ThreadPoolExecutor(threads) as pool:
        for found in pool.map(read_all, range(threads)):
            assert found == [b"%06d" % number for number in range(2 * MAX_OPEN_FILES)]


def test_a_shard_that_is_cut_short_missing_or_changed_is_refused_at_once(folder, tmp_path):
    out = pack_data(folder, tmp_path / "out").folder
    shard = out / "train-000000.tar"
    content = shard.read_bytes()
    shard.write_bytes(content[:-3000])
    with pytest.raises(UserError, match=rf"train-000000\.tar: .*{len(content) - 3000:,} .*{len(content):,}"):
        open_data(out)
    shard.unlink()
    with pytest.raises(UserError, match=r"train-000000\.tar: "):
        open_data(out)


def test_a_damaged_index_is_refused(folder, tmp_path, subtests):
    for name in ("shards.json", "shards.safetensors"):
        with subtests.test(name=name):
            out = pack_data(folder, tmp_path / name.replace(".", "-")).folder
            content = (out / name).read_bytes()
            found, start = [], content.index(b'"classes"') if name == "shards.json" else 0
            for at in range(start, len(content) - 4, max(1, len(content) // 50)):
                (out / name).write_bytes(content[:at] + bytes([content[at] ^ 0x15]) + content[at + 1 :])
                found.append(attempt(partial(open_data, out)))
            refused = [str(one) for one in found if isinstance(one, UserError)]
            assert all(str(out) in sentence for sentence in refused)
            assert len(refused) == len(found)
            (out / name).unlink()
            if name == "shards.json":
                assert len(open_data(out).train) == 36, "then they are anybody's shards"
            else:
                with pytest.raises(UserError, match=r"shards\.safetensors: "):
                    open_data(out)


def test_a_foreign_shard_that_is_cut_short_names_the_byte(tmp_path):
    whole = make_tar(tmp_path / "x.tar", samples(6)).read_bytes()
    for length in (0, 100, 512, 700, 5000, 5120, len(whole) - 10240):
        (tmp_path / "x.tar").write_bytes(whole[:length])
        with pytest.raises(UserError, match=r"x\.tar: "):
            open_data(tmp_path)


# Names


def test_patterns():
    assert expand_braces("a-{08..11}.tar") == ["a-08.tar", "a-09.tar", "a-10.tar", "a-11.tar"]
    assert expand_braces("{train,val}-{0..1}.tar") == ["train-0.tar", "train-1.tar", "val-0.tar", "val-1.tar"]
    assert expand_braces("plain.tar") == ["plain.tar"]
    for wrong in ("x{}.tar", "x{3..1}.tar", "x{0..99999999}.tar", "x{a}.tar", "{0..9999}{0..9999}.tar"):
        with pytest.raises(UserError, match=re.escape(wrong)):
            expand_braces(wrong)


def test_a_question_mark_in_a_path_is_a_letter(tmp_path):
    make_tar(tmp_path / "cats?" / "train-0.tar", samples(4))
    make_tar(tmp_path / "cats?" / "val-0.tar", samples(2))
    data = open_data(tmp_path / "cats?")
    assert {split: len(source) for split, source in data.splits.items()} == {"train": 4, "val": 2}
    packed = pack_data(tmp_path / "cats?", tmp_path / "why?" / "packed").folder
    assert len(open_data(packed / "shards.json").train) == 4


def test_what_names_tell():
    assert split_of("imagenet1k-validation-03.tar") == "val"
    assert split_of("Test_000.tar") == "test"
    assert split_of("000.tar") == split_of("latest-1.tar") == "train"
    assert shards_name("https://x.org/data/pets/shards.json") == "pets"
    assert shards_name("s3://bucket/pets/") == "pets"
    assert shards_name("a/b/train-{000..009}.tar") == shards_name("train-0004.tar") == "train"
