"""The model's view is the same of a file, its bytes, an image of Pillow's and an array: what Pillow makes by hand."""

import io
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from support.images import make_tree, noise, smooth
from vitreous import UserError
from vitreous.config.data import Preprocess
from vitreous.data import augment
from vitreous.data.augment import seen_box
from vitreous.data.decode import ImageError, original_size, prepare_image
from vitreous.data.loader import Loader
from vitreous.data.opening import open_data
from vitreous.data.packed import ArraySource
from vitreous.data.view import MIN_DRAFT_SCALE, Sample, image_and_view, make_view, read_for_view

PLAIN = Preprocess(size=(32, 48), interpolation="bilinear", resize="cover-floor", crop=0.8)
"""Resized to at least 40x60: its result can be made in two steps of Pillow's, to the bit."""
GREY = Preprocess(size=(8, 8), mean=(0.5,), std=(0.5,))


def by_hand(image: Image.Image) -> np.ndarray:
    """What `PLAIN` asks for, of an image that is at most 1.5 times as wide as high."""
    height = round(60 * image.height / image.width)
    resized = image.resize((60, height), Image.Resampling.BILINEAR)
    top = (height - 32) // 2
    return np.asarray(resized.crop((6, top, 54, top + 32))).transpose(2, 0, 1)


def test_all_kinds_of_image_give_the_view_that_pillow_gives(tmp_path):
    image, path = smooth(90, 101), tmp_path / "x.png"
    image.save(path)
    source = open_data(make_tree(tmp_path / "tree", {"a": 1, "b": 1})).train
    source.path(0).write_bytes(path.read_bytes())
    expected = by_hand(image)
    for given in (path, str(path), path.read_bytes(), image, np.asarray(image), Sample(source, 0)):
        view = make_view(given, PLAIN)
        assert view.dtype == torch.uint8
        np.testing.assert_array_equal(view.numpy(), expected)
        assert torch.equal(image_and_view(given, PLAIN).view, view)


def save_photograph(path, height, width, orientation=1):
    """A JPEG with detail down to single pixels; the image that a full decoding gives, upright."""
    stored, exif = smooth(height, width), Image.Exif()
    exif[0x0112] = orientation
    stored.paste(Image.fromarray(noise(height, width)), mask=Image.new("L", (width, height), 60))
    stored.save(path, exif=exif)
    with Image.open(path) as decoder:
        return ImageOps.exif_transpose(decoder.convert("RGB"))


