"""Corruptions, each against an independent computation or its defining property."""

import colorsys
import io

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from vitreous.config.data import Preprocess
from vitreous.data.corrupt import (
    CORRUPTIONS,
    DISK,
    MOTION,
    STRENGTHS,
    CorruptionMaker,
    affine_back,
    copy_nearby,
    corrupt,
    disk,
    elastic,
    stream,
)
from vitreous.data.corrupt_filters import frost_texture, gaussian_blur, motion_blur, plasma, sample_bilinear
from vitreous.data.folder import FolderSource, Names
from vitreous.data.view import make_view

KINDS = list(CORRUPTIONS)
# With the published settings, fog 4 changes an image less than fog 3, glass blur 2 and elastic 3 less than 1.
NOT_MONOTONE = ("glass blur", "fog", "elastic")
SIDE = 64


def make_image(seed=0, side=SIDE, channels=3):
    """(C, side, side) uint8 that has large shapes and fine ones, as photographs have."""
    rng = np.random.default_rng(seed)
    field = ndimage.gaussian_filter(rng.normal(size=(side, side, channels)), (side / 10, side / 10, 0))
    fine = ndimage.gaussian_filter(rng.normal(size=(side, side, channels)), (2, 2, 0))
    field = field / field.std() + 0.35 * fine / fine.std()
    return np.clip(128 + 45 * field, 0, 255).astype(np.uint8).transpose(2, 0, 1)


def grey(level, side=SIDE):
    return np.full((3, side, side), level, np.uint8)


def rng(seed=0):
    return np.random.default_rng(seed)


def floats(view):
    return view.transpose(1, 2, 0).astype(np.float32) / 255


def test_shape_type_and_determinism(subtests):
    for kind in KINDS:
        with subtests.test(kind=kind):
            for view in (make_image(), make_image(channels=1), make_image(side=32), make_image()[:, :48]):
                made = corrupt(view, kind, 3, stream(0, kind, "a/b.jpg"))
                assert (made.dtype, made.shape) == (np.uint8, view.shape)
                assert np.array_equal(made, corrupt(view, kind, 3, stream(0, kind, "a/b.jpg")))
                assert not np.array_equal(made, view)


def test_another_image_or_seed_meets_other_chance(subtests):
    for kind in ("gaussian noise", "impulse noise", "glass blur", "motion blur", "snow", "fog", "elastic"):
        with subtests.test(kind=kind):
            made = [
                corrupt(make_image(), kind, 3, stream(seed, kind, key)) for seed, key in ((0, "a"), (1, "a"), (0, "b"))
            ]
            assert not np.array_equal(made[0], made[1])
            assert not np.array_equal(made[0], made[2])


def mean_errors(kind, views):
    """Mean absolute error of each strength, over images by name."""
    return [
        np.mean(
            [np.abs(corrupt(v, kind, k, stream(0, kind, key)) - v.astype(float)).mean() for key, v in views.items()]
        )
        for k in STRENGTHS
    ]


@pytest.mark.slow
def test_more_strength_changes_more(subtests):
    views = {str(seed): make_image(seed, side=224) for seed in range(4)}
    for kind in KINDS:
        with subtests.test(kind=kind):
            errors = mean_errors(kind, views)
            assert (np.diff(errors) > 0).all() or kind in NOT_MONOTONE, errors
            assert errors[4] > errors[0] or kind == "elastic", errors


@pytest.mark.slow
def test_more_strength_changes_more_on_pets(shared_data, subtests):
    paths = sorted((shared_data / "pets" / "test").glob("*/*.jpg"))[::46]
    views = {path.name: make_view(path, Preprocess(size=(224, 224), crop=0.9)).numpy() for path in paths}
    for kind in KINDS:
        with subtests.test(kind=kind):
            errors = mean_errors(kind, views)
            assert (np.diff(errors) > 0).all() or kind in NOT_MONOTONE, errors
            assert errors[4] > errors[0] or kind == "elastic", errors


def test_gaussian_noise_has_its_deviation(subtests):
    for strength, deviation in enumerate([0.08, 0.12, 0.18, 0.26, 0.38], 1):
        with subtests.test(strength=strength):
            made = CORRUPTIONS["gaussian noise"].apply(floats(grey(128, 200)), strength, rng())
            assert made.mean() == pytest.approx(128 / 255, abs=5 * deviation / np.sqrt(made.size))
            assert made.std() == pytest.approx(deviation, rel=0.01)


def test_shot_noise_has_the_variance_of_a_count(subtests):
    """Of a Poisson count with mean c x, divided by c, the variance is x / c."""
    for strength, photons in enumerate([60, 25, 12, 5, 3], 1):
        for level in (51, 204):
            with subtests.test(strength=strength, level=level):
                made = CORRUPTIONS["shot noise"].apply(floats(grey(level, 200)), strength, rng())
                assert made.mean() == pytest.approx(level / 255, rel=0.02)
                assert made.var() == pytest.approx(level / 255 / photons, rel=0.03)


