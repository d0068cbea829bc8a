"""Self-distillation as a whole: put together as the papers say, and the same however a batch is divided."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from support.dino_parts import batch, keys_of, numpy_dino, own_products, softmax
from vitreous import UserError, ViT, ViTConfig
from vitreous.config.data import MultiCrop
from vitreous.config.objective import Dino
from vitreous.objectives.dino import DinoHead, SelfDistillation
from vitreous.objectives.objective import Setting

MODEL = ViTConfig(width=16, depth=2, heads=2, mlp_width=32, patch=4, image_size=(16, 16), classes=0, registers=1)
CROPS = MultiCrop(local_views=3, local_size=(8, 8))
SETTINGS = Dino(crops=CROPS, hidden=24, bottleneck=8, prototypes=12, momentum=0.9, freeze_last_layer=0.2)


def test_scores_are_cosines_with_prototypes():
    head = DinoHead(16, SETTINGS, seed=0)
    y = torch.randn(5, 16)
    x = y
    for layer in head.layers[:-1]:
        x = torch.nn.functional.gelu(x @ layer.weight.T + layer.bias)
    x = x @ head.layers[-1].weight.T + head.layers[-1].bias
    wanted = torch.cosine_similarity(x[:, None], head.prototypes[None], dim=2)
    torch.testing.assert_close(head(y), wanted)
    longer = DinoHead(16, SETTINGS, seed=0)
    longer.prototypes.data *= 7
    torch.testing.assert_close(longer(y), wanted)  # a prototype has no length


def build(settings=SETTINGS, **more):
    return SelfDistillation(ViT(replace(MODEL, **more), seed=3), settings, Setting(seed=3)).train()


def test_the_loss_of_a_batch_is_put_together_from_single_views():
    """View by view through the two networks, then the formula: the order of views and images is not mixed up."""
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


def test_koleo_is_weighed_as_in_dinov2():
    """Its weight times the sum, not the mean, over large views of -mean log of the distance to the nearest other."""
    seen, losses = batch(dtype=torch.float64), []
    for weight in (0.0, 0.1):
        objective = build(replace(SETTINGS, koleo_weight=weight)).double()
        losses.append(objective(seen, 0.15)[0].item())
    wanted = 0.0
    for view in range(2):
        with torch.no_grad():
            x = objective.student.representation(seen.views["global"].images[:, view]).numpy()
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        distances = np.linalg.norm(x[:, None] - x[None], axis=2) + np.diag(np.full(len(x), np.inf))
        wanted -= np.log(distances.min(axis=1)).mean()
    assert losses[1] - losses[0] == pytest.approx(0.1 * wanted, abs=1e-5)


def test_of_equal_random_numbers_the_first_patch_comes_first(monkeypatch):
    """What is masked is the same on every processor: fast sorts order equal numbers otherwise, each in its own way."""
    uniform = torch.randint(8, (12, 2 + 64), generator=torch.Generator().manual_seed(0)) / 8
    monkeypatch.setattr("vitreous.objectives.dino.keyed_uniform", lambda keys, stream, count: uniform)
    objective = build(replace(SETTINGS, ibot_weight=1.0))
    found = objective._draw_masks(torch.zeros(12, 3, 32, 32), torch.zeros(12, dtype=torch.int64))
    for own, (fraction, half, *numbers) in zip(found.numpy(), uniform.numpy(), strict=True):
        count = round(64 * (0.1 + 0.4 * fraction)) if half < 0.5 else 0
        assert own.nonzero()[0].tolist() == sorted(np.argsort(numbers, kind="stable")[:count].tolist())


@pytest.fixture
def safe_products():
    with own_products():
        yield


@pytest.mark.usefixtures("safe_products")
def test_half_precision_of_the_processor_is_no_obstacle(subtests):
    """Where the processor multiplies bfloat16 the loop casts to it; loss, centre and gradients stay float32."""
    for more in ({}, {"ibot_weight": 1.0, "koleo_weight": 0.1}):
        with subtests.test(more=more):
            objective = build(replace(SETTINGS, **more))
            plain = objective(batch(), 0.5)[0].item()
            with torch.autocast("cpu", torch.bfloat16):
                loss, _ = objective(batch(), 0.5)
            loss.backward()
            objective.after_step(0.5)
            assert loss.dtype == objective.centre.dtype == torch.float32
            assert objective.centre.isfinite().all()
            assert abs(loss.item() - plain) < 0.05


@pytest.mark.usefixtures("safe_products")
def test_ibots_term_is_computed_in_float32_from_what_half_precision_gives():
    """Encoders and heads compute in bfloat16, but logits are not rounded to its 8 bits: temperatures are too low."""
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
    assert {scores.dtype for heard in said.values() for scores in heard} == {torch.float32}
    assert all((scores != scores.bfloat16()).float().mean() > 0.9 for heard in said.values() for scores in heard)
    (mask,), teacher, student = drawn, *([s.detach().double().numpy() for s in heard] for heard in said.values())
    assert mask.any()
    wanted = numpy_dino(teacher[0].reshape(2, 6, 12), student[0].reshape(5, 6, 12), np.zeros(12), 0.07, 0.1)
    places = iter(range(int(mask.sum())))
    for row in mask.numpy():
        for place in (next(places) for _ in range(row.sum())):
            answer = softmax(teacher[1][place] / 0.07)
            wanted -= np.sum(answer * np.log(softmax(student[1][place] / 0.1))) / row.sum() / len(mask)
    assert loss == pytest.approx(wanted, abs=1e-5)


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


def test_a_batch_in_parts_teaches_and_moves_the_centre_as_a_whole_one(subtests):
    """Masks, patches that are kept and stochastic depth follow each image into its part."""
    for (title, (settings, model)), parts in product(WAYS.items(), (2, 4, 6)):
        with subtests.test(title, parts=parts):
            found = []
            for count in (1, parts):
                # the networks in float64: in float32 gradients of 7 differ by more than the bound on some processors
                objective, whole, total = (
                    build(replace(SETTINGS, **settings), **model).double(),
                    batch(dtype=torch.float64),
                    0.0,
                )
                objective.centre, objective.patch_centre = objective.centre.float(), objective.patch_centre.float()
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

    def watch(images, keep_ids=None, **rest):
        seen.append((images.shape[2], None if keep_ids is None else keep_ids.shape[1]))
        return original(images, keep_ids=keep_ids, **rest)

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


def test_a_batch_in_which_nothing_is_masked_is_learned_from_without_ibots_term(subtests):
    for sinkhorn in (0, 3):
        with subtests.test(sinkhorn=sinkhorn):
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

    def represent(images, keep_ids=None, **rest):
        if keep_ids is not None:
            found.append(keep_ids)
        return representation(images, keep_ids=keep_ids, **rest)

    objective._draw_masks, objective.student.representation = draw_masks, represent
    objective(seen, 0.5)
    (one,) = found
    return one.unflatten(0, (2, -1))


def test_what_is_masked_or_kept_follows_from_seed_epoch_image_and_view_alone(subtests):
    for settings in ({"ibot_weight": 1.0}, {"keep": 0.5}):
        with subtests.test(settings=settings):
            settings = replace(SETTINGS, **settings)
            whole = watched(build(settings), batch(40))
            assert whole.equal(watched(build(settings), batch(40)))
            assert not whole[0].equal(whole[1])  # each view has its own
            assert len({tuple(row.tolist()) for row in whole.flatten(0, 1)}) > 35  # and each image
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
    with pytest.raises(UserError, match=r"pool='class\+mean'"):
        SelfDistillation(ViT(both), replace(SETTINGS, ibot_weight=1.0))
