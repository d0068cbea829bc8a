"""Models for other images: what they promise about tokens, not how it is computed."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from support.tiny_models import preprocess_for, random_model
from vitreous import UserError
from vitreous.config.data import Preprocess
from vitreous.data.augment import normalise
from vitreous.model.position import resample_patch
from vitreous.weights.adapt import adapt

SAME = {"atol": 1e-4, "rtol": 1e-4}


def tokens_of(model, images):
    """The patches' tokens before positions."""
    patches, _ = model.patchify(images)
    return model.patch_embed(patches)


def test_enlarged_patches_give_the_same_tokens():
    model = random_model()
    changed, preprocess = adapt(model, preprocess_for(model), patch=8, image_size=(24, 32))
    assert (changed.config.grid, changed.config.patch, preprocess.size) == ((3, 4), 8, (24, 32))
    images = torch.randn(2, 3, 12, 16)
    cells = images.reshape(2, 3, 3, 4, 4, 4).permute(0, 2, 4, 1, 3, 5).reshape(-1, 3, 4, 4)
    larger = F.interpolate(cells, (8, 8), mode="bicubic", antialias=True)
    larger = larger.reshape(2, 3, 4, 3, 8, 8).permute(0, 3, 1, 4, 2, 5).reshape(2, 3, 24, 32)
    with torch.no_grad():
        torch.testing.assert_close(tokens_of(changed, larger), tokens_of(model, images), **SAME)
    assert torch.equal(changed.pos_embed, model.pos_embed), "the grid is the same"


def test_shrunk_patches_give_the_nearest_tokens_there_are():
    """Of all kernels for shrunk patches, these are nearest to the old tokens, over patches of white noise."""
    draw = torch.Generator().manual_seed(0)
    weight = torch.randn(3, 2, 8, 8, generator=draw, dtype=torch.float64)
    found = resample_patch(weight, 4)
    patches = torch.eye(64, dtype=torch.float64).reshape(64, 1, 8, 8)  # white noise, exactly
    small = F.interpolate(patches, (4, 4), mode="bicubic", antialias=True).flatten(1)

    def error(kernels):
        return ((small @ kernels.flatten(2).transpose(1, 2)) - weight.flatten(2).transpose(1, 2)).square().sum()

    best = error(found)
    for _ in range(20):
        assert error(found + 0.01 * torch.randn(found.shape, generator=draw, dtype=torch.float64)) > best


def test_the_patch_alone_changes_the_grid_at_the_same_resolution():
    model = random_model()
    changed, preprocess = adapt(model, preprocess_for(model), patch=2)
    assert (changed.config.image_size, changed.config.grid, preprocess.size) == ((12, 16), (6, 8), (12, 16))
    assert changed.pos_embed.shape[1] == 1 + 48
    assert changed(torch.randn(1, 3, 12, 16)).shape == (1, 5)


def test_a_resolution_is_that_of_the_model_resized():
    model = random_model()
    changed, preprocess = adapt(model, preprocess_for(model), image_size=(20, 8))
    grid = model.pos_embed[0, 1:].reshape(1, 3, 4, 16).permute(0, 3, 1, 2)
    moved = F.interpolate(grid, (5, 2), mode="bicubic", antialias=True).permute(0, 2, 3, 1).reshape(10, 16)
    torch.testing.assert_close(changed.pos_embed[0], torch.cat([model.pos_embed[0, :1], moved]), **SAME)
    assert preprocess.size == (20, 8)


