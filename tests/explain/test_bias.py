"""Networks whose bias is known, measured: what is found is what they were built to have."""

import json
import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from support.extensions.conv_family import TinyConv, TinyConvConfig
from vitreous import ViT, ViTConfig
from vitreous.config.data import Preprocess
from vitreous.data.packed import ArraySource
from vitreous.explain.analysis import perturbations
from vitreous.explain.analysis.bias import gradient_maps, measure_bias, patch_side, receptive_field
from vitreous.explain.analysis.bias_result import (
    Bias,
    Effect,
    Shifts,
    high_enough,
    low_needed,
    summarise_bias,
    tell_margin,
)
from vitreous.model.network import Network, Outputs

SIDE, COUNT = 16, 20
PREPROCESS = Preprocess(size=(SIDE, SIDE))


class ByHand(Network):
    """Scores are what `function` makes of the images; so is the representation."""

    def __init__(self, function, classes):
        super().__init__()
        self.config = SimpleNamespace(
            family="by hand", classes=classes, channels=3, image_size=(SIDE, SIDE), features=classes
        )
        self.function = function

    def outputs(self, images, *, keys=None):
        return Outputs(self.function(images), self.function(images))


def noise_images(count=COUNT, side=SIDE, labels=None, seed=0):
    images = torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (count, 3, side, side), dtype=np.uint8))
    labels = np.full(count, -1) if labels is None else labels
    return ArraySource("noise", images, labels.astype(np.int64), ("0", "1", "2"))


def mean_colour(images):
    return 100 * images.mean(dim=(2, 3))


def test_a_network_that_sees_the_mean_colour_needs_no_order_and_no_frequency():
    network = ByHand(mean_colour, 3)
    source = noise_images()
    images = (source.images.double() / 127.5 - 1).mean(dim=(2, 3))
    labels = images.argmax(dim=1).numpy()
    labels[:5] = (labels[:5] + 1) % 3  # a quarter is wrong
    found = measure_bias(network, PREPROCESS, noise_images(labels=labels))
    assert [effect.at for effect in found.effects["shuffled"]] == [2, 4, 8]
    assert found.effects["low_pass"][0].at == 0
    for effect in (*found.effects["shuffled"], *found.effects["low_pass"], *found.effects["high_pass"]):
        assert (effect.same, effect.accuracy) == (1, 0.75)
        assert effect.moved == pytest.approx(0, abs=1e-4)
        assert effect.likeness == pytest.approx(1, abs=1e-5)
    assert (found.accuracy, found.low_needed, found.high_enough) == (0.75, 0, 1)
    assert (found.patch, found.attention_distance, found.receptive_field, found.shifts.whole) == (None,) * 4
    assert found.shifts.within.likeness < 1 - 1e-4  # other pixels come into the window


def test_a_network_that_reads_one_pixel_forgets_it_whenever_it_moves():
    """Its class is the value of a pixel, of 256 levels: no neighbour of noise has the same but by chance."""
    levels = torch.arange(256)

    def read(images):
        return -(images[:, 0, 8, 8, None] * 127.5 + 127.5 - levels).abs()

    found = measure_bias(ByHand(read, 256), Preprocess(size=(SIDE, SIDE), interpolation="nearest"), noise_images())
    assert all(
        effect.same <= 0.1
        for effect in (*found.shifts.curve[1:], *found.effects["shuffled"], found.effects["low_pass"][0])
    )
    assert found.low_needed > 1
    assert found.accuracy is None  # no labels


class Pooled(ByHand):
    """A feature map that a function makes, and the mean of it."""

    def feature_map(self, images):
        return self.function(images)

    def classify(self, feature_map):
        return feature_map.mean(dim=(2, 3))

    def outputs(self, images, *, keys=None):
        features = self.feature_map(images)
        return Outputs(features.mean(dim=(2, 3)), self.classify(features))


