"""The patch projection that starts whitened."""

import numpy as np
import pytest
import torch

from vitreous.model.initialise import whiten_patches
from vitreous.model.vit import ViT


def test_whitened_patches_are_uncorrelated_and_of_variance_one(subtests):
    """Smooth images, whose neighbouring pixels are nearly alike; the covariance is taken in NumPy."""
    for width in [64, 24]:
        with subtests.test(width=width):
            smooth = torch.randn(200, 3, 16, 16, generator=torch.Generator().manual_seed(1)).cumsum(2).cumsum(3) + 5
            vit = ViT("Ti/4@16", width=width, heads=2)
            whiten_patches(vit, smooth, seed=0, floor=0.0)
            patches = smooth.numpy().reshape(200, 3, 4, 4, 4, 4).transpose(0, 2, 4, 1, 3, 5).reshape(-1, 48)
            weight = vit.patch_embed.proj.weight.detach().numpy().reshape(width, 48)
            seen = patches @ weight.T + vit.patch_embed.proj.bias.detach().numpy()
            covariance = np.cov(seen.T)
            assert np.abs(seen.mean(0)).max() < 0.05
            assert np.trace(covariance) / width == pytest.approx(1.0, abs=0.05)
            variances = np.linalg.eigvalsh(covariance)[::-1][: min(width, 48)]
            if width > 48:  # all directions of a patch are there, all equally strong
                assert variances == pytest.approx(np.full(48, width / 48), rel=0.05)
            before = np.linalg.eigvalsh(np.cov(patches.T))
            assert before[-1] / before[0] > 100 > 3 > variances[0] / variances[-1]


def test_weak_directions_are_not_blown_up():
    flat = torch.randn(100, 3, 1, 1, generator=torch.Generator().manual_seed(0)).expand(-1, -1, 16, 16)
    vit = ViT("Ti/4@16")
    whiten_patches(vit, flat, seed=0)
    assert vit.patch_embed.proj.weight.isfinite().all()
    noisy = flat + 1e-3 * torch.randn(flat.shape, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        change = vit.patch_embed.proj(noisy) - vit.patch_embed.proj(flat)
    assert change.std() < 0.05


def test_the_seed_decides():
    images = torch.rand(50, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    weights = []
    for seed in (0, 0, 1):
        vit = ViT("Ti/4@16")
        whiten_patches(vit, images, seed)
        weights.append(vit.patch_embed.proj.weight)
    assert torch.equal(weights[0], weights[1])
    assert not torch.allclose(weights[0], weights[2], atol=0.1)
