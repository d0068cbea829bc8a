"""Distillation: both losses by the paper's formulas in NumPy, and a teacher that only answers."""

import copy
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from PIL import Image

from support.in_parts import gradients
from vitreous import UserError, ViT, ViTConfig
from vitreous.config.bit import BiTConfig
from vitreous.config.data import Augment, Preprocess
from vitreous.config.objective import Distill
from vitreous.config.train import Optimizer, Training
from vitreous.data.augment import normalise
from vitreous.data.batch import Batch
from vitreous.data.batch_augment import mix
from vitreous.distributed.world import World
from vitreous.model.family import build_network
from vitreous.objectives.build import build_objective
from vitreous.objectives.distill import (
    Distillation,
    hard_targets,
    image_targets,
    renormalise,
    soft_targets,
    view_targets,
)
from vitreous.objectives.objective import Setting
from vitreous.training.step import Learner, train_step

MODEL = ViTConfig(width=16, depth=2, heads=2, mlp_width=32, patch=4, image_size=(16, 16), classes=3)
PREPROCESS = Preprocess(size=(16, 16))
TARGETS = torch.tensor([0, 0, 2, 1, 0, 2, 2, 1, 0, 1, 2])
WEIGHT = torch.tensor([0.3, 1.0, 4.0])


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def batch(targets=TARGETS):
    return Batch.of(numbers(len(TARGETS), 3, 16, 16), targets)


def student(**changes):
    """A network whose classifiers do not start at zero."""
    network = ViT(replace(MODEL, **changes), seed=1)
    with torch.no_grad():
        for seed, layer in enumerate([network.head, network.head_dist]):
            if layer is not None:
                layer.weight.copy_(0.5 * numbers(*layer.weight.shape, seed=seed))
                layer.bias.copy_(numbers(*layer.bias.shape, seed=10 + seed))
    return network


TABLE = 2 * numbers(len(TARGETS), 3, seed=5)


def build(settings=None, weight=None, answers=None, **changes):
    given = image_targets(TABLE) if answers is None else answers
    objective = Distillation(student(**changes), settings or Distill(), Setting(teacher_targets=given)).train()
    objective.class_weight = weight
    return objective


