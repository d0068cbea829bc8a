"""Where a view was cut: on images whose pixels say where they are, the reported box and flip must tell the same."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitreous.config.data import Augment, Preprocess, View
from vitreous.data.augment import seen_box, seen_fractions
from vitreous.data.collate import BatchMaker, ImageMaker
from vitreous.data.loader import Loader
from vitreous.data.opening import open_data
from vitreous.data.packed import ArraySource

HEIGHT, WIDTH, COUNT = 44, 60, 16
STEP = 4.0
"""So much brighter is a pixel than its neighbour: a fraction of a pixel shows."""
SIZE = Preprocess(size=(32, 36), interpolation="bilinear")
SOURCES = pytest.mark.parametrize("source", ["single", "batch"], indirect=True)


def ramp(height=HEIGHT, width=WIDTH):
    """(h, w, 3) uint8: red says the column, green the row."""
    rows, columns = np.mgrid[:height, :width]
    return (STEP * np.stack([columns, rows, np.zeros_like(rows)], axis=2)).astype(np.uint8)


@pytest.fixture
def source(tmp_path: Path, request: pytest.FixtureRequest):
    """The same image many times: in files, which are cut one by one, or in memory, cut a batch at a time."""
    if request.param == "batch":
        images = torch.from_numpy(ramp()).permute(2, 0, 1).expand(COUNT, -1, -1, -1)
        return ArraySource("ramps", images, np.arange(COUNT) % 2, ("a", "b"))
    for name in "ab":
        (tmp_path / name).mkdir()
        for i in range(COUNT // 2):
            Image.fromarray(ramp()).save(tmp_path / name / f"{i}.png")
    return open_data(tmp_path).train


def places(box, flipped, size, seen=None):
    """(rows, columns): where the pixels of a view lie in the image, in pixels of it.

    seen: the part (top, left, height, width as shares) at whose border a shifted view is reflected.
    """
    found = []
    for axis, side in enumerate((HEIGHT, WIDTH)):
        start, length = box[axis], box[axis + 2]
        place = start + (np.arange(size[axis]) + 0.5) * length / size[axis]  # as shares of the image
        if seen is not None:
            least = seen[axis] + 0.5 * seen[axis + 2] / size[axis]  # the middle of the outermost pixels
            most = seen[axis] + seen[axis + 2] - 0.5 * seen[axis + 2] / size[axis]
            place = least + np.abs(place - least)
            place = most - np.abs(most - place)
        found.append(np.clip(place * side - 0.5, 0, side - 1))
    return found[0], found[1][::-1] if flipped else found[1]


def pixels(images):
    """Normalised with mean and spread 0.5, back to bytes."""
    return (images.double().numpy() * 0.5 + 0.5) * 255


def check(view, box, flipped, seen=None):
    """A view (3, H, W) is what its box and flip say, to a fraction of a pixel of the image."""
    rows, columns = places(box, flipped, view.shape[1:], seen)
    across, down = view[0] / STEP - columns, view[1] / STEP - rows[:, None]
    for wrong in (across, down):
        assert np.abs(wrong[1:-1, 1:-1]).max() < 0.3  # two roundings to bytes
        assert np.abs(wrong).max() < 0.7  # at the border of a crop, a resampling filter sees one side only
        assert abs(wrong.mean()) < 0.15


@SOURCES
def test_box_and_flip_of_a_training_view_say_where_its_pixels_are_from(source, subtests):
    for flip in (True, False):
        for way in ("crop", "shift"):
            with subtests.test(flip=flip, way=way):
                augment = Augment(flip=flip) if way == "crop" else Augment(crop_scale=None, pad=4, flip=flip)
                loader = Loader(source, SIZE, augment, batch_size=COUNT, cache_bytes=10**7)
                assert isinstance(loader._maker, BatchMaker if isinstance(source, ArraySource) else ImageMaker)
                # A single image is first shrunk to a short side of 1.15 times the input's: its proportions are rounded.
                height, width = (HEIGHT, WIDTH) if isinstance(source, ArraySource) else (42, 57)
                seen = None if way == "crop" else seen_fractions(height, width, SIZE)
                boxes, flips = [], []
                for epoch in (0, 1):  # single images come from the cache in the second
                    batch = next(loader.batches(epoch))
                    cut = batch.views["image"]
                    assert (cut.box.shape, cut.box.dtype) == ((COUNT, 1, 4), torch.float32)
                    assert (cut.flipped.shape, cut.flipped.dtype) == ((COUNT, 1), torch.bool)
                    for view, box, flipped in zip(
                        pixels(batch.images), cut.box[:, 0].tolist(), cut.flipped[:, 0], strict=True
                    ):
                        check(view, box, bool(flipped), seen)
                    boxes += cut.box[:, 0].tolist()
                    flips += cut.flipped[:, 0].tolist()
                assert len({tuple(box) for box in boxes}) > COUNT
                assert 0.2 < np.mean(flips) < 0.8 if flip else not any(flips)


@SOURCES
def test_views_of_several_kinds_each_have_their_own_box(source):
    views = {"global": View(2, (0.5, 1.0)), "local": View(3, (0.2, 0.5), (24, 24))}
    batch = next(Loader(source, SIZE, Augment(), batch_size=COUNT, views=views).batches())
    assert list(batch.views) == ["global", "local"]
    for name, count in (("global", 2), ("local", 3)):
        cut = batch.views[name]
        assert cut.box.shape == (COUNT, count, 4)
        assert cut.flipped.shape == (COUNT, count)
        areas = cut.box[..., 2] * cut.box[..., 3]
        assert views[name].scale[0] - 0.03 < areas.min() <= areas.max() < views[name].scale[1] + 0.03
        for i in range(COUNT):
            for v in range(count):
                check(pixels(cut.images[i, v]), cut.box[i, v].tolist(), bool(cut.flipped[i, v]))


@SOURCES
def test_the_box_of_evaluation_is_what_is_seen(source, subtests):
    for resize in ("cover", "cover-floor", "stretch"):
        with subtests.test(resize=resize):
            preprocess = Preprocess(size=(32, 36), crop=0.9, interpolation="bilinear", resize=resize)
            left, top, right, bottom = seen_box(HEIGHT, WIDTH, preprocess)
            seen = (top / HEIGHT, left / WIDTH, (bottom - top) / HEIGHT, (right - left) / WIDTH)
            evaluation = Loader(source, preprocess, batch_size=COUNT)
            training = Loader(source, preprocess, Augment(), batch_size=COUNT)
            found = [next(evaluation.batches()), next(evaluation.batches()), next(training.plain_batches(COUNT))]
            next(training.batches())  # which leaves what it kept where it is
            found.append(next(training.plain_batches(COUNT)))
            for batch in found:
                cut = batch.views["image"]
                assert not cut.flipped.any()
                np.testing.assert_allclose(cut.box[:, 0].numpy(), [seen] * COUNT, atol=1e-6)
                for view in pixels(batch.images):
                    check(view, seen, flipped=False)
                assert batch.images.equal(found[0].images)


@SOURCES
def test_the_box_of_evaluation_by_hand(source):
    """44 x 60 covers 32 x 36 as 32 x 44 (43.6, rounded): of 44 columns, the 36 in the middle are seen."""
    cut = next(Loader(source, SIZE, batch_size=COUNT).batches()).views["image"]
    np.testing.assert_allclose(cut.box[:, 0].numpy(), [[0, 4 / 44, 1, 36 / 44]] * COUNT, atol=1e-6)
