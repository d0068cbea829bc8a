"""Self-distillation against the papers' formulas written out in NumPy, and what its parts promise."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from vitreous import UserError, ViT, ViTConfig
from vitreous.config.data import MultiCrop
from vitreous.config.objective import Dino
from vitreous.data.batch import Batch, ViewBatch
from vitreous.data.chance import sample_keys
from vitreous.objectives.build import objective_from_json, objective_to_json
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
SETTINGS = Dino(crops=CROPS, hidden=24, bottleneck=8, prototypes=12, momentum=0.9, freeze_last_layer=0.2)


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
    head = Head(16, SETTINGS, seed=0)
    y = torch.randn(5, 16)
    x = y
    for layer in head.layers[:-1]:
        x = torch.nn.functional.gelu(x @ layer.weight.T + layer.bias)
    x = x @ head.layers[-1].weight.T + head.layers[-1].bias
    wanted = torch.cosine_similarity(x[:, None], head.prototypes[None], dim=2)
    torch.testing.assert_close(head(y), wanted)
    longer = Head(16, SETTINGS, seed=0)
    longer.prototypes.data *= 7
    torch.testing.assert_close(longer(y), wanted)  # a prototype has no length


def views(images):
    """Views (B, V, C, H, W) of whole pictures."""
    return ViewBatch(images, torch.tensor([0.0, 0.0, 1.0, 1.0]).expand(*images.shape[:2], 4), images[:, :, 0, 0, 0] > 9)


def batch(count=6, small=3, dtype=torch.float32, epoch=0):
    draw = torch.Generator().manual_seed(0)
    found = {"global": views(torch.randn(count, 2, 3, 16, 16, generator=draw).to(dtype))}
    if small:
        found["local"] = views(torch.randn(count, small, 3, 8, 8, generator=draw).to(dtype))
    keys = torch.from_numpy(sample_keys(0, epoch, np.arange(count)))
    return Batch(found, torch.full((count,), -1), torch.arange(count), keys)


def build(settings=SETTINGS, **more):
    return SelfDistillation(ViT(replace(MODEL, **more), seed=3), settings, seed=3).train()


def test_the_loss_of_a_batch_is_put_together_from_single_views():
    """View by view through the two networks, then the formula: the order of views and pictures is not mixed up."""
    objective, seen = build().double(), batch(dtype=torch.float64)
    large, small = (seen.views[name].images for name in ("global", "local"))
    objective.centre += torch.linspace(-0.1, 0.1, 12)
    with torch.no_grad():
        for parameter in objective.student.parameters():
            parameter += 0.02
        teacher = [objective.head(objective.model(large[:, g])) for g in range(2)]
        crops = [large[:, 0], large[:, 1], *(small[:, v] for v in range(3))]
        student = [objective.student_head(objective.student(crop)) for crop in crops]
        loss, _ = objective(seen, 0.15)
    temperature = 0.04 + 0.03 * 0.5
    wanted = numpy_dino(
        torch.stack(teacher).numpy(), torch.stack(student).numpy(), objective.centre.numpy(), temperature, 0.1
    )
    assert abs(loss.item() - wanted) <= 1e-6


@pytest.fixture
def own_products():
    """torch multiplies bfloat16 by itself: some machines only claim to have the instructions that oneDNN would use."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="TF32 acceleration")  # nobody asked for it
        with torch.backends.mkldnn.flags(enabled=False):
            yield


@pytest.mark.parametrize("more", [{}, {"ibot_weight": 1.0, "koleo_weight": 0.1}], ids=["dino", "dinov2"])
@pytest.mark.usefixtures("own_products")
def test_half_precision_of_the_processor_is_no_obstacle(more):
    """Where the processor multiplies bfloat16 the loop casts to it; loss, centre and gradients stay float32."""
    objective = build(replace(SETTINGS, **more))
    plain = objective(batch(), 0.5)[0].item()
    with torch.autocast("cpu", torch.bfloat16):
        loss, _ = objective(batch(), 0.5)
    loss.backward()
    objective.after_step(0.5)
    assert loss.dtype == objective.centre.dtype == torch.float32
    assert objective.centre.isfinite().all()
    assert abs(loss.item() - plain) < 0.05