def test_impulse_noise_replaces_a_share_by_black_or_white(subtests):
    for strength, share in enumerate([0.03, 0.06, 0.09, 0.17, 0.27], 1):
        with subtests.test(strength=strength):
            made = corrupt(grey(100, 200), "impulse noise", strength, rng())
            assert set(np.unique(made)) == {0, 100, 255}
            assert (made != 100).mean() == pytest.approx(share, rel=0.05)
            assert (made == 255).mean() == pytest.approx(share / 2, rel=0.08)


def test_defocus_is_a_convolution_with_a_disk(subtests):
    for strength in STRENGTHS:
        with subtests.test(strength=strength):
            view = make_image(side=224)
            kernel = disk(*DISK[strength - 1])
            expected = np.stack([ndimage.convolve(one.astype(float), kernel, mode="mirror") for one in view])
            assert np.abs(corrupt(view, "defocus blur", strength, rng()) - expected).max() <= 0.51
            radius = DISK[strength - 1][0]
            far = np.hypot(*np.indices(kernel.shape) - kernel.shape[0] // 2)
            assert kernel.sum() == pytest.approx(1)
            assert kernel[far > radius + 3].sum() == 0
            assert kernel[far < radius - 2] == pytest.approx(1 / (np.pi * radius**2), rel=0.08)


def test_gaussian_blur_against_scipy():
    pixels = floats(make_image())
    for border, mode in (("edge", "nearest"), ("symmetric", "reflect")):
        for sigma, truncate in ((0.7, 4.0), (2.44, 3.0), (30.0, 3.0)):
            expected = ndimage.gaussian_filter(pixels.astype(float), (sigma, sigma, 0), mode=mode, truncate=truncate)
            assert gaussian_blur(pixels, sigma, border, truncate) == pytest.approx(expected, abs=1e-5)


def test_glass_copies_pixels_as_the_published_loop_does():
    """The loop over an array of vectors, where the exchange of two rows of views copies the one over the other."""
    height, width, distance, times = 40, 50, 3, 2
    pixels, draw = np.arange(height * width).reshape(height, width, 1).copy(), rng()
    for _ in range(times):
        rows, columns = range(height - distance, distance, -1), range(width - distance, distance, -1)
        down, right = draw.integers(-distance, distance, (2, len(rows), len(columns)))
        for i, y in enumerate(rows):
            for j, x in enumerate(columns):
                y2, x2 = y + down[i, j], x + right[i, j]
                pixels[y, x], pixels[y2, x2] = pixels[y2, x2], pixels[y, x]
    found = copy_nearby((height, width), distance, times, rng())
    assert np.array_equal(found, pixels.ravel())
    assert len(set(found.tolist())) < found.size  # some are lost, as in ImageNet-C
    assert copy_nearby((2, 2), 3, 1, rng()).tolist() == [0, 1, 2, 3]


def test_glass_blur_dims_fine_detail_and_keeps_the_mean():
    stripes = np.zeros((3, 96, 96), np.uint8)
    stripes[:, :, ::2] = 255
    for strength in STRENGTHS:
        made = corrupt(stripes, "glass blur", strength, rng())[:, 12:-12, 12:-12].astype(float)
        assert made.mean() == pytest.approx(127.5, abs=4)
        spectrum = np.abs(np.fft.fft2(made[0]))
        assert spectrum[0, 36] < 0.3 * 255 / 2 * 72 * 72


def test_motion_blur_drags_a_point_along_a_line(subtests):
    for strength in STRENGTHS:
        with subtests.test(strength=strength):
            point = np.zeros((1, 224, 224), np.uint8)
            point[0, 112, 112] = 255
            made = CORRUPTIONS["motion blur"].apply(floats(point), strength, rng(3))[:, :, 0]
            assert made.sum() == pytest.approx(1, rel=1e-4)
            rows, columns = np.nonzero(made)
            assert len(rows) <= 2 * MOTION[strength - 1][0] + 1
            angle = rng(3).uniform(-45, 45)
            along = np.array([np.sin(np.radians(angle)), np.cos(np.radians(angle))])
            places = np.stack([rows, columns], axis=1) - 112
            assert (
                np.abs(places @ np.array([along[1], -along[0]])).max() < 0.71
            )  # no further off the line than rounding
            weights = made[rows, columns][np.argsort(np.abs(places @ along))]
            sigma = MOTION[strength - 1][1]
            assert weights[1] / weights[0] == pytest.approx(np.exp(-0.5 / sigma**2), rel=1e-3)


def test_motion_blur_along_a_row_by_hand():
    row = np.zeros((5, 9, 1), np.float32)
    row[:, 4] = 1
    weights = np.exp(-0.5 * np.arange(3) ** 2)
    expected = np.zeros(9)
    expected[[4, 3, 2]] = weights / weights.sum()
    assert motion_blur(row, 1, 1, 0)[2, :, 0] == pytest.approx(expected, abs=1e-6)


def test_zoom_blur_against_scipy(subtests):
    """The mean of the image and of its middle, ever larger; places count from the middle of the first pixel."""
    for strength, zooms in ((1, np.arange(1, 1.11, 0.01)), (5, np.arange(1, 1.31, 0.03))):
        with subtests.test(strength=strength):
            view, middle = make_image(), (SIDE - 1) / 2
            found = view.astype(float)
            for zoom in zooms:
                places = middle + (np.arange(SIDE) - middle) / zoom
                grid = np.meshgrid(places, places, indexing="ij")
                found += np.stack(
                    [ndimage.map_coordinates(one.astype(float), grid, order=1, mode="nearest") for one in view]
                )
            made = corrupt(view, "zoom blur", strength, rng())
            assert np.abs(made - found / (len(zooms) + 1))[:, 1:-1, 1:-1].max() < 1.5


def test_snow_brightens_and_adds_bright_flakes():
    dark = grey(40, 224)
    made = [corrupt(dark, "snow", k, rng()).astype(float) for k in STRENGTHS]
    for strength, (snowy, colour) in enumerate(zip(made, [0.8, 0.7, 0.7, 0.65, 0.55], strict=True), 1):
        pale = 255 * (colour * 40 / 255 + (1 - colour) * (1.5 * 40 / 255 + 0.5))  # where nothing falls
        assert snowy.min() == pytest.approx(pale, abs=1), strength
        assert snowy.max() > pale + 60
    still = made[0] - made[0].min()
    assert np.abs(still - still[:, ::-1, ::-1]).max() <= 1  # flakes fall in two opposite directions


def test_frost_is_a_cut_of_a_texture():
    texture = frost_texture(SIDE, 2)
    assert texture.shape == (96, 96, 3)
    assert np.array_equal(texture, frost_texture(SIDE, 2))
    assert not np.array_equal(texture, frost_texture(SIDE, 3))
    assert (texture[..., 2] >= texture[..., 0]).all()  # bluish
    made = CORRUPTIONS["synthetic frost"].apply(floats(grey(0)), 3, rng(5))
    textures = [frost_texture(SIDE, number) for number in range(5)]
    cuts = (0.7 * one[y : y + SIDE, x : x + SIDE] for one in textures for y in range(33) for x in range(33))
    assert any(np.allclose(made, cut, atol=1e-5) for cut in cuts)


def test_fog_is_a_cloud_with_more_power_at_low_frequencies():
    cloud = plasma(128, 4.0, rng())
    assert (cloud.min(), cloud.max(), cloud.shape) == (0, 1, (128, 128))
    power = np.abs(np.fft.fft2(cloud - cloud.mean())) ** 2
    rings = [power[1:4, 1:4].mean(), power[8:16, 8:16].mean(), power[32:64, 32:64].mean()]
    assert rings[0] > 20 * rings[1] > 100 * rings[2]
    smooth, rough = (np.abs(np.diff(plasma(128, r, rng()), axis=0)).mean() for r in (4.0, 1.4**2))
    assert rough > 1.5 * smooth
    view = make_image()
    for strength, amount in enumerate([1.5, 2.0, 2.5, 2.5, 3.0], 1):
        most = view.max() / 255
        made = corrupt(view, "fog", strength, rng()) / 255
        cloud = (made * (most + amount) / most - view / 255) / amount  # solved for what was added
        assert np.abs(cloud - cloud[:1]).max() < 0.02  # the same in all colours
        assert cloud.min() > -0.02
        assert cloud.max() < 1.02


def test_brightness_against_pythons_own_hsv(subtests):
    for strength, more in enumerate([0.1, 0.2, 0.3, 0.4, 0.5], 1):
        with subtests.test(strength=strength):
            view = make_image(side=16)
            view[:, 0, 0] = 0
            made = corrupt(view, "brightness", strength, rng())
            for y, x in np.ndindex(16, 16):
                hue, saturation, value = colorsys.rgb_to_hsv(*(view[:, y, x] / 255))
                expected = colorsys.hsv_to_rgb(hue, saturation, min(value + more, 1))
                assert made[:, y, x] / 255 == pytest.approx(expected, abs=0.51 / 255)


def test_contrast_keeps_the_mean_and_shrinks_the_deviation(subtests):
    for strength, left in enumerate([0.4, 0.3, 0.2, 0.1, 0.05], 1):
        with subtests.test(strength=strength):
            pixels = floats(make_image())
            made = CORRUPTIONS["contrast"].apply(pixels, strength, rng())
            assert made.mean(axis=(0, 1)) == pytest.approx(pixels.mean(axis=(0, 1)), abs=1e-5)
            assert made.std(axis=(0, 1)) == pytest.approx(left * pixels.std(axis=(0, 1)), rel=1e-3)


def test_elastic_against_scipy(subtests):
    """The published settings: displacement, smoothing and affine move in 244ths of the side, at 224 pixels."""
    settings = [(2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02)]
    pixels, size, scale = floats(make_image()), (SIDE, SIDE), SIDE / 224
    for strength, (far, smoothing, corner) in enumerate(settings, 1):
        with subtests.test(strength=strength):
            made, draw = elastic(pixels, strength, rng(7)), rng(7)
            back = affine_back(size, 244 * corner * scale, draw)
            noise, sigma = draw.uniform(-1, 1, (SIDE, SIDE, 2)), 244 * smoothing * scale
            moves = ndimage.gaussian_filter(noise, (sigma, sigma, 0), mode="reflect", truncate=3)
            places = np.indices(size) + (moves * 244 * far * scale**2).transpose(2, 0, 1)
            places = np.einsum("ij,jhw->ihw", back, np.concatenate([places, np.ones((1, *size))]))
            for channel in range(3):
                expected = ndimage.map_coordinates(pixels[:, :, channel].astype(float), places, order=1, mode="mirror")
                assert made[:, :, channel] == pytest.approx(expected, abs=2e-3)


def test_an_affine_map_takes_moved_points_back():
    draw = rng(1)
    back = affine_back((60, 90), 10, draw)
    points = np.array([[50, 65], [10, 65], [10, 25]])
    moved = points + rng(1).uniform(-10, 10, (3, 2))
    assert np.column_stack([moved, np.ones(3)]) @ back.T == pytest.approx(points, abs=1e-3)


def test_look_up_on_the_grid_is_the_image():
    pixels = floats(make_image())
    rows, columns = np.indices((SIDE, SIDE), dtype=np.float32)
    assert np.array_equal(sample_bilinear(pixels, rows, columns), pixels)
    assert sample_bilinear(pixels, -rows, columns + 0) == pytest.approx(pixels)  # mirrored


def test_pixelate_makes_blocks_of_their_mean():
    view = make_image(side=64)
    made = corrupt(view, "pixelate", 5, rng())  # a quarter of the pixels along each side: blocks of 4
    blocks = made.reshape(3, 16, 4, 16, 4)
    assert (blocks == blocks[:, :, :1, :, :1]).all()
    means = view.reshape(3, 16, 4, 16, 4).mean(axis=(2, 4))
    assert np.abs(blocks[:, :, 0, :, 0] - means).max() <= 1


def test_jpeg_is_what_pillow_reads_back(subtests):
    for strength, quality in enumerate([25, 18, 15, 10, 7], 1):
        with subtests.test(strength=strength):
            view, buffer = make_image(), io.BytesIO()
            Image.fromarray(view.transpose(1, 2, 0)).save(buffer, "JPEG", quality=quality)
            expected = np.asarray(Image.open(buffer)).transpose(2, 0, 1)
            assert np.array_equal(corrupt(view, "jpeg", strength, rng()), expected)


def test_lengths_are_scaled_to_the_image():
    """A blur of an image twice as large reaches twice as far: both, at one size, are about the same."""
    small = make_image(side=112)
    large = np.asarray(Image.fromarray(small.transpose(1, 2, 0)).resize((448, 448), Image.Resampling.BICUBIC))
    for kind in ("defocus blur", "motion blur", "zoom blur"):
        made = corrupt(large.transpose(2, 0, 1).copy(), kind, 4, rng(2)).transpose(1, 2, 0)
        shrunk = np.asarray(Image.fromarray(made).resize((112, 112), Image.Resampling.BOX)).transpose(2, 0, 1)
        assert np.abs(shrunk - corrupt(small, kind, 4, rng(2)).astype(float)).mean() < 2.0, kind


def test_a_image_meets_the_same_chance_wherever_it_is(tmp_path):
    for name in "abc":
        Image.fromarray(make_image(ord(name)).transpose(1, 2, 0)).save(tmp_path / f"{name}.png")
    source = FolderSource(tmp_path, Names(["a.png", "b.png", "c.png"]), np.zeros(3, np.int64), ("x",))
    preprocess = Preprocess(size=(32, 32))
    whole = CorruptionMaker(source, preprocess, ("shot noise", "snow"), (1, 4), 0).make(2).views
    alone = CorruptionMaker(source.subset([2]), preprocess, ("snow",), (4,), 0).make(0).views
    assert whole is not None
    assert alone is not None
    assert whole.shape == (5, 3, 32, 32)
    assert np.array_equal(whole[0], make_view(tmp_path / "c.png", preprocess).numpy())
    assert np.array_equal(alone, whole[[0, 4]])
