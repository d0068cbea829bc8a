import threading
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from support.images import make_tree, noise, smooth
from vitreous.config.data import Augment, Preprocess, View
from vitreous.data.augment import eval_view, normalise, shrink, train_view
from vitreous.data.batch import Batch
from vitreous.data.builtin import builtin_data
from vitreous.data.joined import JoinedSource
from vitreous.data.loader import MIN_IMAGES_FOR_WORKERS, Loader, choose_workers
from vitreous.data.opening import open_data
from vitreous.data.packed import ArraySource
from vitreous.data.rng import generator, sample_keys
from vitreous.data.source import Source
from vitreous.errors import UserError

SIZE = Preprocess(size=(32, 32), crop=0.9)
FULL = Augment(policy="randaugment", jitter=0.3, erase=0.5, mixup=0.8, cutmix=1.0)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    root = tmp_path_factory.mktemp("images")
    return open_data(make_tree(root, {"a": 9, "b": 7, "c": 7}, ".jpg", size=(60, 50))).train


@pytest.fixture
def packed() -> ArraySource:
    images = torch.from_numpy(np.stack([noise(16, 16, seed=i).transpose(2, 0, 1) for i in range(40)]))
    return ArraySource("x", images, np.arange(40) % 3, ("a", "b", "c"))


def digest(batches: Iterable[Batch]) -> list[list[bytes]]:
    """Every number of every batch: views with their geometry, targets, index, and last the keys."""
    found = []
    for b in batches:
        views = [tensor for view in b.views.values() for tensor in (view.images, view.box, view.flipped)]
        found.append([tensor.numpy().tobytes() for tensor in (*views, b.targets, b.index, b.keys)])
    return found


def test_evaluation_gives_every_image_once_in_order(source: Source):
    loader = Loader(source, SIZE, batch_size=10)
    batches = list(loader.batches())
    assert [len(batch.images) for batch in batches] == [10, 10, 3]
    assert loader.steps_per_epoch == 3
    assert torch.cat([batch.index for batch in batches]).tolist() == list(range(23))
    assert torch.cat([batch.targets for batch in batches]).tolist() == source.labels.tolist()
    first = normalise(eval_view(source.read(0), SIZE)[None], SIZE)
    torch.testing.assert_close(batches[0].images[:1], first)
    # and again from the cache; only what a step would draw is another epoch's
    assert [row[:-1] for row in digest(loader.batches(epoch=5))] == [row[:-1] for row in digest(batches)]


def test_training_shuffles_and_cuts_views_by_index_and_epoch(source: Source):
    loader = Loader(source, SIZE, Augment(), batch_size=5, seed=3)
    assert loader.steps_per_epoch == 4
    for epoch in (0, 1):
        batches = list(loader.batches(epoch))
        index = torch.cat([batch.index for batch in batches])
        assert len(set(index.tolist())) == 20
        assert index.tolist() == loader.order(epoch)[:20].tolist()
        batch = batches[2]
        cuts = batch.views["image"]
        for row, (image, i) in enumerate(zip(batch.images, batch.index.tolist(), strict=True)):
            kept = shrink(source.read(i, at_least=41), 41)  # 1.15 x 35 = 40.25
            view = train_view(kept, SIZE, Augment(), generator(3, epoch, i))
            torch.testing.assert_close(image, normalise(view.pixels[None], SIZE)[0])
            assert cuts.box[row, 0].tolist() == pytest.approx(view.box)
            assert cuts.flipped[row, 0] == view.flipped
        assert batch.keys.tolist() == sample_keys(3, epoch, batch.index.numpy()).tolist()
        assert batch.targets.tolist() == source.labels[batch.index.numpy()].tolist()
    assert loader.order(0).tolist() != loader.order(1).tolist()


def test_any_number_of_workers_gives_the_same_bits(source: Source):
    plain = Loader(source, SIZE, FULL, batch_size=5, seed=1)
    expected = [digest(plain.batches(epoch)) for epoch in range(2)]
    for workers in (1, 4):
        loader = Loader(source, SIZE, FULL, batch_size=5, seed=1, workers=workers, cache_bytes=30_000)
        assert [digest(loader.batches(epoch)) for epoch in range(2)] == expected
        assert digest(loader.batches(0, start=2)) == expected[0][2:]
    evaluation = [digest(Loader(source, SIZE, batch_size=5, workers=workers).batches()) for workers in (0, 2)]
    assert evaluation[0] == evaluation[1]


