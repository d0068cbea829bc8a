"""The view of evaluation is, to the bit, what timm's own transform makes with the same configuration.

Only of JPEGs that are read at a smaller scale, as they are far larger than the view, it is so to a few levels.
"""

import io

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from timm.data import create_transform

from support.images import noise, smooth
from vitreous.config.data import Preprocess
from vitreous.data.view import make_view

REPORTED = [(333, 500), (200, 247), (357, 500), (327, 450), (120, 94)]
"""Sizes at which pixels once differed by 2 to 10 levels."""
HOW = ["bicubic", "bilinear", "nearest", "lanczos"]
CROPS = {"cover": "center", "stretch": "squash"}


def timm_view(image: Image.Image, preprocess: Preprocess) -> np.ndarray:
    """(C, H, W) uint8 by timm."""
    transform = create_transform(
        input_size=(3, *preprocess.size),
        interpolation=preprocess.interpolation,
        crop_pct=preprocess.crop,
        crop_mode=CROPS[preprocess.resize],
        normalize=False,
    )
    return np.asarray(transform(image))


def check(image: Image.Image, preprocess: Preprocess) -> None:
    np.testing.assert_array_equal(make_view(image, preprocess).numpy(), timm_view(image, preprocess))


def test_the_sizes_that_differed(subtests):
    for how in HOW:
        for resize in CROPS:
            for shape in REPORTED + [(w, h) for h, w in REPORTED]:
                with subtests.test(how=how, resize=resize, shape=shape):
                    check(Image.fromarray(noise(*shape)), Preprocess(crop=0.9, interpolation=how, resize=resize))


sides = st.integers(1, 400)


@given(
    height=sides,
    width=sides,
    size=st.integers(1, 96),
    crop=st.sampled_from([1.0, 0.95, 0.9, 0.875, 0.5]),
    how=st.sampled_from(HOW),
    resize=st.sampled_from(list(CROPS)),
)
@settings(max_examples=100)
def test_any_size(height, width, size, crop, how, resize):
    check(Image.fromarray(noise(height, width)), Preprocess((size, size), crop=crop, interpolation=how, resize=resize))


@given(height=sides, width=sides, rows=st.integers(1, 64), columns=st.integers(1, 64), crop=st.floats(0.5, 1.0))
@settings(max_examples=60)
def test_an_input_that_is_not_square(height, width, rows, columns, crop):
    """timm then resizes bilinearly, whatever its configuration says."""
    check(Image.fromarray(noise(height, width)), Preprocess((rows, columns), crop=crop, interpolation="bilinear"))


def jpeg_views(shape: tuple[int, int], how: str = "bicubic") -> tuple[np.ndarray, np.ndarray]:
    """(C, H, W): ours and timm's view, 96 pixels of 106, of a JPEG with detail down to single pixels."""
    image = smooth(*shape)
    image.paste(Image.fromarray(noise(*shape)), mask=Image.new("L", image.size, 60))
    file = io.BytesIO()
    image.save(file, "JPEG")
    preprocess = Preprocess(size=(96, 96), crop=0.9, interpolation=how)
    expected = timm_view(Image.open(file).convert("RGB"), preprocess)
    return make_view(file.getvalue(), preprocess).numpy(), expected


def test_a_jpeg_file_below_the_size_that_is_decoded_smaller(subtests):
    """636 pixels are twice `LARGER` times 106."""
    for shape in ((635, 1000), (900, 635)):
        with subtests.test(shape=shape):
            ours, timms = jpeg_views(shape)
            np.testing.assert_array_equal(ours, timms)


def test_a_larger_jpeg_file_differs_by_few_levels(subtests):
    """Read at a half or a quarter; docs/decisions.md says why."""
    for how in ("bicubic", "bilinear", "lanczos"):
        for shape in ((641, 1003), (1200, 1700), (2557, 1301)):
            with subtests.test(how=how, shape=shape):
                ours, timms = jpeg_views(shape, how)
                different = np.abs(ours.astype(int) - timms)
                assert different.max() <= 4
                assert different.mean() < 0.5


def test_real_images(shared_data):
    paths = sorted((shared_data / "pets" / "test").glob("*/*.jpg"))[::20]
    assert len(paths) > 50
    for path in paths:
        preprocess = Preprocess(crop=0.9)
        expected = timm_view(Image.open(path).convert("RGB"), preprocess)
        np.testing.assert_array_equal(make_view(path, preprocess).numpy(), expected)
