from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from support.images import noise, smooth
from vitreous.config.data import Augment, Preprocess, View
from vitreous.data.augment import (
    _POLICY_CHANGES,
    apply_policy,
    cut_views,
    eval_view,
    mean_colour,
    normalise,
    random_box,
    resample,
    shrink,
    train_view,
)
from vitreous.data.augment_ops import change_colours
from vitreous.data.rng import generator

GREY = Preprocess(size=(32, 32), mean=(0.3,), std=(0.2,))


def by_hand(image: Image.Image, short: int, size: int, how: Image.Resampling) -> np.ndarray:
    """torchvision's Resize(short) and CenterCrop(size), written out."""
    width, height = image.size
    if width <= height:
        image = image.resize((short, int(short * height / width)), how)
    else:
        image = image.resize((int(short * width / height), short), how)
    width, height = image.size
    left, top = round((width - size) / 2.0), round((height - size) / 2.0)
    return np.asarray(image.crop((left, top, left + size, top + size))).transpose(2, 0, 1)


def test_evaluation_is_a_resize_and_a_centre_crop(subtests):
    for shape in ((240, 345), (345, 240), (100, 100), (50, 201), (33, 20)):
        for crop, short in ((1.0, 64), (0.9, 71), (0.875, 73)):
            with subtests.test(shape=shape, crop=crop):
                image = smooth(*shape)
                for how, pil in (("bicubic", Image.Resampling.BICUBIC), ("bilinear", Image.Resampling.BILINEAR)):
                    view = eval_view(image, Preprocess(size=(64, 64), crop=crop, interpolation=how))
                    assert view.shape == (3, 64, 64)
                    assert view.dtype == torch.uint8
                    expected = by_hand(image, short, 64, pil)
                    np.testing.assert_array_equal(view.numpy(), expected)


def test_a_image_of_the_right_size_is_not_touched():
    pixels = noise(32, 32)
    view = eval_view(Image.fromarray(pixels), Preprocess(size=(32, 32)))
    np.testing.assert_array_equal(view.numpy(), pixels.transpose(2, 0, 1))
    grey = noise(32, 32, 1)
    np.testing.assert_array_equal(eval_view(Image.fromarray(grey), GREY).numpy()[0], grey)


def test_inputs_that_are_not_square():
    view = eval_view(smooth(100, 100), Preprocess(size=(32, 64)))
    assert view.shape == (3, 32, 64)
    expected = np.asarray(smooth(100, 100).resize((64, 64), Image.Resampling.BICUBIC).crop((0, 16, 64, 48)))
    np.testing.assert_array_equal(view.numpy(), expected.transpose(2, 0, 1))


def test_a_strip_beyond_all_measure_is_seen_too():
    """Resized as a whole it would take gigabytes; so only its middle is, one pixel of a million."""
    pixels = np.full((1, 2_000_001), 10, np.uint8)
    pixels[0, 1_000_000] = 200
    view = eval_view(Image.fromarray(pixels), replace(GREY, interpolation="nearest"))
    assert view.shape == (1, 32, 32)
    assert (view == 200).all(), "the pixel in the middle"


def test_normalise_is_the_formula():
    images = torch.from_numpy(noise(8, 8, 3)).permute(2, 0, 1)[None]
    preprocess = Preprocess(size=(8, 8), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    exact = (images.double() / 255 - torch.tensor(preprocess.mean)[:, None, None].double()) / torch.tensor(
        preprocess.std
    )[:, None, None].double()
    found = normalise(images, preprocess)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), exact, atol=1e-6, rtol=0)
    floats = images.float()
    torch.testing.assert_close(normalise(floats, preprocess), found)
    assert floats.equal(images.float())  # the input is left alone
    flat = torch.full((1, 3, 2, 2), 0) + mean_colour(preprocess)[:, None, None]
    assert normalise(flat, preprocess).abs().max() < 0.01


def test_resampling_agrees_with_pillow():
    image = smooth(240, 320)
    for box in ((10, 20, 100, 150), (0, 0, 240, 320), (100, 100, 40, 40)):
        top, left, height, width = box
        for how, pil in (("bicubic", Image.Resampling.BICUBIC), ("bilinear", Image.Resampling.BILINEAR)):
            found = resample(np.array(image), box, Preprocess(size=(96, 96), interpolation=how))
            expected = image.crop((left, top, left + width, top + height)).resize((96, 96), pil)
            apart = np.abs(found.permute(1, 2, 0).numpy().astype(int) - np.asarray(expected))
            assert apart.max() <= 2
            assert (apart > 1).mean() < 1e-3


