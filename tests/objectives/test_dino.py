"""Self-distillation against the papers' formulas written out in NumPy, and what its parts promise."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from vitreous.config.pretrain import Dino, method_from_json, method_to_json

from vitreous import UserError, ViT, ViTConfig
from vitreous.config.data import MultiCrop
from vitreous.data.loader import Batch
from vitreous.objectives.dino import SelfDistillation
from vitreous.objectives.dino_head import Head
from vitreous.objectives.dino_loss import (
    balanced_answers,
    distillation_loss,
    koleo_loss,
    masked_patch_loss,
    teacher_answers,
)

MODEL = ViTConfig(width=16, depth=2, heads=2, mlp_width=32, patch=4, image_size=(16, 16), classes=0, registers=1)
CROPS = MultiCrop(local_views=3, local_size=(8, 8))
METHOD = Dino(crops=CROPS, hidden=24, bottleneck=8, prototypes=12, momentum=0.9, frozen=0.2)


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def numpy_dino(teacher, student, centre, t, s):
    """Algorithm 1 of the paper, for any number of views: all pairs of a teacher's view and another one."""
    total, pairs = 0.0, 0
    for g in range(len(teacher)):
        for v in range(len(student)):
            if g == v:
                continue
            for b in range(teacher.shape[1]):
                answer = softmax((teacher[g, b] - centre) / t)
                total -= np.sum(answer * np.log(softmax(student[v, b] / s)))
            pairs += 1
    return total / (pairs * teacher.shape[1])


@pytest.mark.parametrize(("large", "views", "pictures", "prototypes"), [(2, 2, 1, 3), (2, 6, 5, 17), (3, 7, 4, 64)])
def test_the_loss_is_the_papers_formula(large, views, pictures, prototypes):
    draw = np.random.default_rng(views)
    teacher, student = (
        draw.uniform(-1, 1, (large, pictures, prototypes)),
        draw.uniform(-1, 1, (views, pictures, prototypes)),
    )
    centre = draw.uniform(-0.3, 0.3, prototypes)
    answers = teacher_answers(torch.from_numpy(teacher), torch.from_numpy(centre), 0.05)
    loss = distillation_loss(answers, torch.from_numpy(student), 0.1).item()
    assert abs(loss - numpy_dino(teacher, student, centre, 0.05, 0.1)) <= 1e-6


def numpy_sinkhorn(scores, temperature, rounds):
    """Algorithm 1 of SwAV's appendix: Q is prototypes by pictures, rows to 1/K and columns to 1/B in turns."""
    q = np.exp(scores / temperature).T
    q /= q.sum()
    for _ in range(rounds):
        q /= q.sum(axis=1, keepdims=True) * q.shape[0]
        q /= q.sum(axis=0, keepdims=True) * q.shape[1]
    return (q * q.shape[1]).T


@pytest.mark.parametrize(("pictures", "prototypes", "rounds"), [(1, 3, 1), (8, 4, 3), (5, 32, 3)])
def test_balanced_answers_are_sinkhorns(pictures, prototypes, rounds):
    scores = np.random.default_rng(prototypes).uniform(-1, 1, (pictures, prototypes))
    answers = balanced_answers(torch.from_numpy(scores), 0.05, rounds).numpy()
    assert np.abs(answers - numpy_sinkhorn(scores, 0.05, rounds)).max() <= 1e-6


def test_balance_keeps_one_prototype_from_being_the_answer_to_all():
    scores = torch.rand(16, 4, generator=torch.Generator().manual_seed(0)) * 0.2
    scores[:, 0] += 0.8
    assert (teacher_answers(scores, torch.zeros(4), 0.05).argmax(dim=1) == 0).all()
    shares = balanced_answers(scores, 0.05, 50).sum(dim=0)
    torch.testing.assert_close(shares, torch.full((4,), 4.0), rtol=0.02, atol=0)


