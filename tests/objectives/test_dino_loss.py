"""The terms of self-distillation against the papers' formulas written out in NumPy."""

import numpy as np
import pytest
import torch

from support.dino_parts import numpy_dino, own_products, softmax
from vitreous.objectives.dino import (
    distillation_loss,
    koleo_loss,
    masked_patch_loss,
    sinkhorn_probabilities,
    teacher_probabilities,
)


def test_the_loss_is_the_papers_formula(subtests):
    for large, views, images, prototypes in ((2, 2, 1, 3), (2, 6, 5, 17), (3, 7, 4, 64)):
        with subtests.test(large=large, views=views, images=images, prototypes=prototypes):
            draw = np.random.default_rng(views)
            teacher, student = (
                draw.uniform(-1, 1, (large, images, prototypes)),
                draw.uniform(-1, 1, (views, images, prototypes)),
            )
            centre = draw.uniform(-0.3, 0.3, prototypes)
            answers = teacher_probabilities(torch.from_numpy(teacher), torch.from_numpy(centre), 0.05)
            loss = distillation_loss(answers, torch.from_numpy(student), 0.1).item()
            assert abs(loss - numpy_dino(teacher, student, centre, 0.05, 0.1)) <= 1e-6


def numpy_sinkhorn(scores, temperature, rounds):
    """Algorithm 1 of SwAV's appendix: Q is prototypes by images, rows to 1/K and columns to 1/B in turns."""
    q = np.exp(scores / temperature).T
    q /= q.sum()
    for _ in range(rounds):
        q /= q.sum(axis=1, keepdims=True) * q.shape[0]
        q /= q.sum(axis=0, keepdims=True) * q.shape[1]
    return (q * q.shape[1]).T


def test_balanced_answers_are_sinkhorns(subtests):
    for images, prototypes, rounds in ((1, 3, 1), (8, 4, 3), (5, 32, 3)):
        with subtests.test(images=images, prototypes=prototypes, rounds=rounds):
            scores = np.random.default_rng(prototypes).uniform(-1, 1, (images, prototypes))
            answers = sinkhorn_probabilities(torch.from_numpy(scores), 0.05, rounds).numpy()
            assert np.abs(answers - numpy_sinkhorn(scores, 0.05, rounds)).max() <= 1e-6


def test_balance_keeps_one_prototype_from_being_the_answer_to_all():
    scores = torch.rand(16, 4, generator=torch.Generator().manual_seed(0)) * 0.2
    scores[:, 0] += 0.8
    assert (teacher_probabilities(scores, torch.zeros(4), 0.05).argmax(dim=1) == 0).all()
    shares = sinkhorn_probabilities(scores, 0.05, 50).sum(dim=0)
    torch.testing.assert_close(shares, torch.full((4,), 4.0), rtol=0.02, atol=0)


def test_the_term_of_masked_patches_is_ibots_formula(subtests):
    for images, patches, prototypes in ((2, 4, 3), (5, 9, 16), (3, 64, 50)):
        with subtests.test(images=images, patches=patches, prototypes=prototypes):
            draw = np.random.default_rng(patches)
            mask = draw.random((images, patches)) < 0.4
            mask[0] = False  # in some images nothing is masked
            teacher, student = (draw.uniform(-1, 1, (images, patches, prototypes)) for _ in range(2))
            centre = draw.uniform(-0.3, 0.3, prototypes)
            total = 0.0
            for b in range(images):
                mine = [
                    -np.sum(softmax((teacher[b, i] - centre) / 0.06) * np.log(softmax(student[b, i] / 0.1)))
                    for i in range(patches)
                    if mask[b, i]
                ]
                total += np.sum(mine) / max(1, len(mine))
            chosen = torch.from_numpy(mask)
            answers = teacher_probabilities(torch.from_numpy(teacher)[chosen], torch.from_numpy(centre), 0.06)
            weights = torch.from_numpy(np.concatenate([np.full(row.sum(), 1 / max(1, row.sum())) for row in mask]))
            loss = masked_patch_loss(answers, torch.from_numpy(student)[chosen], 0.1, weights, images).item()
            assert abs(loss - total / images) <= 1e-6


def test_koleo_is_minus_the_log_of_the_nearest_distance(subtests):
    for images, width in ((2, 3), (7, 5), (20, 64)):
        with subtests.test(images=images, width=width):
            x = np.random.default_rng(width).normal(size=(images, width))
            unit = x / np.linalg.norm(x, axis=1, keepdims=True)
            nearest = [min(np.linalg.norm(unit[i] - unit[j]) for j in range(images) if j != i) for i in range(images)]
            assert abs(koleo_loss(torch.from_numpy(x)).item() + np.mean(np.log(nearest))) <= 1e-6


def test_koleo_of_equal_features_is_finite_and_pulls_them_apart():
    features = torch.ones(4, 6) + 1e-3 * torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    features.requires_grad_()
    koleo_loss(features).backward()
    assert torch.isfinite(features.grad).all()
    moved = features.detach() - 1e-4 * features.grad
    assert koleo_loss(moved) < koleo_loss(features)
    assert torch.isfinite(koleo_loss(torch.ones(4, 6)))


def test_koleo_finds_the_nearest_in_float32_too():
    """Features that are nearly alike: their cosines in bfloat16 would all be 1."""
    features = torch.ones(20, 16) + 1e-2 * torch.randn(20, 16, generator=torch.Generator().manual_seed(0))
    wanted = koleo_loss(features.double()).item()
    with own_products(), torch.autocast("cpu", torch.bfloat16):
        assert koleo_loss(features).item() == pytest.approx(wanted, abs=1e-4)
