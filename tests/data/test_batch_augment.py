from dataclasses import replace

import numpy as np
import torch
from PIL import Image

from support.images import noise, smooth
from vitreous.config.data import Augment, Preprocess, View
from vitreous.data.augment import eval_view, train_view
from vitreous.data.augment_ops import TRIES
from vitreous.data.batch_augment import cut_batch, eval_batch, random_boxes, to_channels, train_batch
from vitreous.data.rng import generator, uniforms

SIZE = Preprocess(size=(16, 16))


def stack(count: int, side: int = 16) -> torch.Tensor:
    images = [np.asarray(smooth(side, side, seed=i)).transpose(2, 0, 1) for i in range(count)]
    return torch.from_numpy(np.stack(images))


def views(images: torch.Tensor, augment: Augment, preprocess: Preprocess = SIZE, **key: int) -> torch.Tensor:
    return train_batch(images, np.arange(len(images)), preprocess, augment, **{"seed": 0, "epoch": 0, **key}).images


def test_evaluation_agrees_with_the_single_image():
    images = stack(4, 20)
    for preprocess in (SIZE, Preprocess(size=(32, 32), crop=0.9), Preprocess(size=(20, 20)), Preprocess(size=(10, 16))):
        found = eval_batch(images, preprocess)
        for i in range(4):
            single = eval_view(Image.fromarray(images[i].permute(1, 2, 0).contiguous().numpy()), preprocess)
            np.testing.assert_array_equal(found[i].numpy(), single.numpy())


def test_channels_convert_as_in_pillow():
    pixels = noise(64, 64)
    found = to_channels(torch.from_numpy(pixels).permute(2, 0, 1)[None], 1)
    np.testing.assert_array_equal(found[0, 0].numpy(), np.asarray(Image.fromarray(pixels).convert("L")))
    assert to_channels(found, 3).shape == (1, 3, 64, 64)


def test_a_sample_is_the_same_in_any_company(subtests):
    for augment in (
        Augment(),
        Augment(crop_scale=None),
        Augment(crop_scale=None, jitter=0.4, erase=0.5),
        Augment(jitter=0.4, erase=0.5),
    ):
        with subtests.test(augment=augment):
            images = stack(12)
            cuts = train_batch(images, np.arange(12), SIZE, augment, seed=0, epoch=3)
            some = np.array([7, 2, 11])
            part = train_batch(images[some], some, SIZE, augment, seed=0, epoch=3)
            for own, all_of_it in zip(part, cuts, strict=True):
                assert own.equal(all_of_it[some])
            whole = cuts.images
            assert not views(images, augment, epoch=4).equal(whole)
            assert not views(images, augment, epoch=3, seed=1).equal(whole)
            assert not views(images, augment, epoch=3, view=1).equal(whole)


def test_shifts_and_mirrors_are_exactly_those_of_padding():
    pixels = noise(8, 8).transpose(2, 0, 1)
    padded = np.pad(pixels, ((0, 0), (2, 2), (2, 2)), mode="reflect")
    plain = [padded[:, y : y + 8, x : x + 8] for y in range(5) for x in range(5)]
    allowed = {view.tobytes() for view in plain} | {view[:, :, ::-1].tobytes() for view in plain}
    images = torch.from_numpy(pixels)[None].expand(600, -1, -1, -1)
    found = views(images, Augment(crop_scale=None, pad=2), Preprocess(size=(8, 8)))
    assert found.dtype == torch.uint8
    assert {view.contiguous().numpy().tobytes() for view in found} == allowed


def test_boxes_are_drawn_as_for_single_images():
    """The same distribution, from other numbers: compared by their means and spread."""
    from vitreous.data.augment import random_box

    arguments = (48, 64, (0.2, 0.9), (3 / 4, 4 / 3))
    many = np.stack(random_boxes(uniforms(0, 0, np.arange(4000), 2 * TRIES + 2), *arguments), axis=1)
    single = np.array([random_box(*arguments, generator(0, 0, i)) for i in range(4000)])
    np.testing.assert_allclose(many.mean(0), single.mean(0), atol=0.6)
    np.testing.assert_allclose(many.std(0), single.std(0), atol=0.6)
    assert (many[:, 0] + many[:, 2]).max() == 48
    assert (many[:, 1] + many[:, 3]).max() == 64
    strip = random_boxes(uniforms(0, 0, np.arange(2), 2 * TRIES + 2), 10, 1000, (0.9, 1.0), (3 / 4, 4 / 3))
    assert [side.tolist() for side in strip] == [[0, 0], [493, 493], [10, 10], [13, 13]]


def test_random_crops_are_what_pillow_would_cut():
    """Upsampled crops: one bilinear lookup is Pillow's bilinear resize of the same box."""
    images = stack(50, 16)
    preprocess = Preprocess(size=(32, 32), interpolation="bilinear")
    found = views(images, Augment(flip=False), preprocess)
    boxes = random_boxes(uniforms(0, 0, np.arange(50), 2 * TRIES + 2), 16, 16, (0.25, 1.0), (3 / 4, 4 / 3))
    for i, (top, left, height, width) in enumerate(zip(*boxes, strict=True)):
        image = Image.fromarray(images[i].permute(1, 2, 0).contiguous().numpy())
        box = (left, top, left + width, top + height)
        expected = np.asarray(image.resize((32, 32), Image.Resampling.BILINEAR, box=box)).transpose(2, 0, 1)
        np.testing.assert_allclose(found[i].numpy(), expected, atol=1.1)
    mirrored = views(images, Augment(), preprocess)
    flips = [torch.allclose(a, b.flip(2), atol=1e-2) for a, b in zip(mirrored, found, strict=True)]
    assert 10 < sum(flips) < 40
    assert all(flip or torch.allclose(a, b, atol=1e-2) for flip, a, b in zip(flips, mirrored, found, strict=True))