@pytest.mark.parametrize(("pictures", "patches", "prototypes"), [(2, 4, 3), (5, 9, 16), (3, 64, 50)])
def test_the_term_of_masked_patches_is_ibots_formula(pictures, patches, prototypes):
    draw = np.random.default_rng(patches)
    mask = draw.random((pictures, patches)) < 0.4
    mask[0] = False  # in some pictures nothing is masked
    teacher, student = (draw.uniform(-1, 1, (pictures, patches, prototypes)) for _ in range(2))
    centre = draw.uniform(-0.3, 0.3, prototypes)
    total = 0.0
    for b in range(pictures):
        mine = [
            -np.sum(softmax((teacher[b, i] - centre) / 0.06) * np.log(softmax(student[b, i] / 0.1)))
            for i in range(patches)
            if mask[b, i]
        ]
        total += np.sum(mine) / max(1, len(mine))
    chosen = torch.from_numpy(mask)
    answers = teacher_answers(torch.from_numpy(teacher)[chosen], torch.from_numpy(centre), 0.06)
    weights = torch.from_numpy(np.concatenate([np.full(row.sum(), 1 / max(1, row.sum())) for row in mask]))
    loss = masked_patch_loss(answers, torch.from_numpy(student)[chosen], 0.1, weights, pictures).item()
    assert abs(loss - total / pictures) <= 1e-6


@pytest.mark.parametrize(("pictures", "width"), [(2, 3), (7, 5), (20, 64)])
def test_koleo_is_minus_the_log_of_the_nearest_distance(pictures, width):
    x = np.random.default_rng(width).normal(size=(pictures, width))
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    nearest = [min(np.linalg.norm(unit[i] - unit[j]) for j in range(pictures) if j != i) for i in range(pictures)]
    assert abs(koleo_loss(torch.from_numpy(x)).item() + np.mean(np.log(nearest))) <= 1e-6


def test_koleo_of_equal_features_is_finite_and_pulls_them_apart():
    features = torch.ones(4, 6) + 1e-3 * torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    features.requires_grad_()
    koleo_loss(features).backward()
    assert torch.isfinite(features.grad).all()
    moved = features.detach() - 1e-4 * features.grad
    assert koleo_loss(moved) < koleo_loss(features)
    assert torch.isfinite(koleo_loss(torch.ones(4, 6)))


def test_scores_are_cosines_with_prototypes():
    head = Head(16, METHOD, seed=0)
    y = torch.randn(5, 16)
    x = y
    for layer in head.layers[:-1]:
        x = torch.nn.functional.gelu(x @ layer.weight.T + layer.bias)
    x = x @ head.layers[-1].weight.T + head.layers[-1].bias
    wanted = torch.cosine_similarity(x[:, None], head.prototypes[None], dim=2)
    torch.testing.assert_close(head(y), wanted)
    longer = Head(16, METHOD, seed=0)
    longer.prototypes.data *= 7
    torch.testing.assert_close(longer(y), wanted)  # a prototype has no length


def batch(count=6, small=3):
    draw = torch.Generator().manual_seed(0)
    images = torch.randn(count, 2, 3, 16, 16, generator=draw)
    views = torch.randn(count, small, 3, 8, 8, generator=draw) if small else None
    return Batch(images, torch.zeros(count, dtype=torch.int64), torch.arange(count), views)


def build(method=METHOD):
    return SelfDistillation(ViT(MODEL, seed=3), method, seed=3).train()


def test_the_loss_of_a_batch_is_put_together_from_single_views():
    """View by view through the two networks, then the formula: the order of views and pictures is not mixed up."""
    objective, views = build().double(), batch()
    views = Batch(views.images.double(), views.targets, views.index, views.small.double())
    objective.centre += torch.linspace(-0.1, 0.1, 12)
    with torch.no_grad():
        for parameter in objective.student.parameters():
            parameter += 0.02
        teacher = [objective.head(objective.model(views.images[:, g])) for g in range(2)]
        crops = [views.images[:, 0], views.images[:, 1], *(views.small[:, v] for v in range(3))]
        student = [objective.student_head(objective.student(crop)) for crop in crops]
        loss, _ = objective(views, 0.15)
    temperature = 0.04 + 0.03 * 0.5
    wanted = numpy_dino(
        torch.stack(teacher).numpy(), torch.stack(student).numpy(), objective.centre.numpy(), temperature, 0.1
    )
    assert abs(loss.item() - wanted) <= 1e-6