def test_pooled_convolution_is_blind_to_cyclic_shifts_and_the_windows_move_as_said():
    """Images that repeat every 4 pixels move cyclically; a convolution that pads in circles does not notice."""
    torch.manual_seed(0)
    tile = torch.randint(0, 256, (COUNT, 3, 4, 4), dtype=torch.uint8)
    source = ArraySource("tiles", tile.repeat(1, 1, 5, 5), np.full(COUNT, -1, dtype=np.int64), ("a", "b"))
    layer = nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular").requires_grad_(False)
    network = Pooled(lambda images: 10 * layer(images).relu(), 4)
    found = measure_bias(network, PREPROCESS, source)  # 20 pixels: the enlarged image is the image
    assert found.patch == 1
    assert [effect.at for effect in found.shifts.curve] == [1, 2, 4]
    for effect in (*found.shifts.curve, found.shifts.whole):
        assert (effect.same, effect.moved) == (1, pytest.approx(0, abs=1e-5))
        assert effect.likeness == pytest.approx(1, abs=1e-5)
    corner = Pooled(lambda images: images[:, :, ::4, ::4], 3)  # stride 4: sees the same after 4 pixels only
    shifts = measure_bias(corner, PREPROCESS, source).shifts
    assert (shifts.within.at, shifts.whole.at) == (1.5, 4)
    assert (shifts.whole.same, shifts.whole.moved, shifts.whole.likeness) == (1, 0, 1)
    assert shifts.within.same < 1
    assert shifts.within.moved > 0.01


def vit(**changes):
    shape = {"width": 16, "depth": 2, "heads": 2, "mlp_width": 32, "patch": 4, "image_size": (SIDE, SIDE), "classes": 5}
    model = ViT(ViTConfig(**{**shape, **changes}), seed=3).eval()
    with torch.no_grad():
        nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(0))
    return model


def test_patches_without_positions_are_a_bag():
    bag = measure_bias(vit(position="none"), PREPROCESS, noise_images())
    assert bag.patch == 4
    by_pieces = {effect.at: effect for effect in bag.effects["shuffled"]}
    for pieces in (2, 4):
        assert (by_pieces[pieces].same, by_pieces[pieces].likeness) == (1, pytest.approx(1, abs=1e-5))
    assert by_pieces[8].likeness < 1 - 1e-4  # pieces of half a patch are other patches
    ordered = measure_bias(vit(position="sincos-2d"), PREPROCESS, noise_images())
    assert all(effect.likeness < 1 - 1e-4 for effect in ordered.effects["shuffled"])


def test_any_family_is_measured_and_comes_back_from_json():
    source = noise_images(6, labels=np.arange(6) % 3)
    for network in (vit(classes=3), TinyConv(TinyConvConfig()), headless()):
        found = measure_bias(network, PREPROCESS, source)
        written = json.loads(json.dumps(found.to_json(), allow_nan=False))
        assert Bias.from_json(written) == found
        assert 0 < found.receptive_field.radius < 0.6
        assert (found.attention_distance is None) == (not isinstance(network, ViT))
        assert (found.accuracy is None) == (network.config.classes == 0)


def headless():
    return ViT(ViTConfig(width=16, depth=1, heads=2, mlp_width=16, patch=4, image_size=(SIDE, SIDE), classes=0), seed=1)


def test_batches_change_nothing_and_the_seed_does():
    network = vit()
    one, other = (measure_bias(network, PREPROCESS, noise_images(), batch_size=size) for size in (3, 20))
    assert numbers(one.to_json()) == pytest.approx(numbers(other.to_json()), abs=2e-5)
    assert measure_bias(network, PREPROCESS, noise_images(), seed=1).effects["shuffled"] != one.effects["shuffled"]


def numbers(fields):
    """All numbers in it, in order."""
    if isinstance(fields, dict):
        return [number for value in fields.values() for number in numbers(value)]
    if isinstance(fields, list | tuple):
        return [number for value in fields for number in numbers(value)]
    return [] if fields is None else [fields]


def test_receptive_field_of_stacked_convolutions_is_binomial(subtests):
    """Of all-one kernels the gradient is the kernel convolved with itself, computed here by polynomials."""
    for layers in [1, 2, 3]:
        with subtests.test(layers=layers):
            stack = nn.Sequential(*(nn.Conv2d(1, 1, 3, padding=1, bias=False) for _ in range(layers))).requires_grad_(
                False
            )
            for layer in stack:
                layer.weight.fill_(1)
            maps = gradient_maps(Pooled(stack, 0), torch.randn(2, 1, 15, 15), 0, [0, 1])
            row = np.array([1.0])
            for _ in range(layers):
                row = np.convolve(row, [1, 1, 1])
            expected = np.zeros((15, 15))
            side = slice(7 - layers, 8 + layers)
            expected[side, side] = np.outer(row, row) / row.sum() ** 2
            assert maps == pytest.approx(np.stack([expected] * 2), abs=1e-7)
            assert (maps[0] > 0).sum() == (2 * layers + 1) ** 2