@pytest.mark.usefixtures("own_products")
def test_ibots_term_is_computed_in_float32_from_what_half_precision_gives():
    """The heads answer in bfloat16; temperatures this low then want the log-softmax in float32."""
    objective = build(replace(SETTINGS, ibot_weight=1.0))
    with torch.no_grad():
        for parameter in (*objective.student.parameters(), *objective.student_head.parameters()):
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel()))
    said = {"head": [], "student_head": []}
    for name, heard in said.items():
        getattr(objective, name).register_forward_hook(lambda _, __, scores, heard=heard: heard.append(scores))
    drawn, original = [], objective._draw_masks
    objective._draw_masks = lambda *given: drawn.append(original(*given)) or drawn[-1]
    with torch.autocast("cpu", torch.bfloat16):
        loss = objective(batch(), 1.0)[0].item()
    assert {scores.dtype for heard in said.values() for scores in heard} == {torch.bfloat16}
    (mask,), teacher, student = drawn, *([s.detach().double().numpy() for s in heard] for heard in said.values())
    assert mask.any()
    wanted = numpy_dino(teacher[0].reshape(2, 6, 12), student[0].reshape(5, 6, 12), np.zeros(12), 0.07, 0.1)
    places = iter(range(int(mask.sum())))
    for row in mask.numpy():
        for place in (next(places) for _ in range(row.sum())):
            answer = softmax(teacher[1][place] / 0.07)
            wanted -= np.sum(answer * np.log(softmax(student[1][place] / 0.1))) / row.sum() / len(mask)
    assert loss == pytest.approx(wanted, abs=1e-5)


@pytest.mark.usefixtures("own_products")
def test_koleo_finds_the_nearest_in_float32_too():
    """Features that are nearly alike: their cosines in bfloat16 would all be 1."""
    features = torch.ones(20, 16) + 1e-2 * torch.randn(20, 16, generator=torch.Generator().manual_seed(0))
    wanted = koleo_loss(features.double()).item()
    with torch.autocast("cpu", torch.bfloat16):
        assert koleo_loss(features).item() == pytest.approx(wanted, abs=1e-4)


def test_the_teacher_follows_the_student_and_the_centre_follows_the_teacher():
    objective = build()
    with torch.no_grad():
        for parameter in objective.student.parameters():
            parameter += 1.0
    before = objective.model.blocks[0].mlp.fc1.weight.clone()
    large = batch().views["global"].images
    with torch.no_grad():
        said = torch.stack([objective.head(objective.model(large[:, g])) for g in range(2)]).mean(dim=(0, 1))
    objective(batch(), 0.0)
    objective.after_step(0.5)
    assert abs(objective.momentum(0.5) - 0.95) < 1e-12
    assert [objective.momentum(0.0), objective.momentum(1.0)] == [0.9, 1.0]
    torch.testing.assert_close(objective.model.blocks[0].mlp.fc1.weight, before + 0.05)
    torch.testing.assert_close(objective.centre, 0.1 * said)


WAYS = {
    "plain": ({}, {}),
    "keep": ({"keep": 0.5}, {"drop_path": 0.5}),
    "ibot": ({"ibot_weight": 1.0}, {"drop_path": 0.5}),
}