@pytest.mark.parametrize("more", [{}, {"masked": 1.0, "koleo": 0.1}], ids=["dino", "dinov2"])
def test_half_precision_of_the_processor_is_no_obstacle(more):
    """Where the processor multiplies bfloat16 the loop casts to it; loss, centre and gradients stay float32."""
    objective = SelfDistillation(ViT(MODEL), replace(METHOD, **more)).train()
    draw = torch.Generator().manual_seed(0)
    images, small = (torch.randn(4, n, 3, side, side, generator=draw) for n, side in ((2, 16), (3, 8)))
    batch = Batch(images, torch.zeros(4), torch.arange(4), small)
    plain = objective(batch, 0.5)[0].item()
    with torch.autocast("cpu", torch.bfloat16):
        loss, _ = objective(batch, 0.5)
    loss.backward()
    objective.after_step(0.5)
    assert loss.dtype == objective.centre.dtype == torch.float32
    assert objective.centre.isfinite().all()
    if not more:  # masks are drawn anew in each call
        assert abs(loss.item() - plain) < 0.05


def test_the_teacher_follows_the_student_and_the_centre_follows_the_teacher():
    objective = build()
    with torch.no_grad():
        for parameter in objective.student.parameters():
            parameter += 1.0
    before = objective.model.blocks[0].mlp.fc1.weight.clone()
    large = batch().images
    with torch.no_grad():
        said = torch.stack([objective.head(objective.model(large[:, g])) for g in range(2)]).mean(dim=(0, 1))
    objective(batch(), 0.0)
    objective.after_step(0.5)
    assert abs(objective.momentum(0.5) - 0.95) < 1e-12
    assert [objective.momentum(0.0), objective.momentum(1.0)] == [0.9, 1.0]
    torch.testing.assert_close(objective.model.blocks[0].mlp.fc1.weight, before + 0.05)
    torch.testing.assert_close(objective.centre, 0.1 * said)


def test_a_batch_in_parts_moves_the_centre_as_a_whole_one():
    whole, parts = build(), build()
    views = batch()
    whole(views, 0.0)
    for some in (slice(0, 4), slice(4, 6)):
        parts(Batch(views.images[some], views.targets[some], views.index[some], views.small[some]), 0.0)
    whole.after_step(0.1)
    parts.after_step(0.1)
    torch.testing.assert_close(whole.centre, parts.centre)


def test_only_the_student_learns_and_its_last_layer_not_at_first():
    objective = build()
    for progress, learns in ((0.1, False), (0.2, True)):
        objective.zero_grad()
        objective(batch(), progress)[0].backward()
        assert (objective.student_head.prototypes.grad is not None) == learns
        assert objective.student.blocks[0].attn.qkv.weight.grad.abs().sum() > 0
        assert all(p.grad is None and not p.requires_grad for p in objective.model.parameters())
        assert all(p.grad is None and not p.requires_grad for p in objective.head.parameters())


def test_the_temperature_rises_to_its_second_value():
    objective = build()
    found = [round(objective.temperature(p), 6) for p in (0.0, 0.15, 0.3, 0.9)]
    assert found == [0.04, 0.055, 0.07, 0.07]


def test_the_student_may_look_at_fewer_patches():
    objective = build(Dino(crops=CROPS, hidden=24, bottleneck=8, prototypes=12, keep=0.5))
    seen = []
    original = objective.student.representation

    def watch(images, keep=None, **rest):
        seen.append((images.shape[2], None if keep is None else keep.shape[1]))
        return original(images, keep=keep, **rest)

    objective.student.representation = watch
    objective(batch(), 0.0)
    assert seen == [(16, 8), (8, None)]