def test_a_large_jpeg_is_decoded_at_a_smaller_scale(tmp_path, subtests):
    """723x845 pixels and a view of at least 40x60: at a quarter it is three times as large, with a rest of 3 and 1.

    Wherever the rest lies when the image is upright, every pixel of the view is where it would be.
    """
    for orientation in range(1, 9):
        with subtests.test(orientation=orientation):
            folder = Path(mkdtemp(dir=tmp_path))
            full = save_photograph(folder / "x.jpg", 723, 845, orientation)
            assert min(full.size) >= 4 * MIN_DRAFT_SCALE * 60
            expected = make_view(np.asarray(full), PLAIN).numpy().astype(int)
            source = open_data(make_tree(folder / "tree", {"a": 1, "b": 1}, suffix=".jpg")).train
            source.path(0).write_bytes((folder / "x.jpg").read_bytes())
            views = []
            for given in (folder / "x.jpg", (folder / "x.jpg").read_bytes(), Sample(source, 0)):
                decoded, found = read_for_view(given, PLAIN), image_and_view(given, PLAIN)
                assert decoded.size == tuple(-(-side // 4) for side in full.size)
                assert original_size(decoded)[:2] == (full.height, full.width)
                np.testing.assert_array_equal(np.asarray(found.image), np.asarray(full))
                assert found.box == seen_box(full.height, full.width, PLAIN)
                views.append(make_view(given, PLAIN))
                assert torch.equal(found.view, views[0])
                assert torch.equal(views[-1], views[0])
            different = np.abs(views[0].numpy() - expected)
            assert different.max() <= 4
            assert different.mean() < 0.5
            # An image that somebody made of it is another one, as large as it is.
            assert original_size(prepare_image(decoded)).width == decoded.width
            assert original_size(decoded.resize((50, 50))).width == 50


def test_a_jpeg_that_is_not_so_large_is_decoded_in_full(tmp_path, subtests):
    """359 pixels are less than twice three times 60: timm's pixels, to the bit, as for every smaller one."""
    for orientation in (1, 6):
        with subtests.test(orientation=orientation):
            full = save_photograph(tmp_path / "x.jpg", 359, 400, orientation)
            np.testing.assert_array_equal(make_view(tmp_path / "x.jpg", PLAIN).numpy(), make_view(full, PLAIN).numpy())
            np.testing.assert_array_equal(np.asarray(read_for_view(tmp_path / "x.jpg", PLAIN)), np.asarray(full))
            if orientation == 1:
                np.testing.assert_array_equal(make_view(tmp_path / "x.jpg", PLAIN).numpy(), by_hand(full))


def test_of_the_nearest_pixel_alone_no_jpeg_is_decoded_smaller(tmp_path):
    full = save_photograph(tmp_path / "x.jpg", 723, 845)
    nearest = replace(PLAIN, interpolation="nearest")
    np.testing.assert_array_equal(make_view(tmp_path / "x.jpg", nearest).numpy(), make_view(full, nearest).numpy())


def test_a_long_strip_decoded_at_a_smaller_scale(tmp_path, monkeypatch):
    """Of which only the centre is resized."""
    monkeypatch.setattr(augment, "MAX_RESIZED_PIXELS", 5000)
    full = save_photograph(tmp_path / "x.jpg", 723, 2001, 2)
    different = make_view(tmp_path / "x.jpg", PLAIN).int() - make_view(full, PLAIN).int()
    assert different.abs().max() <= 4


def test_a_loader_gives_an_engine_these_very_views(tmp_path):
    root = make_tree(tmp_path / "tree", {"a": 2, "b": 1}, suffix=".jpg", size=(300, 400))
    source = open_data(root).train
    (batch,) = Loader(source, PLAIN, batch_size=3, normalised=False).batches()
    assert batch.images.dtype == torch.uint8
    for index in range(3):
        assert torch.equal(batch.images[index], make_view(source.path(index), PLAIN))


def test_grey_and_transparent_arrays():
    grey = noise(8, 8, 1)
    for given in (grey, grey[:, :, None]):
        np.testing.assert_array_equal(make_view(given, GREY).numpy()[0], grey)
    colour = Preprocess(size=(8, 8))
    np.testing.assert_array_equal(make_view(grey, colour).numpy(), np.stack([grey] * 3))
    half = np.concatenate([noise(8, 8), np.full((8, 8, 1), 255, np.uint8)], axis=2)
    half[:4, :, 3] = 0
    view = make_view(half, colour).numpy().transpose(1, 2, 0)
    assert (view[:4] == 255).all(), "transparent is white"
    np.testing.assert_array_equal(view[4:], half[4:, :, :3])
    turned = noise(8, 16)[:, ::-2]  # not in one piece of memory
    np.testing.assert_array_equal(make_view(turned, colour).numpy(), turned.transpose(2, 0, 1))


def test_a_image_of_packed_data():
    pixels = torch.from_numpy(np.stack([noise(8, 8, seed=seed).transpose(2, 0, 1) for seed in range(2)]))
    source = ArraySource("x.npz", pixels, np.zeros(2, np.int64), ("a",))
    assert torch.equal(make_view(Sample(source, 1), Preprocess(size=(8, 8))), pixels[1])
    assert image_and_view(Sample(source, 1), Preprocess(size=(8, 8))).image.size == (8, 8)


def test_what_is_given_stays_as_it_is():
    array = noise(8, 8)
    before, image = array.copy(), Image.fromarray(array)
    found = image_and_view(array, Preprocess(size=(8, 8)))
    found.view.zero_()
    found.image.paste(0, (0, 0, 8, 8))
    image_and_view(image, Preprocess(size=(8, 8))).image.paste(0, (0, 0, 8, 8))
    np.testing.assert_array_equal(array, before)
    np.testing.assert_array_equal(np.asarray(image), before)


def test_what_is_no_image_is_told(subtests):
    for given, named in (
        (np.zeros((8, 8, 3), np.float32), r"float32: .*uint8.*np\.rint\(255"),
        (np.zeros((8, 8), bool), "bool: .*uint8"),
        (np.zeros((3, 8, 8), np.uint8), r"\(3, 8, 8\): .*array\.transpose\(1, 2, 0\)"),
        (np.zeros((2, 8, 8, 3), np.uint8), r"\(2, 8, 8, 3\).*list\(array\)"),
        (np.zeros((8, 8, 2), np.uint8), r"\(8, 8, 2\)"),
        (np.zeros(64, np.uint8), r"\(64,\)"),
        (np.zeros((0, 8, 3), np.uint8), r"\(0, 8, 3\)"),
        (torch.zeros(3, 8, 8), r"float32: .*uint8.*torch\.uint8"),
        (torch.zeros(8, 8, 3, dtype=torch.uint8), r"\(8, 8, 3\): .*tensor\.permute\(2, 0, 1\)"),
        (None, "NoneType"),
        (io.BytesIO(b""), r"_io\.BytesIO"),
    ):
        with subtests.test(named):
            with pytest.raises(UserError, match=named) as error:
                make_view(given, Preprocess(size=(8, 8)))
            assert not isinstance(error.value, ImageError), "a mistake in the call, not a bad file"


def test_images_that_cannot_be_read(tmp_path):
    for given, named in (
        (tmp_path / "none.png", r"none\.png"),
        (b"", r"\b0\b"),
        (b"text", None),
        (Image.new("RGB", (0, 5)), "0x5"),
    ):
        with pytest.raises(ImageError, match=named):
            make_view(given, PLAIN)
    with pytest.raises(UserError, match=r"\b5\b"):
        make_view(noise(8, 8), Preprocess(size=(8, 8), mean=(0.5,) * 5, std=(0.5,) * 5))