@pytest.mark.parametrize(("settings", "model"), WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("parts", [2, 4, 6])
def test_a_batch_in_parts_teaches_and_moves_the_centre_as_a_whole_one(settings, model, parts):
    """Masks, patches that are kept and stochastic depth follow each picture into its part."""
    found = []
    for count in (1, parts):
        objective, whole, total = build(replace(SETTINGS, **settings), **model), batch(), 0.0
        for part in whole.split(count):
            loss, _ = objective(part, 0.25)
            share = objective.weigh(part) / objective.weigh(whole)
            (share * loss).backward()
            total += share * loss.item()
        objective.after_step(0.3)
        learned = {name: p.grad for name, p in objective.named_parameters() if p.grad is not None}
        found.append((total, learned, objective.centre, objective.patch_centre))
    (one, learned, centre, patch_centre), (other, others, their_centre, their_patch_centre) = found
    assert one == pytest.approx(other, abs=1e-6)
    assert learned.keys() == others.keys()
    for name, gradient in learned.items():
        torch.testing.assert_close(gradient, others[name], atol=1e-5, rtol=0)
    torch.testing.assert_close(centre, their_centre)
    torch.testing.assert_close(patch_centre, their_patch_centre)
    assert centre.abs().sum() > 0


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
    objective = build(Dino(crops=CROPS, hidden=24, bottleneck=8, prototypes=12, ibot_weight=1.0, koleo_weight=0.1))
    objective.mask_token.data += 0.3
    large = batch().views["global"].images[:, 0]
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


@pytest.mark.parametrize("sinkhorn", [0, 3])
def test_a_batch_in_which_nothing_is_masked_is_learned_from_without_ibots_term(sinkhorn):
    settings = replace(SETTINGS, sinkhorn_iterations=sinkhorn)
    with_term, without = build(replace(settings, ibot_weight=1.0)), build(settings)
    with_term._draw_masks = lambda large, keys: torch.zeros(len(large), 16, dtype=torch.bool)
    for objective in (with_term, without):
        objective(batch(), 0.5)[0].backward()
        objective.after_step(0.5)
    torch.testing.assert_close(with_term(batch(), 0.5)[0], without(batch(), 0.5)[0])
    for name, parameter in without.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(with_term.get_parameter(name).grad, parameter.grad, atol=1e-6, rtol=1e-4)
    assert with_term.patch_centre.tolist() == [0.0] * 12


def keys_of(*index, epoch=0, seed=0):
    return torch.from_numpy(sample_keys(seed, epoch, np.array(index)))


def test_masks_are_in_half_the_views_within_the_shares():
    objective = build(Dino(crops=CROPS, hidden=24, bottleneck=8, prototypes=12, ibot_weight=1.0))
    masks = objective._draw_masks(torch.zeros(2000, 3, 64, 64), keys_of(*range(2000)))
    shares = masks.float().mean(dim=1)
    some = shares[shares > 0]
    assert 0.45 < len(some) / 2000 < 0.55
    assert 0.1 <= some.min() < 0.12
    assert 0.48 < some.max() <= 0.5
    cells = masks.float().mean(dim=0)  # no patch is masked more often than another
    assert (cells - cells.mean()).abs().max() < 0.04


def watched(objective, seen):
    """What a step of the objective masks or leaves out: (G, B, ...)."""
    found = []
    masks, representation = objective._draw_masks, objective.student.representation

    def draw_masks(*given):
        found.append(masks(*given))
        return found[-1]

    def represent(images, keep=None, **rest):
        if keep is not None:
            found.append(keep)
        return representation(images, keep=keep, **rest)

    objective._draw_masks, objective.student.representation = draw_masks, represent
    objective(seen, 0.5)
    (one,) = found
    return one.unflatten(0, (2, -1))


@pytest.mark.parametrize("settings", [{"ibot_weight": 1.0}, {"keep": 0.5}], ids=["masks", "kept"])
def test_what_is_masked_or_kept_follows_from_seed_epoch_picture_and_view_alone(settings):
    settings = replace(SETTINGS, **settings)
    whole = watched(build(settings), batch(40))
    assert whole.equal(watched(build(settings), batch(40)))
    assert not whole[0].equal(whole[1])  # each view has its own
    assert len({tuple(row.tolist()) for row in whole.flatten(0, 1)}) > 35  # and each picture
    for parts in (3, 40):
        split = torch.cat([watched(build(settings), part) for part in batch(40).split(parts)], dim=1)
        assert split.equal(whole)
    assert not whole.equal(watched(build(settings), batch(40, epoch=1)))
    other = replace(batch(40), keys=keys_of(*range(40), seed=1))
    assert not whole.equal(watched(build(settings), other))


def test_evaluation_is_repeatable():
    objective = build(replace(SETTINGS, ibot_weight=1.0), drop_path=0.5).eval()
    with torch.no_grad():
        assert torch.equal(objective(batch(), 1.0)[0], objective(batch(), 1.0)[0])


def test_information_is_relative_to_the_most_that_prototypes_can_tell():
    objective, seen = build().double(), batch(dtype=torch.float64)
    large = seen.views["global"].images
    with torch.no_grad():
        scores = torch.stack([objective.head(objective.model(large[:, g])) for g in range(2)]).flatten(0, 1)
        metrics = objective(seen, 0.0)[1]
    answers = softmax(scores.numpy() / 0.04)
    mean = answers.mean(axis=0)
    each = -(answers * np.log(answers)).sum(axis=1).mean()
    assert metrics["information"] == pytest.approx((-(mean * np.log(mean)).sum() - each) / np.log(12), abs=1e-6)


def test_class_token_and_mean_together_are_learned_by():
    both = replace(MODEL, pool="class+mean")
    objective = SelfDistillation(ViT(both), SETTINGS).train()
    loss, metrics = objective(batch(), 0.5)
    loss.backward()
    objective.after_step(0.5)
    assert np.isfinite([loss.item(), *metrics.values()]).all()
    assert objective.student_head.layers[0].weight.shape == (24, 32)
    with pytest.raises(UserError, match=r"pool='class\+mean': one head scores pictures and masked patches"):
        SelfDistillation(ViT(both), replace(SETTINGS, ibot_weight=1.0))


def test_settings_survive_json_and_nonsense_is_refused():
    assert objective_from_json(objective_to_json(SETTINGS)) == SETTINGS
    for says, wrong in {
        "keep=0: must be above 0": {"keep": 0},
        "must be above 0": {"teacher_temperature": (0.0, 0.1)},
        "prototypes=0: must be at least 1": {"prototypes": 0},
        "both left out and masked": {"keep": 0.5, "ibot_weight": 1.0},
        "need two at least": {"crops": MultiCrop(global_views=1)},
    }.items():
        with pytest.raises(UserError, match=says):
            Dino(**wrong)