def test_masked_patches_are_hidden_from_the_student_alone():
    objective = build(Dino(crops=CROPS, hidden=24, bottleneck=8, prototypes=12, masked=1.0, koleo=0.1))
    objective.mask_token.data += 0.3
    large = batch().images[:, 0]
    mask = torch.zeros(6, 16, dtype=torch.bool)
    mask[:, 3:9] = True
    other = large.clone()
    other[:, :, 0:4, 12:16] += 1.0  # patch 3
    with torch.no_grad():
        student = [objective._encode(objective.student, x, mask, seen=False)[1] for x in (large, other)]
        teacher = [objective._encode(objective.model, x, mask, seen=True)[1] for x in (large, other)]
    assert torch.equal(*student)
    assert not torch.equal(*teacher)
    loss, _ = objective(batch(), 0.0)
    loss.backward()
    assert objective.mask_token.grad.abs().sum() > 0
    objective.after_step(0.1)
    assert objective.patch_centre.abs().sum() > 0


def test_masks_are_in_half_the_views_within_the_shares():
    objective = build(Dino(crops=CROPS, hidden=24, bottleneck=8, prototypes=12, masked=1.0))
    torch.manual_seed(0)
    shares = objective._draw_masks(torch.zeros(2000, 3, 64, 64), torch.arange(1000)).float().mean(dim=1)
    some = shares[shares > 0]
    assert 0.45 < len(some) / 2000 < 0.55
    assert 0.1 <= some.min() < 0.12
    assert 0.48 < some.max() <= 0.5


def test_masks_of_evaluation_follow_from_the_seed_and_the_picture_alone():
    objective = build(replace(METHOD, masked=1.0)).eval()
    large, index = torch.zeros(40, 3, 64, 64), torch.randperm(1000)[:20]
    masks = objective._draw_masks(large, index)
    assert torch.equal(masks, objective._draw_masks(large, index))
    first, second = masks.chunk(2)
    assert not torch.equal(first, second)  # each view has its own
    alone = objective._draw_masks(large[:2], index[7:8])
    assert torch.equal(alone, torch.stack([first[7], second[7]]))
    with torch.no_grad():
        assert torch.equal(objective(batch(), 1.0)[0], objective(batch(), 1.0)[0])
    objective.seed += 1
    assert not torch.equal(masks, objective._draw_masks(large, index))


def test_information_is_relative_to_the_most_that_prototypes_can_tell():
    objective, views = build().double(), batch()
    views = Batch(views.images.double(), views.targets, views.index, views.small.double())
    with torch.no_grad():
        scores = torch.stack([objective.head(objective.model(views.images[:, g])) for g in range(2)]).flatten(0, 1)
        figures = objective(views, 0.0)[1]
    answers = softmax(scores.numpy() / 0.04)
    mean = answers.mean(axis=0)
    each = -(answers * np.log(answers)).sum(axis=1).mean()
    assert figures["information"] == pytest.approx((-(mean * np.log(mean)).sum() - each) / np.log(12), abs=1e-6)


def test_class_token_and_mean_together_are_learned_by():
    both = replace(MODEL, pool="class+mean")
    objective = SelfDistillation(ViT(both), METHOD).train()
    loss, figures = objective(batch(), 0.5)
    loss.backward()
    objective.after_step(0.5)
    assert np.isfinite([loss.item(), *figures.values()]).all()
    assert objective.student_head.layers[0].weight.shape == (24, 32)
    with pytest.raises(UserError, match=r"pool='class\+mean': one head scores pictures and masked patches"):
        SelfDistillation(ViT(both), replace(METHOD, masked=1.0))


def test_settings_survive_json_and_nonsense_is_refused():
    assert method_from_json(method_to_json(METHOD), Path("config.json")) == METHOD
    for says, wrong in {
        "keep=0: must be above 0": {"keep": 0},
        "must be above 0": {"teacher_temperature": (0.0, 0.1)},
        "prototypes=0: must be at least 1": {"prototypes": 0},
        "both left out and masked": {"keep": 0.5, "masked": 1.0},
        "need two at least": {"crops": MultiCrop(global_views=1)},
    }.items():
        with pytest.raises(UserError, match=says):
            Dino(**wrong)