def test_random_boxes_have_the_asked_area_and_ratio_and_lie_inside():
    boxes = [random_box(240, 320, (0.25, 1.0), (3 / 4, 4 / 3), generator(0, 0, i)) for i in range(3000)]
    top, left, height, width = np.array(boxes).T
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + height <= 240).all()
    assert (left + width <= 320).all()
    area, ratio = height * width / (240 * 320), width / height
    assert area.min() > 0.24
    assert 0.9 < area.max() <= 1
    assert 0.74 < ratio.min() < 0.77
    assert 1.3 < ratio.max() < 1.35
    small = [random_box(240, 320, (0.1, 0.2), (3 / 4, 4 / 3), generator(1, 0, i)) for i in range(3000)]
    top, left, height, width = np.array(small).T
    np.testing.assert_allclose((height * width / (240 * 320)).mean(), 0.15, atol=0.003)
    np.testing.assert_allclose((top / (240 - height)).mean(), 0.5, atol=0.02)
    np.testing.assert_allclose((left / (320 - width)).mean(), 0.5, atol=0.02)
    # nothing fits a long strip: the largest centred box of a permitted ratio
    assert random_box(10, 1000, (0.9, 1.0), (3 / 4, 4 / 3), generator(0, 0, 0)) == (0, 493, 10, 13)


def test_a_training_view_is_its_crop_mirrored_or_not():
    image, preprocess = smooth(60, 80), Preprocess(size=(32, 32))
    augment = Augment()
    mirrored = 0
    for i in range(40):
        view, shares, flipped = train_view(image, preprocess, augment, generator(5, 0, i))
        box = random_box(60, 80, (0.25, 1.0), (3 / 4, 4 / 3), generator(5, 0, i))
        plain = resample(np.array(image), box, preprocess)
        assert view.equal(plain.flip(2) if flipped else plain)
        assert not view.equal(plain if flipped else plain.flip(2))
        assert shares == pytest.approx((box[0] / 60, box[1] / 80, box[2] / 60, box[3] / 80))
        mirrored += flipped
    assert 10 <= mirrored <= 30
    without = replace(augment, flip=False)
    cuts = [train_view(kind, preprocess, without, generator(5, 0, 1)) for kind in (image, np.array(image))]
    assert cuts[0].pixels.equal(cuts[1].pixels)
    assert cuts[0][1:] == cuts[1][1:]
    assert not cuts[0].flipped


def test_shifts_reflect_the_border():
    pixels = noise(8, 8)
    padded = np.pad(pixels, ((2, 2), (2, 2), (0, 0)), mode="reflect").transpose(2, 0, 1)
    allowed = {padded[:, y : y + 8, x : x + 8].tobytes() for y in range(5) for x in range(5)}
    augment = Augment(crop_scale=None, pad=2, flip=False)
    found = {
        train_view(pixels, Preprocess(size=(8, 8)), augment, generator(0, 0, i)).pixels.contiguous().numpy().tobytes()
        for i in range(300)
    }
    assert found == allowed


def test_erasing_replaces_a_rectangle_by_the_mean():
    black = np.zeros((32, 32), dtype=np.uint8)
    for probability, expected in ((1.0, 200), (0.0, 0)):
        augment = Augment(crop_scale=None, pad=0, flip=False, erase=probability)
        shares = []
        for i in range(200):
            view = train_view(black, GREY, augment, generator(0, 0, i)).pixels[0]
            hole = view != 0
            if hole.any():
                assert set(view[hole].tolist()) == {round(0.3 * 255)}
                rows, columns = hole.any(1).nonzero(), hole.any(0).nonzero()
                height, width = int(rows[-1] - rows[0] + 1), int(columns[-1] - columns[0] + 1)
                assert int(hole.sum()) == height * width
                shares.append(height * width / 1024)
        assert len(shares) == expected
        if shares:
            assert min(shares) > 0.01
            assert max(shares) < 0.35


def test_jitter_is_pillows_three_changes_in_a_row():
    """To within Pillow's rounding after each."""
    image = smooth(20, 30)
    draws = 1 + 0.4 * (2 * generator(0, 0, 0).random(3) - 1)
    expected = ImageEnhance.Brightness(image).enhance(draws[0])
    expected = ImageEnhance.Contrast(expected).enhance(draws[1])
    expected = np.asarray(ImageEnhance.Color(expected).enhance(draws[2]))
    augment = Augment(crop_scale=None, pad=0, flip=False, jitter=0.4)
    found = train_view(image, Preprocess(size=(20, 30)), augment, generator(0, 0, 0)).pixels
    assert np.abs(found.permute(1, 2, 0).numpy().astype(int) - expected).max() <= 3


def test_one_image_and_a_batch_are_changed_alike():
    """With the same random numbers, by colours, shift and erasing: a batch only rounds later."""
    image, preprocess = smooth(24, 24), Preprocess(size=(24, 24))
    stacked = torch.from_numpy(np.asarray(image).transpose(2, 0, 1).copy())[None]
    for changes in ({"jitter": 0.4}, {"tint": 0.5}, {"grey": 1.0}, {"jitter": 0.3, "tint": 0.2, "grey": 0.5}):
        augment, rng = Augment(crop_scale=None, pad=0, flip=False, **changes), generator(1, 0, 0)
        view = train_view(image, preprocess, augment, generator(1, 0, 0)).pixels
        counts = (3 * ("jitter" in changes), 3 * ("tint" in changes), 1 * ("grey" in changes))
        numbers = [rng.random((1, count)) for count in counts]
        assert view.equal(change_colours(stacked, augment, *numbers)[0].round().to(torch.uint8))