def test_grey_images_give_the_tokens_that_they_had_in_three_channels():
    """Though each channel had a mean and a spread of its own."""
    model = random_model()
    colour = Preprocess(size=(12, 16), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    changed, grey = adapt(model, colour, channels=1)
    assert (changed.config.channels, grey.channels) == (1, 1)
    image = torch.randint(0, 256, (2, 1, 12, 16), dtype=torch.uint8)
    with torch.no_grad():
        expected = model(normalise(image.expand(-1, 3, -1, -1), colour))
        torch.testing.assert_close(changed(normalise(image, grey)), expected, **SAME)
        back, again = adapt(changed, grey, channels=3)
        torch.testing.assert_close(back(normalise(image.expand(-1, 3, -1, -1), again)), expected, **SAME)


@pytest.mark.parametrize("count", [2, 12])
def test_many_channels_become_one_as_three_do(count):
    model = random_model(channels=count)
    values = torch.rand(2, count, generator=torch.Generator().manual_seed(2)) + 0.1
    many = Preprocess(size=(12, 16), mean=values[0].tolist(), std=values[1].tolist())
    changed, grey = adapt(model, many, channels=1)
    image = torch.randint(0, 256, (2, 1, 12, 16), dtype=torch.uint8)
    with torch.no_grad():
        expected = model(normalise(image.expand(-1, count, -1, -1), many))
        torch.testing.assert_close(changed(normalise(image, grey)), expected, **SAME)


COLOUR = Preprocess(size=(12, 16), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


@pytest.mark.parametrize("count", [2, 4, 5, 12])
def test_other_numbers_of_channels_by_timms_rule(count):
    """The three kernels in turn, times 3/n; with them the mean and the spread. In NumPy, a patch at a time."""
    model = random_model()
    changed, preprocess = adapt(model, COLOUR, channels=count)
    assert changed.config.channels == count
    kernels, bias = (model.state_dict()[f"patch_embed.proj.{name}"].numpy() for name in ("weight", "bias"))
    image = np.random.default_rng(0).integers(0, 256, (count, 12, 16), dtype=np.uint8)
    expected = []
    for row in range(3):
        for column in range(4):
            token = bias.astype(np.float64)
            for channel in range(count):
                colour = channel % 3
                patch = image[channel, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] / 255
                patch = (patch - COLOUR.mean[colour]) / COLOUR.std[colour]
                token = token + 3 / count * (kernels[:, colour] * patch).sum((1, 2))
            expected.append(token)
    images = normalise(torch.from_numpy(image)[None], preprocess)
    with torch.no_grad():
        np.testing.assert_allclose(tokens_of(changed, images)[0].numpy(), expected, atol=1e-4)
    same = [name for name in model.state_dict() if name != "patch_embed.proj.weight"]
    assert all(torch.equal(changed.state_dict()[name], model.state_dict()[name]) for name in same)


def test_tokens_keep_their_size_when_channels_are_repeated():
    """What the factor 3/n is for: the same colours once or several times give the same scores."""
    model = random_model()
    image = torch.randint(0, 256, (2, 3, 12, 16), dtype=torch.uint8)
    for times in (2, 4):
        changed, preprocess = adapt(model, COLOUR, channels=3 * times)
        with torch.no_grad():
            found = changed(normalise(image.repeat(1, times, 1, 1), preprocess))
            torch.testing.assert_close(found, model(normalise(image, COLOUR)), **SAME)


def test_a_classifier_is_dropped_or_replaced_when_asked():
    for changes in ({}, {"classifier": "mlp"}, {"distilled": True}, {"pool": "class+mean"}):
        model = random_model(**changes)
        images = torch.randn(2, 3, 12, 16)
        bare, _ = adapt(model, preprocess_for(model), classes=0)
        with torch.no_grad():
            torch.testing.assert_close(bare(images), model.representation(images))
        other, _ = adapt(model, preprocess_for(model), classes=7)
        assert torch.equal(other(images), torch.zeros(2, 7))
    same, _ = adapt(model, preprocess_for(model), classes=5)
    assert same is model, "the number that it has is no change"


def test_another_epsilon_changes_no_tensor():
    model = random_model(norm_eps=1e-12)
    changed, _ = adapt(model, preprocess_for(model), epsilon=1e-6)
    assert changed.config.norm_eps == 1e-6
    assert all(torch.equal(one, other) for one, other in zip(changed.parameters(), model.parameters(), strict=True))


def test_what_cannot_be():
    model = random_model()
    with pytest.raises(UserError, match="channels=0: "):
        adapt(model, preprocess_for(model), channels=0)
    twelve = random_model(channels=12)
    with pytest.raises(UserError, match=r"channels=3: .* 12 "):
        adapt(twelve, preprocess_for(twelve), channels=3)
    with pytest.raises(UserError, match="classes=-1: "):
        adapt(model, preprocess_for(model), classes=-1)
    with pytest.raises(UserError, match="13"):
        adapt(model, preprocess_for(model), image_size=13)
