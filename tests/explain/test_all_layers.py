"""Every layer of one pass, against maps of single layers; tokens as colours, against principal components in NumPy."""

import numpy as np
import torch

from support.tiny_models import random_images, random_model
from vitreous.config.data import Preprocess
from vitreous.explain.all_layers import SPREAD, attention_between_patches, token_colours, trace_all_layers
from vitreous.explain.attention import attention_maps, rollout_maps
from vitreous.explain.occlusion import paint_over
from vitreous.model.trace import Trace


def test_one_pass_has_the_maps_of_all_layers(subtests):
    for changes in [{}, {"registers": 2}, {"pool": "mean"}, {"pool": "attention", "class_token": False}]:
        with subtests.test(changes=changes):
            model = random_model(**changes).eval()
            image = random_images(model)[:1]
            found = trace_all_layers(model, image)
            attention, scores = attention_maps(model, image, layers=None)
            rollout, _ = rollout_maps(model, image, layers=None)
            for layer in range(model.config.depth):
                torch.testing.assert_close(found.attention[layer], attention[layer][0])
                torch.testing.assert_close(found.rollout[layer], rollout[layer][0, 0])
            torch.testing.assert_close(found.logits, scores[0])
            assert (found.pooling is None) == (changes.get("pool") != "attention")
            assert found.groups is None


def test_attention_between_patches_is_the_mean_row_where_all_patches_are_read():
    model = random_model(pool="mean").eval()
    image = random_images(model)[:1]
    found = attention_between_patches(model, image, -1)
    expected = attention_maps(model, image)[0][model.config.depth - 1][0].flatten(1)
    torch.testing.assert_close(found.mean(dim=1), expected)


def test_groups_are_those_of_a_trace():
    model = random_model().eval().with_merge(2)
    image = random_images(model)[:1]
    trace = Trace()
    with torch.inference_mode():
        model(image, trace=trace)
    found = trace_all_layers(model, image).groups
    for layer, groups in trace.groups.items():
        assert (found[layer] == groups[0]).all()
    assert len(found[0].unique()) == found.shape[1] - 4, "the first of every two blocks merges twice as many"


def test_colours_are_principal_components():
    """Of one layer: each colour is one component, up to its sign, with the same spread for all."""
    tokens = torch.randn(1, 40, 8, generator=torch.Generator().manual_seed(0)) * torch.tensor(
        [5.0, 3, 2, 1, 1, 1, 1, 1]
    )
    found = (token_colours(tokens)[0] / 255.0 - 0.5) * 2 * SPREAD
    centred = tokens[0].double().numpy()
    centred = centred - centred.mean(axis=0)
    _, directions = np.linalg.eigh(centred.T @ centred)
    for colour in range(3):
        expected = centred @ directions[:, -1 - colour]
        expected = np.clip(expected / expected.std(), -SPREAD, SPREAD)
        sign = np.sign(found[:, colour] @ expected)
        np.testing.assert_allclose(found[:, colour], sign * expected, atol=SPREAD / 255 * 1.01)


def test_colours_keep_their_meaning_from_layer_to_layer():
    """The same tokens in other directions, mirrored and with their components in another order, look the same."""
    first = torch.randn(40, 6, generator=torch.Generator().manual_seed(1)).double() * torch.tensor([4.0, 3, 2, 0, 0, 0])
    scores = first - first.mean(dim=0)
    u, s, v = torch.linalg.svd(scores, full_matrices=False)
    other = (u[:, :3] * -s[:3].flip(0)) @ v[:3]  # what was strongest is weakest, and all signs are turned
    one, two = token_colours(torch.stack([first, other]))
    assert np.abs(one.astype(int) - two).max() <= 1


def test_tokens_that_are_all_the_same_are_grey():
    assert (token_colours(torch.ones(2, 9, 4)) == 128).all()
    assert token_colours(torch.randn(1, 2, 4)).shape == (1, 2, 3)  # fewer than three components


def test_what_is_covered_is_painted_in_the_mean_colour():
    view = torch.arange(3 * 4 * 6, dtype=torch.uint8).reshape(3, 4, 6)
    covered = torch.tensor([[False, True, False], [False, False, False]])
    found = paint_over(view, covered, Preprocess(size=(4, 6), mean=(0.2, 0.4, 1.0), std=(1.0, 1.0, 1.0)))
    assert found[:, :2, 2:4].flatten(1).unique(dim=1).flatten().tolist() == [51, 102, 255]
    untouched = torch.ones(4, 6, dtype=torch.bool)
    untouched[:2, 2:4] = False
    assert (found[:, untouched] == view[:, untouched]).all()