def test_radius_by_hand():
    nine = np.zeros((10, 20))
    nine[4:7, 9:12] = 1  # the centre has 1 of 9, the four beside it 4 more
    assert receptive_field(nine).radius == 1 / 20
    assert receptive_field(nine).mass[:2] == (round(5 / 9, 5), 1)  # the corners lie at 0.0707
    assert receptive_field(np.eye(1, 7)).radius == 0
    assert receptive_field(np.ones((400, 400))).radius == pytest.approx(math.sqrt(0.5 / math.pi), abs=2e-3)
    assert receptive_field(np.zeros((5, 5))) is None


def test_filters_against_sums_of_waves(subtests):
    """The discrete Fourier transform written out as matrices, on both sides of a mask."""
    for size in [(16, 16), (9, 14)]:
        for cutoff in [0.0, 0.3, 0.8]:
            with subtests.test(size=size, cutoff=cutoff):
                images = torch.from_numpy(np.random.default_rng(1).standard_normal((2, 3, *size))).float()
                waves = [np.exp(-2j * np.pi * np.outer(np.arange(n), np.arange(n)) / n) for n in size]
                steps = [np.minimum(np.arange(n), n - np.arange(n)) / n for n in size]
                low = np.sqrt(steps[0][:, None] ** 2 + steps[1][None, :] ** 2) <= cutoff / 2
                for keep, found in ((low, perturbations.low_pass), (~low, perturbations.high_pass)):
                    keep[0, 0] = True
                    spectrum = waves[0] @ images.double().numpy() @ waves[1] * keep
                    expected = (waves[0].conj() @ spectrum @ waves[1].conj()).real / (size[0] * size[1])
                    assert found(images, cutoff=cutoff).numpy() == pytest.approx(expected, abs=1e-5)


def test_half_is_where_the_curve_crosses_it():
    def curve(*points):
        return [Effect(at, same, 0.0, 1.0, None) for at, same in points]

    assert low_needed(curve((0, 0.1), (0.2, 0.6), (0.4, 0.3), (0.6, 0.7), (1, 0.9))) == pytest.approx(0.5)
    assert low_needed(curve((0, 0.6), (1, 0.9))) == 0
    assert low_needed(curve((0, 0.1), (1, 0.4))) == pytest.approx(1 + (math.sqrt(2) - 1) / 6, abs=1e-5)
    assert high_enough(curve((0.2, 0.8), (0.4, 0.4), (1, 0.9))) == pytest.approx(0.35)
    assert high_enough(curve((0.1, 0.0))) == pytest.approx(0.05)
    assert high_enough(curve((0.1, 0.9), (1, 0.8))) == 1
    assert low_needed(curve((0, None))) is None
    assert high_enough(curve((0.1, None))) is None


def test_shuffling_keeps_the_pieces_and_moves_every_one():
    images = torch.arange(2 * 8 * 8).reshape(2, 1, 8, 8)
    made = perturbations.shuffled(images, [4, 9], pieces=4, seed=0)
    assert torch.equal(
        made, torch.cat([perturbations.shuffled(images[i : i + 1], [n], pieces=4, seed=0) for i, n in ((0, 4), (1, 9))])
    )
    for before, after in zip(images[:, 0].numpy(), made[:, 0].numpy(), strict=True):
        cut = [
            [b[2 * i : 2 * i + 2, 2 * j : 2 * j + 2].tolist() for i in range(4) for j in range(4)]
            for b in (before, after)
        ]
        assert sorted(cut[0]) == sorted(cut[1])
        assert all(one != other for one, other in zip(*cut, strict=True))


def test_windows_have_only_pixels_of_the_image():
    rows, columns = torch.meshgrid(torch.arange(20), torch.arange(26), indexing="ij")
    images = torch.stack([rows, columns]).expand(30, 2, 20, 26)
    index = list(range(30))
    still, moved = (perturbations.moved_windows(images, index, size=(16, 22), distance=d, seed=0) for d in (0, 3))
    ways = {tuple(way) for way in (moved - still).flatten(2)[:, :, 0].tolist()}
    assert ways == {(3, 0), (-3, 0), (0, 3), (0, -3)}
    assert torch.equal(moved - still, (moved - still)[:, :, :1, :1].expand_as(moved))