def test_a_cache_changes_nothing_and_stays_in_its_bound(source: Source):
    limits = (0, 20_000, 10**7)
    loaders = [Loader(source, SIZE, Augment(), batch_size=4, cache_bytes=limit) for limit in limits]
    found = [[digest(loader.batches(epoch)) for epoch in range(3)] for loader in loaders]
    assert found[0] == found[1] == found[2]
    used = [loader._maker.cache.used for loader in loaders]
    assert used[0] == 0
    assert 0 < used[1] <= 20_000 < used[2]


def test_resuming_in_the_middle_of_an_epoch(source: Source, packed: ArraySource):
    for data in (source, packed):
        whole = digest(Loader(data, SIZE, Augment(mixup=0.5), batch_size=4).batches(2))
        fresh = Loader(data, SIZE, Augment(mixup=0.5), batch_size=4)
        assert digest(fresh.batches(2, start=3)) == whole[3:]
        assert digest(fresh.batches(2, start=fresh.steps_per_epoch)) == []


def test_an_epoch_that_is_left_early_does_not_disturb_the_next(source: Source):
    expected = digest(Loader(source, SIZE, Augment(), batch_size=4).batches(1))
    loader = Loader(source, SIZE, Augment(), batch_size=4, workers=2)
    next(iter(loader.batches(0)))
    assert digest(loader.batches(1)) == expected
    loader.close()
    assert digest(loader.batches(1)) == expected
    loader.close()
    loader.close()


def test_the_global_random_state_is_left_alone(source: Source):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    for workers in (0, 1):
        list(Loader(source, SIZE, FULL, batch_size=5, workers=workers).batches())
    assert torch.get_rng_state().equal(before)


def test_mixing_gives_soft_targets(source: Source):
    batch = next(iter(Loader(source, SIZE, Augment(mixup=0.8), batch_size=5).batches()))
    assert batch.targets.shape == (5, 3)
    torch.testing.assert_close(batch.targets.sum(1), torch.ones(5))


def test_small_images_in_memory_take_the_whole_batch_path(packed: ArraySource):
    size = Preprocess(size=(16, 16))
    loader = Loader(packed, size, Augment(crop_scale=None), batch_size=8, workers=2)
    assert loader.workers == 0
    batches = list(loader.batches())
    assert [batch.images.shape for batch in batches] == [(8, 3, 16, 16)] * 5
    evaluation = torch.cat([batch.images for batch in Loader(packed, size, batch_size=7).batches()])
    torch.testing.assert_close(evaluation, normalise(packed.images, size))
    # a policy, or a large input, is made image by image
    assert Loader(packed, size, Augment(policy="trivial"), batch_size=8, workers=1).workers == 1
    assert next(iter(Loader(packed, Preprocess(size=(96, 96)), batch_size=8).batches())).images.shape[2:] == (96, 96)
    grey = Preprocess(size=(16, 16), mean=(0.5,), std=(0.5,))
    assert next(iter(Loader(packed, grey, batch_size=8).batches())).images.shape == (8, 1, 16, 16)
    chosen = packed.subset([5, 3])
    both = next(iter(Loader(chosen, size, batch_size=8).batches()))
    torch.testing.assert_close(both.images, normalise(packed.images[[5, 3]], size))
    assert both.index.tolist() == [0, 1]


def test_the_builtin_images_load():
    train = builtin_data().train
    preprocess = Preprocess(size=(28, 28), mean=(0.2860,), std=(0.3530,))
    batch = next(iter(Loader(train, preprocess, Augment(crop_scale=None, pad=2), batch_size=64).batches()))
    assert batch.images.shape == (64, 1, 28, 28)
    assert abs(float(batch.images.mean())) < 0.3


