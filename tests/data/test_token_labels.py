"""Token labels stay with their pixels: through crop, mirror, shift, resize and every mixing, by NumPy and by colour."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitreous import UserError, ViTConfig
from vitreous.config.bit import BiTConfig
from vitreous.config.data import Augment, Preprocess
from vitreous.config.train import Training
from vitreous.data.batch import Batch, ViewBatch
from vitreous.data.batch_augment import mix
from vitreous.data.collate import BatchMaker, ImageMaker
from vitreous.data.loader import Loader
from vitreous.data.opening import open_data
from vitreous.data.packed import ArraySource
from vitreous.data.rng import MIX, generator
from vitreous.data.token_labels import TokenLabels

CORNERS = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255], [0, 0, 0]], np.uint8)
"""The colours of the four classes: the mean colour of a patch says how much of each is in it."""
HEIGHT, WIDTH = 64, 96


class Maps:
    """Score maps in memory."""

    def __init__(self, maps):
        self.maps = torch.as_tensor(np.asarray(maps), dtype=torch.float32)

    def read(self, index):
        return self.maps[index]


def quadrants(turn, height, width):
    """(height, width) the class of each place; `turn` says which class is at the upper left, the others follow."""
    rows, columns = np.mgrid[:height, :width]
    return (2 * (rows >= height / 2) + (columns >= width / 2) + turn) % 4


# Against a literal RoI-align


def roi_align(scores, box, flipped, patches, samples, frame=None):
    """(down, across, K) of a map (h, w, K): for each patch of a view, the mean of bilinear samples, one by one.

    frame: (top, left, height, width as shares, and the view's pixels) beyond which an image is reflected.
    """
    h, w, classes = scores.shape
    out = np.zeros((*patches, classes))
    for r in range(patches[0]):
        for c in range(patches[1]):
            for i in range(samples[0]):
                for j in range(samples[1]):
                    v = (r + (i + 0.5) / samples[0]) / patches[0]
                    u = (c + (j + 0.5) / samples[1]) / patches[1]
                    u = 1 - u if flipped else u
                    y, x = box[0] + box[2] * v, box[1] + box[3] * u
                    if frame is not None:
                        y = bounce(y, frame[0], frame[2], frame[4])
                        x = bounce(x, frame[1], frame[3], frame[5])
                    y, x = min(max(y * h - 0.5, 0), h - 1), min(max(x * w - 0.5, 0), w - 1)
                    top, left = min(int(y), h - 2) if h > 1 else 0, min(int(x), w - 2) if w > 1 else 0
                    down, right = min(top + 1, h - 1), min(left + 1, w - 1)
                    a, b = y - top, x - left
                    out[r, c] += (1 - a) * ((1 - b) * scores[top, left] + b * scores[top, right])
                    out[r, c] += a * ((1 - b) * scores[down, left] + b * scores[down, right])
    return out / (samples[0] * samples[1])


def bounce(place, start, length, pixels):
    """Mirrored at the middle of the first and of the last pixel."""
    first, last = start + 0.5 * length / pixels, start + length - 0.5 * length / pixels
    if place < first:
        return 2 * first - place
    return 2 * last - place if place > last else place


def view_batch(boxes, flipped, size):
    count = len(boxes)
    images = torch.zeros(count, 1, 3, *size)
    return ViewBatch(images, torch.tensor(boxes)[:, None].float(), torch.tensor(flipped)[:, None])


def test_cutting_a_map_is_roi_align(subtests):
    for shape in ((8, 8), (3, 5), (14, 2), (1, 1)):
        with subtests.test(shape=shape):
            draw = np.random.default_rng(0)
            scores = draw.dirichlet(np.ones(3), (4, *shape))
            boxes = [[0.0, 0.0, 1.0, 1.0], [0.25, 0.1, 0.5, 0.7], [0.4, 0.0, 0.6, 0.3], [0.9, 0.85, 0.1, 0.15]]
            flipped = [False, True, False, True]
            found = TokenLabels(Maps(scores), 4, reflected=False).cut(
                torch.arange(4), view_batch(boxes, flipped, (16, 20))
            )
            assert found.shape == (4, 20, 3)
            samples = max(2, math.ceil(shape[0] / 4)), max(2, math.ceil(shape[1] / 5))
            for i in range(4):
                expected = roi_align(scores[i], boxes[i], flipped[i], (4, 5), samples).reshape(20, 3)
                np.testing.assert_allclose(found[i], expected, atol=1e-6)
            np.testing.assert_allclose(found.sum(2), 1, atol=1e-6)


def test_a_shifted_view_is_reflected_at_the_border_of_what_evaluation_sees(subtests):
    for seen in ((0.0, 0.0, 1.0, 1.0), (0.0, 0.2, 1.0, 0.6), (0.05, 0.05, 0.9, 0.9)):
        with subtests.test(seen=seen):
            draw = np.random.default_rng(1)
            scores = draw.dirichlet(np.ones(4), (3, 6, 9))
            y, x, h, w = seen
            boxes = [[y - h * 3 / 16, x + w * 2 / 16, h, w], [y + h * 4 / 16, x - w / 16, h, w], [y, x, h, w]]
            flipped = [True, False, True]
            found = TokenLabels(Maps(scores), 4, reflected=True).cut(
                torch.arange(3), view_batch(boxes, flipped, (16, 16))
            )
            for i in range(3):
                expected = roi_align(scores[i], boxes[i], flipped[i], (4, 4), (2, 3), frame=(*seen, 16, 16))
                np.testing.assert_allclose(found[i], expected.reshape(16, 4), atol=1e-6)


def test_the_last_patch_of_a_padded_image_is_labelled_by_the_pixels_that_it_has():
    """18 pixels in patches of 4: the fifth has two columns of pixels, and two of padding."""
    columns = np.arange(18)
    scores = np.zeros((1, 1, 18, 2))
    scores[0, 0, :, 0], scores[0, 0, :, 1] = columns >= 16, columns < 16
    found = TokenLabels(Maps(scores), 4, reflected=False).cut(
        torch.tensor([0]), view_batch([[0.0, 0.0, 1.0, 1.0]], [False], (4, 18))
    )
    np.testing.assert_allclose(found[0, -1], [1, 0], atol=0.15)  # samples reach into the neighbour by a half
    np.testing.assert_allclose(found[0, :3, 1], 1)


# Through the loader: the colour of a patch is its label


@pytest.fixture(params=["single", "batch"])
def source(request: pytest.FixtureRequest, tmp_path: Path):
    """Images of four quadrants, each turned otherwise: in files, or in memory."""
    count = 16
    pixels = [CORNERS[quadrants(i, HEIGHT, WIDTH)] for i in range(count)]
    if request.param == "batch":
        images = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2)
        return ArraySource("quadrants", images, np.arange(count) % 4, tuple("abcd"))
    for i in range(count):
        (tmp_path / "abcd"[i % 4]).mkdir(exist_ok=True)
        Image.fromarray(pixels[i]).save(tmp_path / "abcd"[i % 4] / f"{i:02}.png")
    return open_data(tmp_path).train


def turns(source):
    """Which class is at the upper left, by the images' own pixels."""
    corner = [np.asarray(source.read(i))[0, 0] for i in range(len(source))]
    return [int(np.flatnonzero((colour == CORNERS).all(1))[0]) for colour in corner]


def labelled(source, augment, size=(48, 64), patch=8):
    """A loader whose images have a map with one cell for each pixel."""
    loader = Loader(source, Preprocess(size=size, interpolation="bilinear"), augment, batch_size=8, patch=patch)
    assert isinstance(loader._maker, ImageMaker if "#" not in source.name(0) else BatchMaker)
    maps = [np.eye(4)[quadrants(turn, HEIGHT, WIDTH)] for turn in turns(source)]
    loader.token_labels = TokenLabels(Maps(maps), patch, reflected=augment.crop_scale is None)
    return loader


def seen_colours(images, patch):
    """(B, N, 4): how much of each class's colour the pixels of each patch have."""
    light = (images.double().numpy() * 0.5 + 0.5).clip(0, 1)
    b, _, h, w = light.shape
    mean = light.reshape(b, 3, h // patch, patch, w // patch, patch).mean(axis=(3, 5)).reshape(b, 3, -1)
    return np.concatenate([mean, 1 - mean.sum(axis=1, keepdims=True)], axis=1).transpose(0, 2, 1)


WAYS = {
    "crop": Augment(flip=False),
    "mirror": Augment(crop_scale=(1.0, 1.0), crop_ratio=(1.5, 1.5)),
    "crop and mirror": Augment(crop_scale=(0.1, 0.6)),
    "shift": Augment(crop_scale=None, pad=7),
    "mixup": Augment(mixup=0.8),
    "cutmix": Augment(cutmix=1.0),
    "mixtoken": Augment(mixtoken=1.0),
    "all": Augment(crop_scale=(0.2, 1.0), mixup=0.8, cutmix=1.0, mixtoken=1.0),
    "shift and cutmix": Augment(crop_scale=None, pad=5, cutmix=1.0),
}


def test_the_label_of_a_patch_is_what_its_pixels_show(source, subtests):
    for way, augment in WAYS.items():
        with subtests.test(way):
            loader = labelled(source, augment)
            wrong, patches = [], set()
            for epoch in range(3):
                for batch in loader.batches(epoch):
                    assert batch.token_targets.dtype == torch.float32
                    np.testing.assert_allclose(batch.token_targets.sum(2), 1, atol=1e-5)
                    wrong.append(np.abs(seen_colours(batch.images, 8) - batch.token_targets.numpy()))
                    patches |= set(map(tuple, batch.token_targets.flatten(0, 1).round(decimals=2).tolist()))
            assert len(patches) >= 4  # not all alike
            wrong = np.concatenate(wrong)
            # On an edge, by samples and by a resampling filter; a patch that CutMix cut through has the mean labels of
            # both images, whichever part of it is whose.
            assert wrong.max() < (0.4 if augment.cutmix else 0.13)
            assert wrong.mean() < 0.006


def test_labels_that_do_not_follow_are_noticed(source):
    """What the test above would say of a mirror that is not followed, and of a map that is not cut."""
    loader = labelled(source, WAYS["mirror"])
    batch = next(loader.batches(0))
    grid = batch.token_targets.unflatten(1, (6, 8))
    assert np.abs(seen_colours(batch.images, 8) - grid.flip(2).flatten(1, 2).numpy()).max() > 0.9
    loader = labelled(source, WAYS["crop"])
    batch = next(loader.batches(0))
    whole = replace(batch.views["image"], box=torch.tensor([0.0, 0.0, 1.0, 1.0]).expand_as(batch.views["image"].box))
    uncut = loader.token_labels.cut(batch.index, whole)
    assert np.abs(seen_colours(batch.images, 8) - batch.token_targets.numpy()).max() < 0.13
    assert np.abs(seen_colours(batch.images, 8) - uncut.numpy()).max() > 0.9


def test_views_of_evaluation_have_no_token_labels(source):
    loader = labelled(source, WAYS["crop"])
    assert next(loader.plain_batches(4)).token_targets is None


# Mixing, by hand


def token_batch(size=(16, 24), patch=8, count=4):
    draw = np.random.default_rng(2)
    tokens = draw.dirichlet(np.ones(3), (count, -(-size[0] // patch) * -(-size[1] // patch)))
    images = torch.arange(count).float()[:, None, None, None].expand(-1, 3, *size).clone()
    plain = Batch.of(images, torch.arange(count) % 3, 5 * torch.arange(count) + 2)
    return Batch(plain.views, plain.targets, plain.index, plain.keys, token_targets=torch.from_numpy(tokens).float())


def test_mixup_blends_token_labels_by_the_share_of_the_images():
    plain = token_batch()
    mixed = mix(plain, 3, Augment(mixup=0.8), seed=3, epoch=1, patch=8)
    own = plain.token_targets.numpy()
    for first in (0, 2):
        share = generator(3, 1, int(plain.index[first]), MIX).beta(0.8, 0.8)
        for one, other in ((first, first + 1), (first + 1, first)):
            expected = share * own[one] + (1 - share) * own[other]
            np.testing.assert_allclose(mixed.token_targets[one], expected, atol=1e-6)


def foreign_fractions(channel, partner):
    """(patches,): the fraction of each patch of 8x8 pixels that comes from the partner, whose pixels are its number."""
    foreign = (channel == partner).numpy()
    rows, columns = (range(0, side, 8) for side in foreign.shape)
    return np.array([foreign[top : top + 8, left : left + 8].mean() for top in rows for left in columns])


def test_cutmix_blends_each_patch_by_the_pixels_that_were_exchanged(subtests):
    for size in ((16, 24), (20, 30)):
        with subtests.test(size=size):
            plain, parts = token_batch(size), set()
            for epoch in range(20):
                mixed = mix(plain, 3, Augment(cutmix=1.0), seed=0, epoch=epoch, patch=8)
                for row in range(4):
                    partner = row + 1 if row % 2 == 0 else row - 1
                    fractions = foreign_fractions(mixed.images[row, 0], partner)[:, None]
                    own, other = (plain.token_targets[k].numpy() for k in (row, partner))
                    expected = (1 - fractions) * own + fractions * other
                    np.testing.assert_allclose(mixed.token_targets[row], expected, atol=1e-6)
                    parts |= set(fractions[:, 0].round(3).tolist())
            assert len(parts) > 10  # patches are cut through


def test_mixtoken_exchanges_whole_patches_and_counts_them(subtests):
    """For a ViT it is the same as exchanging embedded tokens: no patch shows both images."""
    for size in ((16, 24), (20, 30)):
        with subtests.test(size=size):
            plain, counts = token_batch(size), set()
            for epoch in range(40):
                mixed = mix(plain, 3, Augment(mixtoken=1.0), seed=0, epoch=epoch, patch=8)
                for row in range(4):
                    partner = row + 1 if row % 2 == 0 else row - 1
                    fractions = foreign_fractions(mixed.images[row, 0], partner)
                    assert set(fractions) <= {0.0, 1.0}
                    taken = fractions.astype(bool)[:, None]
                    expected = np.where(taken, plain.token_targets[partner].numpy(), plain.token_targets[row].numpy())
                    np.testing.assert_array_equal(mixed.token_targets[row], expected)
                    target = np.zeros(3)
                    target[row % 3] += 1 - taken.mean()
                    target[partner % 3] += taken.mean()
                    np.testing.assert_allclose(mixed.targets[row], target, atol=1e-6)
                    counts.add(int(taken.sum()))
            assert len(counts) > 4


def test_nothing_that_was_drawn_before_is_drawn_otherwise(subtests):
    """Mixup and CutMix draw what they drew before there was MixToken, and before there were token labels."""
    for epoch in range(4):
        with subtests.test(epoch=epoch):
            plain = token_batch((16, 16))
            rng = generator(7, epoch, 2, MIX)
            cut = rng.random() < 0.5
            share = rng.beta(1.0, 1.0) if cut else rng.beta(0.8, 0.8)
            mixed = mix(plain, 3, Augment(mixup=0.8, cutmix=1.0), seed=7, epoch=epoch, patch=8)
            expected = np.full((16, 16), 0.0 if cut else 1 - share)
            if cut:  # a rectangle of 1 - share of the area, around a pixel that is drawn, its row first
                side = round(16 * (1 - share) ** 0.5)
                row, column = int(16 * rng.random()), int(16 * rng.random())
                for y in range(row - side // 2, row - side // 2 + side):
                    for x in range(column - side // 2, column - side // 2 + side):
                        if 0 <= y < 16 and 0 <= x < 16:
                            expected[y, x] = 1.0
                assert 0 < expected.mean() < 1
            np.testing.assert_allclose(mixed.images[0], expected[None].repeat(3, axis=0), atol=1e-6)
            assert mixed.lam[0].item() == pytest.approx(1 - expected.mean(), abs=1e-6)


def test_mixtoken_needs_patches():
    with pytest.raises(UserError, match=r"mixtoken=1.0: .*'bit'.*cutmix"):
        Training(BiTConfig(image_size=(32, 32)), Preprocess(size=(32, 32)), augment=Augment(mixtoken=1.0))
    with pytest.raises(UserError, match="mixtoken=-1"):
        Augment(mixtoken=-1.0)
    config = ViTConfig(width=16, depth=1, heads=2, mlp_width=16, patch=4, image_size=(16, 16))
    assert Training(config, Preprocess(size=(16, 16)), augment=Augment(mixtoken=1.0)).augment.mixes