def softmax(scores):
    e = np.exp(scores - scores.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def tokens(network, images):
    """The scores of the class token's classifier and of the distillation token's, (B, K) each."""
    with torch.no_grad():
        z, layout = network.embed(images)
        z = network.encode(z, layout)
        found = network.head(z[:, 0]), network.head_dist(z[:, 1])
    return [one.double().numpy() for one in found]


def cross_entropy(scores, targets):
    """The mean of -sum y log psi(z)."""
    return -(targets * np.log(softmax(scores))).sum(axis=1).mean()


def divergence(student_scores, teacher_scores, tau):
    """tau^2 KL, the mean over images of sum p_t log(p_t / p_s), at temperature tau."""
    p_s, p_t = softmax(student_scores / tau), softmax(teacher_scores / tau)
    return tau**2 * (p_t * np.log(p_t / p_s)).sum(axis=1).mean()


ONE_HOT = np.eye(3)[TARGETS.numpy()]
CHOSEN = np.eye(3)[TABLE.numpy().argmax(axis=1)]


def test_hard_distillation_on_one_classifier():
    """DeiT's equation 3: CE(z, y) / 2 + CE(z, argmax z_t) / 2."""
    objective, seen = build(), batch()
    with torch.no_grad():
        z = objective.model(seen.images).double().numpy()
    loss, metrics = objective(seen, 0.0)
    assert loss.item() == pytest.approx(cross_entropy(z, ONE_HOT) / 2 + cross_entropy(z, CHOSEN) / 2, abs=1e-6)
    assert metrics["accuracy"].item() == pytest.approx((z.argmax(1) == TARGETS.numpy()).mean())
    assert metrics["teacher_agreement"].item() == pytest.approx((z.argmax(1) == CHOSEN.argmax(1)).mean())


def test_soft_distillation_on_one_classifier(subtests):
    """DeiT's equation 2: (1 - lambda) CE(z, y) + lambda tau^2 KL(psi(z / tau), psi(z_t / tau))."""
    for tau in (1.0, 3.0, 0.5):
        with subtests.test(tau=tau):
            objective, seen = build(Distill(targets="soft", weight=0.1, temperature=tau)), batch()
            with torch.no_grad():
                z = objective.model(seen.images).double().numpy()
            expected = 0.9 * cross_entropy(z, ONE_HOT) + 0.1 * divergence(z, TABLE.double().numpy(), tau)
            assert objective(seen, 0.0)[0].item() == pytest.approx(expected, abs=1e-6)


def test_with_the_token_each_classifier_has_its_own_term(subtests):
    for targets in ("hard", "soft"):
        with subtests.test(targets=targets):
            objective, seen = build(Distill(targets=targets, weight=0.3, label_smoothing=0.1), distilled=True), batch()
            of_class, of_token = tokens(objective.model, seen.images)
            own = cross_entropy(of_class, 0.9 * ONE_HOT + 0.1 / 3)  # the teacher's labels are never smoothed
            theirs = (
                cross_entropy(of_token, CHOSEN)
                if targets == "hard"
                else divergence(of_token, TABLE.double().numpy(), 3.0)
            )
            loss, metrics = objective(seen, 0.0)
            assert loss.item() == pytest.approx(0.7 * own + 0.3 * theirs, abs=1e-6)
            both = ((of_class + of_token) / 2).argmax(1)
            assert metrics["accuracy"].item() == pytest.approx((both == TARGETS.numpy()).mean())
            assert metrics["teacher_agreement"].item() == pytest.approx((of_token.argmax(1) == CHOSEN.argmax(1)).mean())


def test_labels_teach_one_classifier_and_the_teacher_the_other():
    for targets, answers in ((TARGETS, TABLE), (TARGETS.flip(0), TABLE), (TARGETS, TABLE.flip(0))):
        objective = build(answers=image_targets(answers), distilled=True)
        objective(batch(targets), 0.0)[0].backward()
        found = objective.model.head.weight.grad.clone(), objective.model.head_dist.weight.grad.clone()
        if targets is TARGETS and answers is TABLE:
            first = found
        elif answers is TABLE:
            assert not torch.equal(found[0], first[0])
            torch.testing.assert_close(found[1], first[1])
        else:
            torch.testing.assert_close(found[0], first[0])
            assert not torch.equal(found[1], first[1])


def test_answers_given_once_are_mixed_as_the_images_are(subtests):
    """share psi(z_t) of the own image and 1 - share of the partner's; an odd last image stays as it is."""
    for targets, augment in product(("hard", "soft"), (Augment(mixup=0.8), Augment(cutmix=1.0))):
        with subtests.test(targets=targets, augment=augment):
            plain = Batch.of(numbers(11, 3, 16, 16), TARGETS, torch.tensor([8, 3, 0, 10, 1, 7, 2, 9, 4, 6, 5]))
            mixed = mix(plain, 3, augment, seed=4, epoch=2)
            settings = Distill(targets=targets, temperature=2.0)
            objective = build(settings)
            to_targets = hard_targets if targets == "hard" else partial(soft_targets, temperature=2.0)
            found = objective.teacher_targets(mixed, to_targets).double().numpy()
            z_t = TABLE.double().numpy()[plain.index.numpy()]
            believed = np.eye(3)[z_t.argmax(1)] if targets == "hard" else softmax(z_t / 2)
            partner = np.array([1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 10])
            share = mixed.lam.double().numpy()[:, None]
            np.testing.assert_allclose(found, share * believed + (1 - share) * believed[partner], atol=1e-6)
            truth = np.eye(3)[TARGETS.numpy()]
            np.testing.assert_allclose(mixed.targets, share * truth + (1 - share) * truth[partner], atol=1e-6)
            assert mixed.partner.tolist() == plain.index[torch.from_numpy(partner)].tolist()
            with torch.no_grad():
                z = objective.model(mixed.images).double().numpy()
            own = cross_entropy(z, mixed.targets.double().numpy())
            if targets == "hard":
                theirs = cross_entropy(z, found)
            else:
                logs = np.log(softmax(z / 2))
                theirs = 4 * (found * (np.log(found) - logs)).sum(1).mean()
            assert objective(mixed, 0.0)[0].item() == pytest.approx((own + theirs) / 2, abs=1e-6)


SOFT = torch.nn.functional.one_hot(TARGETS, 3).float().lerp(torch.full((11, 3), 1 / 3), 0.3)


def test_uneven_parts_teach_what_the_whole_batch_does(subtests):
    for labels, targets, weight in product((TARGETS, SOFT), ("hard", "soft"), (None, WEIGHT)):
        with subtests.test(labels=labels, targets=targets, weight=weight):
            objective = build(Distill(targets=targets), weight, image_targets(TABLE.double()), distilled=True).double()
            labels = labels.double() if labels.is_floating_point() else labels
            seen = Batch.of(numbers(11, 3, 16, 16).double(), labels)
            whole, parts = gradients(objective, [seen]), gradients(objective, seen.split(4))
            assert parts[0] == pytest.approx(whole[0], abs=1e-9)
            torch.testing.assert_close(parts[1], whole[1], atol=1e-9, rtol=1e-7)


def test_class_weights_weigh_both_terms(subtests):
    """sum_b w_b (CE(z, y) + CE(z, y_t)) / 2, over sum_b w_b; of mixed labels over B.

    In cross-entropy each class of a target has its own weight; the teacher's term of an image has those of its label.
    """
    for labels in (TARGETS, SOFT):
        with subtests.test(labels=labels):
            objective, seen = build(weight=WEIGHT), batch(labels)
            with torch.no_grad():
                logs = np.log(softmax(objective.model(seen.images).double().numpy()))
            truth = ONE_HOT if labels is TARGETS else SOFT.double().numpy()
            total, weights = 0.0, 0.0
            for b in range(11):
                own = sum(truth[b, k] * WEIGHT[k].item() for k in range(3))
                total -= sum(truth[b, k] * WEIGHT[k].item() * logs[b, k] for k in range(3)) / 2
                total -= own * sum(CHOSEN[b, k] * logs[b, k] for k in range(3)) / 2
                weights += own if labels is TARGETS else 1
            assert objective(seen, 0.0)[0].item() == pytest.approx(total / weights, abs=1e-6)


# ---- the teacher -----------------------------------------------------------------------------------------------------


def teaching(network, own=PREPROCESS):
    return view_targets(network, own, PREPROCESS)


def test_the_teacher_is_asked_about_the_very_view():
    teacher, seen = student().eval(), batch()
    with torch.no_grad():
        expected = np.eye(3)[teacher(seen.images).numpy().argmax(1)]
    objective = build(answers=teaching(teacher))
    assert objective.teacher_targets(seen, hard_targets).numpy().tolist() == expected.tolist()


def test_the_teacher_is_neither_trained_nor_kept_nor_copied():
    teacher = student(dropout=0.5).eval()
    before = copy.deepcopy(teacher.state_dict())
    objective = build(answers=teaching(teacher), distilled=True)
    alone = {f"model.{name}" for name in objective.model.state_dict()}
    assert set(objective.state_dict()) == alone
    assert {name for name, _ in objective.named_parameters()} == alone
    assert objective.parameter_groups().keys() == alone
    assert copy.deepcopy(objective).teacher_targets is objective.teacher_targets
    training = Training(objective.model.config, PREPROCESS, Distill(), optimizer=Optimizer(name="muon"))
    learner = Learner(objective, training, World())
    for step in range(2):
        train_step(learner, batch(), step, 0.3, 0.4)
    assert not teacher.training
    assert all(parameter.grad is None for parameter in teacher.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in teacher.state_dict().items())


def test_a_network_without_tokens_learns_both_with_its_one_classifier():
    network = build_network(BiTConfig(depths=(1,), width=0.5, image_size=(16, 16), classes=3))
    objective = build_objective(network, Distill(), Setting(teacher_targets=image_targets(TABLE)))
    loss, _ = objective(batch(), 0.0)
    assert loss.item() == pytest.approx(np.log(3), abs=1e-5)  # its classifier starts at zero
    loss.backward()
    expected = (1 / 3 - (ONE_HOT + CHOSEN) / 2).mean(axis=0)
    np.testing.assert_allclose(network.head.fc.bias.grad, expected, atol=1e-6)


def test_without_a_teacher_there_is_a_sentence():
    with pytest.raises(UserError, match="distill"):
        build_objective(student(), Distill(), Setting())


def test_the_keep_schedule_holds_for_the_student_alone():
    """Half the patches are left out of what the student sees, for both tokens."""
    objective = build(Distill(keep_schedule=((0.5, 0.5),)), distilled=True)
    seen, looked = batch(), []
    embed = objective.model.embed
    objective.model.embed = lambda images, keep=None, keys=None: looked.append(keep) or embed(images, keep, keys)
    objective(seen, 0.1)
    objective(seen, 0.9)
    assert looked[0].shape == (11, 8)
    assert looked[1] is None


# ---- images prepared anew ------------------------------------------------------------------------------------------

OTHER = Preprocess(size=(16, 16), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


def random_images(channels=3, side=16):
    """Of middling levels: where a resize overshoots, Pillow cuts off between its two passes, and nobody else does."""
    return (70 + 110 * torch.rand(4, channels, side, side, generator=torch.Generator().manual_seed(2))).to(torch.uint8)


def test_a_teacher_of_the_same_preparation_sees_the_same_bits():
    images = normalise(random_images(), PREPROCESS)
    assert renormalise(images, PREPROCESS, replace(PREPROCESS, crop=0.9, interpolation="bilinear")) is images


def test_other_mean_and_std():
    found = renormalise(normalise(random_images(), PREPROCESS), PREPROCESS, OTHER)
    x = random_images().double().numpy() / 255
    mean, std = (np.array(values)[:, None, None] for values in (OTHER.mean, OTHER.std))
    np.testing.assert_allclose(found, (x - mean) / std, atol=1e-5)


def test_another_size_is_what_pillow_makes_of_the_view(subtests):
    """To within 2 of 255 levels: Pillow rounds to bytes."""
    for size, how in product(((8, 8), (24, 24), (12, 20)), ("bilinear", "bicubic")):
        with subtests.test(size=size, how=how):
            wanted = replace(OTHER, size=size, interpolation=how, crop=0.8)
            found = renormalise(normalise(random_images(), PREPROCESS), PREPROCESS, wanted)
            assert found.shape == (4, 3, *size)
            mean, std = (torch.tensor(values)[:, None, None] for values in (OTHER.mean, OTHER.std))
            levels = (255 * (found * std + mean)).numpy()
            for level, one in zip(levels, random_images(), strict=True):
                image = Image.fromarray(one.permute(1, 2, 0).numpy())
                pillow = image.resize(size[::-1], {"bilinear": Image.BILINEAR, "bicubic": Image.BICUBIC}[how])
                assert np.abs(level - np.asarray(pillow).transpose(2, 0, 1)).max() < 2


def test_grey_images_for_a_teacher_of_colours_and_the_other_way_round():
    grey = Preprocess(size=(16, 16), mean=(0.5,), std=(0.5,))
    found = renormalise(normalise(random_images(1), grey), grey, OTHER)
    x = random_images(1).double().numpy() / 255
    mean, std = (np.array(values)[:, None, None] for values in (OTHER.mean, OTHER.std))
    np.testing.assert_allclose(found, (np.repeat(x, 3, axis=1) - mean) / std, atol=1e-5)
    found = renormalise(normalise(random_images(), OTHER), OTHER, grey)
    for one, image in zip(found, random_images(), strict=True):
        pillow = Image.fromarray(image.permute(1, 2, 0).numpy()).convert("L")
        assert np.abs(127.5 * one[0].numpy() + 127.5 - np.asarray(pillow)).max() <= 1