@pytest.fixture
def damaged(tmp_path: Path) -> Source:
    """Of 60 images: text, an empty file and a cut one, two of them side by side."""
    make_tree(tmp_path, {"a": 30, "b": 30}, ".jpg")
    (tmp_path / "a" / "003.jpg").write_text("not an image")
    (tmp_path / "a" / "004.jpg").write_bytes(b"")
    whole = (tmp_path / "b" / "029.jpg").read_bytes()
    (tmp_path / "b" / "029.jpg").write_bytes(whole[: len(whole) // 2])
    return open_data(tmp_path).train


def test_unreadable_training_images_are_replaced_and_reported(damaged: Source):
    found, reports = [], []
    for workers in (0, 2):
        loader = Loader(damaged, SIZE, Augment(), batch_size=7, workers=workers, unreadable_limit=0.05)
        batches = list(loader.batches(0)) + list(loader.batches(1))
        index = torch.cat([batch.index for batch in batches])
        assert not {3, 4, 59} & set(index.tolist())
        assert {len(batch.images) for batch in batches} == {7}
        found.append(digest(batches))
        reports.append(loader.unreadable)
    assert found[0] == found[1]
    assert reports[0] == reports[1]
    assert set(reports[0]) == {damaged.name(i) for i in (3, 4, 59)}
    assert reports[0][damaged.name(3)]
    # 3, 4: the next that can be read is 5; after the last comes the first
    order = Loader(damaged, SIZE, Augment(), batch_size=60, unreadable_limit=1.0)
    taken = next(iter(order.batches(0))).index
    stand_in = {3: 5, 4: 5, 59: 0}
    assert taken.tolist() == [stand_in.get(i, i) for i in order.order(0).tolist()]


def test_unreadable_images_are_left_out_of_evaluation(damaged: Source):
    loader = Loader(damaged, SIZE, batch_size=3, unreadable_limit=0.05)
    index = torch.cat([batch.index for batch in loader.batches()]).tolist()
    assert index == [i for i in range(60) if i not in (3, 4, 59)]
    assert len(loader.unreadable) == 3


def test_too_many_unreadable_images_stop_the_run(damaged: Source):
    messages = []
    for workers in (0, 2):
        loader = Loader(damaged, SIZE, Augment(), batch_size=7, workers=workers)
        with pytest.raises(UserError, match=r"of 60 .*\b1%") as error:
            list(loader.batches())
        messages.append(str(error.value))
    assert messages[0] == messages[1]
    assert any(damaged.name(i) in messages[0] for i in (3, 4, 59))


def test_a_subset_is_judged_by_the_whole_data(tmp_path: Path):
    """3 of 400 are fewer than 1 %, though 3 of the 20 that a study takes are not."""
    make_tree(tmp_path, {"a": 200, "b": 200}, ".jpg")
    for number in (3, 4, 5):
        (tmp_path / "a" / f"{number:03}.jpg").write_text("not an image")
    source = open_data(tmp_path).train
    few = source.subset(range(20))
    for given in (few, few.with_labels(few.labels, few.classes), JoinedSource([few])):
        assert given.total == 400
        for augment in (None, Augment()):
            loader = Loader(given, SIZE, augment, batch_size=20)
            assert len(next(iter(loader.batches())).images) == (17 if augment is None else 20)
            assert len(loader.unreadable) == 3
    with pytest.raises(UserError, match=r"\b3 of 3 "):
        list(Loader(source.subset([3, 4, 5]), SIZE, batch_size=20).batches())
    for number in (6, 7):
        (tmp_path / "a" / f"{number:03}.jpg").write_text("not an image")
    with pytest.raises(UserError, match=r"\b5 of 20 .*\b1% of all 400 "):
        list(Loader(few, SIZE, batch_size=20).batches())


def test_nothing_readable_at_all_ends_too(tmp_path: Path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for i in range(5):
            (tmp_path / name / f"{i}.jpg").write_text("no")
    source = open_data(tmp_path).train
    for limit in (0.5, 1.0):
        with pytest.raises(UserError, match=r"\b10\b"):
            list(Loader(source, SIZE, Augment(), batch_size=4, unreadable_limit=limit).batches())
    loader = Loader(source, SIZE, batch_size=4, unreadable_limit=None)  # whoever asks for this can do without any
    assert list(loader.batches()) == []
    assert len(loader.unreadable) == 10


def test_few_images_and_bad_numbers(source: Source):
    loader = Loader(source.subset([0, 1]), SIZE, Augment(), batch_size=64)
    assert loader.steps_per_epoch == 1
    assert len(next(iter(loader.batches())).images) == 2
    with pytest.raises(UserError):
        Loader(source.subset([]), SIZE, batch_size=1)
    with pytest.raises(UserError, match="batch_size=0"):
        Loader(source, SIZE, batch_size=0)


def test_images_of_many_sizes_and_modes_make_a_batch(tmp_path: Path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    smooth(10, 300).save(tmp_path / "a" / "wide.png")
    smooth(300, 10).convert("CMYK").save(tmp_path / "a" / "tall.jpg")
    Image.fromarray(noise(1, 1, 1)).save(tmp_path / "b" / "dot.png")
    Image.fromarray(noise(40, 40, 4)).save(tmp_path / "b" / "faint.png")
    source = open_data(tmp_path).train
    for augment in (None, Augment(), FULL, Augment(crop_scale=None, policy="trivial")):
        batch = next(iter(Loader(source, SIZE, augment, batch_size=4).batches()))
        assert batch.images.shape == (4, 3, 32, 32)
        assert batch.images.isfinite().all()


@pytest.mark.slow
def test_real_pets_give_the_same_bits_for_any_workers(shared_data: Path):
    source = open_data(shared_data / "pets").train.subset(range(0, 1480, 10))
    preprocess = Preprocess(crop=0.9)
    found = []
    for workers in (0, 1, 4):
        loader = Loader(source, preprocess, FULL, batch_size=32, workers=workers)
        found.append([digest(loader.batches(epoch)) for epoch in range(2)])
    assert found[0] == found[1] == found[2]


def test_several_views_of_each_image(source: Source, packed: ArraySource):
    views = {"global": View(2, (0.4, 1.0)), "local": View(3, (0.05, 0.4), (8, 8))}
    for images in (source, packed):
        loader = Loader(images, SIZE, Augment(jitter=0.2, grey=0.2), batch_size=5, seed=3, views=views)
        batch = next(loader.batches(epoch=2))
        assert list(batch.views) == ["global", "local"]
        assert batch.views["global"].images.shape == (5, 2, 3, 32, 32)
        assert batch.views["local"].images.shape == (5, 3, 3, 8, 8)
        assert all(view.images.abs().max() <= 1 for view in batch.views.values())
        again = Loader(images, SIZE, Augment(jitter=0.2, grey=0.2), batch_size=5, seed=3, views=views, workers=2)
        other = next(again.batches(epoch=2))
        again.close()
        assert digest([batch]) == digest([other])


def test_training_images_can_be_looked_at_as_evaluation_does(source: Source, packed: ArraySource):
    for data, augment in ((source, FULL), (packed, Augment(jitter=0.3, erase=0.5, mixup=0.8))):
        expected = digest(Loader(data, SIZE, batch_size=6).batches())
        training = Loader(data, SIZE, augment, batch_size=5, seed=0)
        assert digest(training.plain_batches(6)) == expected
        trained = digest(training.batches(1))
        assert digest(training.plain_batches(6)) == expected
        assert trained == digest(Loader(data, SIZE, augment, batch_size=5).batches(1))
        workers = Loader(data, SIZE, augment, batch_size=5, workers=2)
        assert digest(workers.plain_batches(6)) == expected
        assert digest(workers.batches(1)) == trained
        workers.close()


def test_one_decoding_serves_a_look_and_the_trainings_views(source: Source, monkeypatch: pytest.MonkeyPatch):
    read, asked = type(source).read, []

    def counting(self, index, **ways):
        asked.append(index)
        return read(self, index, **ways)

    monkeypatch.setattr(type(source), "read", counting)
    loader = Loader(source, SIZE, Augment(), batch_size=23, cache_bytes=10**7)
    list(loader.plain_batches(10))
    assert sorted(asked) == list(range(23))
    for epoch in range(3):
        list(loader.batches(epoch))
    assert len(asked) == 23


def test_engines_take_bytes(source: Source, packed: ArraySource):
    for data in (source, packed):
        for given, plain in zip(
            Loader(data, SIZE, batch_size=6, normalised=False).batches(),
            Loader(data, SIZE, batch_size=6).batches(),
            strict=True,
        ):
            assert given.images.dtype == torch.uint8
            torch.testing.assert_close(normalise(given.images, SIZE), plain.images)


def test_how_many_processes_decode(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    assert choose_workers(7) == 7
    assert choose_workers(0, 10**6) == 0
    assert choose_workers(None) == choose_workers(None, MIN_IMAGES_FOR_WORKERS) == 4
    assert choose_workers(None, MIN_IMAGES_FOR_WORKERS - 1) == 0
    assert choose_workers(2, 5) == 2
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert choose_workers(None) == 2
    monkeypatch.setattr("os.cpu_count", lambda: None)
    assert choose_workers(None) == 1


def test_a_image_that_stands_in_for_another_has_its_own_key(damaged: Source):
    loader = Loader(damaged, SIZE, Augment(), batch_size=60, seed=2, unreadable_limit=1.0)
    batch = next(iter(loader.batches(4)))
    assert batch.keys.tolist() == sample_keys(2, 4, batch.index.numpy()).tolist()
    list(loader.plain_batches(7))
    index = torch.cat([batch.index for batch in loader.plain_batches(7)]).tolist()
    assert index == [i for i in range(60) if i not in (3, 4, 59)]  # nothing stands in where nothing is trained


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> tuple[torch.device, list[tuple[torch.dtype, str, str]]]:
    """A device that is not the CPU and needs no GPU, and what is normalised: its type, where, and by which thread."""
    seen: list[tuple[torch.dtype, str, str]] = []

    def note(images: torch.Tensor, preprocess: Preprocess) -> torch.Tensor:
        seen.append((images.dtype, images.device.type, threading.current_thread().name.partition("_")[0]))
        return normalise(images, preprocess)

    monkeypatch.setattr("vitreous.data.loader.normalise", note)
    return torch.device("meta"), seen


def test_bytes_go_to_the_device_and_are_normalised_there(source: Source, elsewhere, subtests):
    device, seen = elsewhere
    for workers in (0, 2):
        with subtests.test(workers=workers):
            here = Loader(source, SIZE, Augment(), batch_size=4, seed=1, workers=workers)
            loader = Loader(source, SIZE, Augment(), batch_size=4, seed=1, workers=workers, device=device)
            for epoch in range(2):  # worker processes live on from one epoch to the next
                seen.clear()
                expected, found = list(here.batches(epoch)), list(loader.batches(epoch))
                assert [batch.index.tolist() for batch in found] == [batch.index.tolist() for batch in expected]
                assert {batch.images.device.type for batch in found} == {"meta"}
                assert all(a.targets.equal(b.targets) for a, b in zip(found, expected, strict=True))
                assert set(seen) == {(torch.uint8, "cpu", "MainThread"), (torch.uint8, "meta", "prefetch")}
            begun = loader.batches(0)
            next(begun)
            begun.close()  # left early
            assert next(loader.batches(0)).index.equal(next(here.batches(0)).index)
            here.close()
            loader.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]


def test_processes_end_when_no_thread_can_start_them_again(source: Source, elsewhere, monkeypatch):
    loader = Loader(source, SIZE, Augment(), batch_size=4, workers=1, device=elsewhere[0])
    next(loader.batches(0))
    running: list[str] = []
    pool = loader._processes
    end = pool.close

    def close() -> None:
        running.extend(thread.name for thread in threading.enumerate() if thread.name.startswith("prefetch"))
        end()

    monkeypatch.setattr(pool, "close", close)
    loader.close()
    assert not running


def test_an_error_of_the_prefetch_thread_is_the_consumers(damaged: Source, elsewhere):
    loader = Loader(damaged, SIZE, Augment(), batch_size=4, unreadable_limit=0.0, device=elsewhere[0])
    with pytest.raises(UserError):
        list(loader.batches(0))
    loader.close()
