"""Masked patch prediction against the words of the paper's appendix B.1.2, written out in NumPy."""

import math
from itertools import product

import numpy as np
import pytest
import torch

from support.numpy_vit import NumpyViT
from vitreous import UserError, ViT, ViTConfig
from vitreous.config.data import Preprocess
from vitreous.config.objective import MaskedPatch
from vitreous.config.stem import ConvStem
from vitreous.data.augment import normalise
from vitreous.data.batch import Batch
from vitreous.model.family import build_network, named_config
from vitreous.objectives.build import build_objective
from vitreous.objectives.collapse import explained
from vitreous.objectives.masked_patch import colour_entropy, corrupt
from vitreous.objectives.objective import Setting

SIZE = {"width": 24, "depth": 2, "heads": 3, "mlp_width": 40, "patch": 4, "image_size": (16, 16), "classes": 0}
COLOUR = Preprocess(size=(16, 16), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
GREY = Preprocess(size=(16, 16), mean=(0.3,), std=(0.7,))


def build(settings=None, preprocess=COLOUR, **more):
    config = ViTConfig(**{**SIZE, "channels": preprocess.channels, **more})
    objective = build_objective(ViT(config, seed=1), settings or MaskedPatch(), Setting(preprocess=preprocess))
    torch.manual_seed(0)
    for parameter in objective.parameters():  # nothing may be hidden by a zero or a one
        parameter.data += 0.1 * torch.randn_like(parameter)
    return objective.eval()


def random_images(count=3, channels=3):
    """(B, C, 16, 16) uint8: noise around a colour of each patch's own, some of them black or white."""
    chance = np.random.default_rng(0)
    colours = chance.integers(-60, 300, (count, channels, 4, 4)).repeat(4, axis=2).repeat(4, axis=3)
    return (colours + chance.integers(-40, 40, colours.shape)).clip(0, 255).astype(np.uint8)


def batch_of(raw, preprocess=COLOUR, **more):
    return Batch.of(normalise(torch.from_numpy(raw), preprocess), **more)


def targets_of(objective, batch):
    return objective.targets(objective.model.patchify(batch.images)[0], batch.images.shape[2:])


def mean_colour(patch, bits):
    """The class of a patch (C, P, P) of bytes: each channel's mean in [0, 1] in so many bits, side by side."""
    digits = [min(2**bits - 1, math.floor(channel.mean() / 255 * 2**bits)) for channel in patch.astype(float)]
    return int("".join(f"{digit:0{bits}b}" for digit in digits), base=2)


def test_targets_are_the_mean_colours_of_the_pixels(subtests):
    for bits, preprocess in product((1, 3, 4), (COLOUR, GREY)):
        with subtests.test(bits=bits, preprocess=preprocess):
            raw = random_images(5, preprocess.channels)
            objective = build(MaskedPatch(bits=bits), preprocess)
            found = targets_of(objective, batch_of(raw, preprocess))
            wanted = [
                [mean_colour(image[:, y : y + 4, x : x + 4], bits) for y in (0, 4, 8, 12) for x in (0, 4, 8, 12)]
                for image in raw
            ]
            assert found.tolist() == wanted
            assert objective.colours.pred.weight.shape[0] == 2 ** (bits * preprocess.channels)
            assert len({colour for row in wanted for colour in row}) > 2**bits / 2  # not all alike


def test_black_is_the_first_colour_and_white_the_last():
    objective = build()
    raw = np.zeros((2, 3, 16, 16), np.uint8)
    raw[1] = 255
    assert targets_of(objective, batch_of(raw)).tolist() == [[0] * 16, [511] * 16]


def test_of_padded_patches_the_colour_is_that_of_the_pixels_they_have(subtests):
    for height, width in ((14, 16), (16, 13), (13, 15)):
        with subtests.test(height=height, width=width):
            raw = random_images(5)[:, :, :height, :width]
            objective = build(pad=True, image_size=(height, width))
            wanted = [
                [mean_colour(image[:, y : y + 4, x : x + 4], 3) for y in (0, 4, 8, 12) for x in (0, 4, 8, 12)]
                for image in raw
            ]
            assert targets_of(objective, batch_of(raw)).tolist() == wanted
            loss, _ = objective(batch_of(raw), 0.0)
            assert loss.isfinite()


def test_patch_dropout_is_refused():
    """Nothing is left out of this, so it would do nothing."""
    with pytest.raises(UserError, match=r"patch_dropout=0\.5"):
        build(patch_dropout=0.5)


class NumpyMaskedPatch(NumpyViT):
    """The loss of one image at a time; which patches are corrupted, and how, is given."""

    def loss(self, raw, preprocess, corruption, bits):
        errors = []
        for i, image in enumerate(raw):
            x = np.stack([(c / 255 - m) / s for c, m, s in zip(image, preprocess.mean, preprocess.std, strict=True)])
            z = self.embed(x, None)
            cells = [self.cell_position(*divmod(n, self.columns)) for n in range(self.rows * self.columns)]
            embedded = [token - place for token, place in zip(z[self.prefix :], cells, strict=True)]
            for n, place in enumerate(cells):
                seen = self.w["mask_token"] if corruption.masked[i, n] else embedded[corruption.source[i, n]]
                z[self.prefix + n] = seen + place
            self.attention = []
            for layer in range(self.c.depth):
                z = self.block(z, f"blocks.{layer}", None)
            z = self.norm(z, "norm")
            for n in corruption.cells[i].tolist():
                scores = self.dense(z[self.prefix + n], "pred")
                row, column = (4 * part for part in divmod(n, self.columns))
                truth = mean_colour(image[:, row : row + 4, column : column + 4], bits)
                errors.append(np.log(np.exp(scores).sum()) - scores[truth])
        return np.mean(errors)


def test_the_loss_is_the_papers(subtests):
    for more, preprocess in product(
        ({}, {"class_token": False, "pool": "mean", "position": "sincos-2d"}), (COLOUR, GREY)
    ):
        with subtests.test(more=more, preprocess=preprocess):
            objective, raw = build(MaskedPatch(), preprocess, **more), random_images(4, preprocess.channels)
            batch = batch_of(raw, preprocess, seed=3)
            corruption = corrupt(batch.keys, 16, objective.settings)
            moved = corruption.source != torch.arange(16)
            assert moved.any()  # every kind of corruption is there
            assert corruption.masked.any()
            assert (corruption.masked | moved).sum() < corruption.cells.numel()
            state = {**objective.model.state_dict(), **objective.colours.state_dict()}
            wanted = NumpyMaskedPatch(objective.model.config, state).loss(raw, preprocess, corruption, bits=3)
            with torch.no_grad():
                loss, metrics = objective.double()(Batch.of(batch.images.double(), seed=3), 0.0)
            assert abs(loss.item() - wanted) <= 1e-6
            assert 0 <= metrics["colour_accuracy"] <= 1


def test_half_is_corrupted_and_of_that_80_10_and_10_percent():
    images, patches = 4000, 64
    found = corrupt(Batch.of(torch.zeros(images, 3, 1, 1), seed=5).keys, patches, MaskedPatch())
    assert found.cells.shape == (images, 32)
    assert (found.cells.sort(dim=1).values.diff(dim=1) > 0).all()  # none twice
    chosen = torch.zeros(images, patches, dtype=torch.bool).scatter(1, found.cells, True)
    moved = found.source != torch.arange(patches)
    assert not (found.masked & ~chosen).any()
    assert not (moved & ~chosen).any()
    assert not (moved & found.masked).any()
    count = found.cells.numel()
    for share, wanted in ((found.masked.sum() / count, 0.8), (moved.sum() / count, 0.1)):
        assert abs(share.item() - wanted) < 5 * math.sqrt(wanted * (1 - wanted) / count)
    steps = (found.source - torch.arange(patches))[moved] % patches
    shares = torch.bincount(steps, minlength=patches) / len(steps)
    assert shares[0] == 0  # another patch, never itself
    assert (shares[1:] - 1 / 63).abs().max() < 5 * math.sqrt(1 / 63 / len(steps))
    everywhere = chosen.float().mean(dim=0)
    assert (everywhere - 0.5).abs().max() < 5 * math.sqrt(0.25 / images)


def test_what_is_corrupted_follows_from_seed_epoch_and_image_alone():
    images, index = torch.zeros(3, 3, 16, 16), torch.tensor([4, 9, 2])
    found = corrupt(Batch.of(images, index=index, seed=1).keys, 16, MaskedPatch())
    alone = corrupt(Batch.of(images[:1], index=index[1:2], seed=1).keys, 16, MaskedPatch())
    assert all(torch.equal(one[0], every[1]) for one, every in zip(alone, found, strict=True))
    for other in ({"seed": 2}, {"seed": 1, "epoch": 1}):
        assert not torch.equal(
            corrupt(Batch.of(images, index=index, **other).keys, 16, MaskedPatch()).cells, found.cells
        )


def test_masked_patches_are_not_seen():
    """Other pixels where a mask lies change no score; without masks they do."""
    raw = random_images()
    objective = build(MaskedPatch(mask=1.0, by_mask_token=1.0, by_other_patch=0.0))
    seen = build(MaskedPatch(mask=1.0, by_mask_token=0.0, by_other_patch=0.0))
    turned = raw[:, ::-1].copy()
    for made, same in ((objective, True), (seen, False)):
        scores = []
        made.colours.register_forward_hook(lambda module, tokens, output, into=scores: into.append(output))
        with torch.no_grad():
            made(batch_of(raw), 0.0)
            made(batch_of(turned), 0.0)
        assert torch.equal(*scores) == same


def test_a_image_of_one_patch_has_no_other():
    found = corrupt(torch.arange(50), 1, MaskedPatch(by_mask_token=0.0, by_other_patch=1.0))
    assert (found.source == 0).all()
    assert found.cells.shape == (50, 1)


def test_the_loss_of_a_batch_is_the_weighted_mean_of_its_parts():
    found = {}
    for parts in (1, 3):
        objective = build(drop_path=0.5).double().train()
        batch = Batch.of(batch_of(random_images(10)).images.double(), epoch=3)
        for part in batch.split(parts):
            loss, _ = objective(part, 0.3)
            (loss * objective.weigh(part) / objective.weigh(batch)).backward()
        found[parts] = torch.cat([p.grad.flatten() for p in objective.parameters() if p.grad is not None])
    torch.testing.assert_close(found[3], found[1], atol=1e-9, rtol=0)


def test_what_is_explained_is_measured_against_the_shares_of_the_colours():
    """Hand-computed: of two colours, seen three times and once."""
    targets = torch.tensor([7, 7, 7, 2])
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    prior = colour_entropy(targets)
    assert explained(torch.tensor(entropy), prior).item() == pytest.approx(0, abs=1e-6)
    assert explained(torch.tensor(entropy / 4), prior).item() == pytest.approx(0.75, abs=1e-6)
    assert explained(torch.tensor(9.0), prior) == 0
    assert explained(torch.tensor(0.3), colour_entropy(torch.tensor([5, 5]))) == 0


def test_it_begins_with_all_colours_alike():
    objective = build_objective(ViT(ViTConfig(**SIZE)), MaskedPatch(), Setting(preprocess=COLOUR))
    assert objective(batch_of(random_images()), 0.0)[0].item() == pytest.approx(math.log(512), abs=1e-5)
    roles = objective.parameter_groups()
    assert not roles["colours.mask_token"].decayed
    assert roles["colours.pred.weight"].decayed


def test_networks_that_cannot_hide_patches_are_refused():
    with pytest.raises(UserError, match="masked-patch"):
        build(stem=ConvStem((8, 16)))
    with pytest.raises(UserError, match=r"masked-patch: .*'bit'"):
        build_objective(build_network(named_config("bit-r11x0.5@16"), seed=0), MaskedPatch(), Setting())


def test_other_numbers_of_channels():
    """Two channels have 64 colours; of six there would be too many."""
    two = Preprocess(size=(16, 16), mean=(0.5, 0.5), std=(0.5, 0.5))
    assert build(preprocess=two).colours.pred.weight.shape[0] == 64
    six = Preprocess(size=(16, 16), mean=(0.5,) * 6, std=(0.5,) * 6)
    with pytest.raises(UserError, match=r"objective\.bits=3: .*262,144"):
        build(preprocess=six)
    assert build(MaskedPatch(bits=2), six).colours.pred.weight.shape[0] == 4096


def test_colours_are_learned_from_what_is_around_them():
    """Images of one colour each, in noise: what is seen tells what is not, far below the entropy of all colours."""
    chance = np.random.default_rng(0)
    colours = chance.integers(0, 256, (64, 3, 1, 1))
    raw = (colours + chance.integers(-10, 10, (64, 3, 16, 16))).clip(0, 255).astype(np.uint8)
    objective = build_objective(ViT(ViTConfig(**SIZE), seed=0), MaskedPatch(), Setting(preprocess=COLOUR)).train()
    optimizer = torch.optim.AdamW(objective.parameters(), lr=3e-3)
    for epoch in range(80):
        loss, metrics = objective(batch_of(raw, epoch=epoch), epoch / 80)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    targets = targets_of(objective, batch_of(raw)).numpy()
    shares = np.bincount(targets.ravel()) / targets.size
    entropy = -(shares[shares > 0] * np.log(shares[shares > 0])).sum()
    assert entropy > 3
    assert loss.item() < 0.6 * entropy
    assert metrics["explained"] > 0.3