def test_jitter_agrees_with_pillow():
    from PIL import ImageEnhance

    images = stack(20)
    found = views(images, Augment(crop_scale=None, pad=0, flip=False, jitter=0.5))
    draws = uniforms(0, 0, np.arange(20), 2 * TRIES + 6)[:, 2 * TRIES + 3 :]
    for i in range(20):
        image = Image.fromarray(images[i].permute(1, 2, 0).contiguous().numpy())
        for enhance, draw in zip(
            (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color), draws[i], strict=True
        ):
            image = enhance(image).enhance(1 + 0.5 * (2 * draw - 1))
        np.testing.assert_allclose(found[i].numpy(), np.asarray(image).transpose(2, 0, 1), atol=3.5)


def test_erasing_replaces_rectangles_of_some():
    black = torch.zeros(400, 1, 16, 16, dtype=torch.uint8)
    preprocess = Preprocess(size=(16, 16), mean=(0.5,), std=(0.5,))
    found = views(black, Augment(crop_scale=None, pad=0, erase=0.25), preprocess)
    holes = (found == 128)[:, 0]
    assert ((found == 0) | (found == 128)).all()
    erased = holes.flatten(1).any(1)
    assert 70 < int(erased.sum()) < 130
    rows, columns = holes.any(2).sum(1), holes.any(1).sum(1)
    assert (holes.flatten(1).sum(1) == rows * columns).all()


def test_small_images_need_no_python_each():
    """Whole batches give what single views would give, in distribution: the mean image agrees."""
    images = stack(1).expand(2000, -1, -1, -1)
    batch = views(images, Augment()).mean(0)
    image = images[0].permute(1, 2, 0).contiguous().numpy()
    single = (
        torch.stack([train_view(image, SIZE, Augment(), generator(0, 0, i)).pixels for i in range(2000)])
        .float()
        .mean(0)
    )
    assert (batch - single).abs().mean() < 2


def test_several_views_are_single_views_with_their_own_chance_and_area():
    images, augment = stack(5), Augment(jitter=0.2, grey=0.3)

    def cut(**changes):
        kinds = {"global": View(2, (0.5, 1.0)), "local": View(3, (0.05, 0.4), (8, 8)), **changes}
        return cut_batch(images, np.arange(5), SIZE, augment, kinds, seed=0, epoch=2)

    def single(scale, side, view):
        size, varied = replace(SIZE, size=(side, side)), replace(augment, crop_scale=scale)
        return train_batch(images, np.arange(5), size, varied, seed=0, epoch=2, view=view)

    found = cut()
    large, small = found["global"], found["local"]
    assert [tensor.shape for tensor in large] == [(5, 2, 3, 16, 16), (5, 2, 4), (5, 2)]
    assert [tensor.shape for tensor in small] == [(5, 3, 3, 8, 8), (5, 3, 4), (5, 3)]
    for cuts, number, alone in (
        (large, 1, single((0.5, 1.0), 16, 1)),
        (small, 2, single((0.05, 0.4), 8, 4)),
        (cut(**{"global": View(2, (0.5, 1.0), (12, 12))})["global"], 1, single((0.5, 1.0), 12, 1)),
    ):
        for several, one in zip(cuts, alone, strict=True):
            assert several[:, number].equal(one)
    assert list(cut(local=View(0, (0.05, 0.4), (8, 8)))) == ["global"]


def test_another_light_changes_each_colour_by_a_factor_of_its_own():
    plain = views(stack(200), Augment(crop_scale=None, pad=0)).float()
    found = views(stack(200), Augment(crop_scale=None, pad=0, tint=0.2))
    gains = (found / plain.clamp(min=1)).flatten(2).median(dim=2).values  # (B, C); the median knows no clipping
    expected = (plain * gains[:, :, None, None]).clamp(0, 255)
    assert (found - expected).abs().max() < 0.01
    assert 0.8 <= gains.min() < 0.83
    assert 1.17 < gains.max() <= 1.2
    assert torch.corrcoef(gains.T).fill_diagonal_(0).abs().max() < 0.25


def test_some_lose_their_colours():
    found = views(stack(400), Augment(crop_scale=None, pad=0, grey=0.3))
    grey = (found[:, 0] - found[:, 2]).abs().amax(dim=(1, 2)) < 1e-3
    assert 0.2 < grey.float().mean() < 0.4
    plain = views(stack(400), Augment(crop_scale=None, pad=0)).float()
    assert torch.equal(found[~grey], plain[~grey])  # and nothing else changes
    luma = (plain * torch.tensor([0.299, 0.587, 0.114])[:, None, None]).sum(1)
    torch.testing.assert_close(found[grey][:, 1], luma[grey], atol=0.01, rtol=0)