def test_policies_change_images_in_many_ways_and_keep_their_form(subtests):
    for policy in ("randaugment", "trivial"):
        for channels in (1, 3):
            with subtests.test(policy=policy, channels=channels):
                preprocess = Preprocess(size=(32, 32), mean=(0.5,) * channels, std=(0.5,) * channels)
                image = smooth(32, 32) if channels == 3 else smooth(32, 32).convert("L")
                augment = Augment(policy=policy, crop_scale=None, pad=0, flip=False)
                views = [train_view(image, preprocess, augment, generator(0, 0, i)).pixels for i in range(100)]
                assert {view.shape for view in views} == {(channels, 32, 32)}
                assert len({view.contiguous().numpy().tobytes() for view in views}) > 40


def test_changes_of_strength_zero_are_none():
    image, fill = smooth(32, 32), (1, 2, 3)
    for change in (change for change, usual, _, _ in _POLICY_CHANGES if usual):
        assert np.abs(np.asarray(change(image, 0.0, fill)).astype(int) - np.asarray(image)).max() == 0
    moved = _POLICY_CHANGES[6][0](image, 0.5, fill)  # half the width to the left, and the rest filled
    np.testing.assert_array_equal(np.asarray(moved)[:, :15], np.asarray(image)[:, 16:31])
    assert np.asarray(moved)[5, 20].tolist() == [1, 2, 3]
    assert _POLICY_CHANGES[9][0](image, 1.0, fill) == ImageOps.invert(image)
    assert _POLICY_CHANGES[8][0](image, 4.0, fill) == ImageOps.posterize(image, 4)
    none = Augment(policy="randaugment", layers=0)
    assert apply_policy(image, Preprocess(), none, generator(0, 0, 0)) == image


def test_shrinking():
    image = smooth(300, 400)
    small = shrink(image, 100)
    assert small.shape == (100, 133, 3)
    expected = np.asarray(image.resize((133, 100), Image.Resampling.BICUBIC))
    np.testing.assert_allclose(small.astype(int), expected, atol=1)
    np.testing.assert_array_equal(shrink(image, 300), np.asarray(image))
    assert shrink(image.convert("L"), 100).shape == (100, 133, 1)


def test_another_light_changes_each_colour_by_a_factor_of_its_own():
    image = np.full((8, 8, 3), 100, dtype=np.uint8)
    augment = Augment(crop_scale=None, pad=0, flip=False, tint=0.3)
    views = [train_view(image, Preprocess(size=(8, 8)), augment, generator(0, 0, i)).pixels for i in range(100)]
    seen = torch.stack(views)[:, :, 0, 0].float()
    assert all((view == view[:, :1, :1]).all() for view in views)
    assert 70 <= seen.min() < 75
    assert 125 < seen.max() <= 130
    assert torch.corrcoef(seen.T).fill_diagonal_(0).abs().max() < 0.35


def test_views_of_several_kinds_each_have_their_own_chance():
    image, preprocess, augment = smooth(100, 120), Preprocess(size=(48, 48)), Augment()
    key = {"seed": 0, "epoch": 1, "index": 2}

    def cut(**changes):
        views = {"global": View(2, (0.4, 1.0)), "local": View(3, (0.05, 0.4), (24, 24)), **changes}
        return cut_views(image, preprocess, augment, views, **key)

    found = cut()
    assert list(found) == ["global", "local"]
    assert [view.pixels.shape for view in found["global"]] == [(3, 48, 48)] * 2
    assert [view.pixels.shape for view in found["local"]] == [(3, 24, 24)] * 3
    # numbered through: the views of the second kind go on where those of the first end
    wide, narrow = replace(augment, crop_scale=(0.4, 1.0)), replace(augment, crop_scale=(0.05, 0.4))
    ways = [(preprocess, wide)] * 2 + [(replace(preprocess, size=(24, 24)), narrow)] * 3
    for number, (view, way) in enumerate(zip(found["global"] + found["local"], ways, strict=True)):
        alone = train_view(image, *way, generator(0, 1, 2, number))
        assert view.pixels.equal(alone.pixels)
        assert view[1:] == alone[1:]
    assert not found["global"][0].pixels.equal(found["global"][1].pixels)
    more = cut(local=View(5, (0.05, 0.4), (24, 24)))
    assert all(a.pixels.equal(b.pixels) for a, b in zip(found["local"], more["local"], strict=False))
    coarse = cut(**{"global": View(2, (0.4, 1.0), (36, 36))})
    assert [view.pixels.shape for view in coarse["global"]] == [(3, 36, 36)] * 2
    assert [view.box for view in coarse["global"]] == [view.box for view in found["global"]]
    assert list(cut(local=View(0, (0.05, 0.4), (24, 24)))) == ["global"]
