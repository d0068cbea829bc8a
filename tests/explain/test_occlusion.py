"""Occlusion against a plain loop over windows."""

import pytest
import torch

from support.tiny_models import random_images, random_model
from vitreous.config.bit import BiTConfig
from vitreous.explain.occlusion import occlusion_maps, windows
from vitreous.model.family import build_network


def test_windows_reach_the_border_and_hide_every_patch():
    hidden = windows((5, 7), 3, 2).reshape(-1, 5, 7)
    assert hidden.shape[0] == 2 * 3
    assert hidden.sum(dim=(1, 2)).tolist() == [9] * 6
    assert hidden.any(dim=0).all()
    corners = {tuple(one.nonzero()[0].tolist()) for one in hidden}
    assert corners == {(top, left) for top in (0, 2) for left in (0, 2, 4)}
    uneven = windows((1, 6), 4, 3)
    assert uneven.tolist() == [[True] * 4 + [False] * 2, [False] * 2 + [True] * 4]


def test_what_is_lost_without_a_patchs_surroundings(subtests):
    for changes in [{}, {"pool": "mean", "class_token": False}, {"registers": 2}]:
        with subtests.test(changes=changes):
            model = random_model(**changes)
            images = random_images(model)
            targets = torch.tensor([2, 0])
            found, _ = occlusion_maps(model, images, targets, window=2, stride=1)
            for b in range(2):
                losses = {patch: [] for patch in range(12)}
                for top in range(2):
                    for left in range(3):
                        hidden = [row * 4 + column for row in (top, top + 1) for column in (left, left + 1)]
                        rest = torch.tensor([[patch for patch in range(12) if patch not in hidden]])
                        with torch.no_grad():
                            p = model(images[b : b + 1]).softmax(1)[0, targets[b]]
                            q = model(images[b : b + 1], keep_ids=rest).softmax(1)[0, targets[b]]
                        for patch in hidden:
                            losses[patch].append((p.logit() - q.logit()).item())
                for patch, lost in losses.items():
                    expected = max(0, sum(lost) / len(lost))
                    assert found[b].flatten()[patch].item() == pytest.approx(expected, abs=1e-4)


def test_without_patches_squares_are_painted_in_the_mean_colour():
    model = build_network(BiTConfig(depths=(1,), width=0.5, root="3x3", classes=3), seed=1).eval()
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        model.head.fc.weight.normal_(0, 0.3, generator=draw)
    images = torch.randn(2, 3, 28, 42, generator=draw)  # cells of 2 x 3 pixels
    targets = torch.tensor([1, 2])
    found, scores = occlusion_maps(model, images, targets, window=7, stride=7)
    assert found.shape == (2, 14, 14)
    with torch.no_grad():
        assert torch.equal(scores, model(images))
        for b in range(2):
            p = scores[b].softmax(0)[targets[b]]
            for top in (0, 14):
                for left in (0, 21):
                    painted = images[b : b + 1].clone()
                    painted[:, :, top : top + 14, left : left + 21] = 0
                    q = model(painted).softmax(1)[0, targets[b]]
                    expected = max(0, (p.logit() - q.logit()).item())
                    square = found[b, top // 2 : top // 2 + 7, left // 3 : left // 3 + 7]
                    assert square.flatten().tolist() == pytest.approx([expected] * 49, abs=1e-4)