def test_what_the_crop_leaves_out_is_used_before_the_image_is_enlarged():
    wide = perturbations.enlarged(Preprocess(size=(64, 64), crop=0.5))  # resized to 128: there is room
    assert (wide.size, wide.resized) == ((80, 80), (128, 128))
    assert perturbations.enlarged(Preprocess(size=(64, 64), crop=0.9)).resized == (80, 80)
    assert perturbations.enlarged(Preprocess(size=(16, 32))).size == (20, 36)


def test_sizes_and_strengths():
    assert perturbations.distances((224, 224), 16) == [1, 2, 4, 8, 16, 32]
    assert perturbations.distances((28, 28), 7) == [1, 2, 4, 7]
    assert perturbations.distances((32, 32), 32) == [1, 2, 4, 8]
    assert perturbations.piece_counts((224, 224), 16) == [2, 4, 8, 14, 16]
    assert perturbations.piece_counts((28, 28), 4) == [2, 4, 7, 14]
    assert perturbations.piece_counts((7, 5), None) == []
    assert perturbations.cutoffs((8, 8)) == [0.0, 0.3, 0.4, 0.6, 0.8, 1.0]


def test_stride_of_a_map(subtests):
    for side, stride in [(32, 8), (28, 8), (28, 32), (30, 4), (16, 16)]:
        with subtests.test(side=side, stride=stride):
            network = Pooled(lambda images, stride=stride: images[:, :, ::stride, ::stride], 3)
            assert patch_side(network, (side, side)) == stride
            assert patch_side(ByHand(mean_colour, 3), (side, side)) is None


def test_a_vit_that_hears_nothing_of_other_patches_sees_one_patch():
    """It attends to all alike and takes nothing of it: its field is the central patch, its distance that of chance."""
    model = vit(image_size=(16, 24), registers=2, position="sincos-2d")
    with torch.no_grad():
        for block in model.blocks:
            for parameter in (*block.attn.qkv.parameters(), *block.attn.proj.parameters()):
                parameter.zero_()
    (field,) = gradient_maps(model, torch.randn(1, 3, 16, 24), 0, [0])
    rows, columns = np.nonzero(field)
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (8, 11, 12, 15)
    found = measure_bias(model, Preprocess(size=(16, 24)), noise_images(8, side=24))
    places = np.array([(4 * row, 4 * column) for row in range(4) for column in range(6)])
    chance = np.linalg.norm(places[:, None] - places[None], axis=-1).mean() / 24
    assert found.attention_distance == pytest.approx([chance, chance], abs=1e-5)
    assert found.receptive_field.radius < 3 / 24  # no pixel of a patch is farther from its middle


def test_moves_by_fixed_pixels_are_one_measure_for_all_models():
    """Strides 2 and 4 at 32 pixels, which may move by 8: rows of 1, 2, 4 and 8 pixels, each from its own curve."""
    curves = {2: {1: 0.9, 2: 0.8, 4: 0.7, 8: 0.6}, 4: {1: 0.5, 2: 0.4, 4: 0.95, 8: 0.85}}
    models = []
    for patch, curve in curves.items():
        effects = tuple(Effect(at, same, 0.0, 1.0, None) for at, same in curve.items())
        shifts = Shifts(None, effects, effects[0], effects[-1])
        models.append(Bias(100, (32, 32), patch, None, shifts, None, None, {}, None, None))
    moved = moved_rows(models)
    assert moved == {1: (0.9, 0.5), 2: (0.8, 0.4), 4: (0.7, 0.95), 8: (0.6, 0.85)}
    found = measure_bias(vit(), PREPROCESS, noise_images())  # 16 pixels move by 4 at most
    assert set(moved_rows([found])) == {1, 2, 4}
    assert "accuracy" not in {row.measure for row in summarise_bias([found])}


def moved_rows(models):
    """{pixels: the values of the models}."""
    rows = [(re.search(r" (\d+) pixels?\b", row.measure), row.values) for row in summarise_bias(models)]
    return {int(pixels[1]): values for pixels, values in rows if pixels}


def test_what_shares_of_100_images_may_be_off_by():
    """1.96 sqrt(0.25 / 100) = 9.8 points, and 1.96 sqrt(0.09 / 100) = 5.9."""
    found = Bias(100, (32, 32), None, None, Shifts(None, (), None, None), None, None, {}, None, None)
    assert re.findall(r"\d+\.?\d*", tell_margin([found]))[:7] == ["100", "95", "9.8", "50", "5.9", "10", "90"]
